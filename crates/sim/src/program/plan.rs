//! What a description comes to: a list of operations in nanoseconds, checked and bounded.

use super::share::{self, Cut};
use super::wait::WaitPolicy;
use crate::kernel::{Demand, Why};

/// Threads that a program may have at the same time.
pub(super) const MOST_THREADS: u32 = 65_536;

/// What is executed. Indices (`usize`) are into the plan's own tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) processes: u32,
    /// The team's threads are bounded so that all threads are at most [`MOST_THREADS`].
    pub(super) most_team: u32,
    pub(super) wait: WaitPolicy,
    pub(super) demands: Vec<Demand>,
    pub(super) locks: Vec<LockPlan>,
    pub(super) semaphores: Vec<String>,
    pub(super) ops: Vec<Op>,
    /// Loops' counters.
    pub(super) loops: usize,
    /// `None`: endless.
    pub(super) work_ns: Option<u64>,
}

/// A lock.
#[derive(Clone, Debug)]
pub(super) struct LockPlan {
    pub(super) name: String,
    pub(super) wait: WaitPolicy,
    /// Threads have it in the order in which they came.
    pub(super) fifo: bool,
}

/// An operation of a process's first thread.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// What follows, until its `Again`, is done so often (`None`: without end).
    Repeat {
        times: Option<u64>,
        counter: usize,
    },
    /// Back to what follows the `Repeat` at `start`, if it is to be done again.
    Again {
        start: usize,
        counter: usize,
    },
    /// Work of the thread itself.
    Serial {
        work_ns: u64,
        demand: usize,
    },
    /// Off the CPU.
    Pause {
        ns: u64,
        why: Why,
    },
    Region(RegionPlan),
    Pipeline(PipelinePlan),
    Groups(Vec<GroupPlan>),
    Jobs(JobsPlan),
}

/// What belongs to a unit of work besides the work: locks, and a device.
#[derive(Clone, Debug, Default)]
pub(super) struct UnitPlan {
    /// In order: which lock, for how long.
    pub(super) sections: Vec<(usize, u64)>,
    pub(super) io_ns: u64,
}

impl UnitPlan {
    /// Work done holding locks.
    pub(super) fn held_ns(&self) -> u64 {
        let held = self.sections.iter().map(|(_, hold_ns)| *hold_ns);
        held.fold(0, u64::saturating_add)
    }
}

#[derive(Clone, Debug)]
pub(super) struct RegionPlan {
    pub(super) work_ns: u64,
    pub(super) dynamic: bool,
    /// `None`: one for each thread.
    pub(super) units: Option<u64>,
    pub(super) imbalance: share::Spread,
    pub(super) unit: UnitPlan,
    pub(super) threads: Option<u32>,
    pub(super) join: super::spec::Join,
    pub(super) wait: Option<WaitPolicy>,
    pub(super) demand: usize,
}

impl RegionPlan {
    /// How the work is cut into units when `threads` share it.
    pub(super) fn cut(&self, threads: u32, seed: u64) -> Cut {
        let spread = match (self.dynamic, self.units) {
            // The shares differ, by their number of units.
            (false, Some(_)) => share::Spread::NONE,
            _ => self.imbalance,
        };
        Cut {
            total: self.work_ns,
            pieces: self.units.unwrap_or(u64::from(threads)).max(1),
            spread,
            seed,
        }
    }

    /// The units of a static region's thread `index`.
    pub(super) fn units_of(&self, index: u32, threads: u32, seed: u64) -> std::ops::Range<u64> {
        let index = u64::from(index);
        let Some(units) = self.units else {
            return index..index + 1;
        };
        let shares = Cut {
            total: units,
            pieces: u64::from(threads).max(1),
            spread: self.imbalance,
            seed,
        };
        shares.begin(index)..shares.begin(index + 1)
    }
}

#[derive(Clone, Debug)]
pub(super) struct PipelinePlan {
    pub(super) items: u64,
    pub(super) in_flight: Option<u64>,
    pub(super) stages: Vec<StagePlan>,
}

#[derive(Clone, Debug)]
pub(super) struct StagePlan {
    pub(super) name: String,
    /// `None`: the team's.
    pub(super) threads: Option<u32>,
    /// Of all items.
    pub(super) work_ns: u64,
    pub(super) variation: share::Spread,
    pub(super) queue: Option<u64>,
    pub(super) ordered: bool,
    pub(super) unit: UnitPlan,
    pub(super) demand: usize,
}

#[derive(Clone, Debug)]
pub(super) struct GroupPlan {
    pub(super) name: String,
    pub(super) threads: u32,
    pub(super) repeat: Option<u64>,
    pub(super) steps: Vec<StepPlan>,
    pub(super) demand: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum StepPlan {
    Work(u64),
    Lock(usize),
    Unlock(usize),
    Wait(usize),
    Post(usize),
    Pause(u64, Why),
}

#[derive(Clone, Debug)]
pub(super) struct JobsPlan {
    pub(super) count: u64,
    /// `None`: as many as the team's threads.
    pub(super) at_once: Option<u32>,
    /// Of all jobs.
    pub(super) work_ns: u64,
    pub(super) variation: share::Spread,
    /// How many a wave, and how far waves are apart.
    pub(super) waves: Option<(u64, u64)>,
    pub(super) demand: usize,
}
