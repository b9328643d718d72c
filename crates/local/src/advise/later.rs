//! What later runs of a program teach: its whole runs are timed, and now and then one tries another number of threads
//! ([`corewise_decide::search::runs`]).

use super::{Advice, Advisor, QUIET, Source};
use crate::history::Record;
use crate::load::Meanwhile;
use crate::tune::Progress;
use corewise_decide::search::Search;
use corewise_decide::search::runs::{Found, Next, Once, Run, Trial};
use corewise_decide::setting::Setting;

/// Windows that the time for searching is enough for.
const WINDOWS: u32 = 6;

/// The real run, when it has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WholeRun {
    /// How long it took, in seconds.
    pub wall_seconds: f64,
    /// CPU time of the program, in seconds.
    pub cpu_seconds: f64,
    /// CPUs that others used meanwhile, on average; `None`: not known.
    pub others: Option<f64>,
    /// It had a CPU for each thread, or all, and ran all the time, as far as corewise is concerned: no claim for less,
    /// no turns.
    pub had_all: bool,
    /// It ended by itself, and well.
    pub succeeded: bool,
}

impl WholeRun {
    /// Whether its time can be compared with those of other runs.
    pub fn is_undisturbed(&self) -> bool {
        self.succeeded && self.had_all && self.others.is_some_and(|others| others < QUIET)
    }
}

impl Advisor {
    /// Begins to time whole runs by what was advised, and lets this one try another number of threads, if it is time
    /// for that and `may_try`. Not for advice that holds beside others, or that was not searched for by speed.
    /// `progress` hears of the probe that comes before a number's first run.
    pub fn go_by_whole_runs(
        &mut self,
        advice: Advice,
        may_try: bool,
        progress: &mut dyn Progress,
    ) -> Advice {
        let next = match &advice.source {
            _ if !self.memory.is_of_idle_machine() || !self.memory.is_repeatable() => None,
            Source::Recalled(record) => self.next_run(record, may_try, progress),
            Source::Tuned(tuned) => Some(Next::Best(tuned.choice.setting.threads)),
            Source::Rule(_) => None,
        };
        let mut advice = Advice { next, ..advice };
        if let Some(next) = next {
            advice.choice.setting.threads = next.threads();
        }
        advice
    }

    fn next_run(
        &mut self,
        record: &Record,
        may_try: bool,
        progress: &mut dyn Progress,
    ) -> Option<Next> {
        let found = self.found(record)?;
        let known = record.whole_runs.as_ref();
        let runs = known.map(|whole| whole.of(self.memory.work()));
        let mut runs = runs.unwrap_or_default();
        let Next::Trial(trial) = runs.next(&found, may_try) else {
            return Some(runs.next(&found, false));
        };
        self.look();
        if self.others().is_none_or(|others| others >= QUIET) {
            return Some(runs.next(&found, false));
        }
        if !trial.probe {
            return Some(Next::Trial(trial));
        }
        let setting = Setting {
            threads: trial.threads,
            wait: record.wait_policy,
        };
        // Where nothing can be probed, nothing is tried.
        let Some((useful, seconds)) = self.probe_once(setting, progress) else {
            return Some(runs.next(&found, false));
        };
        runs.probed(trial, useful, seconds, &found);
        self.memory.amend_whole_runs(|_, work, whole| {
            if let Some(runs) = whole.keep(work) {
                runs.probed(trial, useful, seconds, &found);
            }
        });
        // The probe may have ruled it out, or cost what the trial might have; and others may have come.
        let is_idle = self.others().is_some_and(|others| others < QUIET);
        Some(match is_idle {
            true => runs.after_probe(&found),
            false => runs.next(&found, false),
        })
    }

    fn found(&self, record: &Record) -> Option<Found> {
        let space = self.space();
        // Beyond the search's own range only where the user has no wish.
        let most = match self.request.max_threads {
            Some(most) => most,
            None => space
                .max
                .max(3 * self.one_per_cpu())
                .min(self.most_threads()),
        };
        record.found(self.effective.count, space.min, most)
    }

    /// CPUs at useful work with `setting` (`None`: the program failed), and how long the probe took, in seconds.
    fn probe_once(
        &mut self,
        setting: Setting,
        progress: &mut dyn Progress,
    ) -> Option<(Option<f64>, f64)> {
        let window = self.request.budget / WINDOWS;
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let begun = std::time::Instant::now();
        let make = |_: &Advisor| -> Box<dyn Search> { Box::new(Once::new(setting, window_ns)) };
        let useful = match self.host(&make, progress) {
            Ok(tuned) => tuned.profiles().next().map(|p| p.useful()),
            Err(super::AdviseError::Probe(crate::probing::ProbeError::ProgramFailed {
                ..
            })) => None,
            Err(_) => return None,
        };
        Some((useful, begun.elapsed().as_secs_f64()))
    }

    /// Begins to watch what others use while the program runs. `None` where the machine does not say.
    pub fn meanwhile(&self) -> Option<Meanwhile> {
        Meanwhile::begin(&self.effective.cpus)
    }

    /// Notes how the real run went that was advised so.
    pub fn ran(&mut self, advice: Option<&Advice>, run: &WholeRun) {
        let next = advice.and_then(|advice| advice.next);
        if !run.succeeded {
            // A number that is known to be good may fail for other reasons.
            if let Some(Next::Trial(trial)) = next {
                self.rule_out(trial);
            }
            return;
        }
        self.memory.used(run.wall_seconds);
        let Some(next) = next else { return };
        let (cpus, min) = (self.effective.count, self.space().min);
        self.memory.amend_whole_runs(|record, work, whole| {
            if let Some(found) = record.found(cpus, min, u32::MAX) {
                let ended = Run {
                    threads: next.threads(),
                    seconds: run.wall_seconds,
                    cpu_util: run.cpu_seconds / run.wall_seconds.max(1e-9),
                    comparable: run.is_undisturbed(),
                };
                whole.ran(work, ended, &found);
            }
        });
    }

    fn rule_out(&mut self, trial: Trial) {
        self.memory.amend_whole_runs(|_, work, whole| {
            if let Some(runs) = whole.keep(work) {
                runs.rule_out(trial.threads);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_beside_others_or_with_less_than_all_is_disturbed() {
        let alone = WholeRun {
            wall_seconds: 1.0,
            cpu_seconds: 2.0,
            others: Some(0.05),
            had_all: true,
            succeeded: true,
        };
        assert!(alone.is_undisturbed());
        let disturbed = [
            WholeRun {
                others: Some(0.5),
                ..alone
            },
            WholeRun {
                others: None,
                ..alone
            },
            WholeRun {
                had_all: false,
                ..alone
            },
            WholeRun {
                succeeded: false,
                ..alone
            },
        ];
        assert!(disturbed.iter().all(|run| !run.is_undisturbed()));
    }
}
