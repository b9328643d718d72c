//! Threads that do simple things for ever.

use corewise_decide::cpus::CpuSet;
use corewise_sim::kernel::{
    Demand, Event, GroupId, Kernel, ProcessId, ThreadCounters, ThreadId, ThreadSpec, Why,
};
use corewise_sim::machine::{Costs, SimMachine};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000 * MS;

/// What a thread does, again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Does {
    Hog,
    /// Works, sleeps.
    Rests(u64, u64),
    /// Works so long, once, and ends.
    Once(u64),
    SpinsYielding,
    /// Works so long, yields.
    Yields(u64),
}

pub(crate) struct Play {
    pub(crate) k: Kernel,
    does: Vec<Does>,
    worked: Vec<bool>,
    pub(crate) ended: Vec<Option<u64>>,
    pub(crate) timers: Vec<u64>,
}

impl Play {
    pub(crate) fn on(machine: &SimMachine) -> Play {
        Play::seeded(machine, 1)
    }

    pub(crate) fn seeded(machine: &SimMachine, seed: u64) -> Play {
        Play {
            k: Kernel::new(machine, seed),
            does: Vec::new(),
            worked: Vec::new(),
            ended: Vec::new(),
            timers: Vec::new(),
        }
    }

    pub(crate) fn flat(cpus: u32) -> Play {
        Play::on(&free(SimMachine::flat(cpus)))
    }

    pub(crate) fn add(&mut self, does: Does) -> ThreadId {
        self.add_to(does, GroupId::ROOT, &CpuSet::first(4096))
    }

    pub(crate) fn add_to(&mut self, does: Does, group: GroupId, allowed: &CpuSet) -> ThreadId {
        let process = ProcessId(self.does.len() as u32);
        self.add_with(does, group, allowed, process, Demand::default())
    }

    pub(crate) fn add_with(
        &mut self,
        does: Does,
        group: GroupId,
        allowed: &CpuSet,
        process: ProcessId,
        demand: Demand,
    ) -> ThreadId {
        self.does.push(does);
        self.worked.push(false);
        self.ended.push(None);
        self.k.spawn(ThreadSpec {
            process,
            group,
            allowed: allowed.clone(),
            parent: None,
            demand,
        })
    }

    pub(crate) fn until(&mut self, time_ns: u64) {
        while let Some(event) = self.k.next(time_ns) {
            match event {
                Event::Timer(token) => self.timers.push(token),
                Event::Ready(thread) => self.ready(thread),
            }
        }
    }

    fn ready(&mut self, thread: ThreadId) {
        let at = thread.0 as usize;
        let worked = std::mem::replace(&mut self.worked[at], true);
        match self.does[at] {
            Does::Hog => self.k.run(thread, 10 * MS),
            Does::Rests(_, sleep) if worked => {
                self.worked[at] = false;
                self.k.sleep(thread, self.k.now() + sleep, Why::Sleep);
            }
            Does::Rests(work, _) => self.k.run(thread, work),
            Does::Once(_) if worked => {
                self.ended[at] = Some(self.k.now());
                self.k.exit(thread);
            }
            Does::Once(work) => self.k.run(thread, work),
            Does::SpinsYielding => self.k.spin(thread, None, true),
            Does::Yields(_) if worked => {
                self.worked[at] = false;
                self.k.yield_now(thread);
            }
            Does::Yields(work) => self.k.run(thread, work),
        }
    }

    pub(crate) fn of(&self, thread: ThreadId) -> ThreadCounters {
        self.k.thread(thread)
    }
}

/// The machine without costs, so that figures are round.
pub(crate) fn free(machine: SimMachine) -> SimMachine {
    let costs = Costs {
        switch_ns: 0,
        wake_ns: 0,
        idle_wake_ns: 0,
        spawn_ns: 0,
        line_core_ns: 0,
        line_l2_ns: 0,
        line_l3_ns: 0,
        line_node_ns: 0,
        line_remote_ns: 0,
        refill_l3_ns_per_kib: 0,
        refill_memory_ns_per_kib: 0,
        refill_remote_ns_per_kib: 0,
        ..Costs::default()
    };
    SimMachine { costs, ..machine }
}

pub(crate) fn synthetic(text: &str, more: &str) -> SimMachine {
    let text = format!("name = \"made\"\ntopology = {{ synthetic = \"{text}\" }}\n{more}");
    SimMachine::from_toml(&text, |_| Err::<String, _>("no XML")).unwrap()
}

pub(crate) fn cpus(list: &[u32]) -> CpuSet {
    list.iter().copied().collect()
}

/// Whether `a` is within `percent` of `b`.
pub(crate) fn near(a: u64, b: u64, percent: u64) -> bool {
    a.abs_diff(b) * 100 <= b * percent
}
