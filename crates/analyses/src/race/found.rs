//! The races that were found: one for each pair of places in the code.

use super::access::Access;
use super::words::{Counter, Words};
use std::sync::{Mutex, PoisonError};

/// Words of a race: its key, how often it was seen, and the two accesses.
const ENTRY: usize = 8;

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// The two; the one with the lesser code address first.
    pub accesses: [Access; 2],
    /// Pairs of accesses that were seen to race so, at these two places in the code.
    pub seen: u64,
}

/// The table of races.
#[derive(Debug)]
pub struct Found {
    at: usize,
    count: usize,
    adding: Mutex<()>,
}

impl Found {
    /// Words of a table for so many races (a power of two).
    pub const fn table(count: usize) -> usize {
        ENTRY * count
    }

    /// The table from this word on.
    pub const fn new(at: usize, count: usize) -> Found {
        Found {
            at,
            count,
            adding: Mutex::new(()),
        }
    }

    /// Adds a race of two accesses, with the addresses of their code. Of several with the same code, the one
    /// that comes first in the order of accesses is kept, so that it does not matter which is seen first.
    pub fn add(&self, words: &Words<'_>, one: (&Access, u64), other: (&Access, u64)) {
        let order = |(access, code): (&Access, u64)| (code, access.kind, *access);
        let (first, second) = match order(one) <= order(other) {
            true => (one, other),
            false => (other, one),
        };
        let kinds = u64::from(first.0.kind) << 4 | u64::from(second.0.kind);
        let key = (first.1 ^ second.1.rotate_left(31))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(kinds)
            .max(1);
        let mut index = (key >> 40) as usize & (self.count - 1);
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..self.count / 2 {
            let at = self.at + ENTRY * index;
            match words.get(at) {
                0 => {
                    store(words, at, first.0, second.0);
                    words.set(at + 1, 1);
                    words.set(at, key);
                    return;
                }
                known if known == key => {
                    let race = load(words, at);
                    let place = |a: &Access, b: &Access| (a.granule, a.thread, a.segment, *b);
                    if place(first.0, second.0) < place(&race.accesses[0], &race.accesses[1]) {
                        store(words, at, first.0, second.0);
                    }
                    words.set(at + 1, race.seen + 1);
                    return;
                }
                _ => index = (index + 1) & (self.count - 1),
            }
        }
        words.add(Counter::RacesLost, 1);
    }

    /// All that were found, in no order.
    pub fn all(&self, words: &Words<'_>) -> Vec<Race> {
        let places = (0..self.count).map(|index| self.at + ENTRY * index);
        places
            .filter(|at| words.get(*at) != 0)
            .map(|at| load(words, at))
            .collect()
    }
}

fn store(words: &Words<'_>, at: usize, first: &Access, second: &Access) {
    for (access, at) in [(first, at + 2), (second, at + 5)] {
        let (place, segment, site, extent) = access.packed(1);
        words.set(at, place);
        words.set(at + 1, u64::from(segment) << 32 | u64::from(site));
        words.set(at + 2, u64::from(extent));
    }
}

fn load(words: &Words<'_>, at: usize) -> Race {
    let access = |at: usize| {
        let times = words.get(at + 1);
        let extent = words.get(at + 2) as u32;
        Access::unpacked(words.get(at), (times >> 32) as u32, times as u32, extent).access
    };
    Race {
        accesses: [access(at + 2), access(at + 5)],
        seen: words.get(at + 1),
    }
}
