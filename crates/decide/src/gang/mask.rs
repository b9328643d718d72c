//! Sets of CPUs as bits: what is compared and counted many times in one decision.

use crate::cpus::CpuSet;
use serde::{Deserialize, Serialize};

/// A set of small numbers. No word at its end is zero, so that equal sets are equal words.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Mask(Vec<u64>);

/// By hand, so that `clone_from` makes no new words.
impl Clone for Mask {
    fn clone(&self) -> Mask {
        Mask(self.0.clone())
    }

    fn clone_from(&mut self, other: &Mask) {
        self.0.clone_from(&other.0);
    }
}

impl Mask {
    /// 0 to `count`, exclusive.
    pub(super) fn first(count: usize) -> Mask {
        (0..count as u32).collect()
    }

    pub(super) fn insert(&mut self, bit: u32) {
        let word = bit as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (bit % 64);
    }

    pub(super) fn contains(&self, bit: u32) -> bool {
        let word = self.0.get(bit as usize / 64);
        word.is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().zip(0u32..).flat_map(|(word, index)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.checked_sub(1)?;
                Some(index * 64 + bit)
            })
        })
    }

    pub(super) fn union(&mut self, other: &Mask) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (to, from) in self.0.iter_mut().zip(&other.0) {
            *to |= from;
        }
    }

    pub(super) fn intersection(&self, other: &Mask) -> Mask {
        let both = self.0.iter().zip(&other.0).map(|(a, b)| a & b);
        Mask(both.collect()).trimmed()
    }

    pub(super) fn is_subset(&self, other: &Mask) -> bool {
        self.0.len() <= other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    /// How many are in both.
    pub(super) fn common(&self, other: &Mask) -> u32 {
        let both = self.0.iter().zip(&other.0);
        both.map(|(a, b)| (a & b).count_ones()).sum()
    }

    /// Takes the `count` lowest that are in both out of this set.
    pub(super) fn take(&mut self, of: &Mask, count: u32) {
        let mut left = count;
        for (have, wanted) in self.0.iter_mut().zip(&of.0) {
            let both = *have & wanted;
            if both.count_ones() <= left {
                *have &= !both;
                left -= both.count_ones();
                continue;
            }
            let mut rest = both;
            while left > 0 {
                rest &= rest - 1;
                left -= 1;
            }
            *have &= !both | rest;
            break;
        }
        self.trim();
    }

    pub(super) fn cpus(&self) -> CpuSet {
        self.iter().collect()
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn trimmed(mut self) -> Mask {
        self.trim();
        self
    }
}

impl FromIterator<u32> for Mask {
    fn from_iter<I: IntoIterator<Item = u32>>(bits: I) -> Mask {
        let mut mask = Mask::default();
        for bit in bits {
            mask.insert(bit);
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_those_in_common_are_taken() {
        let mut free: Mask = [1, 3, 64, 65, 200].into_iter().collect();
        let wanted: Mask = [3, 64, 65, 200].into_iter().collect();
        assert_eq!(free.common(&wanted), 4);
        free.take(&wanted, 2);
        assert_eq!(free.iter().collect::<Vec<_>>(), [1, 65, 200]);
        free.take(&wanted, 9);
        assert_eq!(free, [1].into_iter().collect());
    }
}
