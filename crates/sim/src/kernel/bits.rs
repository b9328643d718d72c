//! Sets of CPUs as words: the common elements of three of them are found 64 at a time.

use corewise_decide::cpus::CpuSet;

/// A set of numbers below a length that never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }

    pub(super) fn all(len: usize) -> Bits {
        let mut bits = Bits::new(len);
        (0..len).for_each(|at| bits.set(at, true));
        bits
    }

    /// The CPUs of a set that are below `len`.
    pub(super) fn of(cpus: &CpuSet, len: usize) -> Bits {
        let mut bits = Bits::new(len);
        for cpu in cpus.iter().map(|cpu| cpu as usize).filter(|c| *c < len) {
            bits.set(cpu, true);
        }
        bits
    }

    pub(super) fn set(&mut self, at: usize, to: bool) {
        if let Some(word) = self.0.get_mut(at / 64) {
            let bit = 1 << (at % 64);
            *word = if to { *word | bit } else { *word & !bit };
        }
    }

    pub(super) fn has(&self, at: usize) -> bool {
        let word = self.0.get(at / 64);
        word.is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0
            .iter()
            .enumerate()
            .flat_map(|(at, word)| ones(at, *word))
    }

    /// Those that are in both, ascending.
    pub(super) fn common<'a>(&'a self, other: &'a Bits) -> impl Iterator<Item = usize> + 'a {
        let words = self.0.iter().zip(&other.0).enumerate();
        words.flat_map(|(at, (a, b))| ones(at, a & b))
    }

    /// The first that is in all three, at `from` or after; else the first before it.
    pub(super) fn first_common(&self, b: &Bits, c: &Bits, from: usize) -> Option<usize> {
        let word = |at: usize| -> u64 {
            let at = |bits: &Bits| bits.0.get(at).copied().unwrap_or(0);
            at(self) & at(b) & at(c)
        };
        let (start, bit) = (from / 64, from % 64);
        let bits =
            |at: usize, word: u64| (word != 0).then(|| at * 64 + word.trailing_zeros() as usize);
        let above = u64::MAX << bit;
        bits(start, word(start) & above)
            .or_else(|| (start + 1..self.0.len()).find_map(|at| bits(at, word(at))))
            .or_else(|| (0..start).find_map(|at| bits(at, word(at))))
            .or_else(|| bits(start, word(start) & !above))
    }
}

fn ones(at: usize, word: u64) -> impl Iterator<Item = usize> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(at * 64 + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_common_one_is_looked_for_from_a_place_and_around() {
        let all = Bits::all(200);
        let some = Bits::of(&[3, 70, 130].into_iter().collect(), 200);
        assert_eq!(some.first_common(&all, &all, 4), Some(70));
        assert_eq!(some.first_common(&all, &all, 70), Some(70));
        assert_eq!(some.first_common(&all, &all, 131), Some(3));
        assert_eq!(some.first_common(&all, &Bits::new(200), 0), None);
        assert_eq!(some.iter().collect::<Vec<_>>(), [3, 70, 130]);
        assert_eq!(all.count(), 200);
    }

    #[test]
    fn one_in_the_same_word_before_the_place_is_found_last() {
        let some = Bits::of(&[3].into_iter().collect(), 10);
        assert_eq!(some.first_common(&some, &some, 5), Some(3));
    }
}
