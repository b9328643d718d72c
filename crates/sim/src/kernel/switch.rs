//! Picking who runs next on a CPU, and switching to it (`__schedule`, `pick_next_task_fair`).

use super::Kernel;
use super::queue::{Entity, virtual_ns};
use super::thread::ThreadState;

/// In outer queues, keys of groups have this bit.
pub(super) const GROUP: u32 = 1 << 31;

impl Kernel {
    /// Lets the CPU pick who is to run. The one that ran has been taken out of the queues already if it
    /// goes.
    pub(super) fn schedule(&mut self, cpu: usize) {
        self.settle(cpu, true);
        self.throttle_if_spent(cpu);
        self.cpus[cpu].resched = false;
        let (next, behind) = match self.quantum_ns() {
            Some(_) => self.next_by_turns(cpu),
            None => (self.next_by_fairness(cpu), None),
        };
        self.cpus[cpu].resched = false;
        if let Some(next) = next {
            self.put_in_front(cpu, next);
        }
        self.switch_to(cpu, next);
        self.touch(cpu);
        if let Some(thread) = behind {
            self.put_behind(thread);
        }
    }

    /// The one that the fair queue picks, or one that is pulled from another CPU.
    fn next_by_fairness(&mut self, cpu: usize) -> Option<u32> {
        let next = self.pick(cpu);
        match next {
            None if self.pull_newly_idle(cpu) => self.pick(cpu),
            _ => next,
        }
    }

    /// The entity with that key in the CPU's outer queue.
    pub(super) fn outer_entity(&self, cpu: usize, key: u32) -> &Entity {
        match key & GROUP {
            0 => &self.threads[key as usize].entity,
            _ => &self.groups[(key & !GROUP) as usize].cpus[cpu].entity,
        }
    }

    pub(super) fn outer_entity_mut(&mut self, cpu: usize, key: u32) -> &mut Entity {
        match key & GROUP {
            0 => &mut self.threads[key as usize].entity,
            _ => &mut self.groups[(key & !GROUP) as usize].cpus[cpu].entity,
        }
    }

    /// What runs of the outer queue.
    pub(super) fn outer_running(&self, cpu: usize) -> Option<(u32, Entity)> {
        let key = self.cpus[cpu].queue.running?;
        Some((key, *self.outer_entity(cpu, key)))
    }

    /// What runs of a group's queue.
    pub(super) fn inner_running(&self, group: usize, cpu: usize) -> Option<(u32, Entity)> {
        let key = self.groups[group].cpus[cpu].queue.running?;
        Some((key, self.threads[key as usize].entity))
    }

    /// Who is to run. Those that are picked and sleep leave their queues now.
    fn pick(&mut self, cpu: usize) -> Option<u32> {
        loop {
            let running = self.outer_running(cpu);
            let key = self.cpus[cpu]
                .queue
                .pick(running.as_ref().map(|(key, e)| (*key, e)))?;
            let mut next = key;
            if key & GROUP != 0 {
                let group = (key & !GROUP) as usize;
                if self.groups[group].cpus[cpu].entity.delayed {
                    self.take_out_group(group, cpu, true);
                    continue;
                }
                let running = self.inner_running(group, cpu);
                let queue = &mut self.groups[group].cpus[cpu].queue;
                next = queue.pick(running.as_ref().map(|(key, e)| (*key, e)))?;
            }
            if !self.threads[next as usize].entity.delayed {
                return Some(next);
            }
            self.finish_sleep(next as usize);
        }
    }

    /// Makes `next` the running one of its queues (`set_next_entity`); those that ran there go back
    /// (`put_prev_entity`).
    fn put_in_front(&mut self, cpu: usize, next: u32) {
        let group = self.threads[next as usize].group;
        let key = if group == 0 {
            next
        } else {
            group as u32 | GROUP
        };
        if self.cpus[cpu].queue.running != Some(key) {
            if let Some((before, entity)) = self.outer_running(cpu) {
                if before & GROUP != 0 {
                    self.put_back_inner((before & !GROUP) as usize, cpu);
                }
                self.cpus[cpu].queue.running = None;
                self.cpus[cpu].queue.insert(before, &entity);
            }
            let mut entity = *self.outer_entity(cpu, key);
            self.cpus[cpu].queue.remove(key, &entity);
            let all = self.cpus[cpu].queue.waiting() + 1;
            let shortest = self.cpus[cpu]
                .queue
                .shortest_slice(all, self.usual_slice_ns);
            protect(&mut entity, shortest);
            *self.outer_entity_mut(cpu, key) = entity;
            self.cpus[cpu].queue.running = Some(key);
        }
        if group != 0 && self.groups[group].cpus[cpu].queue.running != Some(next) {
            self.put_back_inner(group, cpu);
            let usual = self.usual_slice_ns;
            let entity = &mut self.threads[next as usize].entity;
            let queue = &mut self.groups[group].cpus[cpu].queue;
            queue.remove(next, entity);
            protect(entity, queue.shortest_slice(queue.waiting() + 1, usual));
            queue.running = Some(next);
        }
    }

    pub(super) fn put_back_inner(&mut self, group: usize, cpu: usize) {
        let queue = &mut self.groups[group].cpus[cpu].queue;
        if let Some(before) = queue.running.take() {
            queue.insert(before, &self.threads[before as usize].entity);
        }
    }

    /// The context switch.
    fn switch_to(&mut self, cpu: usize, next: Option<u32>) {
        let before = self.cpus[cpu].current;
        let goes_on = |k: &Kernel, t: u32| k.threads[t as usize].state == ThreadState::Running;
        if before == next && before.is_none_or(|t| goes_on(self, t)) {
            self.note_idle(cpu);
            return;
        }
        if let Some(before) = before {
            let now = self.now_ns;
            let thread = &mut self.threads[before as usize];
            if thread.state == ThreadState::Running && thread.cpu == cpu {
                thread.state = ThreadState::Waiting;
                thread.since_ns = now;
                thread.used.involuntary += 1;
            }
            let used = thread.demand.working_set_bytes;
            self.cpus[cpu].last = Some((before, used));
        }
        self.cpus[cpu].current = next;
        self.cpus[cpu].yield_at_ns = None;
        self.cpus[cpu].quantum_ends_ns = self.now_ns + self.quantum_ns().unwrap_or(0);
        if let Some(next) = next {
            self.comes_on(cpu, next);
        }
        self.uses_memory(cpu);
        if before.is_some() != next.is_some() {
            self.siblings_change(cpu);
        }
        self.find_speed(cpu);
        self.note_idle(cpu);
        self.count(cpu);
    }

    /// A thread gets the CPU: what that costs it.
    fn comes_on(&mut self, cpu: usize, next: u32) {
        let l2 = self.machine.l2_bytes;
        let costs = &self.machine.costs;
        let idle_since = self.cpus[cpu].idle_since_ns;
        let thread = &mut self.threads[next as usize];
        thread.account(self.now_ns);
        thread.state = ThreadState::Running;
        let mut stall = 0;
        match self.cpus[cpu].last {
            // It comes back to a CPU that nobody else has used since.
            Some((last, _)) if last == next => {}
            // Of what it had in the L2, the other one has replaced as much as it uses itself.
            Some((_, other)) => {
                let lost = thread.demand.working_set_bytes.min(other).min(l2);
                stall += costs.switch_ns + lost.div_ceil(1024) * costs.refill_l3_ns_per_kib;
            }
            None => stall += costs.switch_ns,
        }
        if let Some(since) = idle_since {
            let naps = self.now_ns - since < costs.nap_ns;
            stall += if naps {
                costs.nap_wake_ns
            } else {
                costs.idle_wake_ns
            };
        }
        thread.stall_ns = thread.stall_ns.saturating_add(stall);
        if thread.home.is_none() {
            thread.home = Some(self.machine.places[cpu].node as usize);
        }
    }

    /// Keeps the mean of how long the CPU is idle, as the kernel does when a wake-up ends it.
    fn note_idle(&mut self, cpu: usize) {
        let now = self.now_ns;
        let c = &mut self.cpus[cpu];
        match (c.current, c.idle_since_ns) {
            (None, None) => c.idle_since_ns = Some(now),
            (Some(_), Some(since)) => {
                c.idle_since_ns = None;
                let idle = (now - since).min(MOST_MEAN_IDLE_NS * 8);
                let mean = (c.mean_idle_ns * 7 + idle) / 8;
                c.mean_idle_ns = mean.min(MOST_MEAN_IDLE_NS);
            }
            _ => {}
        }
    }
}

/// Twice the longest cost of new-idle balancing that the kernel starts with.
const MOST_MEAN_IDLE_NS: u64 = 1_000_000;

/// `set_protect_slice`: it is not replaced before its deadline, or before the shortest slice of those
/// that compete with it.
fn protect(entity: &mut Entity, shortest_ns: u64) {
    entity.protected = entity.deadline;
    if shortest_ns < entity.slice {
        let end = entity.vruntime + virtual_ns(shortest_ns, entity.weight);
        entity.protected = entity.protected.min(end);
    }
}
