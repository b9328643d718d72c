//! Whole runs that a result was used for, by their number of threads: kept beside the result, for the search over
//! later runs ([`corewise_decide::search::runs`]).

use super::record::{Point, Record};
use corewise_decide::profile::{useful_cpus, waits_for_others};
use corewise_decide::search::runs::{Found, Run, Runs};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Whole runs with the same work. A result holds for arguments of one shape and inputs of one class of size; times
/// are only compared where arguments and sizes are the very same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WholeRuns {
    /// What they worked on: [`work`].
    pub work: String,
    /// What the last run worked on.
    #[serde(default)]
    pub last_work: String,
    /// Their times.
    pub runs: Runs,
}

impl WholeRuns {
    /// Runs with this work; none where others are kept.
    pub fn of(&self, work: &str) -> Runs {
        match self.work == work {
            true => self.runs.clone(),
            false => Runs::default(),
        }
    }

    /// The runs with this work, where it is the one that is kept or is done for the second time in a row: then it is
    /// kept in the other's place. What trials have cost so far goes on to count.
    pub fn keep(&mut self, work: &str) -> Option<&mut Runs> {
        let again = self.last_work == work || self.work.is_empty();
        work.clone_into(&mut self.last_work);
        if self.work != work {
            if !again {
                return None;
            }
            work.clone_into(&mut self.work);
            self.runs.numbers.clear();
        }
        Some(&mut self.runs)
    }

    /// A run with this work has ended, of a program for which `found` was found.
    pub fn ran(&mut self, work: &str, run: Run, found: &Found) {
        if let Some(runs) = self.keep(work) {
            runs.ran(run, found);
        }
    }
}

/// What a run works on, as far as that shows: its arguments, the pairs of `--env`, and how many bytes of input there
/// are. 16 hexadecimal digits (FNV-1a, 64 bits: not many, and nobody's attack).
pub fn work(args: &[OsString], env: &[(String, String)], input_bytes: u64) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |bytes: &[u8]| {
        // A zero after each: no argument has one.
        for byte in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    args.iter().for_each(|arg| add(arg.as_bytes()));
    add(&[]);
    for (name, value) in env {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    add(&input_bytes.to_le_bytes());
    format!("{hash:016x}")
}

impl Record {
    /// What was found, as the search over later runs needs it, for a program that may have `min` to `max` threads on
    /// `cpus` effective CPUs. `None` where the window of what was chosen is not known: it cannot be told what whole
    /// runs could win.
    pub fn found(&self, cpus: f64, min: u32, max: u32) -> Option<Found> {
        let chosen =
            |p: &&Point| p.threads == self.chosen_threads && p.wait_policy == self.wait_policy;
        let point = self.points.iter().find(chosen)?;
        let cpu_util = point.cpu_util?;
        let spin = point.spin.unwrap_or(0.0) * cpu_util;
        let useful = useful_cpus(cpu_util, spin, point.vcx_rate.unwrap_or(0.0));
        Some(Found {
            threads: self.chosen_threads,
            cpus,
            min,
            max,
            useful,
            waits: waits_for_others(cpu_util, useful, point.lock.unwrap_or(0.0)),
            spins: self.spins,
            probe_seconds: self.total_seconds.unwrap_or(self.search_seconds)
                / self.points.len().max(1) as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn other_arguments_or_another_size_are_other_work() {
        let one = work(&words("-n 10"), &[], 5);
        assert_eq!(one, work(&words("-n 10"), &[], 5));
        assert_ne!(one, work(&words("-n 100"), &[], 5));
        assert_ne!(one, work(&words("-n10"), &[], 5));
        assert_ne!(one, work(&words("-n 10"), &[], 6));
        assert_ne!(one, work(&words("-n 10"), &[("A".into(), "1".into())], 5));
        assert_eq!(one.len(), 16);
    }

    #[test]
    fn times_of_other_work_are_not_mixed_up_and_what_is_done_twice_in_a_row_is_kept_instead() {
        let record = Record {
            chosen_threads: 2,
            points: vec![Point {
                threads: 2,
                cpu_util: Some(2.0),
                ..Point::default()
            }],
            ..Record::default()
        };
        let found = record.found(2.0, 1, 6).unwrap();
        let run = |seconds| Run {
            threads: 2,
            seconds,
            cpu_util: 1.5,
            comparable: true,
        };
        let times = |whole: &WholeRuns| whole.runs.numbers[0].seconds.clone();
        let mut whole = WholeRuns::default();
        whole.ran("a", run(1.0), &found);
        whole.ran("b", run(7.0), &found);
        whole.ran("a", run(2.0), &found);
        assert_eq!(times(&whole), [1.0, 2.0]);
        assert!(whole.of("b").is_empty());
        whole.ran("b", run(7.0), &found);
        whole.ran("b", run(8.0), &found);
        assert_eq!((&*whole.work, times(&whole)), ("b", vec![8.0]));
        assert!(whole.runs.seconds > 10.0, "the time of all runs counts");
    }

    #[test]
    fn without_the_window_of_what_was_chosen_nothing_is_known_to_be_won() {
        assert_eq!(Record::default().found(2.0, 1, 4), None);
    }
}
