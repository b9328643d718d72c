//! Units of work: each is taken once, and the last one to be finished is noticed.
//!
//! A worker counts the units that it has done itself and adds them up when it leaves, so that a unit
//! costs one atomic addition. Closing (after a panic) finishes those that nobody has taken.

use super::sync::{AtomicUsize, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Units {
    total: usize,
    next: AtomicUsize,
    finished: AtomicUsize,
}

/// The most units of one job: taking beyond the end must not wrap around.
pub(crate) const MOST_UNITS: usize = usize::MAX / 2;

impl Units {
    /// `total` units, at most [`MOST_UNITS`].
    pub(crate) fn new(total: usize) -> Units {
        Units {
            total: total.min(MOST_UNITS),
            next: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
        }
    }

    /// Takes the next unit, if there is one.
    pub(crate) fn take(&self) -> Option<usize> {
        // Asked first, so that those who come late do not count up for ever.
        if self.next.load(Ordering::Relaxed) >= self.total {
            return None;
        }
        let unit = self.next.fetch_add(1, Ordering::Relaxed);
        (unit < self.total).then_some(unit)
    }

    /// Units that nobody has taken.
    pub(crate) fn remaining(&self) -> usize {
        let next = self.next.load(Ordering::Relaxed);
        self.total.saturating_sub(next)
    }

    /// Finishes `units` that were taken; whether these were the last.
    pub(crate) fn finish(&self, units: usize) -> bool {
        units > 0 && self.finished.fetch_add(units, Ordering::AcqRel) + units == self.total
    }

    /// Nobody takes a unit any more; how many were left, which the caller must finish.
    pub(crate) fn close(&self) -> usize {
        let next = self.next.swap(self.total, Ordering::Relaxed);
        self.total.saturating_sub(next)
    }

    /// Whether all are finished. What was done in them is seen by who sees this.
    pub(crate) fn are_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire) == self.total
    }
}
