//! Searches for a setting: from profiles to the next setting to try, and at last to a choice.
//!
//! A [`Search`] is a state machine without clock or chance: the same profiles lead to the same
//! choice. A host starts the program with what [`Step::Try`] says, watches it, and feeds what it saw
//! back, until [`Step::Done`].
//!
//! - [`bounds`]: the default: asks of each setting how fast it could be at best, and tries only those
//!   that could still win.
//! - [`oversubscription`]: whether others are at work, from a static program's times alone, and the phase of
//!   calibration that takes these times.
//! - [`reinforcer`]: Thread Reinforcer's Fig. 8.
//! - [`runs`]: over later runs, by the times of whole ones.
//! - [`unprobed`]: rules for programs that cannot be probed.
//! - [`host`]: the loop that has the probes made.
//! - [`sweep`]: every setting, to the end, repeated: slow, and the judge of the others.

pub mod bounds;
mod fair;
pub mod host;
pub mod oversubscription;
pub mod reinforcer;
pub mod runs;
pub mod sweep;
pub mod unprobed;
pub mod usl;

pub use fair::{Used, fair_share, is_denied};

use crate::profile::Profile;
use crate::setting::{Convert, Setting, WaitPolicy};
use crate::watch::NoProfile;
use serde::{Deserialize, Serialize};

/// Neighbours that use less than this many CPUs are not neighbours but the machine's own noise.
const NEIGHBOUR_MIN: f64 = 0.25;

/// What the program's speed is weighed against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// As fast as it can be without taking from others what plain Linux gives them.
    #[default]
    Speed,
    /// Use only CPUs that are idle now.
    Share,
}

/// What may be chosen, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// Effective CPUs; a quota may make it a fraction.
    pub cpus: f64,
    /// CPUs that other programs use now.
    pub others: f64,
    /// CPUs that the scheduler gives the program's own group (its session, its cgroup) in the long run if
    /// it wants all: see [`fair_share`]. The effective CPUs where no other group is at work.
    pub fair: f64,
    /// Smallest number, at least 1.
    pub min: u32,
    /// Largest number, at least `min`.
    pub max: u32,
    /// How a number relates to the threads that the program creates.
    pub convert: Convert,
    /// Whether the way of waiting can be chosen.
    pub passive: bool,
    /// What to optimise.
    pub objective: Objective,
    /// What past runs suggest to try first.
    pub prior: Option<Setting>,
    /// Total time to spend in windows, in nanoseconds.
    pub budget_ns: u64,
}

/// What is wrong with a [`Space`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpaceError {
    /// The range is empty.
    #[error(
        "the smallest number of threads ({min}) is above the largest ({max}): exchange --min-threads and --max-threads"
    )]
    EmptyRange {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Zero threads.
    #[error("the smallest number of threads is 0: a program needs at least 1")]
    NoThreads,
}

impl Space {
    /// The whole range for `cpus` effective CPUs: 1 to twice as many numbers.
    pub fn for_cpus(cpus: f64) -> Space {
        let whole = cpus.ceil().max(1.0) as u32;
        Space {
            cpus: cpus.max(0.01),
            others: 0.0,
            fair: cpus.max(0.01),
            min: 1,
            max: 2 * whole,
            convert: Convert::default(),
            passive: false,
            objective: Objective::Speed,
            prior: None,
            budget_ns: 1_000_000_000,
        }
    }

    /// Checks the range.
    ///
    /// # Errors
    /// When the range is empty or starts at zero.
    pub fn check(&self) -> Result<(), SpaceError> {
        if self.min == 0 {
            Err(SpaceError::NoThreads)
        } else if self.min > self.max {
            Err(SpaceError::EmptyRange {
                min: self.min,
                max: self.max,
            })
        } else {
            Ok(())
        }
    }

    /// CPUs that are left where others use `others`, as whole threads; never none.
    fn free_cpus(&self, others: f64) -> u32 {
        (self.cpus - others).round().max(1.0) as u32
    }

    /// Threads beyond this only take turns on what the program's scheduling group has; `None` where no
    /// other group is at work.
    pub fn most_by_group(&self) -> Option<u32> {
        let kept_away = self.cpus - self.fair >= NEIGHBOUR_MIN;
        kept_away.then(|| (self.fair.round().max(1.0) as u32).clamp(self.min, self.max))
    }

    /// One thread for each effective CPU (a begun one counts), within the range.
    pub fn one_per_cpu(&self) -> u32 {
        (self.cpus.ceil().max(1.0) as u32).clamp(self.min, self.max)
    }
}

/// How much of the program a trial runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// A window of this many nanoseconds in the parallel phase.
    Window(u64),
    /// To its end, or this many nanoseconds.
    WholeRun(u64),
}

/// One probe to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// How to run the program.
    pub setting: Setting,
    /// How much of it.
    pub extent: Extent,
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was measured.
    Seen(Profile),
    /// It ran, and there was nothing to measure.
    Unseen(NoProfile),
    /// The program failed with this setting.
    Failed,
}

/// Why a search stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The chosen setting keeps its CPUs at useful work: nothing could be faster.
    Saturated,
    /// No setting that was not tried could be faster by more than the margin.
    Bounded,
    /// The time for searching was spent.
    Budget,
    /// Everything was tried.
    Exhausted,
    /// The program never has two threads at work.
    NeverParallel,
    /// The program ends before anything can be measured.
    TooShort,
    /// Nothing tells progress from spinning here; chosen by caution.
    Blind,
    /// The program failed with every setting tried.
    Failed,
    /// Thread Reinforcer: more threads use no more CPU.
    CpuUtil,
    /// Thread Reinforcer: lock contention is high and grew sharply.
    Lock,
    /// Thread Reinforcer: lock contention is high and voluntary switches grew sharply.
    VcxRate,
    /// Thread Reinforcer: lock contention is high and migrations grew sharply.
    MigrRate,
    /// Thread Reinforcer: the largest number was reached.
    Tmax,
    /// With one thread more, two would share a CPU.
    Oversubscribed,
    /// Measurements contradict each other: others came or went meanwhile.
    Disturbed,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StopReason::Saturated => "its CPUs are all at useful work; nothing could be faster",
            StopReason::Bounded => "no other setting could be noticeably faster",
            StopReason::Budget => "the time for searching was spent",
            StopReason::Exhausted => "every setting was tried",
            StopReason::NeverParallel => "the program never has two threads at work",
            StopReason::TooShort => "the program ends before anything can be measured",
            StopReason::Blind => "nothing here tells progress from spinning; chosen by caution",
            StopReason::Failed => "the program failed with every setting tried",
            StopReason::CpuUtil => "more threads use no more CPU (CPU_UTIL)",
            StopReason::Lock => "lock contention is high and grew sharply (LOCK)",
            StopReason::VcxRate => "locks are contended and switches grew sharply (VCX_RATE)",
            StopReason::MigrRate => "locks are contended and migrations grew sharply (MIGR_RATE)",
            StopReason::Tmax => "the largest number of threads was reached",
            StopReason::Oversubscribed => "with one thread more, two share a CPU",
            StopReason::Disturbed => {
                "its measurements contradict each other: others came or went meanwhile"
            }
        })
    }
}

/// A search's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// How to run the program.
    pub setting: Setting,
    /// Why the search stopped.
    pub stop: StopReason,
    /// Probability, by the search's own reckoning, that nothing is more than 5 % faster; 0 to 1.
    pub confidence: f64,
}

/// What a host does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make this probe and report its outcome.
    Try(Trial),
    /// The search is over.
    Done(Choice),
}

/// A search for a setting.
pub trait Search {
    /// Its name, as `--algorithm` takes it.
    fn name(&self) -> &'static str;

    /// The first step.
    fn start(&mut self) -> Step;

    /// The step after `outcome` of the trial that was last asked for.
    fn next(&mut self, outcome: Outcome) -> Step;

    /// The first probe showed that the way of waiting cannot be chosen after all (not `passive`), or
    /// that no more than `max` threads can be had.
    fn restrict(&mut self, _passive: bool, _max: u32) {}
}

/// One thread, because the program has never two at work.
fn never_parallel(space: &Space) -> Step {
    Step::Done(Choice {
        setting: Setting {
            threads: space.min,
            wait: WaitPolicy::Default,
        },
        stop: StopReason::NeverParallel,
        confidence: 0.9,
    })
}

/// As plain Linux would run it, because there was nothing to learn.
fn plain(space: &Space, stop: StopReason) -> Step {
    Step::Done(Choice {
        setting: Setting::threads(space.one_per_cpu()),
        stop,
        confidence: 0.5,
    })
}
