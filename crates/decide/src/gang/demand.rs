//! How many CPUs a set uses while it runs.
//!
//! Problem: a set whose threads are not all busy leaves room beside it in its slots, but only its CPU time tells:
//! over whole periods of its turn, the time that it used over the time that it was let run. Too small a figure
//! packs others beside threads that then want their CPUs themselves, and spin for each other; too large a figure
//! leaves CPUs idle. The first is worse. And there are two reasons for using little: having little to do, and
//! getting little beside others.
//!
//! Approach: the figure grows at once, and shrinks when it was smaller for a while, and only as far as CPUs were
//! seen idle meanwhile: if others took what the set did not use, nothing would be won by giving it to them. A set
//! that was given less than its threads, uses all of that, and has more threads waiting than there should be
//! beside it, may have grown: it is taken to need all of its threads again until that is seen not to be so,
//! ever more seldom if it never is.

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

/// So much of what it did not use must have been idle, as a part.
const IDLE: f64 = 0.5;

/// So many crowded readings in a row make one doubt, and so long it lasts until one doubts again: at first, and
/// at most, in nanoseconds.
const CROWDED: u32 = 2;
const SHORTEST_DOUBT_NS: u64 = 1_000_000_000;
const LONGEST_DOUBT_NS: u64 = 60_000_000_000;

/// What was read of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// CPU time that all of its threads have used so far, in nanoseconds.
    pub run_ns: u64,
    /// Time that its CPUs were idle so far, all together, in nanoseconds.
    pub idle_ns: u64,
    /// Whether it runs, and more threads are running or waiting than those who run now should have.
    pub crowded: bool,
}

/// What is known of one set's use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    since: Option<Seen>,
    /// What it was let run since then, and until when that is counted.
    ran_ns: u64,
    last_ns: u64,
    /// CPUs that it used, the last times.
    used: VecDeque<f64>,
    /// Crowded readings in a row, and when they count again.
    crowded: u32,
    doubts_at_ns: u64,
    doubt_ns: u64,
}

impl Demand {
    /// Nothing is known.
    pub fn new() -> Demand {
        Demand::default()
    }

    /// Takes a reading in of a set with so many threads: `turn` is what it had since the reading before.
    pub fn read(&mut self, now: Seen, threads: u32, turn: Option<&Turn>) {
        self.doubt(&now, threads);
        let Some(since) = self.since else {
            // Until its epoch a turn says nothing of who runs.
            if turn.is_none_or(|turn| turn.epoch_ns <= now.time_ns) {
                self.begin(now);
            }
            return;
        };
        self.ran_ns += match turn {
            Some(turn) => ran_ns(turn, self.last_ns, now.time_ns),
            None => now.time_ns.saturating_sub(self.last_ns),
        };
        self.last_ns = now.time_ns;
        let period = turn.map_or(0, |turn| turn.period_ns);
        if now.time_ns.saturating_sub(since.time_ns) < period.max(SHORTEST_NS) {
            return;
        }
        // Not let run for a whole period: nothing to be learnt.
        if self.ran_ns > 0 {
            let ran = self.ran_ns as f64;
            let used = now.run_ns.saturating_sub(since.run_ns) as f64;
            let idle = now.idle_ns.saturating_sub(since.idle_ns) as f64;
            let known = f64::from(self.cpus(threads));
            let has_little_to_do = idle >= IDLE * (known * ran - used);
            self.used.push_back(match has_little_to_do {
                true => used / ran,
                false => known.max(used / ran),
            });
            if self.used.len() > TIMES {
                self.used.pop_front();
            }
        }
        self.begin(now);
    }

    /// Forgets what is known if that may be too little by now.
    fn doubt(&mut self, now: &Seen, threads: u32) {
        let known = self.cpus(threads);
        let uses_all = self
            .used
            .back()
            .is_some_and(|used| *used > f64::from(known) - 0.5);
        if !now.crowded || !uses_all || known >= threads {
            self.crowded = 0;
            return;
        }
        self.crowded += 1;
        if self.crowded < CROWDED || now.time_ns < self.doubts_at_ns {
            return;
        }
        self.used.clear();
        self.crowded = 0;
        self.doubt_ns = (2 * self.doubt_ns).clamp(SHORTEST_DOUBT_NS, LONGEST_DOUBT_NS);
        self.doubts_at_ns = now.time_ns.saturating_add(self.doubt_ns);
    }

    /// Its turn is another one from now on: counting begins again with the next reading. What is known stays.
    pub fn turned(&mut self) {
        self.since = None;
    }

    fn begin(&mut self, now: Seen) {
        self.since = Some(now);
        self.ran_ns = 0;
        self.last_ns = now.time_ns;
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

    /// A set of four threads that is read every 100 ms.
    #[derive(Default)]
    struct Watched {
        demand: Demand,
        now: Seen,
    }

    impl Watched {
        /// Reads it so many times while it uses so many CPUs whenever it runs, and so many are idle.
        fn read(&mut self, times: u64, turn: Option<&Turn>, cpus: f64, idle: f64) -> u32 {
            for _ in 0..times {
                let last = self.now.time_ns;
                self.now.time_ns += 100 * MS;
                let ran = turn.map_or(100 * MS, |turn| ran_ns(turn, last, self.now.time_ns));
                self.now.run_ns += (ran as f64 * cpus) as u64;
                self.now.idle_ns += ((100 * MS) as f64 * idle) as u64;
                self.demand.read(self.now, 4, turn);
            }
            self.demand.cpus(4)
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
        let mut set = Watched::default();
        assert_eq!(set.read(3, None, 1.0, 3.0), 4);
        assert_eq!(set.read(1, None, 1.0, 3.0), 1);
    }

    #[test]
    fn what_counts_is_what_it_uses_while_it_runs() {
        assert_eq!(
            Watched::default().read(12, Some(&a_quarter()), 2.02, 2.0),
            2
        );
    }

    #[test]
    fn it_grows_at_once_and_shrinks_slowly() {
        let mut set = Watched::default();
        set.read(6, None, 2.0, 2.0);
        assert_eq!(set.read(1, None, 2.7, 1.0), 3);
        assert_eq!(set.read(4, None, 2.0, 2.0), 3);
        assert_eq!(set.read(1, None, 2.0, 2.0), 2);
    }

    #[test]
    fn it_is_never_above_its_threads_nor_below_one() {
        let mut set = Watched::default();
        assert_eq!(set.read(6, None, 9.0, 0.0), 4);
        assert_eq!(set.read(6, None, 0.0, 4.0), 1);
    }

    #[test]
    fn a_set_that_gets_little_beside_others_does_not_need_less() {
        let mut set = Watched::default();
        assert_eq!(set.read(30, None, 2.0, 0.1), 4);
        assert_eq!(set.read(6, None, 2.0, 2.0), 2);
        assert_eq!(set.read(30, None, 1.0, 0.1), 2);
    }

    #[test]
    fn a_set_with_threads_waiting_beside_others_may_have_grown() {
        let mut set = Watched::default();
        set.read(6, None, 2.0, 2.0);
        set.now.crowded = true;
        assert_eq!(set.read(1, None, 2.0, 0.0), 2);
        assert_eq!(set.read(1, None, 2.0, 0.0), 4);
    }

    #[test]
    fn what_proves_wrong_is_doubted_ever_more_seldom() {
        let mut set = Watched::default();
        set.read(6, None, 2.0, 2.0);
        set.now.crowded = true;
        let mut doubted = Vec::new();
        for second in 0..60 {
            let before = set.demand.doubts_at_ns;
            set.read(10, None, 2.0, 2.0);
            if set.demand.doubts_at_ns != before {
                doubted.push(second);
            }
        }
        assert!((4..=7).contains(&doubted.len()), "{doubted:?}");
    }
}
