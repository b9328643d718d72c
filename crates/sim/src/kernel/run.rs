//! A CPU that runs: accounting what has passed, and finding its next event.

use super::average::Average;
use super::bits::Bits;
use super::queue::{FairQueue, real_ns};
use super::thread::{Job, Thread, ThreadState};
use super::{Doing, Kernel, ThreadId};
use crate::machine::Scheduler;

/// While everybody on a CPU waits in a loop that yields, they take turns this seldom: nobody can tell,
/// and the true rate, a turn each microsecond, would have the simulation do nothing else.
const IDLE_TURN_NS: u64 = 100_000;

/// A CPU and its outer queue.
#[derive(Clone, Debug)]
pub(super) struct Cpu {
    pub(super) queue: FairQueue,
    /// Who is on it.
    pub(super) current: Option<u32>,
    /// Up to when what runs is accounted.
    pub(super) settled_ns: u64,
    pub(super) busy_ns: u64,
    /// Work done in a nanosecond, in nanoseconds at full speed.
    pub(super) speed: f64,
    /// Power that what runs uses, as a part of what the usual work does; and the time for which it did, each
    /// nanosecond times its power.
    pub(super) power: f64,
    pub(super) powered_ns: f64,
    /// Its runnable threads, without those whose group's quota is used up: how many, and in no order
    /// all of them.
    pub(super) count: u32,
    pub(super) tasks: Vec<u32>,
    /// Where the next look for threads to move begins.
    pub(super) cursor: usize,
    /// Of `tasks`, those that wait in a loop that yields.
    pub(super) yielders: u32,
    pub(super) yield_at_ns: Option<u64>,
    /// Under Solaris' dispatcher: when the quantum of the one on it ends, and whether it has ended.
    pub(super) quantum_ends_ns: u64,
    pub(super) quantum_over: bool,
    /// Weight in its queue.
    pub(super) load: Average,
    /// Another is to be picked.
    pub(super) resched: bool,
    /// It is among those to attend to.
    pub(super) pending: bool,
    /// Since when it is idle.
    pub(super) idle_since_ns: Option<u64>,
    /// A mean of how long it is idle (`avg_idle`).
    pub(super) mean_idle_ns: u64,
    /// Who was on it last, and how much of the L2 that one used.
    pub(super) last: Option<(u32, u64)>,
    /// What the recorder was told.
    pub(super) shown: Option<(ThreadId, Doing)>,
    /// What is counted elsewhere: see `queueing`.
    pub(super) counted: (u32, bool),
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu {
            queue: FairQueue::default(),
            current: None,
            settled_ns: 0,
            busy_ns: 0,
            speed: 1.0,
            power: 1.0,
            powered_ns: 0.0,
            count: 0,
            tasks: Vec::new(),
            cursor: 0,
            yielders: 0,
            yield_at_ns: None,
            quantum_ends_ns: 0,
            quantum_over: false,
            load: Average::default(),
            resched: false,
            pending: false,
            idle_since_ns: Some(0),
            mean_idle_ns: 1_000_000,
            last: None,
            shown: None,
            counted: (0, false),
        }
    }
}

impl Kernel {
    /// The CPU is to be attended to before time goes on.
    pub(super) fn touch(&mut self, cpu: usize) {
        if !std::mem::replace(&mut self.cpus[cpu].pending, true) {
            self.pending.push_back(cpu);
        }
    }

    pub(super) fn reschedule(&mut self, cpu: usize) {
        self.cpus[cpu].resched = true;
        self.touch(cpu);
    }

    /// Accounts what the CPU has run until now (`update_curr`). `seen`: the kernel looks at it now, and
    /// has another picked if the slice is used up; it does not where a thread merely goes on.
    pub(super) fn settle(&mut self, cpu: usize, seen: bool) {
        let (now, tick) = (self.now_ns, self.machine.costs.tick_ns);
        let c = &mut self.cpus[cpu];
        let delta = now - c.settled_ns;
        c.settled_ns = now;
        let Some(current) = c.current else { return };
        if delta == 0 && !seen {
            return;
        }
        c.busy_ns += delta;
        c.powered_ns += delta as f64 * c.power;
        let thread = &mut self.threads[current as usize];
        if thread.state != ThreadState::Running {
            return;
        }
        thread.ran(delta, c.speed);
        thread.last_ran_ns = now;
        let over = thread.entity.ran(delta, now, tick, seen);
        let over = over || thread.entity.vruntime >= thread.entity.protected;
        let resched = if thread.group == 0 {
            over && c.queue.waiting() > 0
        } else {
            let group = &mut self.groups[thread.group];
            let spent = group.spend(cpu, delta, seen);
            let inner = &mut group.cpus[cpu];
            let outer_over = inner.entity.ran(delta, now, tick, seen);
            let outer_over = outer_over || inner.entity.vruntime >= inner.entity.protected;
            (over && inner.queue.waiting() > 0) || (outer_over && c.queue.waiting() > 0) || spent
        };
        let fair = matches!(self.machine.scheduler, Scheduler::Linux);
        let (resched, group) = (seen && resched && fair && !c.resched, thread.group);
        if group != 0 && self.groups[group].quota.is_some() {
            self.start_period(group);
        }
        if resched {
            self.reschedule(cpu);
        }
    }

    /// Something has changed on the CPU: it picks another thread if it has to, and finds out when it
    /// will have to do something next.
    pub(super) fn attend(&mut self, cpu: usize) {
        self.cpus[cpu].pending = false;
        let c = &self.cpus[cpu];
        if c.resched || (c.current.is_none() && c.count > 0) {
            self.schedule(cpu);
            self.cpus[cpu].pending = false;
        }
        self.settle(cpu, false);
        self.arm(cpu);
        self.heat_begins(cpu);
    }

    /// The CPU's slot is due: a tick at which a slice may end, or a job's end.
    pub(super) fn cpu_is_due(&mut self, cpu: usize) {
        let at_tick = self.now_ns.is_multiple_of(self.machine.costs.tick_ns);
        self.settle(cpu, at_tick);
        if at_tick {
            self.reweigh_current(cpu);
        }
        let yield_due = self.cpus[cpu]
            .yield_at_ns
            .is_some_and(|at| at <= self.now_ns);
        if yield_due {
            self.give_way(cpu);
        }
        self.quantum_may_be_over(cpu);
        self.touch(cpu);
    }

    /// `sched_yield` of the one that runs (`yield_task_fair`): it gives up its slice if it is eligible.
    pub(super) fn give_way(&mut self, cpu: usize) {
        self.settle(cpu, true);
        self.cpus[cpu].yield_at_ns = None;
        let Some(current) = self.cpus[cpu].current else {
            return;
        };
        if self.cpus[cpu].count <= 1 {
            return;
        }
        self.cpus[cpu].quantum_over = true;
        let thread = &mut self.threads[current as usize];
        let queue = match thread.group {
            0 => &self.cpus[cpu].queue,
            group => &self.groups[group].cpus[cpu].queue,
        };
        if queue.is_eligible(&thread.entity, Some(&thread.entity)) {
            thread.entity.forfeit();
        }
        self.reschedule(cpu);
    }

    /// When the CPU's next event is. What it runs is accounted up to now.
    fn arm(&mut self, cpu: usize) {
        let Some(current) = self.cpus[cpu].current else {
            self.agenda.set_slot(cpu, None);
            self.show(cpu, None);
            return;
        };
        let (now, tick) = (self.now_ns, self.machine.costs.tick_ns);
        let done_in = self.threads[current as usize].done_in_ns(self.cpus[cpu].speed);
        if done_in == Some(0) {
            let called = &mut self.threads[current as usize].called;
            if !std::mem::replace(called, true) {
                self.ready.push_back(current);
            }
        } else {
            let spins = self.threads[current as usize].spins();
            let doing = if spins { Doing::Spin } else { Doing::Work };
            self.show(cpu, Some((ThreadId(current), doing)));
        }
        let done_at = done_in.filter(|d| *d > 0).map(|d| now.saturating_add(d));
        let yield_at = self.next_yield_ns(cpu, current);
        self.cpus[cpu].yield_at_ns = yield_at;
        let slice = match self.quantum_ns() {
            None => self.slice_ends_in_ns(cpu, current),
            Some(_) => Some(self.cpus[cpu].quantum_ends_ns.saturating_sub(now)),
        };
        let tick_at = slice.map(|after| {
            let at = now.saturating_add(after);
            at.div_ceil(tick).max(now / tick + 1).saturating_mul(tick)
        });
        let due = [done_at, yield_at, tick_at].into_iter().flatten().min();
        self.agenda.set_slot(cpu, due);
    }

    /// When one that waits in a loop yields next, if anyone can profit by it: yielding concerns its own
    /// queue, not what runs in other groups.
    fn next_yield_ns(&self, cpu: usize, current: u32) -> Option<u64> {
        let thread = &self.threads[current as usize];
        if !thread.yields() || self.own_queue(thread, cpu).waiting() == 0 {
            return None;
        }
        let c = &self.cpus[cpu];
        let turn = match c.yielders < c.count {
            true => self.machine.costs.yield_ns,
            false => IDLE_TURN_NS,
        };
        let at = c.yield_at_ns.filter(|at| *at > self.now_ns);
        Some(at.unwrap_or(self.now_ns + thread.stall_ns + turn))
    }

    /// After how long somebody's slice, or the group's quota, is used up, where that matters.
    fn slice_ends_in_ns(&self, cpu: usize, current: u32) -> Option<u64> {
        let thread = &self.threads[current as usize];
        let outer_waits = self.cpus[cpu].queue.waiting() > 0;
        let left =
            |e: &super::queue::Entity| real_ns(e.deadline.min(e.protected) - e.vruntime, e.weight);
        if thread.group == 0 {
            return outer_waits.then(|| left(&thread.entity));
        }
        let group = &self.groups[thread.group];
        let inner = &group.cpus[cpu];
        let own = (inner.queue.waiting() > 0).then(|| left(&thread.entity));
        let outer = outer_waits.then(|| left(&inner.entity));
        let quota = group.quota.as_ref();
        let quota = quota.map(|_| u64::try_from(inner.local_ns).unwrap_or(0));
        [own, outer, quota].into_iter().flatten().min()
    }

    pub(super) fn own_queue(&self, thread: &Thread, cpu: usize) -> &FairQueue {
        match thread.group {
            0 => &self.cpus[cpu].queue,
            group => &self.groups[group].cpus[cpu].queue,
        }
    }

    fn show(&mut self, cpu: usize, what: Option<(ThreadId, Doing)>) {
        if let Some(recorder) = &mut self.recorder
            && std::mem::replace(&mut self.cpus[cpu].shown, what) != what
        {
            recorder.on_cpu(self.now_ns, cpu as u32, what);
        }
    }

    /// The one on a CPU gets another job.
    pub(super) fn set_job(&mut self, thread: usize, job: Job) {
        let cpu = self.threads[thread].cpu;
        let on_cpu = self.threads[thread].state == ThreadState::Running;
        if on_cpu {
            self.settle(cpu, false);
        }
        let listed = matches!(
            self.threads[thread].state,
            ThreadState::Running | ThreadState::Waiting
        );
        let yielded = self.threads[thread].yields();
        self.threads[thread].job = job;
        self.threads[thread].released = false;
        if listed {
            self.recount_yielders(thread, yielded);
        }
        if on_cpu {
            self.cpus[cpu].yield_at_ns = None;
            self.uses_memory(cpu);
            self.find_speed(cpu);
            self.touch(cpu);
        }
    }

    /// A runnable thread may have started or ceased to wait in a loop that yields. Those of groups whose
    /// quota is used up are not counted.
    pub(super) fn recount_yielders(&mut self, thread: usize, before: bool) {
        let thread = &self.threads[thread];
        if thread.group != 0 && self.groups[thread.group].cpus[thread.cpu].throttled {
            return;
        }
        let c = &mut self.cpus[thread.cpu];
        match (before, thread.yields()) {
            (false, true) => c.yielders += 1,
            (true, false) => c.yielders = c.yielders.saturating_sub(1),
            _ => {}
        }
    }

    /// The CPUs that the machine has, as a mask.
    pub(super) fn all_cpus(&self) -> &Bits {
        &self.domains.everything
    }
}
