//! Putting threads into queues and taking them out (`enqueue_task_fair`, `dequeue_task_fair`), and what
//! is counted of them.

use super::Kernel;
use super::queue::{Coming, USUAL_WEIGHT};
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
        if group == 0 {
            let running = self.outer_running(cpu).map(|(_, e)| e);
            let queue = &mut self.cpus[cpu].queue;
            queue.place(&mut entity, coming, running.as_ref());
            queue.insert(thread as u32, &entity);
            set_slice
                .into_iter()
                .for_each(|slice| queue.count_slice(slice, true));
        } else {
            let running = self.inner_running(group, cpu).map(|(_, e)| e);
            let inner = &mut self.groups[group].cpus[cpu];
            inner.queue.place(&mut entity, coming, running.as_ref());
            inner.queue.insert(thread as u32, &entity);
            set_slice
                .into_iter()
                .for_each(|slice| inner.queue.count_slice(slice, true));
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
            if !self.groups[group].cpus[cpu].queued && !self.groups[group].cpus[cpu].throttled {
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
    /// be followed by `schedule`, and the caller gives it its new state first.
    pub(super) fn dequeue(&mut self, thread: usize, sleeps: bool) {
        let now = self.now_ns;
        let tick = self.machine.costs.tick_ns;
        let t = &self.threads[thread];
        let (cpu, group, key) = (t.cpu, t.group, thread as u32);
        let set_slice = t.slice_is_set.then_some(t.entity.slice);
        let mut entity = t.entity;
        if group == 0 || !self.groups[group].cpus[cpu].throttled {
            self.unlist(thread);
        }
        if !sleeps {
            let takes = self.load_of(key);
            self.cpus[cpu].load.shift(-takes, now);
        }
        if group == 0 {
            let running = self.outer_running(cpu);
            let queue = &mut self.cpus[cpu].queue;
            queue.leave(&mut entity, running.as_ref().map(|(_, e)| e), sleeps, tick);
            if running.is_some_and(|(k, _)| k == key) {
                queue.running = None;
            } else {
                queue.remove(key, &self.threads[thread].entity);
            }
            set_slice
                .into_iter()
                .for_each(|slice| queue.count_slice(slice, false));
            if queue.waiting() == 0 && queue.running.is_none() {
                queue.became_empty(entity.vruntime);
            }
        } else {
            let running = self.inner_running(group, cpu);
            let takes = self.threads[thread].runnable.mean(now) * USUAL_WEIGHT as f64;
            let inner = &mut self.groups[group].cpus[cpu];
            let queue = &mut inner.queue;
            queue.leave(&mut entity, running.as_ref().map(|(_, e)| e), sleeps, tick);
            if running.is_some_and(|(k, _)| k == key) {
                queue.running = None;
            } else {
                queue.remove(key, &self.threads[thread].entity);
            }
            set_slice
                .into_iter()
                .for_each(|slice| queue.count_slice(slice, false));
            if queue.waiting() == 0 && queue.running.is_none() {
                queue.became_empty(entity.vruntime);
            }
            inner.count -= 1;
            if !sleeps {
                inner.load.shift(-takes, now);
            }
            self.groups[group].load_changes(cpu, now);
        }
        self.threads[thread].entity = entity;
        if sleeps {
            self.threads[thread].runnable.set(0.0, now);
        }
        if group != 0 {
            if self.groups[group].cpus[cpu].count == 0 {
                if self.groups[group].cpus[cpu].queued {
                    self.take_out_group(group, cpu, true);
                }
                self.return_time(group, cpu);
            } else {
                self.fit_slice(group, cpu);
            }
            self.reweigh(group, cpu);
        }
        self.outer_load_changes(cpu);
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

    /// A group's entity leaves the outer queue. None of its threads runs.
    pub(super) fn take_out_group(&mut self, group: usize, cpu: usize, sleeps: bool) {
        let running = self.outer_running(cpu);
        let key = group as u32 | GROUP;
        let inner = &mut self.groups[group].cpus[cpu];
        inner.queued = false;
        let before = inner.entity;
        let queue = &mut self.cpus[cpu].queue;
        let tick = self.machine.costs.tick_ns;
        queue.leave(
            &mut inner.entity,
            running.as_ref().map(|(_, e)| e),
            sleeps,
            tick,
        );
        if running.is_some_and(|(k, _)| k == key) {
            queue.running = None;
        } else {
            queue.remove(key, &before);
        }
        if before.slice != self.usual_slice_ns {
            queue.count_slice(before.slice, false);
        }
        if queue.waiting() == 0 && queue.running.is_none() {
            queue.became_empty(before.vruntime);
        }
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
