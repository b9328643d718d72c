//! Which of its lives memory has: it begins another when it is allocated again. Accesses to one life are not
//! compared with those to another, however the allocator made sure that it is free.
//!
//! One byte for sixteen bytes of memory, in a table by the address. Addresses that are four gibibytes apart share
//! theirs, which can hide a race where the one is allocated between two accesses to the other: stacks are
//! allocated by the megabyte. So what is mapped (stacks, libraries, large blocks) and what lies at the program (its
//! own variables, small blocks) have a half of the table each: Linux places the two far apart, and each of them
//! in one piece.
//!
//! **Why it is sound.** The table is mapped once, of this size, and holds atomic bytes.

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

/// Bytes of a half of the table. A power of two.
const HALF: usize = 1 << 28;

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
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * HALF, protection, flags, -1, 0) };
    if at != libc::MAP_FAILED {
        AT.store(at.cast(), Ordering::Release);
    }
}

/// Where the life of an address is in the table.
#[inline(always)]
fn place(address: u64) -> usize {
    let half = if address & MAPPED == 0 { 0 } else { HALF };
    half | (address >> 4) as usize & (HALF - 1)
}

#[inline(always)]
fn life(address: u64) -> Option<&'static AtomicU8> {
    let table = AT.load(Ordering::Relaxed);
    if table.is_null() {
        return None;
    }
    // SAFETY: within the table.
    Some(unsafe { &*table.add(place(address)) })
}

/// The life of the memory there.
#[inline(always)]
pub(crate) fn of(address: u64) -> u8 {
    life(address).map_or(0, |life| life.load(Ordering::Relaxed))
}

/// Memory begins another life, which it says.
pub(crate) fn next(address: u64, bytes: u64) -> u8 {
    if AT.load(Ordering::Relaxed).is_null() {
        return 0;
    }
    let end = address + bytes.min(16 * HALF as u64 - 16);
    let mut at = address & !15;
    while at < end {
        if at.is_multiple_of(128) && end - at >= 128 {
            each_next(at);
            at += 128;
        } else {
            if let Some(life) = life(at) {
                life.store(
                    life.load(Ordering::Relaxed).wrapping_add(1),
                    Ordering::Relaxed,
                );
            }
            at += 16;
        }
    }
    of(address)
}

/// The same for the eight lives from this address on, at once.
#[inline(always)]
fn each_next(address: u64) {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    const ONE: u64 = 0x0101_0101_0101_0101;
    let table = AT.load(Ordering::Relaxed);
    // SAFETY: within the table, and aligned: the address is a multiple of 128.
    let lives = unsafe { &*table.add(place(address)).cast::<AtomicU64>() };
    let all = lives.load(Ordering::Relaxed);
    // No byte carries into the next.
    lives.store(((all & LOW) + ONE) ^ (all & !LOW), Ordering::Relaxed);
}

/// How many bytes from here on are of the same life, at most so many, and at least one.
pub(crate) fn alike(address: u64, bytes: u64) -> u64 {
    let first = of(address);
    let pieces = 1..=(address + bytes - 1) / 16 - address / 16;
    let differs = |piece: &u64| of(address + 16 * piece) != first;
    match pieces.into_iter().find(differs) {
        Some(piece) => (address / 16 + piece) * 16 - address,
        None => bytes,
    }
}
