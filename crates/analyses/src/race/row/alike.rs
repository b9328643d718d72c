//! Entries of a list of which not all are needed: those that are alike, and those of the life before.

use super::super::access::{Access, kind, lives_between};
use super::Asks;
use super::list::{Form, Known};
use std::sync::atomic::AtomicU64;

/// Entries that are alike and looked at together.
const MOST_ALIKE: usize = 8;
/// Threads and kinds whose accesses in the life before are told apart.
const MOST_BEFORE: usize = 8;

/// Of bytes that were accessed in the same way in many segments, keeps the first and the last two, and of what
/// is new as much. Whether any were left out.
pub(super) fn shorten<F: Form>(
    block: &[AtomicU64],
    alike: &Alike,
    segment: u32,
    new: &mut u128,
) -> bool {
    let mut all = [(segment, None, *new); MOST_ALIKE + 1];
    for (place, (segment, at)) in all.iter_mut().zip(alike.known()) {
        *place = (segment, Some(at), F::bytes(F::entry(block, at)));
    }
    let all = &mut all[..=alike.count];
    all.sort_unstable_by_key(|(segment, ..)| *segment);
    // Bytes that so many later ones have, and that earlier ones have.
    let (mut once, mut twice, mut earlier) = (0, 0, 0);
    let mut last = [0; MOST_ALIKE + 1];
    for (last, (.., bytes)) in last.iter_mut().zip(&*all).rev() {
        *last = bytes & !twice;
        (once, twice) = (once | bytes, twice | once & bytes);
    }
    let mut any = false;
    for (last, (_, at, bytes)) in last.iter().zip(&*all) {
        let kept = last | bytes & !earlier;
        earlier |= bytes;
        any |= kept != *bytes;
        match at {
            None => *new = kept,
            Some(at) if kept != *bytes => {
                F::set_bytes(F::entry(block, *at), kept);
            }
            Some(_) => {}
        }
    }
    any
}

/// Entries that are alike: their segments, and where they are.
#[derive(Default)]
pub(super) struct Alike {
    pub(super) count: usize,
    all: [(u32, u32); MOST_ALIKE],
}

impl Alike {
    /// Where there are too many, the others stay.
    pub(super) fn add(&mut self, segment: u32, at: usize) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = (segment, at as u32);
            self.count += 1;
        }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = (u32, usize)> {
        let known = self.all[..self.count].iter();
        known.map(|(segment, entry)| (*segment, *entry as usize))
    }
}

/// The bytes that were seen of the life before, by thread and kind.
#[derive(Default)]
pub(super) struct Before([Option<(u16, u8, u128)>; MOST_BEFORE]);

impl Before {
    /// Which of these bytes were seen already. Where there are too many threads and kinds: none.
    pub(super) fn seen(&mut self, access: &Access, bytes: u128) -> u128 {
        for place in &mut self.0 {
            let (thread, kind, seen) = place.get_or_insert((access.thread, access.kind, 0));
            if (*thread, *kind) == (access.thread, access.kind) {
                let known = *seen & bytes;
                *seen |= bytes;
                return known;
            }
        }
        0
    }
}

/// Of memory that the thread of a new access freed before it was allocated again, keeps that, and no entries of the
/// same life that it stands for by now. How many entries are left, and how many of those that went were other threads'.
#[cold]
pub(super) fn leave_freed<F: Form>(
    block: &[AtomicU64],
    new: &Access,
    asks: &mut impl Asks,
) -> (usize, u64) {
    let is_before = |known: &Known| lives_between(new.life, known.access.life) == 1;
    let is_freed = |known: &Known| known.access.kind & kind::FREE != 0;
    let all = || F::entries(block).map(F::read);
    let freed =
        |known: &Known| is_freed(known) && is_before(known) && known.access.thread == new.thread;
    let freed: Option<Known> = all().find(freed);
    let mut count = F::entries(block).len();
    let Some(freed) = freed else {
        return (count, 0);
    };
    let (mut index, mut others) = (0, 0);
    while index < count {
        let entry = F::entry(block, index);
        let known = F::read(entry);
        let goes = is_before(&known)
            && !is_freed(&known)
            && known.bytes & !freed.bytes == 0
            && asks.stands_for(&freed.access, &known.access);
        if goes {
            others += u64::from(known.access.thread != new.thread);
            count -= 1;
            F::write(entry, &F::read(F::entry(block, count)));
        } else {
            index += 1;
        }
    }
    (count, others)
}
