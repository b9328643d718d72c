//! Pairs of numbers, each once, that are then known by one: stacks, places in the code, sets of locks.
//!
//! Pairs are kept in the order in which they came, a chunk of memory after the other, and found by a table of their
//! numbers, which is followed by one of twice its size when it is three quarters full: so a program with few of them
//! takes little memory.

use super::words::{Counter, Words};
use std::sync::{Mutex, PoisonError};

/// Places of the first table of numbers. A power of two.
const FIRST: usize = 1 << 10;
/// Pairs of a chunk.
const CHUNK: usize = 512;
/// How many words there are before the list of chunks: how many pairs there are, and where the table of numbers is.
const HEAD: usize = 2;

/// A table. Looking up takes no lock.
#[derive(Debug)]
pub struct Interned {
    at: usize,
    count: usize,
    adding: Mutex<()>,
}

/// A table of numbers, two in a word.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    at: usize,
    /// A power of two.
    size: usize,
}

impl Numbers {
    /// The word of a place, and by how much its number is shifted there.
    fn place(self, index: usize) -> (usize, u32) {
        (self.at + index / 2, 32 * (index % 2) as u32)
    }

    fn get(self, words: &Words<'_>, index: usize) -> u32 {
        let (word, shift) = self.place(index);
        (words.get(word) >> shift) as u32
    }

    /// Only one thread sets at a time.
    fn set(self, words: &Words<'_>, index: usize, number: u32) {
        let (word, shift) = self.place(index);
        words.set(word, words.get(word) | u64::from(number) << shift);
    }
}

impl Interned {
    /// For so many pairs (a power of two, at least 2,048), from this word on.
    pub const fn new(at: usize, count: usize) -> Interned {
        Interned {
            at,
            count,
            adding: Mutex::new(()),
        }
    }

    /// The words that it takes as long as it is empty.
    pub const fn words(count: usize) -> usize {
        HEAD + count / CHUNK
    }

    /// The number of a pair; `first` is not 0. Where there is no room, 0, and that is counted.
    pub fn number(&self, words: &Words<'_>, first: u64, second: u64) -> u32 {
        let pair = (first, second);
        let numbers = self.numbers(words);
        match numbers.map(|numbers| self.find(words, numbers, pair)) {
            Some(Ok(number)) => number,
            _ => self.add(words, pair).unwrap_or_else(|| {
                words.add(Counter::NoNames, 1);
                0
            }),
        }
    }

    /// The table of numbers. `None`: nothing has a number yet.
    fn numbers(&self, words: &Words<'_>) -> Option<Numbers> {
        let word = words.get(self.at + 1);
        (word != 0).then(|| Numbers {
            at: word as u32 as usize,
            size: 1 << (word >> 32).min(u64::from(self.count.ilog2())),
        })
    }

    /// The number of a pair, or the place where it would be.
    fn find(&self, words: &Words<'_>, numbers: Numbers, pair: (u64, u64)) -> Result<u32, usize> {
        let mixed = (pair.0 ^ pair.1.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut index = (mixed >> 32) as usize & (numbers.size - 1);
        // A table that the program has written full has no free place to end at.
        for _ in 0..numbers.size {
            match numbers.get(words, index) {
                0 => return Err(index),
                number if self.pair(words, number) == pair => return Ok(number),
                _ => index = (index + 1) & (numbers.size - 1),
            }
        }
        Err(0)
    }

    /// `None`: there is no room.
    #[cold]
    fn add(&self, words: &Words<'_>, pair: (u64, u64)) -> Option<u32> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        // Number 0 means nothing.
        let number = words.get(self.at).min(self.count as u64) as usize + 1;
        let numbers = match self.numbers(words) {
            Some(numbers) if number <= numbers.size / 4 * 3 => numbers,
            before => self.larger(words, before, number as u32)?,
        };
        let index = match self.find(words, numbers, pair) {
            Ok(number) => return Some(number),
            Err(index) => index,
        };
        let listed = self.at + HEAD + number / CHUNK;
        if words.get(listed) == 0 {
            words.set(listed, words.take(2 * CHUNK)? as u64);
        }
        let at = words.get(listed) as usize + 2 * (number % CHUNK);
        words.set(at, pair.0);
        words.set(at + 1, pair.1);
        words.set(self.at, number as u64);
        numbers.set(words, index, number as u32);
        Some(number as u32)
    }

    /// A table of numbers with more room, and the same numbers.
    fn larger(&self, words: &Words<'_>, before: Option<Numbers>, next: u32) -> Option<Numbers> {
        let size = before.map_or(FIRST, |before| 2 * before.size);
        if size > self.count {
            return None;
        }
        let at = words.take(size / 2)?;
        let numbers = Numbers { at, size };
        for known in 1..next {
            if let Err(index) = self.find(words, numbers, self.pair(words, known)) {
                numbers.set(words, index, known);
            }
        }
        let at = u32::try_from(at).ok()?;
        words.set(self.at + 1, u64::from(size.ilog2()) << 32 | u64::from(at));
        Some(numbers)
    }

    /// The pair of a number; zeros for 0, and for what is not a number of this table.
    pub fn pair(&self, words: &Words<'_>, number: u32) -> (u64, u64) {
        let number = number as usize;
        if number == 0 || number >= self.count {
            return (0, 0);
        }
        match words.get(self.at + HEAD + number / CHUNK) as usize {
            0 => (0, 0),
            chunk => {
                let at = chunk + 2 * (number % CHUNK);
                (words.get(at), words.get(at + 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::{HEAD, Reserve};
    use super::{Counter, Interned, Words};
    use std::collections::HashMap;
    use std::sync::atomic::AtomicU64;

    const COUNT: usize = 1 << 13;

    fn memory() -> Vec<AtomicU64> {
        // The pairs, and tables of numbers.
        let most = HEAD + Interned::words(COUNT) + 2 * COUNT + COUNT;
        (0..most).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_pair_keeps_its_number_while_the_table_grows_until_it_is_full() {
        let all = memory();
        let words = Words::new(&all, Reserve::Not, HEAD + Interned::words(COUNT)).unwrap();
        let table = Interned::new(HEAD, COUNT);
        let most = COUNT / 4 * 3;
        let pair = |n: usize| (0x40_0000 + 8 * (n as u64 % 97), n as u64);
        let mut numbers = HashMap::new();
        for n in 1..=most {
            let number = table.number(&words, pair(n).0, pair(n).1);
            assert!(number > 0 && numbers.insert(number, n).is_none(), "{n}");
        }
        for (number, n) in &numbers {
            assert_eq!(table.pair(&words, *number), pair(*n));
            assert_eq!(table.number(&words, pair(*n).0, pair(*n).1), *number);
        }
        assert_eq!(words.count(Counter::NoNames), 0);
        assert_eq!(table.number(&words, 1, 0), 0);
        assert_eq!(words.count(Counter::NoNames), 1);
        // Whoever goes on with the same words, as the command does, knows them, too.
        let again = Interned::new(HEAD, COUNT);
        let (number, n) = numbers.iter().next().unwrap();
        assert_eq!(again.number(&words, pair(*n).0, pair(*n).1), *number);
    }

    #[test]
    fn what_a_program_wrote_over_a_table_does_no_harm() {
        let all = memory();
        for word in &all {
            word.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        }
        let end = all.len() as u64;
        all[0].store(end, std::sync::atomic::Ordering::Relaxed);
        let words = Words::new(&all, Reserve::Not, HEAD).unwrap();
        let table = Interned::new(HEAD, COUNT);
        assert_eq!(table.number(&words, 7, 7), 0);
        assert_eq!(table.pair(&words, u32::MAX), (0, 0));
    }
}
