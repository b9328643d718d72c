//! Threads that are shared beyond the CPUs, because in the mean not all CPUs are used.
//!
//! A team whose serial part runs, a rigid program that waits for input half of the time, two thirds of
//! a CPU that were rounded up to a whole one: each leaves CPUs idle, too briefly or too irregularly to
//! take threads from it and give them back. So nobody's number is made less; instead all who can use them
//! get threads beyond the CPUs, until those who are short of threads have as many more as CPUs are idle.
//! Then the kernel fills the gaps, at once, which readings never could.
//!
//! *Given soon, taken back late.* A thread too many costs a program little: it waits for a CPU now and then.
//! A CPU that is idle is lost. And who goes to and fro has the worst of both. So idle CPUs count as soon as
//! that is measured, soonest what those who share leave unused themselves (for a rigid program's room, `room`
//! decides first). Threads are taken back when they would not have been missed for long: when, without
//! them, no CPU would have been idle. What had to be given again soon is kept for longer (see `patience`).
//!
//! Threads that spin keep their CPUs busy: beside them, nothing is added. Under a quota nothing is
//! either: idle CPUs are not free there.

use super::counted;
use super::patience::Patience;
use crate::policy::recent::Recent;
use crate::status::Status;
use serde::{Deserialize, Serialize};

/// CPUs must be idle in the mean of this long before threads are added, in nanoseconds; where many are, of
/// that long.
const IDLE_NS: u64 = 300_000_000;
const MANY_IDLE_NS: u64 = 100_000_000;

/// Threads beyond the CPUs are taken back when they have not been missed for this long, in nanoseconds; or
/// as many times that as patience says, at most this long.
const LENT_NS: u64 = 2_000_000_000;
const LONGEST_NS: u64 = 4_800_000_000;

/// CPUs that are idle at least, on the whole machine and as a part of it, before threads are added.
const IDLE: f64 = 0.2;
const IDLE_PART: f64 = 0.01;

/// The same, if it is to count at once.
const MANY_IDLE: f64 = 0.5;
const MANY_IDLE_PART: f64 = 0.1;

/// Half of what is enough to add threads may be idle before they are missed.
const MISSED: f64 = 0.5;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Idle {
    /// Threads beyond the CPUs.
    threads: u32,
    /// Those of them that somebody has who could use them.
    lent: u32,
    /// When that was not nobody.
    lent_ns: u64,
    idle: Recent,
    /// CPUs that are idle although programs that share them have threads for them.
    gaps: Recent,
    /// CPUs that would be idle without the threads beyond them; where it is negative, as many threads would
    /// wait.
    lacking: Recent,
    last_reading_ns: u64,
    /// Idle CPUs for which threads are to be found now.
    unfilled: Option<f64>,
    /// When their number was changed last.
    changed_ns: u64,
    /// How long threads must have been too many.
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

    /// Numbers of threads have changed: what was idle before may be used now.
    pub(super) fn claims_changed(&mut self) {
        self.idle.clear();
        self.gaps.clear();
        self.lacking.clear();
    }

    /// Idle CPUs for which threads beyond the CPUs are to be found, once.
    pub(super) fn take_unfilled(&mut self) -> Option<f64> {
        self.unfilled.take()
    }

    /// So many threads fill the idle CPUs.
    pub(super) fn lends(&mut self, threads: u32, now_ns: u64) {
        self.threads = threads;
        self.changed_ns = now_ns;
    }

    /// So many of the threads beyond the CPUs are with somebody who could use them.
    pub(super) fn are_lent(&mut self, threads: u32, now_ns: u64) {
        self.lent = threads;
        if threads > 0 {
            self.lent_ns = now_ns;
        } else if now_ns.saturating_sub(self.lent_ns) > IDLE_NS {
            self.threads = 0;
        }
    }

    /// Whether somebody has threads beyond the CPUs.
    pub(super) fn is_lending(&self) -> bool {
        self.lent > 0
    }

    /// There are new readings; `may_grow`: somebody could use a thread more; `unused`: how many threads
    /// of those that share the CPUs are not running. What to tell people if something changes.
    pub(super) fn on_readings(
        &mut self,
        status: &Status,
        may_grow: bool,
        unused: f64,
    ) -> Option<String> {
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
        let idle = if may_grow { load.idle } else { 0.0 };
        self.idle.push(now, span, idle);
        self.gaps.push(now, span, idle.min(unused).max(0.0));
        if let Some(threads) = load.on_allowed_cpus() {
            let without = threads - f64::from(self.lent);
            self.lacking.push(now, span, all - without);
        }
        let enough = IDLE.max(IDLE_PART * all);
        let many = MANY_IDLE.max(MANY_IDLE_PART * all);
        let soon = self.gaps.mean_over(MANY_IDLE_NS).filter(|i| *i > many);
        let idle = self.idle.mean_over(IDLE_NS).filter(|i| *i > enough);
        if let Some(idle) = soon.or(idle) {
            self.patience.gives(now, LENT_NS);
            let missing = self.needed_since(now.saturating_sub(IDLE_NS), cpus, enough * MISSED);
            let missing = missing.unwrap_or(0).saturating_sub(self.lent);
            self.unfilled = Some(idle.max(f64::from(missing)));
            return Some(format!("{idle:.1} CPUs are idle in the mean"));
        }
        self.take_back(now, enough * MISSED)
    }

    /// How many threads beyond the CPUs, at most `most`, would have left only `few` idle in the mean since
    /// then.
    fn needed_since(&self, since_ns: u64, most: u32, few: f64) -> Option<u32> {
        let is_enough = |threads: u32| {
            let idle = |lacking: f64| (lacking - f64::from(threads)).max(0.0);
            let idle = self.lacking.mean_since_of(since_ns, idle)?;
            Some(idle <= few)
        };
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low) / 2;
            match is_enough(middle)? {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Some(low)
    }

    /// Takes back what would not have been missed lately, if `few` idle CPUs do no harm; unless it is less
    /// than half: that is not worth the change.
    fn take_back(&mut self, now: u64, few: f64) -> Option<String> {
        let lately = self.patience.of(LENT_NS).min(LONGEST_NS);
        let since = now.saturating_sub(lately).max(self.changed_ns);
        if self.lent == 0 || self.lacking.span_since(since) < lately {
            return None;
        }
        let needed = self.needed_since(since, self.lent, few)?;
        if needed > self.lent / 2 {
            return None;
        }
        self.patience.takes(now);
        self.lends(needed, now);
        Some(format!(
            "threads wait for a CPU, and none would have been idle without them: {} more than CPUs may run",
            counted(needed, "thread")
        ))
    }

    /// Whether CPUs were idle lately, or threads are to be taken back some time: readings should not
    /// become too rare.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.threads > 0 || self.idle.last().is_some_and(|idle| idle > IDLE)
    }
}
