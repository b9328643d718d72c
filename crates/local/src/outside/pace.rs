//! How often to look at a program's threads: every 10 ms while they come and go, ever more seldom
//! while nothing changes, and never so often that looking costs more than a small part of a CPU.

use std::time::Duration;

/// The shortest time between two looks.
pub(super) const SHORTEST: Duration = Duration::from_millis(10);

/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(1);

/// A look may cost one part in so many of the time until the next: 0.25 % of a CPU.
const COST_LIMIT: u32 = 400;

/// The time between looks.
#[derive(Debug)]
pub(super) struct Pace {
    period: Duration,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { period: SHORTEST }
    }

    /// The time until the next look, after one that took `cost` of CPU time and found a change or not.
    pub(super) fn next(&mut self, changed: bool, cost: Duration) -> Duration {
        self.period = match changed {
            true => SHORTEST,
            false => (self.period * 2).min(LONGEST),
        };
        self.period.max(cost * COST_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_close_while_threads_come_and_go_and_far_apart_while_nothing_changes() {
        let mut pace = Pace::new();
        let cheap = Duration::from_micros(10);
        assert_eq!(pace.next(true, cheap), SHORTEST);
        let mut last = SHORTEST;
        for _ in 0..20 {
            let next = pace.next(false, cheap);
            assert!(next >= last && next <= LONGEST);
            last = next;
        }
        assert_eq!(last, LONGEST);
        assert_eq!(pace.next(true, cheap), SHORTEST);
    }

    #[test]
    fn looks_that_cost_much_are_made_seldom() {
        let mut pace = Pace::new();
        let cost = Duration::from_millis(1);
        let next = pace.next(true, cost);
        assert!(cost.as_secs_f64() / next.as_secs_f64() < 0.003);
    }
}
