//! What a program asks for, and what it is given.

use corewise_abi::message::{Placement, Wants};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many threads: at least the first, at most the last (Hollmann & Gerndt's `CPUQuantity`).
/// 0 counts as 1, and a range that ends before it begins as its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub RangeInclusive<u32>);

/// Where the CPUs should be (Hollmann & Gerndt's `NUMA(…)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Wherever there is room.
    #[default]
    Any,
    /// Close together: nodes and caches shared by as many as possible.
    Compact,
    /// Spread over nodes and caches, for memory bandwidth.
    Scatter,
}

impl From<Numa> for Placement {
    fn from(numa: Numa) -> Placement {
        match numa {
            Numa::Any => Placement::Any,
            Numa::Compact => Placement::Compact,
            Numa::Scatter => Placement::Scatter,
        }
    }
}

/// What a claim is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Threads that the program may run at the same time, at least 1.
    pub threads: u32,
    /// Changes whenever the claim does, also when a manager dies or comes; compare for equality only.
    pub generation: u64,
    /// Whether a manager keeps the claim. Otherwise it is what Linux would give the program.
    pub managed: bool,
}

/// The program's wants, in atomics: a forked child must never wait for a lock.
#[derive(Debug)]
pub(crate) struct WantsCell {
    /// Minimum in the upper half, maximum in the lower. 0: nothing was asked for yet.
    threads: AtomicU64,
    placement: AtomicU32,
}

impl WantsCell {
    pub(crate) const fn new() -> WantsCell {
        WantsCell {
            threads: AtomicU64::new(0),
            placement: AtomicU32::new(0),
        }
    }

    /// Sets what is asked for; whether that is something else than before.
    pub(crate) fn set(&self, min: u32, max: u32, placement: Placement) -> bool {
        let min = min.max(1);
        let threads = u64::from(min) << 32 | u64::from(max.max(min));
        let placement = match placement {
            Placement::Any => 0,
            Placement::Compact => 1,
            Placement::Scatter => 2,
        };
        let other_place = self.placement.swap(placement, Ordering::Relaxed) != placement;
        let other_threads = self.threads.swap(threads, Ordering::AcqRel) != threads;
        other_place || other_threads
    }

    /// For a manager: one thread before anything was asked for.
    pub(crate) fn get(&self) -> Wants {
        let (min_threads, max_threads) = self.range().unwrap_or((1, 1));
        Wants {
            min_threads,
            max_threads,
            placement: match self.placement.load(Ordering::Relaxed) {
                1 => Placement::Compact,
                2 => Placement::Scatter,
                _ => Placement::Any,
            },
            malleable: true,
        }
    }

    /// Whether anything was asked for yet.
    pub(crate) fn is_set(&self) -> bool {
        self.range().is_some()
    }

    /// Minimum and maximum, if anything was asked for.
    fn range(&self) -> Option<(u32, u32)> {
        match self.threads.load(Ordering::Acquire) {
            0 => None,
            threads => Some(((threads >> 32) as u32, threads as u32)),
        }
    }

    /// Threads without a manager, on `effective` CPUs: all of them before anything was asked for; what
    /// a manager that is alone with the program would give afterwards.
    pub(crate) fn without_manager(&self, effective: u32) -> u32 {
        match self.range() {
            None => effective.max(1),
            Some((min, max)) => effective.clamp(min, max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_manager_one_has_everything_until_one_asks_for_less() {
        let wants = WantsCell::new();
        assert_eq!(wants.without_manager(6), 6);
        wants.set(1, 4, Placement::Any);
        assert_eq!(wants.without_manager(6), 4);
        wants.set(8, 9, Placement::Any);
        assert_eq!(wants.without_manager(6), 8);
    }

    #[test]
    fn under_a_manager_one_starts_with_one() {
        let wants = WantsCell::new().get();
        assert_eq!((wants.min_threads, wants.max_threads), (1, 1));
    }

    #[test]
    fn asking_for_the_same_again_is_no_change() {
        let wants = WantsCell::new();
        assert!(wants.set(1, 4, Placement::Scatter));
        assert!(!wants.set(1, 4, Placement::Scatter));
        assert!(wants.set(1, 4, Placement::Compact));
        assert_eq!(wants.get().placement, Placement::Compact);
    }

    #[test]
    fn impossible_ranges_become_possible_ones() {
        let wants = WantsCell::new();
        wants.set(0, 0, Placement::Any);
        let Wants {
            min_threads,
            max_threads,
            ..
        } = wants.get();
        assert_eq!((min_threads, max_threads), (1, 1));
        wants.set(5, 2, Placement::Any);
        assert_eq!(wants.get().max_threads, 5);
    }
}
