//! Quotas: CFS bandwidth (`kernel/sched/fair.c`: `account_cfs_rq_runtime`, `throttle_cfs_rq`,
//! `do_sched_cfs_period_timer`).
//!
//! A group's CPUs take slices of 5 ms from its quota; where none is left, its threads there wait until
//! the period's end. That is noticed at ticks, so that a CPU may use up to a tick more, which it then
//! owes. Left out: bursts, and the 5 ms that the kernel waits before it hands returned time to others.

use super::queue::Coming;
use super::switch::GROUP;
use super::thread::ThreadState;
use super::{Group, Kernel, Quota};

/// What a CPU takes at once (`sched_cfs_bandwidth_slice_us`).
const SLICE_NS: i64 = 5_000_000;

/// What it keeps when its threads sleep (`min_cfs_rq_runtime`).
const KEPT_NS: i64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Bandwidth {
    quota_ns: i64,
    period_ns: u64,
    left_ns: i64,
    /// Somebody has taken from it in this period.
    used: bool,
    slot: usize,
    /// CPUs on which the group waits, in that order.
    throttled: Vec<usize>,
}

impl Bandwidth {
    pub(super) fn new(quota: Quota, slot: usize) -> Bandwidth {
        let quota_ns = quota.quota_ns.clamp(1_000_000, 1 << 50) as i64;
        Bandwidth {
            quota_ns,
            period_ns: quota.period_ns.clamp(1_000_000, 1_000_000_000),
            left_ns: quota_ns,
            used: false,
            slot,
            throttled: Vec::new(),
        }
    }
}

impl Group {
    /// One of its threads has run on a CPU. Whether the time there is used up, if the kernel looks.
    pub(super) fn spend(&mut self, cpu: usize, delta_ns: u64, seen: bool) -> bool {
        if self.quota.is_none() {
            return false;
        }
        self.cpus[cpu].local_ns -= delta_ns as i64;
        seen && self.cpus[cpu].local_ns <= 0 && !self.take_slice(cpu)
    }

    /// Takes from the quota for a CPU; whether that has time then.
    fn take_slice(&mut self, cpu: usize) -> bool {
        let Some(quota) = &mut self.quota else {
            return true;
        };
        let local = &mut self.cpus[cpu].local_ns;
        let taken = (SLICE_NS - *local).min(quota.left_ns).max(0);
        quota.left_ns -= taken;
        quota.used = true;
        *local += taken;
        *local > 0
    }
}

impl Kernel {
    /// Before a group's entity comes to a CPU's outer queue: takes time for it. Whether there is any.
    pub(super) fn has_time(&mut self, group: usize, cpu: usize) -> bool {
        if self.groups[group].quota.is_none() {
            return true;
        }
        let has = self.groups[group].cpus[cpu].local_ns > 0 || self.groups[group].take_slice(cpu);
        self.start_period(group);
        has
    }

    pub(super) fn start_period(&mut self, group: usize) {
        let Some(quota) = &self.groups[group].quota else {
            return;
        };
        if self.agenda.slot(quota.slot).is_none() {
            self.agenda
                .set_slot(quota.slot, Some(self.now_ns + quota.period_ns));
        }
    }

    /// If the group that runs on the CPU has used up its time there, it waits.
    pub(super) fn throttle_if_spent(&mut self, cpu: usize) {
        let Some(key) = self.cpus[cpu].queue.running.filter(|key| key & GROUP != 0) else {
            return;
        };
        let group = (key & !GROUP) as usize;
        let limited = self.groups[group].quota.is_some();
        if !limited || self.groups[group].cpus[cpu].local_ns > 0 || self.has_time(group, cpu) {
            return;
        }
        self.put_back_inner(group, cpu);
        self.take_out_group(group, cpu, false);
        self.throttle(group, cpu);
        if let Some(current) = self.cpus[cpu].current
            && self.threads[current as usize].state == ThreadState::Running
        {
            let now = self.now_ns;
            let thread = &mut self.threads[current as usize];
            thread.state = ThreadState::Waiting;
            thread.since_ns = now;
            thread.used.involuntary += 1;
        }
    }

    /// The group waits on the CPU.
    pub(super) fn mark_throttled(&mut self, group: usize, cpu: usize) {
        self.groups[group].cpus[cpu].throttled = true;
        if let Some(quota) = &mut self.groups[group].quota
            && !quota.throttled.contains(&cpu)
        {
            quota.throttled.push(cpu);
        }
    }

    /// The group's threads on the CPU wait, and are not counted there any more.
    fn throttle(&mut self, group: usize, cpu: usize) {
        self.mark_throttled(group, cpu);
        for thread in self.keys_of(group, cpu) {
            self.unlist(thread as usize);
        }
        self.count(cpu);
    }

    /// Who waits in a group's queue, and does not only sleep there; nobody runs.
    fn keys_of(&self, group: usize, cpu: usize) -> Vec<u32> {
        let keys = self.groups[group].cpus[cpu].queue.keys();
        keys.filter(|key| !self.threads[*key as usize].entity.delayed)
            .collect()
    }

    fn unthrottle(&mut self, group: usize, cpu: usize) {
        self.groups[group].cpus[cpu].throttled = false;
        for thread in self.keys_of(group, cpu) {
            self.list(thread as usize, cpu);
        }
        if self.groups[group].cpus[cpu].count > 0 {
            self.settle(cpu, true);
            self.put_in_group(group, cpu, Coming::Awake);
            self.reschedule(cpu);
        }
        self.count(cpu);
    }

    /// A period ends: the quota is there again, and those who wait get a little each, at once.
    pub(super) fn period_is_over(&mut self, group: usize) {
        let Some(quota) = &mut self.groups[group].quota else {
            return;
        };
        quota.left_ns = quota.quota_ns;
        let goes_on = std::mem::take(&mut quota.used) || !quota.throttled.is_empty();
        let (slot, next) = (quota.slot, self.now_ns + quota.period_ns);
        self.agenda.set_slot(slot, goes_on.then_some(next));
        self.hand_out(group);
    }

    fn hand_out(&mut self, group: usize) {
        let Some(quota) = &mut self.groups[group].quota else {
            return;
        };
        let waiting = std::mem::take(&mut quota.throttled);
        for cpu in waiting {
            // Just enough to be above 0, so that a debt is paid first and there is some for everyone.
            let local = self.groups[group].cpus[cpu].local_ns;
            let needs = (1 - local).max(0);
            let Some(quota) = &mut self.groups[group].quota else {
                return;
            };
            let given = needs.min(quota.left_ns).max(0);
            quota.left_ns -= given;
            self.groups[group].cpus[cpu].local_ns = local + given;
            if local + given > 0 {
                self.unthrottle(group, cpu);
            } else if let Some(quota) = &mut self.groups[group].quota {
                quota.throttled.push(cpu);
            }
        }
    }

    /// A group's last thread on a CPU sleeps: most of the CPU's time goes back to the others
    /// (`return_cfs_rq_runtime`).
    pub(super) fn return_time(&mut self, group: usize, cpu: usize) {
        let spare = self.groups[group].cpus[cpu].local_ns - KEPT_NS;
        let Some(quota) = &mut self.groups[group].quota else {
            return;
        };
        if spare <= 0 {
            return;
        }
        quota.left_ns += spare;
        let somebody_waits = !quota.throttled.is_empty();
        self.groups[group].cpus[cpu].local_ns -= spare;
        if somebody_waits {
            self.hand_out(group);
        }
    }
}
