//! What a user asks for, and the search that it means.

use crate::probing::most_threads;
use crate::tune::Limits;
use corewise_decide::search::bounds::BoundSearch;
use corewise_decide::search::oversubscription::calibration::{self, Calibration};
use corewise_decide::search::reinforcer::{ThreadReinforcer, Thresholds, range_for_cpus};
use corewise_decide::search::sweep::Sweep;
use corewise_decide::search::unprobed::{self, Past};
use corewise_decide::search::{Objective, Search, Space};
use corewise_decide::setting::Convert;
use corewise_launch::runtimes::Detected;
use corewise_launch::template::Template;
use corewise_machine::EffectiveCpus;
use std::path::PathBuf;
use std::time::Duration;

/// The part of the search's time that is for windows; the rest is for making and ending probes.
const WINDOWS_PART: f64 = 0.7;
/// How often a sweep runs each setting, and a calibration each number.
const SWEEP_ROUNDS: u32 = 3;
const CALIBRATION_ROUNDS: u32 = 3;

/// Which search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// [`BoundSearch`].
    #[default]
    Bounds,
    /// [`ThreadReinforcer`].
    ThreadReinforcer,
    /// [`Sweep`].
    Sweep,
    /// [`Calibration`]: not for a fast number, but for whether others are at work.
    Calibration,
}

impl Algorithm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Bounds => "bounds",
            Algorithm::ThreadReinforcer => "thread-reinforcer",
            Algorithm::Sweep => "sweep",
            Algorithm::Calibration => calibration::NAME,
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program.
    pub template: Template,
    /// What a total of threads means as the program's argument.
    pub convert: Convert,
    /// How to search.
    pub algorithm: Algorithm,
    /// What to optimise.
    pub objective: Objective,
    /// Smallest number of threads, where the user has a wish.
    pub min_threads: Option<u32>,
    /// Largest number of threads, where the user has a wish.
    pub max_threads: Option<u32>,
    /// Probe without a sandbox where none can be had.
    pub unsafe_probes: bool,
    /// How long to wait for the program.
    pub limits: Limits,
    /// Time that searching may take, besides the program's own start-ups.
    pub budget: Duration,
    /// Where past results are; `None` for the usual place.
    pub history: Option<PathBuf>,
    /// How much of a piped standard input is kept for probes, in bytes.
    pub stdin_limit: u64,
    /// The number of threads is the program's own affair, and is not searched for: it is a build, or whatever
    /// else is offered a jobserver.
    pub untuned: bool,
}

impl Request {
    /// What may be chosen for a program of which `detected` is known, on `effective` CPUs of which
    /// others use `others` and our scheduling group gets `fair` if it wants all.
    pub(crate) fn space(
        &self,
        detected: &Detected,
        effective: &EffectiveCpus,
        others: f64,
        fair: f64,
    ) -> Space {
        let space = Space::for_cpus(effective.count);
        let (min, max) = match self.algorithm {
            Algorithm::ThreadReinforcer => {
                let (min, _, max) = range_for_cpus(effective.count);
                (min, max)
            }
            _ => (space.min, space.max),
        };
        let max = max.min(most_threads(&self.template, detected, effective.cpus.len()));
        // One end given alone moves the other out of its way.
        let (min, max) = match (self.min_threads, self.max_threads) {
            (None, None) => (min, max),
            (Some(a), None) => (a, max.max(a)),
            (None, Some(b)) => (min.min(b), b),
            (Some(a), Some(b)) => (a, b),
        };
        Space {
            min,
            max,
            others,
            fair,
            convert: self.convert,
            passive: detected.knobs().wait_policy,
            objective: self.objective,
            budget_ns: nanoseconds(self.budget.mul_f64(WINDOWS_PART)),
            ..space
        }
    }

    /// The search over `space`, begun with what `past` runs suggest.
    pub(crate) fn search(&self, mut space: Space, past: Option<Past>) -> Box<dyn Search> {
        match self.algorithm {
            Algorithm::Bounds => {
                space.prior = past.map(|past| unprobed::prior(&space, &past));
                Box::new(BoundSearch::new(space))
            }
            Algorithm::ThreadReinforcer => {
                let (_, step, _) = range_for_cpus(space.cpus);
                Box::new(ThreadReinforcer::new(space, step, Thresholds::default()))
            }
            Algorithm::Sweep => {
                let limit_ns = nanoseconds(self.limits.whole_run);
                Box::new(Sweep::new(space, SWEEP_ROUNDS, limit_ns))
            }
            Algorithm::Calibration => {
                let limit_ns = nanoseconds(self.limits.whole_run);
                Box::new(Calibration::new(space, CALIBRATION_ROUNDS, limit_ns))
            }
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
