//! Linux's scheduler on a simulated machine: which thread runs where, and when what it was told to do is
//! done. What is modelled is Linux 6.18 with the fair class only:
//!
//! - fair queues (EEVDF), with slices, lag, run-to-parity, wake-up preemption and `sched_yield`
//!   (`kernel/sched/fair.c`: `pick_eevdf`, `place_entity`, `wakeup_preempt_fair`, `yield_task_fair`);
//! - the tick, at which slices end: ticks fall on multiples of the tick's length on all CPUs, and those
//!   at which nothing can change are left out;
//! - groups (sessions by autogroup, cgroups), whose weight is divided over CPUs by their load there
//!   (`calc_group_shares`), and their quotas (`throttle_cfs_rq`);
//! - wake-up and fork placement (`select_task_rq_fair`), new-idle and periodic balancing over the
//!   domains SMT, last-level cache, NUMA node and machine (`sched_balance_rq`);
//! - affinity, the freezer, and pressure (`kernel/sched/psi.c`).
//!
//! A machine may have OpenSolaris' dispatcher instead, for figures that come from one (`solaris`).
//!
//! On top of it: what switches, migrations and wake-ups cost, SMT, memory bandwidth and remote memory,
//! temperature and what the hardware does about it, power, and prefetchers.
//!
//! What is left out: nice values, other scheduling classes, groups within groups, energy and capacity
//! awareness, core scheduling, automatic NUMA balancing, interrupts, and competition for cache space.
//! Each submodule says what it leaves out besides.

mod agenda;
mod average;
mod balance;
mod bits;
mod control;
mod domains;
mod group;
mod heat;
mod memory;
mod periodic;
mod place;
mod queue;
mod queueing;
mod quota;
mod readings;
mod run;
mod solaris;
mod switch;
mod thread;

use crate::machine::SimMachine;
use agenda::{Agenda, Due};
use bits::Bits;
use corewise_decide::cpus::CpuSet;
use corewise_decide::reading::{CpuReading, MachineReading};
use domains::Domains;
use group::Group;
use heat::Heat;
use memory::Memory;
use run::Cpu;
use std::collections::{BTreeMap, VecDeque};
use thread::Thread;

pub use readings::{CpuCounters, ThreadCounters};
pub use thread::ThreadState;

/// A thread: an index, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

/// A scheduling group: a session (autogroup) or a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The outermost group, whose threads compete with the other groups one by one.
    pub const ROOT: GroupId = GroupId(0);
}

/// A process, numbered by the caller: for freezing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// How work uses the machine, at full speed on an otherwise idle machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Bytes that it moves from and to memory, a second.
    pub bandwidth_bytes_per_s: f64,
    /// Of its time, how much it waits for memory: 0 to 1.
    pub memory_share: f64,
    /// What it has to refill after it has moved to another cache.
    pub working_set_bytes: u64,
    /// What it uses of a CPU's power above the usual, as a part of that; below 0: less. At least -1.
    pub extra_power: f64,
    /// How much longer it takes without hardware prefetchers, as a part of its time; below 0: less. Above -1.
    pub prefetch_gain: f64,
    /// What prefetching for it uses of a CPU's power, as a part of the usual.
    pub prefetch_power: f64,
}

/// Why a thread is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It waits for another thread: a lock, a barrier, a queue.
    Futex,
    /// It waits for a device.
    Io,
    /// It sleeps.
    Sleep,
}

/// CPU time that a group may use in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// CPU time, in nanoseconds.
    pub quota_ns: u64,
    /// The period, in nanoseconds.
    pub period_ns: u64,
}

/// A thread to be.
#[derive(Clone, Debug)]
pub struct ThreadSpec {
    /// Its process.
    pub process: ProcessId,
    /// Its group.
    pub group: GroupId,
    /// CPUs that it may run on. If the machine has none of them: all, as Linux does for a thread whose
    /// last CPU has gone.
    pub allowed: CpuSet,
    /// Who creates it, which takes that thread [`crate::machine::Costs::spawn_ns`].
    pub parent: Option<ThreadId>,
    /// How its work uses the machine.
    pub demand: Demand,
}

/// What the caller has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread has finished what it was told to do and is on its CPU. Before the next call of
    /// [`Kernel::next`], one of `run`, `spin`, `block`, `sleep`, `yield_now` and `exit` tells it what to
    /// do; if none does, it blocks.
    Ready(ThreadId),
    /// A timer set with [`Kernel::at`] fires.
    Timer(u64),
}

/// What a CPU does for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doing {
    /// Its work.
    Work,
    /// It waits in a loop.
    Spin,
}

/// Is told what CPUs run.
pub trait Recorder: Send {
    /// From now on `cpu` runs this; `None`: it is idle. Changes that last no time are left out.
    fn on_cpu(&mut self, time_ns: u64, cpu: u32, what: Option<(ThreadId, Doing)>);
}

/// The scheduler and its machine. An event costs the logarithm of the number of threads, and what
/// the machine's shape makes of it (see the submodules).
pub struct Kernel {
    machine: SimMachine,
    now_ns: u64,
    agenda: Agenda,
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    /// The first is the outermost, whose queues are those of the CPUs.
    groups: Vec<Group>,
    domains: Domains,
    memory: Memory,
    heat: Option<Heat>,
    /// The hardware prefetchers are on.
    prefetches: bool,
    /// What each slot of the agenda is for.
    slots: Vec<Slot>,
    processes: BTreeMap<ProcessId, Process>,
    /// CPUs of which something has changed: to be scheduled and to have their next event found.
    pending: VecDeque<usize>,
    ready: VecDeque<u32>,
    /// The one that was handed out as ready, until it is told what to do.
    asked: Option<u32>,
    /// The one that was handed out last: who acts now.
    acting: Option<u32>,
    usual_slice_ns: u64,
    /// Where the last thread went whose affinity excluded its CPU: they are dealt out in turn.
    dealt: usize,
    pressure: readings::Pressure,
    recorder: Option<Box<dyn Recorder>>,
    events: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Cpu(usize),
    Domain(usize),
    Node(usize),
    Period(usize),
    Heat,
}

#[derive(Debug, Default)]
struct Process {
    frozen: bool,
    threads: Vec<u32>,
}

impl Kernel {
    /// An idle machine at time 0. The seed shifts when balancing takes place.
    pub fn new(machine: &SimMachine, seed: u64) -> Kernel {
        let cpus = machine.places.len();
        let mut kernel = Kernel {
            machine: machine.clone(),
            now_ns: 0,
            agenda: Agenda::default(),
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            threads: Vec::new(),
            groups: vec![Group::outermost()],
            domains: Domains::of(machine, seed),
            memory: Memory::of(machine),
            heat: machine.heat.as_ref().map(|heat| Heat::of(heat, cpus)),
            prefetches: true,
            slots: Vec::new(),
            processes: BTreeMap::new(),
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            asked: None,
            acting: None,
            usual_slice_ns: usual_slice_ns(cpus),
            dealt: 0,
            pressure: readings::Pressure::default(),
            recorder: None,
            events: 0,
        };
        // In this order: the number of a CPU's slot is the CPU's.
        for cpu in 0..cpus {
            kernel.add_slot(Slot::Cpu(cpu));
        }
        for domain in 0..kernel.domains.all.len() {
            kernel.domains.all[domain].slot = kernel.add_slot(Slot::Domain(domain));
        }
        for node in 0..machine.nodes.len() {
            kernel.memory.nodes[node].slot = kernel.add_slot(Slot::Node(node));
        }
        if kernel.heat.is_some() {
            let slot = kernel.add_slot(Slot::Heat);
            kernel.heat.iter_mut().for_each(|heat| heat.slot = slot);
        }
        kernel
    }

    fn add_slot(&mut self, slot: Slot) -> usize {
        self.slots.push(slot);
        self.agenda.add_slot()
    }

    /// The time, in nanoseconds from 0.
    pub fn now(&self) -> u64 {
        self.now_ns
    }

    /// How many events have been handled, of the kernel's own and of the caller's.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The machine that it runs on.
    pub fn machine(&self) -> &SimMachine {
        &self.machine
    }

    /// What sensors that are exact would say of the machine at this moment.
    pub fn reading(&self) -> MachineReading {
        let cpus = (0..self.machine().cpus()).map(|cpu| {
            let counted = self.cpu(cpu);
            CpuReading {
                cpu,
                busy_ns: counted.busy_ns,
                idle_ns: counted.idle_ns,
                steal_ns: 0,
            }
        });
        MachineReading {
            time_ns: self.now(),
            cpus: cpus.collect(),
            runnable: Some(self.runnable()),
            pressure_ns: Some(self.pressure_ns()),
            instructions: Some(self.instructions()),
            heat: self.heat(),
        }
    }

    /// The next event at or before `until_ns`. `None`: there is nothing until then, and it is `until_ns`
    /// now; or, with [`u64::MAX`], there will never be anything, and the time stays as it is. A program
    /// that never ends has events for ever: bound the time.
    pub fn next(&mut self, until_ns: u64) -> Option<Event> {
        if let Some(thread) = self.asked.take() {
            self.block(ThreadId(thread), Why::Sleep);
        }
        loop {
            while let Some(cpu) = self.pending.pop_front() {
                self.attend(cpu);
            }
            while let Some(thread) = self.ready.pop_front() {
                if self.threads[thread as usize].takes_orders() {
                    self.asked = Some(thread);
                    self.acting = Some(thread);
                    self.events += 1;
                    return Some(Event::Ready(ThreadId(thread)));
                }
            }
            if self.agenda.next_ns().is_none_or(|time| time > until_ns) {
                if until_ns < u64::MAX {
                    self.advance(until_ns);
                }
                return None;
            }
            let (time, due) = self.agenda.pop()?;
            self.advance(time);
            self.acting = None;
            match due {
                Due::Timer(token) => {
                    self.events += 1;
                    return Some(Event::Timer(token));
                }
                Due::Wake(thread, sleep) => {
                    if self.threads[thread as usize].sleeps == sleep {
                        self.events += 1;
                        self.wake(ThreadId(thread), None);
                    }
                }
                Due::Slot(slot) => {
                    self.events += 1;
                    match self.slots[slot] {
                        Slot::Cpu(cpu) => self.cpu_is_due(cpu),
                        Slot::Domain(domain) => self.balance(domain),
                        Slot::Node(node) => self.node_is_due(node),
                        Slot::Period(group) => self.period_is_over(group),
                        Slot::Heat => self.heat_is_due(),
                    }
                }
            }
        }
    }

    /// Whether nothing is going to happen unless the caller does something: no thread is doing anything
    /// that ends, and no timer or sleep is to come.
    pub fn is_idle(&self) -> bool {
        let once = |due| match due {
            Due::Wake(thread, sleep) => self.threads[thread as usize].sleeps == sleep,
            _ => true,
        };
        self.pending.is_empty()
            && self.ready.is_empty()
            && !self.agenda.has_slots()
            && !self.agenda.once().any(once)
    }

    /// Sets a timer: [`Event::Timer`] with this token at `time_ns`, or now if that is over.
    pub fn at(&mut self, time_ns: u64, token: u64) {
        self.agenda.put(time_ns.max(self.now_ns), Due::Timer(token));
    }

    /// Has a recorder told what CPUs run from now on.
    pub fn set_recorder(&mut self, recorder: Option<Box<dyn Recorder>>) {
        self.recorder = recorder;
        for cpu in 0..self.cpus.len() {
            self.cpus[cpu].shown = None;
            self.touch(cpu);
        }
    }

    fn advance(&mut self, to_ns: u64) {
        if to_ns > self.now_ns {
            self.pressure.passes(to_ns - self.now_ns);
            self.now_ns = to_ns;
        }
    }

    fn mask(&self, allowed: &CpuSet) -> Bits {
        let mask = Bits::of(allowed, self.cpus.len());
        match mask.is_empty() {
            true => Bits::all(self.cpus.len()),
            false => mask,
        }
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("machine", &self.machine.name)
            .field("now_ns", &self.now_ns)
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

/// `sysctl_sched_base_slice`: 0.7 ms × (1 + log2 of the CPUs, of which at most 8 count).
fn usual_slice_ns(cpus: usize) -> u64 {
    700_000 * (1 + u64::from(cpus.clamp(1, 8).ilog2()))
}
