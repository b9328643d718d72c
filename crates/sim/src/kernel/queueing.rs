//! Putting threads into queues and taking them out (`enqueue_task_fair`, `dequeue_task_fair`), and what
//! is counted of them.

use super::Kernel;
use super::queue::{Coming, Entity, FairQueue, Leaving, USUAL_WEIGHT};
use super::switch::GROUP;
use super::thread::ThreadState;

impl Kernel {
    /// A thread comes to a CPU's queue. It waits from now on; nobody is preempted yet.
    pub(super) fn enqueue(&mut self, thread: usize, cpu: usize, coming: Coming) {
        let now = self.now_ns;
        self.settle(cpu, true);
        let t = &mut self.threads[thread];
        t.account(now);
        t.state = ThreadState::Waiting;
        let brings = t.runnable.mean(now) * USUAL_WEIGHT as f64;
        let moved = coming == Coming::New || t.cpu != cpu;
        if coming != Coming::Moved {
            t.runnable.set(1.0, now);
        }
        if t.cpu != cpu {
            t.recent_cpu = t.cpu;
            t.cpu = cpu;
        }
        let (group, set_slice) = (t.group, t.slice_is_set.then_some(t.entity.slice));
        let mut entity = t.entity;
        let running = self.own_running(group, cpu).map(|(_, e)| e);
        let queue = self.own_queue_mut(group, cpu);
        queue.place(&mut entity, coming, running.as_ref());
        queue.insert(thread as u32, &entity);
        set_slice
            .into_iter()
            .for_each(|slice| queue.count_slice(slice, true));
        if group != 0 {
            let inner = &mut self.groups[group].cpus[cpu];
            inner.count += 1;
            if moved {
                inner.load.shift(brings, now);
            }
            self.groups[group].load_changes(cpu, now);
            if coming == Coming::New {
                self.groups[group].load.shift(brings, now);
            }
        }
        self.threads[thread].entity = entity;
        if group != 0 {
            self.fit_slice(group, cpu);
            self.reweigh(group, cpu);
            let inner = &self.groups[group].cpus[cpu];
            if inner.queued {
                self.resume_group(group, cpu);
            } else if !inner.throttled {
                if self.has_time(group, cpu) {
                    self.put_in_group(group, cpu, Coming::Awake);
                } else {
                    self.mark_throttled(group, cpu);
                }
            }
        }
        if moved {
            let brings = self.load_of(thread as u32);
            self.cpus[cpu].load.shift(brings, now);
        }
        if group == 0 || !self.groups[group].cpus[cpu].throttled {
            self.list(thread, cpu);
        }
        self.outer_load_changes(cpu);
        self.count(cpu);
    }

    /// A thread leaves its CPU's queue: to sleep, or for another CPU. If it was on the CPU, this is to
    /// be followed by `schedule`, and the caller gives it its new state first. One that is blocked may stay
    /// in the queue for a while, as one that is not there for anybody.
    pub(super) fn dequeue(&mut self, thread: usize, sleeps: bool) {
        let key = thread as u32;
        let t = &self.threads[thread];
        let (cpu, group, mut entity) = (t.cpu, t.group, t.entity);
        let blocks = matches!(t.state, ThreadState::Blocked(_));
        if group == 0 || !self.groups[group].cpus[cpu].throttled {
            self.unlist(thread);
        }
        let running = self.own_running(group, cpu).map(|(_, e)| e);
        let fair = self.quantum_ns().is_none();
        let queue = self.own_queue_mut(group, cpu);
        if sleeps && blocks && fair && queue.delays(key, &mut entity, running.as_ref()) {
            self.threads[thread].entity = entity;
        } else {
            self.take_out_thread(thread, sleeps);
        }
        self.outer_load_changes(cpu);
        self.count(cpu);
    }

    /// A thread that sleeps leaves the queue that it has stayed in.
    pub(super) fn finish_sleep(&mut self, thread: usize) {
        let cpu = self.threads[thread].cpu;
        self.take_out_thread(thread, true);
        self.outer_load_changes(cpu);
    }

    /// A blocked thread that is still in its queue does not sleep there any longer.
    pub(super) fn be_gone(&mut self, thread: usize) {
        if self.threads[thread].entity.delayed {
            self.settle(self.threads[thread].cpu, true);
            self.finish_sleep(thread);
        }
    }

    fn take_out_thread(&mut self, thread: usize, sleeps: bool) {
        let now = self.now_ns;
        let leaving = self.leaving(sleeps);
        let t = &self.threads[thread];
        let (cpu, group, key) = (t.cpu, t.group, thread as u32);
        let set_slice = t.slice_is_set.then_some(t.entity.slice);
        let mut entity = t.entity;
        let takes = t.runnable.mean(now) * USUAL_WEIGHT as f64;
        if !sleeps {
            let takes = self.load_of(key);
            self.cpus[cpu].load.shift(-takes, now);
        }
        let running = self.own_running(group, cpu).map(|(_, e)| e);
        let queue = self.own_queue_mut(group, cpu);
        queue.take_out(key, &mut entity, running.as_ref(), set_slice, leaving);
        self.threads[thread].entity = entity;
        if sleeps {
            self.threads[thread].runnable.set(0.0, now);
        }
        if group == 0 {
            return;
        }
        let inner = &mut self.groups[group].cpus[cpu];
        inner.count -= 1;
        let left = inner.count;
        if !sleeps {
            inner.load.shift(-takes, now);
        }
        self.groups[group].load_changes(cpu, now);
        if left > 0 {
            self.fit_slice(group, cpu);
            self.reweigh(group, cpu);
            return;
        }
        if self.groups[group].cpus[cpu].queued {
            self.last_has_left(group, cpu);
        }
        self.return_time(group, cpu);
    }

    fn leaving(&self, sleeps: bool) -> Leaving {
        Leaving {
            sleeps,
            tick_ns: self.machine.costs.tick_ns,
        }
    }

    /// What runs of the queue of a group's threads on a CPU; of the CPU's own, for the outermost group.
    fn own_running(&self, group: usize, cpu: usize) -> Option<(u32, Entity)> {
        match group {
            0 => self.outer_running(cpu),
            group => self.inner_running(group, cpu),
        }
    }

    fn own_queue_mut(&mut self, group: usize, cpu: usize) -> &mut FairQueue {
        match group {
            0 => &mut self.cpus[cpu].queue,
            group => &mut self.groups[group].cpus[cpu].queue,
        }
    }

    /// A thread wakes up that is still in its queue.
    pub(super) fn resume(&mut self, thread: usize) {
        let now = self.now_ns;
        let t = &mut self.threads[thread];
        t.account(now);
        t.state = ThreadState::Waiting;
        let (cpu, group, mut entity) = (t.cpu, t.group, t.entity);
        self.settle(cpu, true);
        let running = self.own_running(group, cpu).map(|(_, e)| e);
        let queue = self.own_queue_mut(group, cpu);
        queue.resume(thread as u32, &mut entity, running.as_ref());
        self.threads[thread].entity = entity;
        if group == 0 || !self.groups[group].cpus[cpu].throttled {
            self.list(thread, cpu);
        }
        self.count(cpu);
    }

    /// A sleeper wakes up on another CPU: the load that it has left behind goes with it
    /// (`remove_entity_load_avg`).
    pub(super) fn take_load_along(&mut self, thread: usize) {
        let now = self.now_ns;
        let (group, cpu) = (self.threads[thread].group, self.threads[thread].cpu);
        let takes = self.load_of(thread as u32);
        self.cpus[cpu].load.shift(-takes, now);
        if group != 0 {
            let own = self.threads[thread].runnable.mean(now) * USUAL_WEIGHT as f64;
            self.groups[group].cpus[cpu].load.shift(-own, now);
        }
    }

    /// A group's slice on a CPU is the shortest of its threads'.
    fn fit_slice(&mut self, group: usize, cpu: usize) {
        let usual = self.usual_slice_ns;
        let inner = &mut self.groups[group].cpus[cpu];
        let slice = inner.queue.shortest_slice(inner.count as usize, usual);
        let before = std::mem::replace(&mut inner.entity.slice, slice);
        if before != slice && inner.queued {
            let queue = &mut self.cpus[cpu].queue;
            if before != usual {
                queue.count_slice(before, false);
            }
            if slice != usual {
                queue.count_slice(slice, true);
            }
        }
    }

    /// A group's entity comes to the outer queue.
    pub(super) fn put_in_group(&mut self, group: usize, cpu: usize, coming: Coming) {
        let running = self.outer_running(cpu).map(|(_, e)| e);
        let inner = &mut self.groups[group].cpus[cpu];
        inner.queued = true;
        let queue = &mut self.cpus[cpu].queue;
        queue.place(&mut inner.entity, coming, running.as_ref());
        queue.insert(group as u32 | GROUP, &inner.entity);
        if inner.entity.slice != self.usual_slice_ns {
            queue.count_slice(inner.entity.slice, true);
        }
        self.outer_load_changes(cpu);
    }

    /// A group's entity that was about to leave the outer queue stays: one of its threads has come.
    fn resume_group(&mut self, group: usize, cpu: usize) {
        let running = self.outer_running(cpu).map(|(_, e)| e);
        let entity = &mut self.groups[group].cpus[cpu].entity;
        if entity.delayed {
            let key = group as u32 | GROUP;
            let queue = &mut self.cpus[cpu].queue;
            queue.resume(key, entity, running.as_ref());
        }
    }

    /// The last of a group's threads has left its queue: its entity leaves the outer one, or stays for a
    /// while if it has a debt.
    fn last_has_left(&mut self, group: usize, cpu: usize) {
        let running = self.outer_running(cpu).map(|(_, e)| e);
        let fair = self.quantum_ns().is_none();
        let entity = &mut self.groups[group].cpus[cpu].entity;
        let key = group as u32 | GROUP;
        let queue = &mut self.cpus[cpu].queue;
        if !fair || !queue.delays(key, entity, running.as_ref()) {
            self.take_out_group(group, cpu, true);
        }
    }

    /// A group's entity leaves the outer queue. None of its threads runs.
    pub(super) fn take_out_group(&mut self, group: usize, cpu: usize, sleeps: bool) {
        let leaving = self.leaving(sleeps);
        let running = self.outer_running(cpu).map(|(_, e)| e);
        let inner = &mut self.groups[group].cpus[cpu];
        inner.queued = false;
        let slice = inner.entity.slice;
        let counted = (slice != self.usual_slice_ns).then_some(slice);
        let key = group as u32 | GROUP;
        let queue = &mut self.cpus[cpu].queue;
        queue.take_out(key, &mut inner.entity, running.as_ref(), counted, leaving);
        self.outer_load_changes(cpu);
    }

    /// The weight in the CPU's outer queue may be another.
    pub(super) fn outer_load_changes(&mut self, cpu: usize) {
        let running = self.outer_running(cpu).map_or(0, |(_, e)| e.weight);
        let c = &mut self.cpus[cpu];
        let weight = (c.queue.waiting_weight() + running) as f64;
        if weight != c.load.value() {
            c.load.set(weight, self.now_ns);
        }
    }

    /// Takes a thread into the list of those that the CPU could run.
    pub(super) fn list(&mut self, thread: usize, cpu: usize) {
        let c = &mut self.cpus[cpu];
        self.threads[thread].at = c.tasks.len();
        c.tasks.push(thread as u32);
        c.count += 1;
        if self.threads[thread].yields() {
            c.yielders += 1;
        }
    }

    pub(super) fn unlist(&mut self, thread: usize) {
        let at = self.threads[thread].at;
        let c = &mut self.cpus[self.threads[thread].cpu];
        c.tasks.swap_remove(at);
        if let Some(moved) = c.tasks.get(at) {
            self.threads[*moved as usize].at = at;
        }
        c.count -= 1;
        if self.threads[thread].yields() {
            c.yielders = c.yielders.saturating_sub(1);
        }
    }

    /// Keeps what is counted over CPUs: in the domains, and for pressure.
    pub(super) fn count(&mut self, cpu: usize) {
        let c = &mut self.cpus[cpu];
        let runs = c.current.is_some_and(|t| {
            let thread = &self.threads[t as usize];
            thread.state == ThreadState::Running
        });
        let waits = c.count > u32::from(runs);
        let (count, waited) = std::mem::replace(&mut c.counted, (c.count, waits));
        let now_count = c.count;
        let pressure = &mut self.pressure;
        pressure.runnable = pressure.runnable + now_count - count;
        pressure.waiting = pressure.waiting + u32::from(waits) - u32::from(waited);
        pressure.busy = pressure.busy + u32::from(now_count > 0) - u32::from(count > 0);
        if now_count != count {
            self.domains.count(cpu, count, now_count);
            self.plan_balancing(cpu);
        }
    }
}
