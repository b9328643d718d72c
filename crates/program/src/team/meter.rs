//! How often progress is told.
//!
//! All workers add to one word, which the manager reads every 10 ms at the finest. Adding for each unit
//! would have them fight for its cache line where units are short; so each worker counts for itself, and
//! adds up when about [`SPAN`] has passed. It looks at the clock only as often as it adds up: how many
//! units make a span is learned from the last one.

use std::time::{Duration, Instant};

/// An addition and a look at the clock (some 100 ns with contention) for each such span are 0.5 %.
const SPAN: Duration = Duration::from_micros(20);

/// The most units to wait for: where a unit costs less than a nanosecond, something is strange.
const MOST: u64 = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Meter {
    since: Instant,
    done: u64,
    due: u64,
}

impl Meter {
    pub(super) fn new() -> Meter {
        Meter {
            since: Instant::now(),
            done: 0,
            due: 1,
        }
    }

    /// A unit is done. How many are to be told of now, if any.
    pub(super) fn tick(&mut self) -> Option<u64> {
        self.done += 1;
        if self.done < self.due {
            return None;
        }
        let now = Instant::now();
        let each = (now - self.since).as_nanos() as u64 / self.done;
        self.due = (SPAN.as_nanos() as u64 / each.max(1)).clamp(1, MOST);
        self.since = now;
        Some(self.rest())
    }

    /// What has not been told yet.
    pub(super) fn rest(&mut self) -> u64 {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_or_told_twice() {
        let mut meter = Meter::new();
        let mut told = 0;
        for _ in 0..100_000 {
            told += meter.tick().unwrap_or(0);
        }
        assert_eq!(told + meter.rest(), 100_000);
        assert_eq!(meter.rest(), 0);
    }

    #[test]
    fn long_units_are_told_of_one_by_one() {
        let mut meter = Meter::new();
        for _ in 0..3 {
            meter.since -= SPAN * 2;
            assert_eq!(meter.tick(), Some(1));
        }
    }
}
