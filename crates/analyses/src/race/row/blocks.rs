//! Memory of the shadow: blocks of one or two pieces, whose sizes are powers of two. They are taken from chunks and given
//! back to their buddies (Knowlton, *A Fast Storage Allocator*, CACM 1965), so that lists that grew leave room for
//! others that grow.

use super::super::words::Words;

/// Words of the smallest block, a *unit*.
pub(super) const UNIT: usize = 4;
/// Pieces of memory have so many sizes: one unit, two, four, ...
const PIECES: usize = 7;
/// Blocks have so many: one unit, two, three, four, six, eight, twelve, ... Those between powers of two are two
/// pieces: less of them is empty.
pub(super) const SIZES: usize = 2 * PIECES - 2;
/// Units of a chunk. Its address is a multiple of its size.
const CHUNK: u32 = 256;
/// Units at its begin that say which of its pieces are free: a bit for each piece of each size.
const HEAD: u32 = 2;

/// The units of a block of this size.
#[inline(always)]
pub(super) const fn units(size: usize) -> usize {
    match size {
        0 => 1,
        _ => (2 + (size + 1) % 2) << ((size - 1) / 2),
    }
}

/// The smallest size that has so many units; [`SIZES`]: none has.
pub(super) fn smallest(needed: usize) -> usize {
    let mut sizes = 0..SIZES;
    sizes.find(|size| units(*size) >= needed).unwrap_or(SIZES)
}

/// The size of the piece that a block of this size begins with, and of the one behind it, if it has two.
const fn pieces(size: usize) -> (usize, Option<usize>) {
    match size {
        0 => (0, None),
        _ if size % 2 == 1 => (size / 2 + 1, None),
        _ => (size / 2, Some(size / 2 - 1)),
    }
}

/// The words where a unit begins.
#[inline(always)]
pub(super) fn words_at(unit: u32) -> usize {
    UNIT * unit as usize
}

/// Pieces that nobody uses, of one share of the memory.
#[derive(Debug, Default)]
pub(in super::super) struct Blocks {
    /// By size; those whose bit is not set are no longer free.
    free: [Vec<u32>; PIECES],
}

impl Blocks {
    /// An empty block of so many words at least: the word where it begins. `None`: there is no room, or no block is
    /// that large.
    pub(in super::super) fn take_words(
        &mut self,
        words: &Words<'_>,
        count: usize,
    ) -> Option<usize> {
        let size = smallest(count.div_ceil(UNIT));
        let at = words_at(self.take(words, size)?);
        for word in at..at + UNIT * units(size) {
            words.set(word, 0);
        }
        Some(at)
    }

    /// A block of this size, with anything in it.
    pub(super) fn take(&mut self, words: &Words<'_>, size: usize) -> Option<u32> {
        if size >= SIZES {
            return None;
        }
        // A block of two pieces is what a larger piece is without its last quarter.
        let (first, second) = pieces(size);
        let needed = first + usize::from(second.is_some());
        let found = (needed..PIECES).find_map(|larger| {
            std::iter::from_fn(|| self.free[larger].pop())
                .find(|unit| set(words, *unit, larger, false))
                .map(|unit| (unit, larger))
        });
        let (unit, found) = match found {
            Some(found) => found,
            None => (self.take_chunk(words)?, PIECES - 1),
        };
        for smaller in needed..found {
            self.put(words, unit + (1 << smaller), smaller);
        }
        if let Some(second) = second {
            self.put(words, unit + 3 * (1 << second), second);
        }
        Some(unit)
    }

    /// Gives a block of this size the next one where it is, if nobody uses the memory behind it.
    pub(super) fn grow(&mut self, words: &Words<'_>, unit: u32, size: usize) -> bool {
        if size + 1 >= SIZES {
            return false;
        }
        match pieces(size) {
            (_, Some(second)) => set(words, unit + 3 * (1 << second), second, false),
            (0, None) => unit.is_multiple_of(2) && set(words, unit + 1, 0, false),
            (first, None) => {
                let (behind, half) = (unit + (1 << first), first - 1);
                if !unit.is_multiple_of(1 << (first + 1)) {
                    return false;
                }
                if set(words, behind, first, false) {
                    self.put(words, behind + (1 << half), half);
                    return true;
                }
                set(words, behind, half, false)
            }
        }
    }

    /// Takes a block back.
    pub(super) fn free(&mut self, words: &Words<'_>, unit: u32, size: usize) {
        let (first, second) = pieces(size);
        if let Some(second) = second {
            self.free_piece(words, unit + (1 << first), second);
        }
        self.free_piece(words, unit, first);
    }

    fn free_piece(&mut self, words: &Words<'_>, mut unit: u32, size: usize) {
        for size in size..PIECES {
            let buddy = unit ^ 1 << size;
            if size + 1 == PIECES || !set(words, buddy, size, false) {
                return self.put(words, unit, size);
            }
            unit = unit.min(buddy);
        }
    }

    fn put(&mut self, words: &Words<'_>, unit: u32, size: usize) {
        set(words, unit, size, true);
        self.free[size].push(unit);
    }

    /// A piece of the largest size from a new chunk, whose rest is free.
    #[cold]
    fn take_chunk(&mut self, words: &Words<'_>) -> Option<u32> {
        const LARGEST: u32 = 1 << (PIECES - 1);
        let at = words.take_aligned(words_at(CHUNK))?;
        let chunk = u32::try_from(at / UNIT).ok()?;
        // Behind the head, pieces double up to the largest.
        for size in HEAD.ilog2() as usize..PIECES {
            self.put(words, chunk + (1 << size), size);
        }
        for unit in (2 * LARGEST..CHUNK - LARGEST).step_by(LARGEST as usize) {
            self.put(words, chunk + unit, PIECES - 1);
        }
        Some(chunk + CHUNK - LARGEST)
    }
}

/// Sets whether a piece is free. Whether it was otherwise before.
#[inline]
fn set(words: &Words<'_>, unit: u32, size: usize, free: bool) -> bool {
    let (chunk, place) = (unit & !(CHUNK - 1), unit & (CHUNK - 1));
    // The bits of sizes before this one: half a chunk's for each size less.
    let bit = 2 * CHUNK - ((2 * CHUNK) >> size) + (place >> size);
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

    #[test]
    fn sizes_grow_by_a_third_or_a_half() {
        let all: Vec<_> = (0..SIZES).map(units).collect();
        assert_eq!(all, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]);
        for size in 0..SIZES {
            let (first, second) = pieces(size);
            let second = second.map_or(0, |second| 1 << second);
            assert_eq!((1 << first) + second, units(size));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take(usize),
        Free,
        Grow,
    }

    proptest! {
        #[test]
        fn blocks_in_use_never_overlap_each_other_nor_what_says_who_is_free(
            steps in proptest::collection::vec(
                (prop_oneof![(0..SIZES).prop_map(Step::Take), Just(Step::Free), Just(Step::Grow)],
                 any::<prop::sample::Index>()), 1..400)
        ) {
            let all = memory();
            let words = Words::new(&all, Reserve::Not, HEAD).unwrap();
            let mut blocks = Blocks::default();
            let mut used: Vec<(u32, usize)> = Vec::new();
            for (step, index) in steps {
                match step {
                    Step::Take(size) => used.extend(blocks.take(&words, size).map(|unit| (unit, size))),
                    _ if used.is_empty() => {}
                    Step::Free => {
                        let (unit, size) = used.swap_remove(index.index(used.len()));
                        blocks.free(&words, unit, size);
                    }
                    Step::Grow => {
                        let (unit, size) = index.get(&used);
                        let grown = blocks.grow(&words, *unit, *size);
                        let at = index.index(used.len());
                        used[at].1 += usize::from(grown);
                    }
                }
                used.sort_unstable();
                for (unit, size) in &used {
                    let end = unit + units(*size) as u32;
                    prop_assert!(unit % CHUNK >= super::HEAD && words_at(end) <= all.len());
                    prop_assert_eq!(unit / CHUNK, (end - 1) / CHUNK);
                }
                prop_assert!(used.windows(2).all(|two| two[0].0 + units(two[0].1) as u32 <= two[1].0));
            }
            // Nothing was lost.
            for (unit, size) in used {
                blocks.free(&words, unit, size);
            }
            let chunks = (words.used() - HEAD) / words_at(CHUNK);
            for _ in 0..3 * chunks {
                let whole = blocks.take(&words, SIZES - 1);
                prop_assert!(whole.is_some_and(|unit| unit / CHUNK <= (words.used() / words_at(CHUNK)) as u32));
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
