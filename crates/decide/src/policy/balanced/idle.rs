//! Threads that are shared beyond the CPUs, because in the mean not all CPUs are used.
//!
//! A team whose serial part runs, a rigid program that waits for input half of the time, two thirds of
//! a CPU that were rounded up to a whole one: each leaves CPUs idle, too briefly or too irregularly to
//! take threads from it and give them back. So nobody's number is made less; instead others get threads
//! beyond the CPUs, as many as CPUs are idle in the mean. When all CPUs are busy and more threads than
//! these want one, also in the mean, they are taken back.
//!
//! Threads that spin keep their CPUs busy: beside them, nothing is added. Under a quota nothing is
//! either: idle CPUs are not free there.

use super::counted;
use super::patience::Patience;
use crate::policy::recent::Recent;
use crate::status::Status;
use serde::{Deserialize, Serialize};

/// CPUs must be idle in the mean of this long before threads are added, in nanoseconds; and threads must wait
/// in the mean of that long before they are taken back, so that who added them may be idle again.
const IDLE_NS: u64 = 300_000_000;
const WAITING_NS: u64 = 400_000_000;

const LONGEST_NS: u64 = 1_600_000_000;

/// CPUs that are idle at least, on the whole machine and as a part of it, before a thread is added.
const IDLE: f64 = 0.2;
const IDLE_PART: f64 = 0.01;

/// Threads that wait for a CPU at least before one is taken back. One too many waits all the time.
const WAITING: f64 = 0.85;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Idle {
    /// Threads beyond the CPUs.
    threads: u32,
    idle: Recent,
    waiting: Recent,
    last_reading_ns: u64,
    /// How long threads must wait.
    patience: Patience,
}

impl Idle {
    /// Threads beyond the CPUs.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    /// Somebody has come or gone whose threads can be chosen: it is to be seen anew what is idle.
    pub(super) fn forget(&mut self) {
        *self = Idle {
            last_reading_ns: self.last_reading_ns,
            ..Idle::default()
        };
    }

    /// Claims have changed: what was idle before may be used now.
    pub(super) fn claims_changed(&mut self) {
        self.idle.clear();
    }

    /// So many threads found nobody who could use them.
    pub(super) fn left_over(&mut self, threads: u32) {
        self.threads = self.threads.saturating_sub(threads);
    }

    /// There are new readings; `may_grow`: somebody could use a thread more. What to tell people if
    /// something has changed.
    pub(super) fn on_readings(&mut self, status: &Status, may_grow: bool) -> Option<String> {
        let now = status.time_ns;
        let span = now.saturating_sub(self.last_reading_ns);
        self.last_reading_ns = now;
        let load = status.load.as_ref()?;
        let cpus = status.machine.allowed.count();
        if status.machine.one_per_cpu() < cpus {
            self.forget();
            return None;
        }
        let all = f64::from(cpus);
        // CPUs that nobody could use more of are idle for no harm.
        let idle = if may_grow { all - load.busy } else { 0.0 };
        self.idle.push(now, span, idle.max(0.0));
        if let Some(threads) = load.on_allowed_cpus() {
            self.waiting.push(now, span, threads - all);
        }
        let enough = IDLE.max(IDLE_PART * all);
        let idle = self.idle.mean_over(IDLE_NS).filter(|idle| *idle > enough);
        if let Some(idle) = idle {
            let more = (idle.round() as u32).max(1);
            self.patience.gives(now, WAITING_NS);
            self.set(self.threads.saturating_add(more).min(cpus));
            return Some(format!(
                "{idle:.1} CPUs are idle in the mean: {} more than CPUs may run",
                counted(self.threads, "thread")
            ));
        }
        let waiting = self
            .waiting
            .mean_over(self.patience.of(WAITING_NS).min(LONGEST_NS));
        let waiting = waiting.filter(|waiting| *waiting > WAITING);
        if let Some(waiting) = waiting.filter(|_| self.threads > 0) {
            self.patience.takes(now);
            let fewer = (waiting.round() as u32).max(1);
            self.set(self.threads.saturating_sub(fewer));
            return Some(format!(
                "{waiting:.1} threads wait for a CPU in the mean: {} more than CPUs may run",
                counted(self.threads, "thread")
            ));
        }
        None
    }

    /// Whether CPUs were idle lately, or threads are to be taken back some time: readings should not
    /// become too rare.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.threads > 0 || self.idle.last().is_some_and(|idle| idle > IDLE)
    }

    fn set(&mut self, threads: u32) {
        self.threads = threads;
        self.idle.clear();
        self.waiting.clear();
    }
}
