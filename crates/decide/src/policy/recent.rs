//! Figures of the last moments, for means that a single reading does not decide.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Figures older than this are dropped, in nanoseconds, and all but this many.
const KEPT_NS: u64 = 5_000_000_000;
const MOST: usize = 512;

/// A figure at each reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recent {
    figures: VecDeque<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Figure {
    time_ns: u64,
    /// Since the reading before.
    span_ns: u64,
    value: f64,
}

impl Recent {
    /// Adds what was read at a time, and for how long it holds (the time since the reading before).
    pub(crate) fn push(&mut self, time_ns: u64, span_ns: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.figures.push_back(Figure {
            time_ns,
            span_ns,
            value,
        });
        while self.figures.len() > MOST
            || self
                .figures
                .front()
                .is_some_and(|f| f.time_ns.saturating_add(KEPT_NS) < time_ns)
        {
            self.figures.pop_front();
        }
    }

    /// Forgets everything: what was read before says nothing of what comes.
    pub(crate) fn clear(&mut self) {
        self.figures.clear();
    }

    /// The last figure.
    pub(crate) fn last(&self) -> Option<f64> {
        self.figures.back().map(|f| f.value)
    }

    /// The mean of the last figures, `most` of them or as many as there are; `None` if there are not
    /// even `least`.
    pub(crate) fn mean_of(&self, least: usize, most: usize) -> Option<f64> {
        let count = self.figures.len().min(most);
        if count == 0 || count < least {
            return None;
        }
        let sum: f64 = self.figures.iter().rev().take(count).map(|f| f.value).sum();
        Some(sum / count as f64)
    }

    /// How long the figures held that were read after `since_ns`.
    pub(crate) fn span_since(&self, since_ns: u64) -> u64 {
        self.since(since_ns).map(|f| f.span_ns).sum()
    }

    /// The mean of what `of` makes of each figure that was read after `since_ns`; each counts as long as
    /// it held.
    pub(crate) fn mean_since_of(&self, since_ns: u64, of: impl Fn(f64) -> f64) -> Option<f64> {
        let span = self.span_since(since_ns);
        let each = self.since(since_ns).map(|f| of(f.value) * f.span_ns as f64);
        (span > 0).then(|| each.sum::<f64>() / span as f64)
    }

    fn since(&self, since_ns: u64) -> impl Iterator<Item = &Figure> {
        let newer = move |f: &&Figure| f.time_ns > since_ns;
        self.figures.iter().rev().take_while(newer)
    }

    /// The mean of at least `least` figures that go back at least `span_ns`; `None` if there are
    /// not enough.
    pub(crate) fn mean_since(&self, least: usize, span_ns: u64) -> Option<f64> {
        let newest = self.figures.back()?.time_ns;
        let back = |f: &Figure| newest.saturating_sub(f.time_ns);
        let within = self.figures.iter().rev().take_while(|f| back(f) < span_ns);
        let count = (within.count() + 1).max(least);
        let reaches = self.figures.len() >= count;
        reaches.then(|| self.mean_of(count, count)).flatten()
    }

    /// The mean over at least the last `span_ns`, in which each figure counts as long as it held;
    /// `None` if the figures do not go back as far.
    pub(crate) fn mean_over(&self, span_ns: u64) -> Option<f64> {
        let mut span = 0;
        let mut sum = 0.0;
        for figure in self.figures.iter().rev() {
            span += figure.span_ns;
            sum += figure.value * figure.span_ns as f64;
            if span >= span_ns {
                return (span > 0).then(|| sum / span as f64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_10_ms(values: &[f64]) -> Recent {
        let mut recent = Recent::default();
        for (index, value) in values.iter().enumerate() {
            recent.push(index as u64 * 10, 10, *value);
        }
        recent
    }

    #[test]
    fn a_mean_needs_figures_enough() {
        let recent = every_10_ms(&[1.0, 2.0, 3.0]);
        assert_eq!(recent.mean_of(4, 5), None);
        assert_eq!(recent.mean_of(1, 5), Some(2.0));
        assert_eq!(recent.mean_of(2, 2), Some(2.5));
        assert_eq!(recent.mean_since(1, 30), None);
        assert_eq!(recent.mean_since(1, 20), Some(2.0));
        assert_eq!(recent.mean_over(40), None);
    }

    #[test]
    fn a_figure_counts_as_long_as_it_held() {
        let mut recent = Recent::default();
        recent.push(10, 10, 4.0);
        recent.push(40, 30, 0.0);
        assert_eq!(recent.mean_over(40), Some(1.0));
        assert_eq!(recent.mean_over(20), Some(0.0));
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let mut recent = every_10_ms(&[1.0]);
        recent.push(20, 10, f64::NAN);
        assert_eq!(recent.last(), Some(1.0));
    }
}
