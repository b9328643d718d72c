//! Which of its lives memory has: it begins another when it is allocated again. Accesses to one life are not
//! compared with those to another, however the allocator made sure that it is free.
//!
//! A life is a number of twenty-four bits: accesses can be compared many lives after they were made. Its last
//! eight are a byte for each *piece* of sixteen bytes of memory, in a table by the address. The others are shared
//! by the eight pieces of a *row*, in a second table, of which little is ever written. Where a piece begins its
//! 256th life, its neighbours begin another, too: a race between accesses before and after that is not found.
//!
//! Only memory that somebody accessed can begin another life: that of the rest is told from nobody's. So the tables
//! are written, and take memory, only for *chunks* of which an access was recorded; a third table has a byte for
//! each.
//!
//! Addresses that are four gibibytes apart share their lives, which can hide a race where the one is allocated
//! between two accesses to the other: stacks are allocated by the megabyte. So what is mapped (stacks, libraries,
//! large blocks) and what lies at the program (its own variables, small blocks) have a half of the tables each:
//! Linux places the two far apart, and each of them in one piece.
//!
//! **Why it is sound.** The tables are mapped once, of this size, and hold atomic integers: each begins where the one
//! before it ends, at the beginning of a page.

use corewise_analyses::race::LIFE_BITS;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Pieces of a half of the table, a byte each. A power of two.
const HALF: usize = 1 << 28;
/// Bytes of a piece, and of a row.
const PIECE: u64 = 16;
const ROW: u64 = 8 * PIECE;
/// Pieces of a chunk, of 4 KiB: whether any of it was accessed is known.
const CHUNK: usize = 1 << 8;
/// Bytes of the table of pieces, behind it of rows, two each, and of chunks.
const PIECES: usize = 2 * HALF;
const ROWS: usize = PIECES / 8 * 2;
const CHUNKS: usize = PIECES / CHUNK;
const CHUNK_BYTES: u64 = PIECE * CHUNK as u64;
const _: () = assert!(LIFE_BITS == 8 + 16);

/// Set in addresses that Linux chooses for what is mapped, and not in those at the program (x86-64).
const MAPPED: u64 = 1 << 45;

static AT: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Odd: memory began another life since somebody asked ([`begun`]).
static BEGUN: AtomicU32 = AtomicU32::new(0);

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
            PIECES + ROWS + CHUNKS,
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

/// Whether an access to the chunk with this address was recorded.
#[inline(always)]
fn chunk(address: u64) -> Option<&'static AtomicU8> {
    let table = AT.load(Ordering::Relaxed);
    // SAFETY: within the tables.
    (!table.is_null()).then(|| unsafe { &*table.add(PIECES + ROWS + place(address) / CHUNK) })
}

/// The life of the memory there.
#[inline(always)]
pub(crate) fn of(address: u64) -> u32 {
    life(address).map_or(0, |(piece, row)| {
        u32::from(row.load(Ordering::Relaxed)) << 8 | u32::from(piece.load(Ordering::Relaxed))
    })
}

/// The same, of an access that is recorded.
#[inline(always)]
pub(crate) fn of_accessed(address: u64) -> u32 {
    if let Some(chunk) = chunk(address)
        && chunk.load(Ordering::Relaxed) == 0
    {
        chunk.store(1, Ordering::Relaxed);
    }
    of(address)
}

/// The parts of memory of which an access was recorded since the program began, by chunks.
pub(crate) fn accessed(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = start / CHUNK_BYTES;
    let all = (first..end.div_ceil(CHUNK_BYTES)).map(move |index| {
        let at = index * CHUNK_BYTES;
        (at.max(start), (at + CHUNK_BYTES).min(end))
    });
    all.filter(|(at, _)| chunk(*at).is_some_and(|chunk| chunk.load(Ordering::Relaxed) != 0))
}

/// Memory begins another life, which it says.
pub(crate) fn next(address: u64, bytes: u64) -> u32 {
    let end = address + bytes.min(PIECE * HALF as u64 - PIECE);
    let mut at = address & !(PIECE - 1);
    let mut any = false;
    while at < end {
        let behind = (at / CHUNK_BYTES + 1) * CHUNK_BYTES;
        match chunk(at) {
            None => return 0,
            Some(chunk) if chunk.load(Ordering::Relaxed) != 0 => {
                each_piece(at, end.min(behind));
                any = true;
            }
            Some(_) => {}
        }
        at = behind;
    }
    // Who uses the memory afterwards, and was given it, finds this said. Mostly it is said already.
    if any && BEGUN.load(Ordering::Relaxed) & 1 == 0 {
        BEGUN.fetch_or(1, Ordering::Release);
    }
    of(address)
}

/// A number that is another one whenever memory that was accessed began another life meanwhile, by whichever thread.
pub(crate) fn begun() -> u32 {
    let now = BEGUN.load(Ordering::Acquire);
    if now & 1 == 0 {
        return now;
    }
    let next = now.wrapping_add(1);
    match BEGUN.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => next,
        // Somebody else asked, and there may be another by now.
        Err(now) => now & !1,
    }
}

/// All pieces of a chunk's memory begin another.
fn each_piece(mut at: u64, end: u64) {
    while at < end {
        let Some((piece, row)) = life(at) else {
            return;
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
}

#[cold]
fn row_next(row: &AtomicU16) {
    row.fetch_add(1, Ordering::Relaxed);
}

/// The last eight bits of the lives of the row's pieces from this address on, which is a row's.
#[inline(always)]
fn eight(address: u64) -> Option<&'static AtomicU64> {
    let table = AT.load(Ordering::Relaxed);
    let at = place(address) & !7;
    // SAFETY: within the table, and aligned.
    (!table.is_null()).then(|| unsafe { &*table.add(at).cast::<AtomicU64>() })
}

/// The same for the eight pieces of the row from this address on, at once.
#[inline(always)]
fn each_next(address: u64, row: &AtomicU16) {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    const ONE: u64 = 0x0101_0101_0101_0101;
    let Some(lives) = eight(address) else {
        return;
    };
    let all = lives.load(Ordering::Relaxed);
    // No byte carries into the next.
    let sums = (all & LOW) + ONE;
    lives.store(sums ^ (all & !LOW), Ordering::Relaxed);
    if sums & all & !LOW != 0 {
        row_next(row);
    }
}

/// How many bytes from here on, which are accessed, are of the same life; at most so many, and at least one.
pub(crate) fn alike(address: u64, bytes: u64) -> u64 {
    let (first, end) = (of_accessed(address), address + bytes);
    let mut at = (address / PIECE + 1) * PIECE;
    while at < end {
        if of_accessed(at) != first {
            return at - address;
        }
        at += match at.is_multiple_of(ROW) && end - at >= ROW && are_all(at, first) {
            true => ROW,
            false => PIECE,
        };
    }
    bytes
}

/// Whether the eight pieces of the row from this address on have this life, as the first one has.
#[inline(always)]
fn are_all(address: u64, life: u32) -> bool {
    let all = u64::from(life as u8) * (u64::MAX / 0xff);
    eight(address).is_some_and(|lives| lives.load(Ordering::Relaxed) == all)
}
