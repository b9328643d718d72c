//! Sets of CPUs, as Linux numbers them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A set of CPUs. Small and ordered: its first CPU is the lowest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// No CPU.
    pub const fn new() -> CpuSet {
        CpuSet(BTreeSet::new())
    }

    /// CPUs 0 to `count`, exclusive.
    pub fn first(count: u32) -> CpuSet {
        (0..count).collect()
    }

    /// How many CPUs are in it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How many CPUs are in it, as a number of threads.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in it.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Adds a CPU; whether it is new.
    pub fn insert(&mut self, cpu: u32) -> bool {
        self.0.insert(cpu)
    }

    /// Takes a CPU out; whether it was there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        self.0.remove(&cpu)
    }

    /// The CPUs, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// CPUs that are in either.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// CPUs that are in both.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// CPUs that are in this one and not in `other`.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    /// Whether they have no CPU in common.
    pub fn is_disjoint(&self, other: &CpuSet) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// Whether every CPU is in `other` too.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

/// As Linux writes lists of CPUs: `0-3,8`.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Numbers above this are refused: Linux is built for at most 8,192 CPUs, and a list is data from outside.
const MOST: u32 = 65_535;

/// A list of CPUs as Linux writes it, and people do: `0-3,8`.
impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuSet, String> {
        let wrong = || format!("{text:?} is no list of CPUs such as \"0-3,8\"");
        let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu <= MOST);
        let mut cpus = CpuSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first), number(last));
            let (first, last) = first.zip(last).ok_or_else(wrong)?;
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_as_linux_writes_it() {
        let cpus: CpuSet = [8, 0, 1, 3, 2].into_iter().collect();
        assert_eq!(cpus.to_string(), "0-3,8");
        assert_eq!(CpuSet::new().to_string(), "");
        assert_eq!(CpuSet::first(1).to_string(), "0");
    }

    #[test]
    fn a_list_is_read_as_it_is_written() {
        for text in ["0-3,8", "5", "0,2,4-6"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!(" 1 , 2-3".parse::<CpuSet>().unwrap().to_string(), "1-3");
        for text in ["", "a", "3-1", "1,,2", "0-99999999", "-1"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }
}
