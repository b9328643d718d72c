//! What later runs win after the default search: each program runs [`RUNS`] times, with the number that
//! [`corewise_decide::search::runs`] says, which tries another one now and then.

use anyhow::Result;
use corewise_decide::search::host::Prober as _;
use corewise_decide::search::runs::{Found, Next, PART, Run, Runs};
use corewise_decide::setting::Setting;
use corewise_decide::watch::WatchPlan;
use corewise_sim::machine::SimMachine;

use super::catalogue::Paper;
use super::remembering::Remembering;
use super::scaling::Curve;
use super::search;
use crate::experiment::{Bar, Report, Table};

/// Runs of each program.
const RUNS: u32 = 30;

/// After so many runs it is looked at which number the next one would have.
const LOOKS: [u32; 3] = [3, 10, RUNS];

/// A probe's window, in nanoseconds: as long as one of the default search's here.
const WINDOW_NS: u64 = 1_000_000_000 / 6;

/// What came of a program's runs.
pub(super) struct Came {
    /// The best number known after each of [`LOOKS`].
    best: [u32; 3],
    runs: Runs,
    /// Virtual seconds of all runs and of the probes between them.
    seconds: f64,
    /// The same if each run had had the number that the search before the first one found.
    as_found: f64,
}

impl Came {
    /// Numbers that were the best ones known.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.best.to_vec()
    }
}

/// The table, and what its bar is about.
pub(super) struct Later {
    table: Table,
    worst: f64,
    seconds: f64,
    as_found: f64,
    lost: f64,
}

impl Later {
    pub(super) fn new() -> Later {
        Later {
            table: Table::new(
                "later runs: the best number known after so many, of the best there is; trials, and what they lost",
                &[
                    "program",
                    "found",
                    "of the best",
                    "after 3",
                    "of the best",
                    "after 10",
                    "of the best",
                    "after 30",
                    "of the best",
                    "trials",
                    "lost, % of 30 runs",
                    "30 runs over as found",
                ],
            ),
            worst: f64::INFINITY,
            seconds: 0.0,
            as_found: 0.0,
            lost: 0.0,
        }
    }

    /// Runs the program.
    ///
    /// # Errors
    /// If a run does not end, or a probe cannot go on.
    pub(super) fn run(
        &mut self,
        paper: &Paper,
        machine: &SimMachine,
        prober: &mut Remembering,
        search: &search::Found,
    ) -> Result<Came> {
        let cpus = f64::from(machine.cpus());
        // A model's run stands for one of the paper's, which takes longer; a probe takes what it takes in both.
        let model = paper.seconds(machine, search.n, 0)?;
        let shorter = (model / paper.found.run).min(1.0);
        let seen = search.profile.as_ref();
        let found = Found {
            threads: search.n,
            cpus,
            min: 1,
            max: paper.convert.argument_for(3 * machine.cpus() + 1),
            useful: seen.map_or(0.0, |p| p.useful()),
            waits: seen.is_some_and(|p| p.waits_for_others()),
            spins: seen.is_some_and(|p| p.spins()),
            probe_seconds: shorter * search.seconds / search.probes.max(1) as f64,
        };
        let mut came = Came {
            best: [search.n; 3],
            runs: Runs::default(),
            seconds: 0.0,
            as_found: 0.0,
        };
        for index in 1..=RUNS {
            let seed = u64::from(index);
            let mut next = came.runs.next(&found, true);
            if let Next::Trial(trial) = next
                && trial.probe
            {
                let (useful, seconds) = probe(prober, trial.threads);
                let seconds = shorter * seconds;
                came.runs.probed(trial, useful, seconds, &found);
                came.seconds += seconds;
                next = came.runs.after_probe(&found);
            }
            let threads = next.threads();
            let (seconds, cpu_util) = paper.whole_run(machine, threads, seed)?;
            let run = Run {
                threads,
                seconds,
                cpu_util,
                comparable: true,
            };
            came.runs.ran(run, &found);
            came.seconds += seconds;
            came.as_found += match threads == search.n {
                true => seconds,
                false => paper.seconds(machine, search.n, seed)?,
            };
            for (best, look) in came.best.iter_mut().zip(LOOKS) {
                if look == index {
                    *best = came.runs.best(&found);
                }
            }
        }
        Ok(came)
    }

    pub(super) fn add(
        &mut self,
        report: &mut Report,
        paper: &Paper,
        found: u32,
        came: &Came,
        curve: &Curve,
    ) {
        let part = |n| curve.at(n) / curve.best().1;
        let total = |n| paper.convert.total_for(n);
        let lost = came.runs.lost_seconds / came.seconds;
        let over = came.seconds / came.as_found;
        let mut row = vec![paper.name.clone()];
        for n in [found].into_iter().chain(came.best) {
            row.extend([total(n).to_string(), format!("{:.3}", part(n))]);
        }
        row.extend([
            came.runs.trials.to_string(),
            format!("{:.2}", 100.0 * lost),
            format!("{over:.3}"),
        ]);
        self.table.row(row);
        let name = &paper.name;
        for (n, look) in came.best.into_iter().zip(LOOKS) {
            report.figure(format!("{name}_after_{look}_threads"), f64::from(total(n)));
            report.figure(format!("{name}_after_{look}_of_best"), part(n));
        }
        report.figure(format!("{name}_trials"), f64::from(came.runs.trials));
        report.figure(format!("{name}_lost_percent"), 100.0 * lost);
        report.figure(format!("{name}_30_runs_over_as_found"), over);
        self.worst = self.worst.min(part(came.best[LOOKS.len() - 1]));
        self.seconds += came.seconds;
        self.as_found += came.as_found;
        self.lost = self.lost.max(lost);
    }

    pub(super) fn judge(self, report: &mut Report) {
        report.tables.push(self.table);
        report.figure("later_runs_over_as_found", self.seconds / self.as_found);
        report.bars.push(Bar::at_least(
            "later runs: speed-up over the best after 30, the worst of 16 programs (at least)",
            self.worst,
            0.97,
        ));
        report.bars.push(Bar::at_most(
            "later runs: lost in trials and their probes, % of 30 runs, the worst of 16 programs (at most)",
            100.0 * self.lost,
            100.0 * PART,
        ));
        report.note("later runs: a probe costs the part of a run that it would be of the paper's run, which is longer than the model's");
        report.note("later runs: each has a seed of its own; `as found` is the sum of as many runs with the number of the default search");
    }
}

/// CPUs at useful work in a window with that number (`None`: it cannot be had), and what the probe took, in seconds.
fn probe(prober: &mut Remembering, threads: u32) -> (Option<f64>, f64) {
    let plan = WatchPlan {
        setting: Setting::threads(threads),
        window_ns: WINDOW_NS,
        to_the_end: false,
        begin: None,
        end: None,
        startup_limit_ns: 30_000_000_000,
        cpus: prober.cpus().to_vec(),
    };
    let Ok(watched) = prober.probe(plan) else {
        return (None, 0.0);
    };
    let profile = watched.profile.ok();
    let window_ns = profile.as_ref().map_or(0, |p| p.window_ns);
    let seconds = (watched.startup_ns + window_ns) as f64 / 1e9;
    (profile.map(|p| p.useful()), seconds)
}
