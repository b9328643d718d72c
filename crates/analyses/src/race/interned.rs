//! Pairs of words that have a number: places in the code, stacks and sets of locks, each made of one thing
//! more than another. Equal pairs have equal numbers.

use super::words::{Counter, Words};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// A table of pairs. Number 0 is that of nothing, and of what had no room.
#[derive(Debug)]
pub struct Interned {
    at: usize,
    count: usize,
    adding: Mutex<usize>,
}

impl Interned {
    /// A table of so many pairs (a power of two), from this word on: two words for each.
    pub const fn new(at: usize, count: usize) -> Interned {
        Interned {
            at,
            count,
            adding: Mutex::new(0),
        }
    }

    /// The words that it takes.
    pub const fn words(count: usize) -> usize {
        2 * count
    }

    /// The number of a pair; `first` is not 0. Where there is no room, 0, and that is counted.
    pub fn number(&self, words: &Words<'_>, first: u64, second: u64) -> u32 {
        match self.find(words, first, second) {
            Ok(number) => number,
            Err(_) => self.add(words, first, second),
        }
    }

    fn find(&self, words: &Words<'_>, first: u64, second: u64) -> Result<u32, usize> {
        let mixed = (first ^ second.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut index = (mixed >> 32) as usize & (self.count - 1);
        // A table that the program has written full has no free place to end at.
        for _ in 0..self.count {
            // Number 0 means nothing.
            if index == 0 {
                index = 1;
            }
            let at = self.at + 2 * index;
            let known = words.get(at);
            if known == first && words.get(at + 1) == second {
                return Ok(index as u32);
            }
            if known == 0 {
                return Err(index);
            }
            index = (index + 1) & (self.count - 1);
        }
        Err(1)
    }

    #[cold]
    fn add(&self, words: &Words<'_>, first: u64, second: u64) -> u32 {
        let mut used = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        match self.find(words, first, second) {
            Ok(number) => number,
            // Full enough to be slow.
            Err(_) if *used >= self.count / 4 * 3 => {
                words.add(Counter::NoNames, 1);
                0
            }
            Err(index) => {
                *used += 1;
                let at = self.at + 2 * index;
                words.word(at + 1).store(second, Ordering::Relaxed);
                words.set(at, first);
                index as u32
            }
        }
    }

    /// The pair of a number; zeros for 0, and for what is not a number of this table.
    pub fn pair(&self, words: &Words<'_>, number: u32) -> (u64, u64) {
        let number = number as usize;
        if number == 0 || number >= self.count {
            return (0, 0);
        }
        let at = self.at + 2 * number;
        (words.get(at), words.get(at + 1))
    }
}
