//! Sets of CPUs (and of NUMA nodes).

/// A set of CPUs, as Linux numbers them.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    words: Vec<u64>,
}

impl Mask {
    /// From words of 64 CPUs each, the first one holding CPUs 0 to 63.
    pub fn from_words(words: Vec<u64>) -> Mask {
        Mask { words }
    }

    /// Words of 64 CPUs each.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: u32) {
        let index = cpu as usize / 64;
        if self.words.len() <= index {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (cpu % 64);
    }

    /// Whether a CPU is in it.
    pub fn contains(&self, cpu: u32) -> bool {
        let word = self.words.get(cpu as usize / 64);
        word.is_some_and(|w| w >> (cpu % 64) & 1 == 1)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.words.iter().zip(0_u32..);
        words.flat_map(|(&word, index)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index * 64 + bit)
            })
        })
    }

    /// How many CPUs.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// The CPUs that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Mask) -> Mask {
        let both = self.words.iter().zip(&other.words);
        Mask {
            words: both.map(|(a, b)| a & b).collect(),
        }
    }
}

impl PartialEq for Mask {
    /// By the CPUs; words of zeroes at the end do not matter.
    fn eq(&self, other: &Mask) -> bool {
        let words = self.words.len().max(other.words.len());
        let word = |mask: &Mask, index: usize| mask.words.get(index).copied().unwrap_or(0);
        (0..words).all(|index| word(self, index) == word(other, index))
    }
}

impl Eq for Mask {}

impl FromIterator<u32> for Mask {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Mask {
        let mut mask = Mask::default();
        cpus.into_iter().for_each(|cpu| mask.insert(cpu));
        mask
    }
}

/// Reads the kernel's lists (`0-3,8`). `None` where it is no list, or names more than 65,536.
pub(crate) fn parse_list(text: &str) -> Option<Mask> {
    let mut mask = Mask::default();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > 65_535 {
            return None;
        }
        (first..=last).for_each(|one| mask.insert(one));
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_gives_back_the_cpus_that_were_put_in() {
        let cpus = [0, 5, 63, 64, 200];
        let mask: Mask = cpus.into_iter().collect();
        assert_eq!(mask.iter().collect::<Vec<_>>(), cpus);
        assert_eq!(mask.count(), 5);
        assert!(mask.contains(200) && !mask.contains(201) && !mask.contains(9999));
    }

    #[test]
    fn words_of_zeroes_at_the_end_do_not_matter() {
        let long = Mask::from_words(vec![5, 0, 0]);
        let short = Mask::from_words(vec![5]);
        assert_eq!(long, short);
        assert_ne!(long, Mask::from_words(vec![5, 1]));
        assert_eq!(long.intersection(&short), short);
    }

    #[test]
    fn the_kernels_lists_are_read() {
        let cpus = |text| parse_list(text).map(|m| m.iter().collect::<Vec<_>>());
        assert_eq!(cpus("0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(cpus("\n"), Some(vec![]));
        assert_eq!(cpus("2-1"), None);
        assert_eq!(cpus("0-4294967295"), None);
        assert_eq!(cpus("x"), None);
    }
}
