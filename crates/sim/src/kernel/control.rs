//! What the caller does with threads.

use super::agenda::Due;
use super::average::Average;
use super::queue::{Coming, Entity, USUAL_WEIGHT};
use super::thread::{Job, Thread, ThreadState, Used};
use super::{Demand, Kernel, ProcessId, ThreadId, ThreadSpec, Why};
use corewise_decide::cpus::CpuSet;

/// Slices that can be set, in nanoseconds (`sched_attr.sched_runtime`): 0.1 ms to 100 ms.
const SLICES_NS: std::ops::RangeInclusive<u64> = 100_000..=100_000_000;

impl Kernel {
    /// Creates a thread. It is runnable at once; its first event is [`super::Event::Ready`], once it is
    /// on a CPU. A group that there is not is the outermost.
    pub fn spawn(&mut self, spec: ThreadSpec) -> ThreadId {
        let number = self.threads.len();
        let allowed = self.mask(&spec.allowed);
        let parent = spec.parent.map(|p| p.0 as usize).filter(|p| *p < number);
        let group = Some(spec.group.0 as usize).filter(|g| *g < self.groups.len());
        let from = parent.map_or(0, |p| self.threads[p].cpu);
        let process = self.processes.entry(spec.process).or_default();
        process.threads.push(number as u32);
        let frozen = process.frozen;
        self.threads.push(Thread {
            process: spec.process,
            group: group.unwrap_or(0),
            allowed_count: allowed.count(),
            allowed,
            demand: sane(spec.demand),
            entity: Entity::new(USUAL_WEIGHT, self.usual_slice_ns),
            slice_is_set: false,
            cpu: from,
            recent_cpu: from,
            home: None,
            state: ThreadState::Frozen,
            since_ns: self.now_ns,
            job: Job::Nothing,
            released: false,
            stall_ns: 0,
            called: false,
            frozen,
            sleeps: 0,
            runnable: Average::of(1.0, self.now_ns),
            at: 0,
            last_ran_ns: 0,
            used_quantum: false,
            flips: 0,
            flips_since_ns: self.now_ns,
            last_wakee: None,
            used: Used::default(),
        });
        if let Some(parent) = parent {
            self.delay(parent, self.machine.costs.spawn_ns);
        }
        let cpu = self.place_new(number, from);
        self.threads[number].cpu = cpu;
        self.threads[number].recent_cpu = cpu;
        if !frozen {
            self.activate(number, cpu, Coming::New);
        }
        ThreadId(number as u32)
    }

    /// The thread of that number, if it has not ended. Told by somebody else than `Ready`'s handler, it
    /// is that one's turn no more.
    fn living(&mut self, thread: ThreadId) -> Option<usize> {
        let number = thread.0 as usize;
        let state = self.threads.get(number)?.state;
        (state != ThreadState::Exited).then_some(number)
    }

    fn told(&mut self, thread: ThreadId) -> Option<usize> {
        let number = self.living(thread)?;
        if self.asked == Some(thread.0) {
            self.asked = None;
        }
        Some(number)
    }

    /// It computes: so much work at full speed; then it is ready. No work takes a nanosecond, so that
    /// time passes in every loop.
    pub fn run(&mut self, thread: ThreadId, work_ns: u64) {
        if let Some(number) = self.told(thread) {
            let left_ns = work_ns.max(1) as f64;
            self.set_job(number, Job::Work { left_ns });
        }
    }

    /// How its work uses the machine from now on. Shares are kept within 0 to 1, what is no number is 0.
    pub fn set_demand(&mut self, thread: ThreadId, demand: Demand) {
        let Some(number) = self.living(thread) else {
            return;
        };
        let cpu = self.threads[number].cpu;
        let running = self.threads[number].state == ThreadState::Running;
        if running {
            self.settle(cpu, false);
        }
        self.threads[number].demand = sane(demand);
        if running {
            self.uses_memory(cpu);
            self.find_speed(cpu);
            self.touch(cpu);
        }
    }

    /// It waits in a loop: it uses its CPU until it is released, or until it has done so for `limit_ns`
    /// of CPU time; then it is ready. With `yields`, it calls `sched_yield` in the loop.
    pub fn spin(&mut self, thread: ThreadId, limit_ns: Option<u64>, yields: bool) {
        if let Some(number) = self.told(thread) {
            let left_ns = limit_ns.map(|limit| limit.max(1));
            self.set_job(number, Job::Spin { left_ns, yields });
        }
    }

    /// Ends a thread's waiting in a loop: it is ready when it is on a CPU and has the cache line, for
    /// which the distance to the CPU of the thread that acts now counts. No effect if it does not wait
    /// in a loop.
    pub fn release(&mut self, thread: ThreadId) {
        let Some(number) = self.living(thread) else {
            return;
        };
        if !self.threads[number].spins() || self.threads[number].released {
            return;
        }
        let cpu = self.threads[number].cpu;
        let running = self.threads[number].state == ThreadState::Running;
        let listed = running || self.threads[number].state == ThreadState::Waiting;
        if running {
            self.settle(cpu, false);
        }
        let yielded = self.threads[number].yields();
        self.threads[number].released = true;
        if listed {
            self.recount_yielders(number, yielded);
        }
        let acting = self.acting.map(|t| self.threads[t as usize].cpu);
        let distance = acting.map(|from| self.machine.distance(from as u32, cpu as u32));
        let line = distance.map_or(0, |distance| self.machine.costs.line_ns(distance));
        self.threads[number].stall_ns += line;
        if running {
            self.touch(cpu);
        }
    }

    /// Whether its last waiting in a loop was ended by [`Kernel::release`].
    pub fn was_released(&self, thread: ThreadId) -> bool {
        let thread = self.threads.get(thread.0 as usize);
        thread.is_some_and(|t| t.released)
    }

    /// It gives its CPU to others, if there are any, and is ready when it has it again.
    pub fn yield_now(&mut self, thread: ThreadId) {
        let Some(number) = self.told(thread) else {
            return;
        };
        self.set_job(number, Job::Nothing);
        self.delay(number, self.machine.costs.yield_ns);
        if self.threads[number].state == ThreadState::Running {
            self.give_way(self.threads[number].cpu);
        }
    }

    /// It leaves its CPU until it is woken.
    pub fn block(&mut self, thread: ThreadId, why: Why) {
        let Some(number) = self.told(thread) else {
            return;
        };
        let state = self.threads[number].state;
        if matches!(state, ThreadState::Running | ThreadState::Waiting) {
            self.threads[number].used.voluntary += 1;
        }
        self.set_job(number, Job::Nothing);
        self.stop(number, ThreadState::Blocked(why));
    }

    /// It leaves its CPU until `until_ns`, or until it is woken.
    pub fn sleep(&mut self, thread: ThreadId, until_ns: u64, why: Why) {
        self.block(thread, why);
        if let Some(number) = self.living(thread) {
            let due = Due::Wake(thread.0, self.threads[number].sleeps);
            self.agenda.put(until_ns.max(self.now_ns), due);
        }
    }

    /// Wakes a blocked thread: it is ready when it is on a CPU. `by` is who wakes it, near whom it may
    /// be placed and whom it costs a little time. No effect if it is not blocked.
    pub fn wake(&mut self, thread: ThreadId, by: Option<ThreadId>) {
        let Some(number) = self.living(thread) else {
            return;
        };
        if !matches!(self.threads[number].state, ThreadState::Blocked(_)) {
            return;
        }
        self.threads[number].sleeps += 1;
        let by = by
            .map(|t| t.0 as usize)
            .filter(|t| *t < self.threads.len() && *t != number);
        if let Some(by) = by {
            self.delay(by, self.machine.costs.wake_ns);
        }
        if self.threads[number].frozen {
            self.be_gone(number);
            self.threads[number].account(self.now_ns);
            self.threads[number].state = ThreadState::Frozen;
            return;
        }
        self.start(number, by);
        if let Some(by) = by {
            let to = self.threads[number].cpu;
            if to != self.threads[by].cpu && self.cpus[to].current.is_none() {
                self.delay(by, self.machine.costs.idle_ipi_ns);
            }
        }
    }

    /// It ends.
    pub fn exit(&mut self, thread: ThreadId) {
        let Some(number) = self.told(thread) else {
            return;
        };
        self.stop(number, ThreadState::Exited);
        let process = self.threads[number].process;
        if let Some(process) = self.processes.get_mut(&process) {
            process.threads.retain(|t| *t != thread.0);
        }
    }

    /// CPUs that it may run on from now on; all, if the machine has none of these.
    pub fn set_allowed(&mut self, thread: ThreadId, allowed: &CpuSet) {
        let Some(number) = self.living(thread) else {
            return;
        };
        let mask = self.mask(allowed);
        let t = &mut self.threads[number];
        if t.allowed == mask {
            return;
        }
        t.allowed_count = mask.count();
        t.allowed = mask;
        if !t.allowed.has(t.cpu) {
            self.be_gone(number);
        }
        let t = &self.threads[number];
        let listed = matches!(t.state, ThreadState::Running | ThreadState::Waiting);
        if listed && !t.allowed.has(t.cpu) {
            let to = self.deal_out(number);
            self.migrate(number, to);
        }
    }

    /// Its slice from now on, kept within 0.1 to 100 ms; 0: the usual one.
    pub fn set_slice(&mut self, thread: ThreadId, slice_ns: u64) {
        let Some(number) = self.living(thread) else {
            return;
        };
        let (set, slice) = match slice_ns {
            0 => (false, self.usual_slice_ns),
            ns => (true, ns.clamp(*SLICES_NS.start(), *SLICES_NS.end())),
        };
        let t = &self.threads[number];
        let state = t.state;
        if (t.slice_is_set, t.entity.slice) == (set, slice) {
            return;
        }
        let listed = matches!(state, ThreadState::Running | ThreadState::Waiting);
        let cpu = t.cpu;
        self.be_gone(number);
        if listed {
            self.settle(cpu, true);
            self.dequeue(number, false);
        }
        self.threads[number].slice_is_set = set;
        self.threads[number].entity.slice = slice;
        // The kernel gives a deadline anew with the next request; here at once.
        self.threads[number].entity.relative = false;
        if listed {
            self.enqueue(number, cpu, Coming::Moved);
            self.reschedule_after_requeue(number, cpu, state);
        }
    }

    /// Stops a process's threads, or has them go on (`cgroup.freeze`).
    pub fn freeze(&mut self, process: ProcessId, frozen: bool) {
        let process = self.processes.entry(process).or_default();
        process.frozen = frozen;
        for thread in process.threads.clone() {
            let number = thread as usize;
            self.threads[number].frozen = frozen;
            match (frozen, self.threads[number].state) {
                (true, ThreadState::Running | ThreadState::Waiting) => {
                    self.threads[number].used.voluntary += 1;
                    self.stop(number, ThreadState::Frozen);
                }
                (false, ThreadState::Frozen) => self.start(number, None),
                _ => {}
            }
        }
    }

    /// It leaves its CPU, if it is on one or waits for one, and is in that state from now on.
    fn stop(&mut self, number: usize, state: ThreadState) {
        let cpu = self.threads[number].cpu;
        let before = self.threads[number].state;
        self.be_gone(number);
        if before == ThreadState::Running {
            self.settle(cpu, true);
        }
        self.threads[number].account(self.now_ns);
        self.threads[number].state = state;
        match before {
            ThreadState::Running => {
                self.dequeue(number, true);
                self.schedule(cpu);
            }
            ThreadState::Waiting => {
                self.settle(cpu, true);
                self.dequeue(number, true);
                self.touch(cpu);
            }
            _ => {}
        }
    }

    /// A thread that was blocked or frozen is runnable again.
    fn start(&mut self, number: usize, by: Option<usize>) {
        if self.threads[number].entity.delayed {
            self.resume(number);
            self.may_preempt(number);
            return;
        }
        self.threads[number].used_quantum = false;
        let cpu = self.place_awake(number, by);
        if cpu != self.threads[number].cpu {
            self.take_load_along(number);
            self.refill(number, cpu);
        }
        self.activate(number, cpu, Coming::Awake);
    }

    /// A thread moves to another CPU's queue.
    pub(super) fn migrate(&mut self, number: usize, to: usize) {
        let from = self.threads[number].cpu;
        let state = self.threads[number].state;
        self.settle(from, true);
        self.threads[number].account(self.now_ns);
        self.dequeue(number, false);
        if state == ThreadState::Running {
            self.threads[number].state = ThreadState::Waiting;
            self.threads[number].used.involuntary += 1;
            self.schedule(from);
        } else {
            self.touch(from);
        }
        self.refill(number, to);
        self.activate(number, to, Coming::Moved);
    }

    /// It goes to another CPU: what it had in its caches it will have to fetch.
    pub(super) fn refill(&mut self, number: usize, to: usize) {
        let m = &self.machine;
        let t = &mut self.threads[number];
        t.used.migrations += 1;
        let distance = m.distance(t.cpu as u32, to as u32);
        let set = t.demand.working_set_bytes;
        let takes = m.costs.refill_ns(distance, set, m.l2_bytes, m.l3_bytes);
        t.stall_ns = t.stall_ns.saturating_add(takes);
    }

    /// A thread has been taken out of its queue and put back: if it ran, it is picked again or not.
    fn reschedule_after_requeue(&mut self, number: usize, cpu: usize, before: ThreadState) {
        if before == ThreadState::Running {
            self.schedule(cpu);
        } else {
            self.may_preempt(number);
        }
    }

    /// It does something in the kernel for so long before it goes on.
    fn delay(&mut self, number: usize, for_ns: u64) {
        let (cpu, state) = (self.threads[number].cpu, self.threads[number].state);
        if matches!(state, ThreadState::Running | ThreadState::Waiting) {
            if state == ThreadState::Running {
                self.settle(cpu, false);
                self.touch(cpu);
            }
            self.threads[number].stall_ns += for_ns;
        }
    }
}

fn sane(demand: Demand) -> Demand {
    let at_least_0 = |x: f64| if x > 0.0 { x } else { 0.0 };
    Demand {
        bandwidth_bytes_per_s: at_least_0(demand.bandwidth_bytes_per_s).min(1e15),
        memory_share: at_least_0(demand.memory_share).min(1.0),
        extra_power: at_least_0(demand.extra_power + 1.0).min(100.0) - 1.0,
        prefetch_gain: at_least_0(demand.prefetch_gain + 0.99).min(100.0) - 0.99,
        prefetch_power: at_least_0(demand.prefetch_power).min(100.0),
        ..demand
    }
}
