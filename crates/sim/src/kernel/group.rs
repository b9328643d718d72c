//! Groups: sessions and cgroups. On each CPU, a group is one entity of the outer queue, with a queue of
//! its own behind it.
//!
//! Its weight is divided over the CPUs by its load on each (`calc_group_shares`): a group with one
//! thread on each of two CPUs has half its weight on each. That is why a session of many threads loses
//! against a session of one that sits on one of its CPUs.

use super::average::Average;
use super::queue::{Coming, Entity, FairQueue, USUAL_WEIGHT, virtual_ns};
use super::quota::Bandwidth;
use super::switch::GROUP;
use super::{GroupId, Kernel, Quota, Slot};

/// The least share on a CPU (`MIN_SHARES`), and the most.
const LEAST_SHARE: u64 = 2;
const MOST_SHARE: u64 = 1 << 18;

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) weight: u64,
    /// Its part of each CPU; empty for the outermost.
    pub(super) cpus: Vec<GroupCpu>,
    /// Weight of its runnable threads on all CPUs.
    pub(super) load: Average,
    pub(super) quota: Option<Bandwidth>,
}

#[derive(Clone, Debug)]
pub(super) struct GroupCpu {
    /// What it is in the outer queue.
    pub(super) entity: Entity,
    /// It is there.
    pub(super) queued: bool,
    pub(super) queue: FairQueue,
    /// Its runnable threads here.
    pub(super) count: u32,
    pub(super) load: Average,
    /// Its quota is used up here; its threads wait.
    pub(super) throttled: bool,
    /// What is left of what it took from the group's quota.
    pub(super) local_ns: i64,
}

impl Group {
    pub(super) fn outermost() -> Group {
        Group {
            weight: USUAL_WEIGHT,
            cpus: Vec::new(),
            load: Average::default(),
            quota: None,
        }
    }

    /// The weight of its entity on a CPU.
    fn share(&self, cpu: usize, now_ns: u64) -> u64 {
        let here = &self.cpus[cpu].load;
        let mean = here.mean(now_ns);
        let load = here.value().max(mean);
        let all = (self.load.mean(now_ns) - mean).max(0.0) + load;
        if all <= 0.0 {
            return self.weight;
        }
        let share = self.weight as f64 * load / all;
        (share as u64).clamp(LEAST_SHARE, self.weight.max(LEAST_SHARE))
    }

    /// Its load on a CPU has changed to that of the threads there.
    pub(super) fn load_changes(&mut self, cpu: usize, now_ns: u64) {
        let here = &mut self.cpus[cpu];
        let before = here.load.value();
        let value = f64::from(here.count) * USUAL_WEIGHT as f64;
        here.load.set(value, now_ns);
        let all = self.load.value() - before + value;
        self.load.set(all, now_ns);
    }
}

impl Kernel {
    /// A new group below the outermost one. Weight 1024 is a session's, or that of a cgroup with
    /// `cpu.weight` 100; it is kept between 2 and 262,144, and a quota to at least 1 ms in periods of 1 ms
    /// to 1 s, as the kernel does.
    pub fn add_group(&mut self, weight: u32, quota: Option<Quota>) -> GroupId {
        let slice = self.usual_slice_ns;
        let weight = u64::from(weight).clamp(LEAST_SHARE, MOST_SHARE);
        let cpu = GroupCpu {
            entity: Entity::new(weight, slice),
            queued: false,
            queue: FairQueue::default(),
            count: 0,
            load: Average::default(),
            throttled: false,
            local_ns: 0,
        };
        let number = self.groups.len();
        let slot = quota.map(|_| self.add_slot(Slot::Period(number)));
        let quota = quota.zip(slot);
        self.groups.push(Group {
            weight,
            cpus: vec![cpu; self.cpus.len()],
            load: Average::default(),
            quota: quota.map(|(quota, slot)| Bandwidth::new(quota, slot)),
        });
        GroupId(number as u32)
    }

    /// Sets a group's weight; that of the outermost has no meaning.
    pub fn set_weight(&mut self, group: GroupId, weight: u32) {
        let group = group.0 as usize;
        if group == 0 || group >= self.groups.len() {
            return;
        }
        self.groups[group].weight = u64::from(weight).clamp(LEAST_SHARE, MOST_SHARE);
        for cpu in 0..self.cpus.len() {
            if self.groups[group].cpus[cpu].count > 0 {
                self.settle(cpu, true);
                self.reweigh(group, cpu);
                self.touch(cpu);
            }
        }
    }

    /// At a tick, the share of the group that runs is found anew (`entity_tick`).
    pub(super) fn reweigh_current(&mut self, cpu: usize) {
        let group = self.cpus[cpu]
            .current
            .map(|t| self.threads[t as usize].group);
        if let Some(group) = group.filter(|group| *group != 0) {
            self.reweigh(group, cpu);
        }
    }

    /// As [`Kernel::reweigh_current`], for one that has run alone: its ticks were left out, at which its
    /// share would have followed what the group does on other CPUs.
    pub(super) fn freshen(&mut self, cpu: usize) {
        let group = self.cpus[cpu]
            .current
            .map(|t| self.threads[t as usize].group);
        if group.is_some_and(|group| group != 0) {
            self.settle(cpu, false);
            self.reweigh_current(cpu);
            self.touch(cpu);
        }
    }

    /// Gives a group's entity the share that its load on the CPU is due (`reweight_entity`), without a
    /// change of what it is owed.
    pub(super) fn reweigh(&mut self, group: usize, cpu: usize) {
        let weight = self.groups[group].share(cpu, self.now_ns);
        let inner = &self.groups[group].cpus[cpu];
        let (mut entity, queued) = (inner.entity, inner.queued);
        if entity.weight == weight || entity.delayed {
            return;
        }
        let before = entity.weight;
        let key = group as u32 | GROUP;
        let running = self.outer_running(cpu);
        let queue = &mut self.cpus[cpu].queue;
        if !queued {
            entity.weight = weight;
            entity.lag = scale(entity.lag, before, weight);
        } else if running.is_some_and(|(k, _)| k == key) {
            let protected = entity.protected - entity.vruntime;
            let itself = entity;
            queue.leave(
                &mut entity,
                Some(&itself),
                false,
                self.machine.costs.tick_ns,
            );
            entity.weight = weight;
            entity.lag = scale(entity.lag, before, weight);
            entity.deadline = scale(entity.deadline, before, weight);
            let vruntime = entity.vruntime;
            if queue.waiting() > 0 {
                queue.place(&mut entity, Coming::Moved, None);
            } else {
                entity.vruntime = vruntime;
                entity.deadline += vruntime;
                entity.relative = false;
            }
            entity.protected = entity.vruntime + scale(protected, before, weight);
        } else {
            let running = running.as_ref().map(|(_, e)| e);
            queue.leave(&mut entity, running, false, self.machine.costs.tick_ns);
            // As it stands there it is found: with the old weight and deadline.
            queue.remove(key, &self.groups[group].cpus[cpu].entity);
            entity.weight = weight;
            entity.lag = scale(entity.lag, before, weight);
            entity.deadline = scale(entity.deadline, before, weight);
            queue.place(&mut entity, Coming::Moved, running);
            queue.insert(key, &entity);
        }
        self.groups[group].cpus[cpu].entity = entity;
        self.outer_load_changes(cpu);
    }

    /// Of a thread's weight, what it counts in the CPU's load (`task_h_load`): its part of its group's
    /// share.
    pub(super) fn load_of(&self, thread: u32) -> f64 {
        let thread = &self.threads[thread as usize];
        let own = thread.runnable.mean(self.now_ns);
        if thread.group == 0 {
            return own * USUAL_WEIGHT as f64;
        }
        let inner = &self.groups[thread.group].cpus[thread.cpu];
        own * inner.entity.weight as f64 / f64::from(inner.count.max(1))
    }
}

/// Virtual time that was counted at one weight, at another.
fn scale(virtual_time: i64, before: u64, after: u64) -> i64 {
    let scaled = i128::from(virtual_time) * i128::from(before) / i128::from(after.max(1));
    i64::try_from(scaled).unwrap_or(virtual_ns(u64::MAX, 1))
}
