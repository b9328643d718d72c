//! Memory of the shadow: blocks of sizes that are powers of two, taken from chunks and given back to their buddies
//! (Knowlton, *A Fast Storage Allocator*, CACM 1965), so that lists that grew leave room for others that grow.

use super::super::words::Words;

/// Words of the smallest block, a *unit*.
pub(super) const UNIT: usize = 4;
/// Sizes of blocks: of one unit, two, four, ...
const SIZES: usize = 7;
/// Units of a chunk. Its address is a multiple of its size.
const CHUNK: u32 = 256;
/// Units at its begin that say which of its blocks are free: a bit for each block of each size.
const HEAD: u32 = 2;

/// The units of a block of this size.
pub(super) const fn units(size: usize) -> usize {
    1 << size
}

/// The words where a unit begins.
#[inline(always)]
pub(super) fn words_at(unit: u32) -> usize {
    UNIT * unit as usize
}

/// Blocks that nobody uses, of one share of the memory.
#[derive(Debug, Default)]
pub(in super::super) struct Blocks {
    /// By size; those whose bit is not set are no longer free.
    free: [Vec<u32>; SIZES],
}

impl Blocks {
    /// An empty block of so many words at least: the word where it begins. `None`: there is no room, or no block is
    /// that large.
    pub(in super::super) fn take_words(
        &mut self,
        words: &Words<'_>,
        count: usize,
    ) -> Option<usize> {
        let size = (0..SIZES).find(|size| UNIT * units(*size) >= count)?;
        let at = words_at(self.take(words, size)?);
        for word in at..at + UNIT * units(size) {
            words.set(word, 0);
        }
        Some(at)
    }

    /// A block of this size, with anything in it.
    pub(super) fn take(&mut self, words: &Words<'_>, size: usize) -> Option<u32> {
        let found = (size..SIZES).find_map(|larger| {
            std::iter::from_fn(|| self.free[larger].pop())
                .find(|unit| set(words, *unit, larger, false))
                .map(|unit| (unit, larger))
        });
        let (unit, found) = match found {
            Some(found) => found,
            None if size < SIZES => (self.take_chunk(words)?, SIZES - 1),
            None => return None,
        };
        // The rest of it.
        for smaller in size..found {
            self.put(words, unit + units(smaller) as u32, smaller);
        }
        Some(unit)
    }

    /// Takes a block back.
    pub(super) fn free(&mut self, words: &Words<'_>, mut unit: u32, size: usize) {
        for size in size..SIZES {
            let buddy = unit ^ units(size) as u32;
            if size + 1 == SIZES || !set(words, buddy, size, false) {
                return self.put(words, unit, size);
            }
            unit = unit.min(buddy);
        }
    }

    fn put(&mut self, words: &Words<'_>, unit: u32, size: usize) {
        set(words, unit, size, true);
        self.free[size].push(unit);
    }

    /// A block of the largest size from a new chunk, whose rest is free.
    #[cold]
    fn take_chunk(&mut self, words: &Words<'_>) -> Option<u32> {
        let at = words.take_aligned(words_at(CHUNK))?;
        let chunk = u32::try_from(at / UNIT).ok()?;
        // Behind the head, blocks double up to the largest.
        for size in HEAD.ilog2() as usize..SIZES {
            self.put(words, chunk + units(size) as u32, size);
        }
        let (first, largest) = (2 * units(SIZES - 1) as u32, units(SIZES - 1));
        for unit in (first..CHUNK - largest as u32).step_by(largest) {
            self.put(words, chunk + unit, SIZES - 1);
        }
        Some(chunk + CHUNK - largest as u32)
    }
}

/// Sets whether a block is free. Whether it was otherwise before.
#[inline]
fn set(words: &Words<'_>, unit: u32, size: usize, free: bool) -> bool {
    let (chunk, place) = (unit & !(CHUNK - 1), unit & (CHUNK - 1));
    // The bits of sizes before this one: half a chunk's for each size less.
    let bit = 2 * CHUNK - (2 * CHUNK >> size) + (place >> size);
    let (word, bit) = (words_at(chunk) + (bit / 64) as usize, 1 << (bit % 64));
    let bits = words.get(word);
    if (bits & bit != 0) == free {
        return false;
    }
    words.set(word, bits ^ bit);
    true
}

#[cfg(test)]
mod tests {
    use super::super::super::words::{HEAD, Reserve};
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    fn memory() -> Vec<AtomicU64> {
        (0..1 << 15).map(|_| AtomicU64::new(0)).collect()
    }

    proptest! {
        #[test]
        fn blocks_in_use_never_overlap_each_other_nor_what_says_who_is_free(
            steps in proptest::collection::vec((0_usize..SIZES, any::<prop::sample::Index>(), any::<bool>()), 1..400)
        ) {
            let all = memory();
            let words = Words::new(&all, Reserve::Not, HEAD).unwrap();
            let mut blocks = Blocks::default();
            let mut used: Vec<(u32, usize)> = Vec::new();
            for (size, index, frees) in steps {
                if frees && !used.is_empty() {
                    let (unit, size) = used.swap_remove(index.index(used.len()));
                    blocks.free(&words, unit, size);
                } else if let Some(unit) = blocks.take(&words, size) {
                    let end = unit + units(size) as u32;
                    prop_assert!(unit % CHUNK >= super::HEAD && words_at(end) <= all.len());
                    prop_assert!(unit.is_multiple_of(units(size) as u32));
                    prop_assert!(used.iter().all(|(other, size)| end <= *other || *other + units(*size) as u32 <= unit));
                    used.push((unit, size));
                }
            }
        }
    }

    #[test]
    fn what_was_given_back_is_used_for_larger_blocks() {
        let all = memory();
        let words = Words::new(&all, Reserve::Not, HEAD).unwrap();
        let mut blocks = Blocks::default();
        let small: Vec<_> = (0..200).map_while(|_| blocks.take(&words, 0)).collect();
        let used = words.used();
        for unit in small {
            blocks.free(&words, unit, 0);
        }
        for _ in 0..3 {
            assert!(blocks.take(&words, SIZES - 1).is_some());
        }
        assert_eq!(words.used(), used);
    }

    #[test]
    fn there_is_an_end() {
        let all = memory();
        let words = Words::new(&all, Reserve::Not, HEAD).unwrap();
        let mut blocks = Blocks::default();
        let count = std::iter::from_fn(|| blocks.take(&words, SIZES - 1)).count();
        assert!(count > 80 && words_at(64) * count < all.len(), "{count}");
        assert_eq!(blocks.take(&words, SIZES), None);
        assert_eq!(blocks.take_words(&words, 1000), None);
    }
}
