//! Hosts a search: starts the probes that it asks for, watches them, and tells it what was seen.
//!
//! The search decides, the watch decides when a probe has shown enough; here only their wishes are
//! carried out.

use crate::probing::{ProbeError, Prober};
use corewise_decide::profile::Profile;
use corewise_decide::search::{Choice, Extent, Outcome, Search, Step, Trial};
use corewise_decide::setting::Setting;
use corewise_decide::watch::{Landmark, NoProfile, WatchPlan};
use corewise_launch::runtimes::Detected;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

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

/// What tuning found, and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The search's answer.
    pub choice: Choice,
    /// The search's name.
    pub algorithm: String,
    /// Probes, in order.
    pub probes: Vec<ProbeRecord>,
    /// All of the time that tuning took, in seconds.
    pub total_seconds: f64,
    /// Part of it in which the program was starting up, in seconds.
    pub startup_seconds: f64,
    /// What the probes showed of the program's runtimes.
    pub detected: Detected,
    /// How lock time was seen.
    pub lock_method: String,
    /// How spinning was seen.
    pub spin_method: String,
}

impl Tuned {
    /// What searching cost besides the program's own start-ups, in seconds.
    pub fn search_seconds(&self) -> f64 {
        self.total_seconds - self.startup_seconds
    }

    /// Profiles that were seen.
    pub fn profiles(&self) -> impl Iterator<Item = &Profile> + Clone {
        self.probes.iter().filter_map(|p| p.outcome.as_ref().ok())
    }
}

/// Hears how tuning goes on.
pub trait Progress {
    /// A probe starts.
    fn probe_starts(&mut self, _number: usize, _setting: Setting) {}
    /// A probe has ended.
    fn probe_ended(&mut self, _record: &ProbeRecord) {}
}

/// Nobody listens.
impl Progress for () {}

/// How long tuning may wait for a program.
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

/// Runs `search` to its end.
///
/// # Errors
/// When probes cannot be made, or the program fails in the first one: its own error text is in the
/// error. A failure in a later probe only rules that setting out.
pub fn tune(
    search: &mut dyn Search,
    prober: &mut Prober<'_>,
    limits: Limits,
    progress: &mut dyn Progress,
) -> Result<Tuned, ProbeError> {
    let start = Instant::now();
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
            Err(ProbeError::ProgramFailed { .. }) if !probes.is_empty() => {
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
    Ok(Tuned {
        choice,
        algorithm: search.name().to_owned(),
        startup_seconds: probes.iter().map(|p| p.startup_seconds).sum(),
        probes,
        total_seconds: start.elapsed().as_secs_f64(),
        detected: prober.detected().clone(),
        lock_method: prober.lock_method().to_owned(),
        spin_method: prober.spin_method().to_owned(),
    })
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
