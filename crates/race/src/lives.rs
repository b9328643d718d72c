//! Which of its lives memory has: it begins another when it is allocated again. Accesses to one life are not
//! compared with those to another, however the allocator made sure that it is free.
//!
//! A life is a number of twenty-four bits: accesses can be compared many lives after they were made. Its last
//! eight are a byte for each *piece* of sixteen bytes of memory, in a table by the address. The others are shared
//! by the eight pieces of a *row*, in a second table, of which little is ever written. Where a piece begins its
//! 256th life, its neighbours begin another, too: a race between accesses before and after that is not found.
//!
//! Addresses that are four gibibytes apart share their lives, which can hide a race where the one is allocated
//! between two accesses to the other: stacks are allocated by the megabyte. So what is mapped (stacks, libraries,
//! large blocks) and what lies at the program (its own variables, small blocks) have a half of the tables each:
//! Linux places the two far apart, and each of them in one piece.
//!
//! **Why it is sound.** The tables are mapped once, of this size, and hold atomic integers: the second begins where
//! the first ends, at the beginning of a page.

use corewise_analyses::race::LIFE_BITS;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};

/// Pieces of a half of the table, a byte each. A power of two.
const HALF: usize = 1 << 28;
/// Bytes of a piece, and of a row.
const PIECE: u64 = 16;
const ROW: u64 = 8 * PIECE;
/// Bytes of the table of pieces, and behind it of rows, two each.
const PIECES: usize = 2 * HALF;
const ROWS: usize = PIECES / 8 * 2;
const _: () = assert!(LIFE_BITS == 8 + 16);

/// Set in addresses that Linux chooses for what is mapped, and not in those at the program (x86-64).
const MAPPED: u64 = 1 << 45;

static AT: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the table. Without it, all memory has one life.
pub(crate) fn begin() {
    if !AT.load(Ordering::Acquire).is_null() {
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, where the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PIECES + ROWS,
            protection,
            flags,
            -1,
            0,
        )
    };
    if at != libc::MAP_FAILED {
        AT.store(at.cast(), Ordering::Release);
    }
}

/// Where the piece of an address is in the table.
#[inline(always)]
fn place(address: u64) -> usize {
    let half = if address & MAPPED == 0 { 0 } else { HALF };
    half | (address / PIECE) as usize & (HALF - 1)
}

/// The life of an address: what its piece has, and its row.
#[inline(always)]
fn life(address: u64) -> Option<(&'static AtomicU8, &'static AtomicU16)> {
    let table = AT.load(Ordering::Relaxed);
    if table.is_null() {
        return None;
    }
    let piece = place(address);
    // SAFETY: within the tables, and at an even address in the second.
    unsafe {
        let row = table.add(PIECES).cast::<AtomicU16>().add(piece / 8);
        Some((&*table.add(piece), &*row))
    }
}

/// The life of the memory there.
#[inline(always)]
pub(crate) fn of(address: u64) -> u32 {
    life(address).map_or(0, |(piece, row)| {
        u32::from(row.load(Ordering::Relaxed)) << 8 | u32::from(piece.load(Ordering::Relaxed))
    })
}

/// Memory begins another life, which it says.
pub(crate) fn next(address: u64, bytes: u64) -> u32 {
    let end = address + bytes.min(PIECE * HALF as u64 - PIECE);
    let mut at = address & !(PIECE - 1);
    while at < end {
        let Some((piece, row)) = life(at) else {
            return 0;
        };
        if at.is_multiple_of(ROW) && end - at >= ROW {
            each_next(at, row);
            at += ROW;
        } else {
            let next = piece.load(Ordering::Relaxed).wrapping_add(1);
            piece.store(next, Ordering::Relaxed);
            if next == 0 {
                row_next(row);
            }
            at += PIECE;
        }
    }
    of(address)
}

#[cold]
fn row_next(row: &AtomicU16) {
    row.fetch_add(1, Ordering::Relaxed);
}

/// The same for the eight pieces of the row from this address on, at once.
#[inline(always)]
fn each_next(address: u64, row: &AtomicU16) {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    const ONE: u64 = 0x0101_0101_0101_0101;
    let table = AT.load(Ordering::Relaxed);
    // SAFETY: within the table, and aligned: the address is that of a row.
    let lives = unsafe { &*table.add(place(address)).cast::<AtomicU64>() };
    let all = lives.load(Ordering::Relaxed);
    // No byte carries into the next.
    let sums = (all & LOW) + ONE;
    lives.store(sums ^ (all & !LOW), Ordering::Relaxed);
    if sums & all & !LOW != 0 {
        row_next(row);
    }
}

/// How many bytes from here on are of the same life, at most so many, and at least one.
pub(crate) fn alike(address: u64, bytes: u64) -> u64 {
    let first = of(address);
    let pieces = 1..=(address + bytes - 1) / PIECE - address / PIECE;
    let differs = |piece: &u64| of(address + PIECE * piece) != first;
    match pieces.into_iter().find(differs) {
        Some(piece) => (address / PIECE + piece) * PIECE - address,
        None => bytes,
    }
}
