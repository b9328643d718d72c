//! Threads of a program: what each waits for, and the orders that go to the kernel.

use super::plan::Plan;
use super::wait::WaitPolicy;
use crate::kernel::{GroupId, Kernel, ProcessId, ThreadCounters, ThreadId, ThreadSpec, Why};
use corewise_decide::cpus::CpuSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// A thread's number within its program; never used twice.
pub(super) type Id = usize;

/// What a thread is in its process.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// The first one: it does the phases in sequence.
    Leader,
    /// A worker of the team, by its index.
    Worker(usize),
    /// One of a stage's threads.
    Stage(super::pipeline::AtStage),
    /// One of a group's threads.
    Member(super::groups::AtSteps),
    /// A process of its own, by its number.
    Job(u64),
}

/// What a thread can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// The leader, for workers to have come back.
    Fork,
    /// The end of a region.
    Join,
    /// A worker, for the next region.
    Dock,
    Lock(usize),
    Semaphore(usize),
    /// An item for this stage.
    Item(usize),
    /// Room in the queue of this stage.
    Room(usize),
    /// Others to finish items, before new ones begin.
    Window,
    /// The leader, for threads that it has started.
    Children,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    on: On,
    asleep: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) thread: ThreadId,
    pub(super) process: usize,
    pub(super) index: u32,
    pub(super) role: Role,
    /// The unit of work in hand.
    pub(super) unit: super::unit::Unit,
    /// Whether it is a region's, and not yet counted.
    pub(super) holds_unit: bool,
    /// Units that are its share.
    pub(super) share: Range<u64>,
    waiting: Option<Waiting>,
    /// Off the CPU for a time.
    paused: bool,
    ended: bool,
    demand: usize,
}

/// Where threads may run.
#[derive(Clone, Debug)]
enum Places {
    All(CpuSet),
    Each(Vec<CpuSet>),
}

/// A program's threads.
#[derive(Debug)]
pub(super) struct Tasks {
    list: Vec<Task>,
    alive: BTreeSet<Id>,
    /// Alive, and not waiting for others.
    moving: usize,
    /// What those that have ended have used.
    ended: ThreadCounters,
    process: ProcessId,
    group: GroupId,
    places: Places,
    slice_ns: Option<u64>,
    /// Started since they were asked for.
    started: Vec<(ThreadId, Id)>,
    /// Threads that wait for each other, in a circle; since it was asked for.
    circle: Option<Vec<Id>>,
}

/// What the parts of a process work with.
pub(super) struct Context<'a> {
    pub(super) kernel: &'a mut Kernel,
    pub(super) plan: &'a Plan,
    pub(super) tasks: &'a mut Tasks,
}

impl Tasks {
    pub(super) fn new(process: ProcessId, group: GroupId, allowed: CpuSet) -> Tasks {
        Tasks {
            list: Vec::new(),
            alive: BTreeSet::new(),
            moving: 0,
            ended: ThreadCounters::default(),
            process,
            group,
            places: Places::All(allowed),
            slice_ns: None,
            started: Vec::new(),
            circle: None,
        }
    }

    pub(super) fn get(&self, id: Id) -> &Task {
        &self.list[id]
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut Task {
        &mut self.list[id]
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = &Task> {
        self.alive.iter().map(|id| &self.list[*id])
    }

    pub(super) fn count(&self) -> u32 {
        self.alive.len() as u32
    }

    /// Threads that are alive although none can ever go on.
    pub(super) fn is_stuck(&self) -> bool {
        self.moving == 0 && !self.alive.is_empty()
    }

    pub(super) fn take_started(&mut self) -> Vec<(ThreadId, Id)> {
        std::mem::take(&mut self.started)
    }

    pub(super) fn take_circle(&mut self) -> Option<Vec<Id>> {
        self.circle.take()
    }

    pub(super) fn found_circle(&mut self, circle: Vec<Id>) {
        self.circle = Some(circle);
    }

    /// All threads that there have been.
    pub(super) fn all(&self) -> impl Iterator<Item = ThreadId> {
        self.list.iter().map(|task| task.thread)
    }

    pub(super) fn group(&self) -> GroupId {
        self.group
    }

    /// What all threads have used, also those that have ended.
    pub(super) fn counters(&self, kernel: &Kernel) -> ThreadCounters {
        let alive = self.alive().map(|task| kernel.thread(task.thread));
        alive.fold(self.ended, sum)
    }

    pub(super) fn set_slice(&mut self, kernel: &mut Kernel, slice_ns: u64) {
        self.slice_ns = Some(slice_ns);
        for id in &self.alive {
            kernel.set_slice(self.list[*id].thread, slice_ns);
        }
    }

    /// Lets the threads run on `cpus`; those that are started later, too.
    pub(super) fn allow(&mut self, kernel: &mut Kernel, cpus: &CpuSet) {
        if cpus.is_empty() || matches!(&self.places, Places::All(now) if now == cpus) {
            return;
        }
        self.places = Places::All(cpus.clone());
        for id in &self.alive {
            kernel.set_allowed(self.list[*id].thread, cpus);
        }
    }

    /// Gives each thread a place of its own, in the order of their start; again from the first place
    /// where there are more threads than places.
    pub(super) fn place(&mut self, kernel: &mut Kernel, places: &[CpuSet]) {
        let mut places = places.to_vec();
        places.retain(|place| !place.is_empty());
        if places.is_empty() {
            return;
        }
        for (id, place) in self.alive.iter().zip(places.iter().cycle()) {
            kernel.set_allowed(self.list[*id].thread, place);
        }
        self.places = Places::Each(places);
    }
}

impl Task {
    pub(super) fn waits_on(&self) -> Option<On> {
        self.waiting.map(|waiting| waiting.on)
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.waiting.is_some_and(|waiting| waiting.asleep)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether it is kept from its work: not idle, but waiting for a device, a time, a lock, an item.
    pub(super) fn is_blocked(&self) -> bool {
        use On::{Children, Dock, Fork, Join};
        let on = self.waits_on();
        self.paused || on.is_some_and(|on| !matches!(on, Fork | Join | Dock | Children))
    }
}

impl Context<'_> {
    /// Starts a thread.
    pub(super) fn start(
        &mut self,
        process: usize,
        role: Role,
        parent: Option<Id>,
        demand: usize,
    ) -> Id {
        let tasks = &mut *self.tasks;
        let allowed = match &tasks.places {
            Places::All(cpus) => cpus.clone(),
            Places::Each(places) => places[tasks.alive.len() % places.len()].clone(),
        };
        let thread = self.kernel.spawn(ThreadSpec {
            process: tasks.process,
            group: tasks.group,
            allowed,
            parent: parent.map(|id| tasks.list[id].thread),
            demand: self.plan.demands.get(demand).copied().unwrap_or_default(),
        });
        if let Some(slice_ns) = tasks.slice_ns {
            self.kernel.set_slice(thread, slice_ns);
        }
        let id = tasks.list.len();
        tasks.list.push(Task {
            thread,
            process,
            index: id as u32,
            role,
            unit: super::unit::Unit::default(),
            holds_unit: false,
            share: 0..0,
            waiting: None,
            paused: false,
            ended: false,
            demand,
        });
        tasks.alive.insert(id);
        tasks.started.push((thread, id));
        tasks.moving += 1;
        id
    }

    /// The kernel says that the thread has done what it was told. Whether it is to be told something
    /// else; otherwise it goes on waiting.
    pub(super) fn ready(&mut self, id: Id) -> bool {
        let task = &mut self.tasks.list[id];
        task.paused = false;
        let Some(waiting) = &mut task.waiting else {
            return true;
        };
        // It has spun for as long as it may.
        waiting.asleep = true;
        self.kernel.block(task.thread, Why::Futex);
        false
    }

    /// Has it work for `ns`, at least 1.
    pub(super) fn run(&mut self, id: Id, ns: u64) {
        self.kernel.run(self.tasks.list[id].thread, ns);
    }

    /// Takes it off its CPU for `ns`.
    pub(super) fn pause(&mut self, id: Id, ns: u64, why: Why) {
        let until = self.kernel.now().saturating_add(ns);
        self.pause_until(id, until, why);
    }

    pub(super) fn pause_until(&mut self, id: Id, until_ns: u64, why: Why) {
        let task = &mut self.tasks.list[id];
        task.paused = true;
        self.kernel.sleep(task.thread, until_ns, why);
    }

    /// Has it wait until it is released.
    pub(super) fn wait(&mut self, id: Id, policy: WaitPolicy, on: On) {
        let task = &mut self.tasks.list[id];
        let asleep = policy.spin_ns == Some(0);
        task.waiting = Some(Waiting { on, asleep });
        self.tasks.moving -= 1;
        if asleep {
            self.kernel.block(task.thread, Why::Futex);
        } else {
            self.kernel.spin(task.thread, policy.spin_ns, policy.yields);
        }
    }

    /// Lets one that waits go on; `by`: who does so.
    pub(super) fn release(&mut self, id: Id, by: Option<Id>) {
        let Some(waiting) = self.tasks.list[id].waiting.take() else {
            return;
        };
        self.tasks.moving += 1;
        let thread = self.tasks.list[id].thread;
        if waiting.asleep {
            let by = by.map(|id| self.tasks.list[id].thread);
            self.kernel.wake(thread, by);
        } else {
            self.kernel.release(thread);
        }
    }

    /// From now on its work uses memory so.
    pub(super) fn demand(&mut self, id: Id, demand: usize) {
        let task = &mut self.tasks.list[id];
        if task.demand != demand {
            task.demand = demand;
            self.kernel
                .set_demand(task.thread, self.plan.demands[demand]);
        }
    }

    pub(super) fn exit(&mut self, id: Id) {
        let task = &mut self.tasks.list[id];
        task.ended = true;
        self.kernel.exit(task.thread);
        self.tasks.ended = sum(self.tasks.ended, self.kernel.thread(task.thread));
        self.tasks.alive.remove(&id);
        self.tasks.moving -= 1;
    }
}

fn sum(a: ThreadCounters, b: ThreadCounters) -> ThreadCounters {
    ThreadCounters {
        run_ns: a.run_ns + b.run_ns,
        wait_ns: a.wait_ns + b.wait_ns,
        spin_ns: a.spin_ns + b.spin_ns,
        stall_ns: a.stall_ns + b.stall_ns,
        lock_ns: a.lock_ns + b.lock_ns,
        io_ns: a.io_ns + b.io_ns,
        sleep_ns: a.sleep_ns + b.sleep_ns,
        frozen_ns: a.frozen_ns + b.frozen_ns,
        voluntary: a.voluntary + b.voluntary,
        involuntary: a.involuntary + b.involuntary,
        migrations: a.migrations + b.migrations,
        work_ns: a.work_ns + b.work_ns,
        state: None,
        cpu: None,
    }
}
