//! Hosting a search: has the probes made that it asks for, watches them, and tells it what was seen. The same
//! loop for real programs and for simulated ones; a [`Prober`] is what differs.
//!
//! The search decides, the watch decides when a probe has shown enough; here only their wishes are
//! passed on.

use super::{Choice, Extent, Outcome, Search, Step, Trial};
use crate::profile::Profile;
use crate::setting::Setting;
use crate::watch::{Landmark, NoProfile, WatchPlan, Watched};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Makes probes of one program.
pub trait Prober {
    /// Why a probe could not be made.
    type Error;

    /// Makes the probe that `plan` describes.
    ///
    /// # Errors
    /// When it could not be made, or the program failed.
    fn probe(&mut self, plan: WatchPlan) -> Result<Watched, Self::Error>;

    /// Whether this error is the program's own, and says no more than that the setting is not for it.
    fn is_failure(error: &Self::Error) -> bool;

    /// Whether the program's way of waiting can be chosen, as far as is known.
    fn offers_passive(&self) -> bool;

    /// The largest number of threads that the program can be given, as far as is known.
    fn most_threads(&self) -> u32;

    /// The CPUs that the program may use.
    fn cpus(&self) -> &[u32];
}

/// One probe, as it is reported and remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// How the program was run.
    pub setting: Setting,
    /// From the start of the program to the start of the window, in seconds: the program's own.
    pub startup_seconds: f64,
    /// Length of the window, in seconds.
    pub seconds: f64,
    /// What was seen, or why nothing was.
    pub outcome: Result<Profile, NoProfile>,
}

/// Hears how a search goes on.
pub trait Progress {
    /// A probe starts.
    fn probe_starts(&mut self, _number: usize, _setting: Setting) {}
    /// A probe has ended.
    fn probe_ended(&mut self, _record: &ProbeRecord) {}
}

/// Nobody listens.
impl Progress for () {}

/// How long a search may wait for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a program's parallel phase to begin.
    pub startup: Duration,
    /// For a whole run, where one is wanted.
    pub whole_run: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            startup: Duration::from_secs(30),
            whole_run: Duration::from_secs(60),
        }
    }
}

/// Runs `search` to its end: its answer, and the probes in order.
///
/// # Errors
/// When probes cannot be made, or the program fails in the first one. A failure in a later probe only
/// rules that setting out.
pub fn host<P: Prober>(
    search: &mut dyn Search,
    prober: &mut P,
    limits: Limits,
    progress: &mut dyn Progress,
) -> Result<(Choice, Vec<ProbeRecord>), P::Error> {
    let mut probes: Vec<ProbeRecord> = Vec::new();
    let mut compared: Option<Compared> = None;
    let mut step = search.start();
    let choice = loop {
        let trial = match step {
            Step::Done(choice) => break choice,
            Step::Try(trial) => trial,
        };
        progress.probe_starts(probes.len() + 1, trial.setting);
        let plan = plan(trial, compared, limits, prober.cpus());
        let watched = match prober.probe(plan) {
            Ok(watched) => watched,
            Err(error) if !probes.is_empty() && P::is_failure(&error) => {
                step = search.next(Outcome::Failed);
                continue;
            }
            Err(error) => return Err(error),
        };
        search.restrict(prober.offers_passive(), prober.most_threads());
        // Later probes begin where the first parallel one did, and end there.
        let is_window = matches!(trial.extent, Extent::Window(_)) && watched.profile.is_ok();
        if let (None, true, Some(begin)) = (compared, is_window, watched.begin) {
            let end = watched.end;
            compared = Some(Compared { begin, end });
        }
        let record = ProbeRecord {
            setting: trial.setting,
            startup_seconds: watched.startup_ns as f64 / 1e9,
            seconds: watched
                .profile
                .as_ref()
                .map_or(0.0, |p| p.window_ns as f64 / 1e9),
            outcome: watched.profile.clone(),
        };
        progress.probe_ended(&record);
        probes.push(record);
        step = search.next(match watched.profile {
            Ok(profile) => Outcome::Seen(profile),
            Err(why) => Outcome::Unseen(why),
        });
    };
    Ok((choice, probes))
}

/// The window that later ones are compared with.
#[derive(Clone, Copy, Debug)]
struct Compared {
    begin: Landmark,
    end: Option<Landmark>,
}

fn plan(trial: Trial, compared: Option<Compared>, limits: Limits, cpus: &[u32]) -> WatchPlan {
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let (window_ns, to_the_end) = match trial.extent {
        Extent::Window(window_ns) => (window_ns, false),
        Extent::WholeRun(limit_ns) => (limit_ns.min(ns(limits.whole_run)), true),
    };
    WatchPlan {
        setting: trial.setting,
        window_ns,
        to_the_end,
        begin: compared.filter(|_| !to_the_end).map(|c| c.begin),
        end: compared.filter(|_| !to_the_end).and_then(|c| c.end),
        startup_limit_ns: ns(limits.startup),
        cpus: cpus.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Space;
    use crate::search::{StopReason, plain};

    /// Tries these numbers, and takes the last that was seen.
    struct InTurn {
        left: Vec<u32>,
        seen: Option<Setting>,
    }

    impl InTurn {
        fn step(&mut self) -> Step {
            match self.left.pop() {
                Some(threads) => Step::Try(Trial {
                    setting: Setting::threads(threads),
                    extent: Extent::Window(100),
                }),
                None => match self.seen {
                    Some(setting) => Step::Done(Choice {
                        setting,
                        stop: StopReason::Exhausted,
                        confidence: 1.0,
                    }),
                    None => plain(&Space::for_cpus(1.0), StopReason::Failed),
                },
            }
        }
    }

    impl Search for InTurn {
        fn name(&self) -> &'static str {
            "in turn"
        }

        fn start(&mut self) -> Step {
            self.step()
        }

        fn next(&mut self, outcome: Outcome) -> Step {
            if let Outcome::Unseen(_) = outcome {
                self.seen = Some(Setting::threads(99));
            }
            self.step()
        }
    }

    /// A program that fails with these numbers, and shows nothing with others.
    struct Fails(Vec<u32>, Vec<WatchPlan>);

    impl Prober for Fails {
        type Error = u32;

        fn probe(&mut self, plan: WatchPlan) -> Result<Watched, u32> {
            let threads = plan.setting.threads;
            self.1.push(plan);
            match self.0.contains(&threads) {
                true => Err(threads),
                false => Ok(Watched {
                    profile: Err(NoProfile::TooShort),
                    begin: None,
                    end: None,
                    startup_ns: 0,
                }),
            }
        }

        fn is_failure(_: &u32) -> bool {
            true
        }

        fn offers_passive(&self) -> bool {
            false
        }

        fn most_threads(&self) -> u32 {
            8
        }

        fn cpus(&self) -> &[u32] {
            &[0, 1]
        }
    }

    fn hosted(tries: &[u32], fails: &[u32]) -> (Result<(Choice, usize), u32>, Vec<WatchPlan>) {
        let mut search = InTurn {
            left: tries.iter().rev().copied().collect(),
            seen: None,
        };
        let mut prober = Fails(fails.to_vec(), Vec::new());
        let answer = host(&mut search, &mut prober, Limits::default(), &mut ());
        (
            answer.map(|(choice, probes)| (choice, probes.len())),
            prober.1,
        )
    }

    #[test]
    fn a_program_that_fails_in_its_first_probe_is_an_error() {
        assert_eq!(hosted(&[2, 4], &[2]).0, Err(2));
    }

    #[test]
    fn a_failure_in_a_later_probe_only_rules_that_setting_out() {
        let (answer, plans) = hosted(&[2, 4, 1], &[4]);
        let (choice, probes) = answer.unwrap();
        assert_eq!((choice.setting.threads, probes), (99, 2));
        let tried: Vec<u32> = plans.iter().map(|plan| plan.setting.threads).collect();
        assert_eq!(tried, [2, 4, 1]);
        assert_eq!(plans[0].cpus, [0, 1]);
    }
}
