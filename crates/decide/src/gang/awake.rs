//! How many of a program's threads hardly sleep: what whoever keeps its turns tells of it.

use super::{Turn, ran_ns};
use crate::reading::ProgramReading;
use std::collections::HashMap;

/// The shortest time that a program must have been let run for its threads to be judged, in nanoseconds; at first,
/// when it should soon be known what it is, so long.
const SHORTEST_NS: u64 = 100_000_000;
const FIRST_NS: u64 = 15_000_000;

/// A program that has been seen for so long has made the threads that it works with.
const YOUNG_NS: u64 = 1_000_000_000;

/// Who tells of a gang's threads reads the program so often, in nanoseconds.
pub const LOOK_OFTEN_NS: u64 = SHORTEST_NS;
/// The same while nothing is known of them yet.
pub const LOOK_AT_FIRST_NS: u64 = 5_000_000;

/// A thread that uses this part of the time that it was not waiting for a CPU hardly sleeps.
const HARDLY: f64 = 0.85;

/// Threads that hardly sleep: they compute, or wait in loops.
#[derive(Clone, Debug, Default)]
pub struct Awake {
    turn: Option<Turn>,
    since_ns: Option<u64>,
    /// When the program was seen first.
    born_ns: Option<u64>,
    /// Run and wait time of each thread at that time.
    threads: HashMap<i32, (u64, u64)>,
    /// What was seen last, and what is believed.
    seen: Option<u32>,
    known: Option<u32>,
    which: Vec<i32>,
}

impl Awake {
    /// How many threads hardly sleep; `None`: it is not known yet. That there are two or more, or no longer, is
    /// believed when it was seen twice in a row; once, in a young program that has made threads since.
    pub fn threads(&self) -> Option<u32> {
        self.known
    }

    /// Those threads, by number, ascending.
    pub fn which(&self) -> &[i32] {
        &self.which
    }

    /// The program is to be read again within this time, in nanoseconds.
    pub fn look_within_ns(&self) -> u64 {
        match self.seen {
            None => LOOK_AT_FIRST_NS,
            Some(_) => LOOK_OFTEN_NS,
        }
    }

    /// Takes a reading in: `turn` is what the program had since the one before. If it has run for long enough since
    /// it was judged last: which part of the time that its threads did not sleep they waited for a CPU.
    pub fn read(&mut self, reading: &ProgramReading, turn: Option<&Turn>) -> Option<f64> {
        let Some(since_ns) = self.since_ns.filter(|_| self.turn.as_ref() == turn) else {
            self.begin(reading, turn);
            return None;
        };
        let now_ns = reading.time_ns;
        if self.makes_its_threads(reading) {
            // What was seen was of those that waited for them to begin.
            self.seen = None;
            self.begin(reading, turn);
            return None;
        }
        let ran_ns = match turn {
            Some(turn) => ran_ns(turn, since_ns, now_ns),
            None => now_ns.saturating_sub(since_ns),
        };
        let shortest_ns = match self.seen {
            Some(_) => SHORTEST_NS,
            None => FIRST_NS,
        };
        if ran_ns < shortest_ns {
            return None;
        }
        let (mut which, mut run_ns, mut wait_ns) = (Vec::new(), 0, 0);
        for thread in &reading.threads {
            // Of one that is new it is not known since when it has been there.
            let Some((run_before, wait_before)) = self.threads.get(&thread.tid) else {
                continue;
            };
            let run = thread.run_ns.saturating_sub(*run_before);
            let wait = thread.cpu_wait_ns.saturating_sub(*wait_before);
            let could_run = ran_ns.saturating_sub(wait) as f64;
            if run + wait > 0 && run as f64 >= HARDLY * could_run {
                which.push(thread.tid);
            }
            run_ns += run;
            wait_ns += wait;
        }
        let awake = u32::try_from(which.len()).unwrap_or(u32::MAX);
        let two = |count: u32| count >= 2;
        let believed = self.seen.is_none_or(|seen| two(seen) == two(awake));
        if believed {
            self.known = Some(awake);
            which.sort_unstable();
            self.which = which;
        }
        self.seen = Some(awake);
        self.begin(reading, turn);
        Some(wait_ns as f64 / (run_ns + wait_ns).max(1) as f64)
    }

    /// Whether a young program, of which it is not known yet that its threads hardly sleep, has made others.
    fn makes_its_threads(&self, reading: &ProgramReading) -> bool {
        let born_ns = self.born_ns.unwrap_or(reading.time_ns);
        let is_young = reading.time_ns.saturating_sub(born_ns) < YOUNG_NS;
        let is_new = |tid: &i32| !self.threads.contains_key(tid);
        is_young
            && self.known.unwrap_or(0) < 2
            && reading.threads.iter().any(|thread| is_new(&thread.tid))
    }

    fn begin(&mut self, reading: &ProgramReading, turn: Option<&Turn>) {
        self.born_ns.get_or_insert(reading.time_ns);
        if self.turn.as_ref() != turn {
            self.turn = turn.cloned();
        }
        self.since_ns = Some(reading.time_ns);
        let threads = reading.threads.iter();
        self.threads = threads
            .map(|thread| (thread.tid, (thread.run_ns, thread.cpu_wait_ns)))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::Window;
    use crate::reading::ThreadReading;

    const MS: u64 = 1_000_000;

    /// Reads threads that have run and waited so long, in milliseconds.
    fn at(time_ms: u64, threads: &[(u64, u64)]) -> ProgramReading {
        let thread = |(tid, (run, wait)): (i32, &(u64, u64))| ThreadReading {
            tid,
            run_ns: run * MS,
            cpu_wait_ns: wait * MS,
            ..ThreadReading::default()
        };
        ProgramReading {
            time_ns: time_ms * MS,
            threads: (1..).zip(threads).map(thread).collect(),
            ..ProgramReading::default()
        }
    }

    #[test]
    fn a_thread_that_runs_whenever_it_has_a_cpu_is_awake() {
        let mut awake = Awake::default();
        assert_eq!(awake.read(&at(0, &[(0, 0), (0, 0), (0, 0)]), None), None);
        // One runs, one waits for a CPU half of the time, one sleeps half of it.
        let waited = awake.read(&at(100, &[(99, 1), (50, 50), (50, 0)]), None);
        assert_eq!(awake.threads(), Some(2));
        assert_eq!(awake.which(), [1, 2]);
        assert!((waited.unwrap() - 51.0 / 250.0).abs() < 1e-9);
    }

    #[test]
    fn a_program_is_judged_after_it_has_run_for_long_enough() {
        let mut awake = Awake::default();
        awake.read(&at(0, &[(0, 0)]), None);
        assert_eq!(awake.read(&at(10, &[(10, 0)]), None), None);
        assert_eq!(awake.threads(), None);
        awake.read(&at(50, &[(50, 0)]), None);
        assert_eq!(awake.threads(), Some(1));
        // Later it takes longer.
        assert_eq!(awake.read(&at(110, &[(110, 0)]), None), None);
    }

    #[test]
    fn what_counts_is_the_time_in_which_it_was_let_run() {
        let turn = Turn {
            epoch_ns: 0,
            period_ns: 100 * MS,
            windows: vec![Window {
                begin_ns: 0,
                end_ns: 50 * MS,
            }],
        };
        let mut awake = Awake::default();
        awake.read(&at(0, &[(0, 0), (0, 0)]), Some(&turn));
        assert_eq!(awake.read(&at(10, &[(10, 0), (5, 0)]), Some(&turn)), None);
        awake.read(&at(100, &[(49, 0), (20, 0)]), Some(&turn));
        assert_eq!(awake.threads(), Some(1));
        // A new turn begins a new time.
        assert_eq!(awake.read(&at(400, &[(298, 0), (240, 0)]), None), None);
    }

    #[test]
    fn a_single_look_that_differs_is_not_believed() {
        let mut awake = Awake::default();
        awake.read(&at(0, &[(0, 0), (0, 0)]), None);
        awake.read(&at(100, &[(100, 0), (100, 0)]), None);
        awake.read(&at(200, &[(150, 0), (150, 0)]), None);
        assert_eq!(awake.threads(), Some(2));
        awake.read(&at(300, &[(200, 0), (200, 0)]), None);
        assert_eq!(awake.threads(), Some(0));
    }

    #[test]
    fn a_program_that_is_still_making_its_threads_is_judged_by_them_as_soon_as_they_have_run() {
        let mut awake = Awake::default();
        awake.read(&at(0, &[(0, 0)]), None);
        awake.read(&at(20, &[(20, 0)]), None);
        assert_eq!(
            (awake.threads(), awake.look_within_ns()),
            (Some(1), LOOK_OFTEN_NS)
        );
        // It waits for two that it has made.
        awake.read(&at(120, &[(20, 0), (1, 0), (1, 0)]), None);
        assert_eq!(
            (awake.threads(), awake.look_within_ns()),
            (Some(1), LOOK_AT_FIRST_NS)
        );
        awake.read(&at(135, &[(20, 0), (16, 0), (10, 6)]), None);
        assert_eq!(awake.threads(), Some(2));
        assert_eq!(awake.which(), [2, 3]);
        // Those that come later are helpers, until they are seen twice.
        awake.read(&at(235, &[(20, 0), (116, 0), (110, 6), (0, 0)]), None);
        assert_eq!(awake.threads(), Some(2));
    }

    #[test]
    fn a_program_that_makes_threads_all_the_time_is_judged_all_the_same() {
        let mut awake = Awake::default();
        let mut threads = vec![(0, 0)];
        for time in (0..2_000).step_by(5) {
            threads[0] = (time, 0);
            threads.push((0, 0));
            awake.read(&at(time, &threads), None);
            assert!(awake.threads().is_none() || time > 1_000);
        }
        assert_eq!(awake.threads(), Some(1));
    }

    #[test]
    fn of_threads_that_have_come_meanwhile_nothing_is_known() {
        let mut awake = Awake::default();
        awake.read(&at(0, &[(0, 0)]), None);
        awake.read(&at(1_000, &[(1_000, 0)]), None);
        awake.read(&at(1_100, &[(1_100, 0), (100, 0)]), None);
        assert_eq!(awake.threads(), Some(1));
    }
}
