//! How many CPUs a set uses while it runs.
//!
//! A set whose threads are not all busy leaves room beside it in its slots, but only its CPU time tells: over
//! whole periods of its turn, the time that it used over the time that it was let run. Too small a figure
//! packs others beside threads that then want their CPU themselves, and spin for each other; too large a figure
//! leaves CPUs idle. The first is worse: so it grows at once, and shrinks when it was smaller for a while.

use super::timing::ran_ns;
use corewise_abi::turn::Turn;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The shortest time over which use is taken, in nanoseconds.
const SHORTEST_NS: u64 = 100_000_000;

/// So many times in a row it must have used less before less is believed; at first, so many.
const TIMES: usize = 5;
const FIRST_TIMES: usize = 3;

/// So much of a CPU is not counted as one more: what a busy thread seems to use above one CPU when readings
/// come a little late, and threads that do next to nothing.
const NOT_COUNTED: f64 = 0.15;

/// What is known of one set's use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// Since when, in nanoseconds, what it had used by then, and what it had been let run since.
    since: Option<(u64, u64)>,
    ran_ns: u64,
    last_ns: u64,
    /// CPUs that it used, the last times.
    used: VecDeque<f64>,
}

impl Demand {
    /// Nothing is known.
    pub fn new() -> Demand {
        Demand::default()
    }

    /// Takes a reading in: the CPU time that all of the set's threads have used so far, and the turn that it had
    /// since the reading before.
    pub fn read(&mut self, time_ns: u64, run_ns: u64, turn: Option<&Turn>) {
        let Some((since, used)) = self.since else {
            // Until its epoch a turn says nothing of who runs.
            if turn.is_none_or(|turn| turn.epoch_ns <= time_ns) {
                self.begin(time_ns, run_ns);
            }
            return;
        };
        self.ran_ns += match turn {
            Some(turn) => ran_ns(turn, self.last_ns, time_ns),
            None => time_ns.saturating_sub(self.last_ns),
        };
        self.last_ns = time_ns;
        let period = turn.map_or(0, |turn| turn.period_ns);
        if time_ns.saturating_sub(since) < period.max(SHORTEST_NS) {
            return;
        }
        let ran = self.ran_ns;
        // Not let run for a whole period: nothing to be learnt.
        if ran > 0 {
            self.used
                .push_back(run_ns.saturating_sub(used) as f64 / ran as f64);
            if self.used.len() > TIMES {
                self.used.pop_front();
            }
        }
        self.begin(time_ns, run_ns);
    }

    /// Its turn is another one from now on: counting begins again with the next reading. What is known stays.
    pub fn turned(&mut self) {
        self.since = None;
    }

    fn begin(&mut self, time_ns: u64, run_ns: u64) {
        self.since = Some((time_ns, run_ns));
        self.ran_ns = 0;
        self.last_ns = time_ns;
    }

    /// CPUs that it can use at once, 1 to `threads`: all of them until it has been seen for a while.
    pub fn cpus(&self, threads: u32) -> u32 {
        let threads = threads.max(1);
        if self.used.len() < FIRST_TIMES {
            return threads;
        }
        let most = self.used.iter().copied().fold(0.0, f64::max);
        ((most - NOT_COUNTED).ceil().max(1.0) as u32).min(threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_abi::turn::Window;

    const MS: u64 = 1_000_000;

    /// Reads every 100 ms a set that uses so many CPUs while it runs.
    fn read(
        demand: &mut Demand,
        from: u64,
        times: u64,
        turn: Option<&Turn>,
        cpus: f64,
        used: &mut u64,
    ) {
        for time in from..from + times {
            let (last, now) = (time.saturating_sub(1) * 100 * MS, time * 100 * MS);
            let ran = turn.map_or(now - last, |turn| ran_ns(turn, last, now));
            *used += (ran as f64 * cpus) as u64;
            demand.read(now, *used, turn);
        }
    }

    fn a_quarter() -> Turn {
        Turn {
            epoch_ns: 0,
            period_ns: 200 * MS,
            windows: vec![Window {
                begin_ns: 50 * MS,
                end_ns: 100 * MS,
            }],
        }
    }

    #[test]
    fn a_set_may_use_all_of_its_threads_until_it_was_seen_for_a_while() {
        let (mut demand, mut used) = (Demand::new(), 0);
        read(&mut demand, 1, 3, None, 1.0, &mut used);
        assert_eq!(demand.cpus(4), 4);
        read(&mut demand, 4, 1, None, 1.0, &mut used);
        assert_eq!(demand.cpus(4), 1);
    }

    #[test]
    fn what_counts_is_what_it_uses_while_it_runs() {
        let (mut demand, mut used) = (Demand::new(), 0);
        read(&mut demand, 1, 12, Some(&a_quarter()), 2.02, &mut used);
        assert_eq!(demand.cpus(4), 2);
    }

    #[test]
    fn it_grows_at_once_and_shrinks_slowly() {
        let (mut demand, mut used) = (Demand::new(), 0);
        read(&mut demand, 1, 6, None, 2.0, &mut used);
        read(&mut demand, 7, 1, None, 2.7, &mut used);
        assert_eq!(demand.cpus(4), 3);
        read(&mut demand, 8, 4, None, 2.0, &mut used);
        assert_eq!(demand.cpus(4), 3);
        read(&mut demand, 12, 1, None, 2.0, &mut used);
        assert_eq!(demand.cpus(4), 2);
    }

    #[test]
    fn it_is_never_above_its_threads_nor_below_one() {
        let (mut demand, mut used) = (Demand::new(), 0);
        read(&mut demand, 1, 6, None, 9.0, &mut used);
        assert_eq!(demand.cpus(4), 4);
        read(&mut demand, 7, 6, None, 0.0, &mut used);
        assert_eq!(demand.cpus(4), 1);
    }
}
