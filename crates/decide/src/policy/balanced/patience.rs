//! How long something must last before it is believed, by how it went the last times.

use serde::{Deserialize, Serialize};

/// How often it becomes longer, at most.
const MOST_TIMES: u32 = 2;

/// What is taken from a program, and has to be given back soon, was taken too early. Next time, that it is
/// not needed must last four times as long. Whatever stays taken makes it shorter again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Patience {
    times: u32,
    taken_ns: Option<u64>,
}

impl Patience {
    /// How long it must last that is `usual_ns` usually.
    pub(super) fn of(&self, usual_ns: u64) -> u64 {
        usual_ns << (2 * self.times)
    }

    /// Something is taken.
    pub(super) fn takes(&mut self, now_ns: u64) {
        if self.taken_ns.is_some() {
            self.times = self.times.saturating_sub(1);
        }
        self.taken_ns = Some(now_ns);
    }

    /// Something is given back; `usual_ns` as above.
    pub(super) fn gives(&mut self, now_ns: u64, usual_ns: u64) {
        let soon = self.of(usual_ns).saturating_mul(4);
        if let Some(taken) = self.taken_ns.take()
            && now_ns.saturating_sub(taken) < soon
        {
            self.times = (self.times + 1).min(MOST_TIMES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_needed_again_soon_must_last_longer_next_time_and_at_most_sixteen_times_as_long() {
        let mut patience = Patience::default();
        let mut now = 0;
        for expected in [100, 400, 1_600, 1_600] {
            assert_eq!(patience.of(100 * MS), expected * MS);
            now += patience.of(100 * MS);
            patience.takes(now);
            now += 50 * MS;
            patience.gives(now, 100 * MS);
        }
    }

    #[test]
    fn what_stays_taken_makes_it_shorter_again() {
        let mut patience = Patience::default();
        patience.takes(0);
        patience.gives(MS, 100 * MS);
        assert_eq!(patience.of(100 * MS), 400 * MS);
        patience.takes(10 * MS);
        patience.takes(20 * MS);
        assert_eq!(patience.of(100 * MS), 100 * MS);
        // It is needed again, but late.
        patience.gives(2_000 * MS, 100 * MS);
        assert_eq!(patience.of(100 * MS), 100 * MS);
    }
}
