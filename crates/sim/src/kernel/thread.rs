//! A thread: what it was told to do, how far it is, and what it has used.

use super::average::Average;
use super::bits::Bits;
use super::queue::Entity;
use super::{Demand, ProcessId, Why};

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadState {
    /// It waits for a CPU.
    Waiting,
    /// It is on a CPU.
    Running,
    /// It waits for something else.
    Blocked(Why),
    /// It would run if its process were not frozen.
    Frozen,
    /// It has ended.
    Exited,
}

/// What it was told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// Nothing: it is ready as soon as it is on a CPU.
    Nothing,
    /// So much work at full speed.
    Work { left_ns: f64 },
    /// To wait in a loop.
    Spin { left_ns: Option<u64>, yields: bool },
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) process: ProcessId,
    pub(super) group: usize,
    pub(super) allowed: Bits,
    pub(super) allowed_count: u32,
    pub(super) demand: Demand,
    pub(super) entity: Entity,
    pub(super) slice_is_set: bool,
    /// Where it is, or was last.
    pub(super) cpu: usize,
    /// The CPU before, where it may still have a cache (`recent_used_cpu`).
    pub(super) recent_cpu: usize,
    /// Its memory's NUMA node: where it ran first.
    pub(super) home: Option<usize>,
    pub(super) state: ThreadState,
    /// Since when it is in that state, or up to when that is accounted.
    pub(super) since_ns: u64,
    pub(super) job: Job,
    pub(super) released: bool,
    /// Time on a CPU before it goes on with its job: a switch, a refill, a wake-up that it has made.
    pub(super) stall_ns: u64,
    /// It is in the list of those that are ready.
    pub(super) called: bool,
    /// Its process is frozen.
    pub(super) frozen: bool,
    /// How often it has slept: a timer of an earlier sleep is void.
    pub(super) sleeps: u32,
    /// How much of the time it is runnable.
    pub(super) runnable: Average,
    /// Position in its CPU's list of runnable threads.
    pub(super) at: usize,
    pub(super) last_ran_ns: u64,
    /// It has used up a quantum since it last slept, under Solaris' dispatcher.
    pub(super) used_quantum: bool,
    /// How often it has woken another one than before, of late (`wakee_flips`).
    pub(super) flips: u32,
    pub(super) flips_since_ns: u64,
    pub(super) last_wakee: Option<u32>,
    pub(super) used: Used,
}

/// What it has used, up to its `since_ns` or its CPU's last settling.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) run_ns: u64,
    pub(super) wait_ns: u64,
    pub(super) spin_ns: u64,
    pub(super) stall_ns: u64,
    pub(super) lock_ns: u64,
    pub(super) io_ns: u64,
    pub(super) sleep_ns: u64,
    pub(super) frozen_ns: u64,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
    pub(super) migrations: u64,
    pub(super) work_ns: f64,
}

/// Less work than this is a rounding error.
const NOTHING_NS: f64 = 1e-3;

impl Thread {
    /// It has been on its CPU for so long, at that speed.
    pub(super) fn ran(&mut self, delta_ns: u64, speed: f64) {
        self.used
            .ran(delta_ns, speed, &mut self.stall_ns, &mut self.job);
    }

    /// How long until its job is done, at that speed; `None`: it has no end.
    pub(super) fn done_in_ns(&self, speed: f64) -> Option<u64> {
        let job = match self.job {
            Job::Nothing => 0,
            Job::Work { left_ns } if left_ns <= NOTHING_NS => 0,
            // The cast saturates, and the speed is above 0.
            Job::Work { left_ns } => (left_ns / speed).ceil() as u64,
            Job::Spin { .. } if self.released => 0,
            Job::Spin { left_ns, .. } => left_ns?,
        };
        Some(job.saturating_add(self.stall_ns))
    }

    /// Whether it is on its CPU, has done what it was told, and is to be told something else.
    pub(super) fn takes_orders(&mut self) -> bool {
        self.called = false;
        self.state == ThreadState::Running && self.done_in_ns(1.0) == Some(0)
    }

    /// It waits in a loop that yields, and is not yet to leave it.
    pub(super) fn yields(&self) -> bool {
        matches!(self.job, Job::Spin { yields: true, .. }) && !self.released
    }

    pub(super) fn spins(&self) -> bool {
        matches!(self.job, Job::Spin { .. })
    }

    /// Accounts the time in its state up to now; that of one that runs is its CPU's to account.
    pub(super) fn account(&mut self, now_ns: u64) {
        let since = now_ns - self.since_ns;
        self.since_ns = now_ns;
        self.used.was(self.state, since);
    }
}

impl Used {
    pub(super) fn was(&mut self, state: ThreadState, for_ns: u64) {
        match state {
            ThreadState::Waiting => self.wait_ns += for_ns,
            ThreadState::Blocked(Why::Futex) => self.lock_ns += for_ns,
            ThreadState::Blocked(Why::Io) => self.io_ns += for_ns,
            ThreadState::Blocked(Why::Sleep) => self.sleep_ns += for_ns,
            ThreadState::Frozen => self.frozen_ns += for_ns,
            ThreadState::Running | ThreadState::Exited => {}
        }
    }

    pub(super) fn ran(&mut self, delta_ns: u64, speed: f64, stall_ns: &mut u64, job: &mut Job) {
        self.run_ns += delta_ns;
        let stalled = delta_ns.min(*stall_ns);
        *stall_ns -= stalled;
        self.stall_ns += stalled;
        let rest = delta_ns - stalled;
        match job {
            Job::Nothing => {}
            Job::Work { left_ns } => {
                let done = (rest as f64 * speed).min(*left_ns);
                *left_ns -= done;
                self.work_ns += done;
            }
            Job::Spin { left_ns, .. } => {
                self.spin_ns += rest;
                *left_ns = left_ns.map(|left| left.saturating_sub(rest));
            }
        }
    }
}
