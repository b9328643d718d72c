//! The status of machine and programs: what policies decide by.
//!
//! REEact's application status table (section 2.2.1 of its paper): which CPUs are allocated to whom,
//! which are not, by cache and NUMA node, and what the programs are doing. The world's inputs keep it
//! up to date; policies only read it.

use crate::cpus::CpuSet;
use crate::reading::{CpuHeat, CpuUse};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use corewise_abi::message::{Gang, LocalRule, Placement, Request, Waits, Wants};

/// A program under management, numbered by its world; never used twice in a manager's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProgramId(pub u64);

impl std::fmt::Display for ProgramId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {}", self.0)
    }
}

/// Where a CPU is. Numbers name the same thing where they are equal, and mean nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPlace {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// Its core; CPUs of one core are SMT siblings.
    pub core: u32,
    /// Its L2 cache.
    pub l2: u32,
    /// Its L3 cache.
    pub l3: u32,
    /// Its NUMA node.
    pub node: u32,
    /// Its package.
    pub package: u32,
}

/// The machine, as far as this manager may use it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Where each CPU is; at least those of `allowed`.
    pub places: Vec<CpuPlace>,
    /// CPUs that may be granted: the outermost claim.
    pub allowed: CpuSet,
    /// CPUs' worth of time that may be used; below the number of `allowed` CPUs under a quota.
    pub capacity: f64,
}

impl Machine {
    /// A machine of `cpus` CPUs without caches in common, for tests and rough models.
    pub fn flat(cpus: u32) -> Machine {
        let place = |cpu| CpuPlace {
            cpu,
            core: cpu,
            l2: cpu,
            ..CpuPlace::default()
        };
        Machine {
            places: (0..cpus).map(place).collect(),
            allowed: CpuSet::first(cpus),
            capacity: f64::from(cpus),
        }
    }

    /// How many threads can run at the same time: CPUs within the quota, at least 1.
    pub fn one_per_cpu(&self) -> u32 {
        let quota = self.capacity.ceil().max(1.0) as u32;
        self.allowed.count().max(1).min(quota)
    }

    /// Where a CPU is, if that is known.
    pub fn place(&self, cpu: u32) -> Option<&CpuPlace> {
        self.places.iter().find(|p| p.cpu == cpu)
    }

    /// Allowed CPUs for which `same` holds: those of a cache, a node, a package.
    pub fn cpus_where(&self, same: impl Fn(&CpuPlace) -> bool) -> CpuSet {
        let places = self.places.iter().filter(|p| same(p));
        let cpus: CpuSet = places.map(|p| p.cpu).collect();
        cpus.intersection(&self.allowed)
    }

    /// The allowed CPUs of each L2 cache, in the order of their first CPUs.
    pub fn l2_caches(&self) -> Vec<CpuSet> {
        let mut caches: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for place in self.places.iter().filter(|p| self.allowed.contains(p.cpu)) {
            caches.entry(place.l2).or_default().insert(place.cpu);
        }
        let mut caches: Vec<CpuSet> = caches.into_values().collect();
        caches.sort();
        caches
    }
}

/// What a program may use now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// CPUs that it may run on.
    pub cpus: CpuSet,
    /// Threads that it may run at the same time.
    pub threads: u32,
    /// Whether no other claim has these CPUs.
    pub exclusive: bool,
}

/// One program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its process; the root of its process tree.
    pub pid: i32,
    /// A name for people.
    pub name: String,
    /// What it asks for.
    pub wants: Wants,
    /// What it was granted; `None` until the policy has decided.
    pub claim: Option<Claim>,
    /// The group with which the kernel shares out CPU time before it does among threads: a session or a
    /// control group, by name. `None`: it is not known, or there are no groups.
    #[serde(default)]
    pub group: Option<String>,
    /// Whether its threads wait for each other in loops, as far as that is known.
    #[serde(default)]
    pub spins: bool,
    /// How its threads wait for each other, as who keeps its turns has seen; `None`: nobody does, or nobody has
    /// looked.
    #[serde(default)]
    pub waits: Option<Waits>,
    /// A person has set its claim: the policy does not.
    pub overridden: bool,
    /// When it joined, monotonic, in nanoseconds.
    pub joined_ns: u64,
    /// Threads that it has, as it said last. 0: it has not said.
    pub threads: u32,
    /// Threads that it says it could use now, if it says so.
    pub could_use: Option<u32>,
    /// Workers that are blocked, as it says.
    pub blocked: u32,
    /// CPUs that it used between the last two readings (1.0 = one CPU busy). `None` before there were
    /// two.
    pub uses: Option<f64>,
    /// Pieces of work a second between the last two readings, in its own unit.
    pub progress_rate: Option<f64>,
}

/// What the machine was doing between the last two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// CPUs that were busy, of those allowed.
    pub busy: f64,
    /// CPUs used by what is not under management, of those allowed.
    pub others: f64,
    /// Threads running or runnable on the whole machine at the moment of the last reading, without
    /// the reader.
    pub runnable: Option<u32>,
    /// CPUs that were busy, of those not allowed.
    #[serde(default)]
    pub elsewhere: f64,
    /// CPUs that were idle, of those allowed. Not all that were not busy: a hypervisor may have run something
    /// else, and counters that move in ticks have a CPU busy twice in one reading and not at all in the next.
    #[serde(default)]
    pub idle: f64,
    /// Instructions a second that all CPUs retired together, where they are counted.
    #[serde(default)]
    pub instruction_rate: Option<f64>,
}

impl Load {
    /// The same figures of these CPUs alone, of which managed programs used `used`.
    #[must_use]
    pub fn of_cpus(self, cpus: &CpuSet, each: impl Iterator<Item = CpuUse>, used: f64) -> Load {
        let (mut busy, mut idle, mut elsewhere) = (0.0, 0.0, 0.0);
        for cpu in each {
            match cpus.contains(cpu.cpu) {
                true => {
                    busy += cpu.busy;
                    idle += cpu.idle;
                }
                false => elsewhere += cpu.busy,
            }
        }
        Load {
            busy,
            idle,
            elsewhere,
            others: (busy - used).max(0.0),
            ..self
        }
    }

    /// How many threads wanted the allowed CPUs at the moment of the last reading, running or waiting:
    /// `runnable`, less those that ran on other CPUs. Threads that wait for CPUs that are not allowed
    /// cannot be told apart, and are counted.
    pub fn on_allowed_cpus(&self) -> Option<f64> {
        Some((f64::from(self.runnable?) - self.elsewhere).max(0.0))
    }
}

/// The status of machine and programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The time of the last input, monotonic, in nanoseconds.
    pub time_ns: u64,
    /// The machine.
    pub machine: Machine,
    /// Its load; `None` before there were two readings.
    pub load: Option<Load>,
    /// What each CPU did between the last two readings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_use: Vec<CpuUse>,
    /// Temperatures at the last reading; of the CPUs that have a sensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heat: Vec<CpuHeat>,
    /// The programs.
    pub programs: BTreeMap<ProgramId, Program>,
}

impl Status {
    /// CPUs in anyone's claim (REEact: getAllocCores).
    pub fn allocated(&self) -> CpuSet {
        let claims = self.programs.values().filter_map(|p| p.claim.as_ref());
        claims.flat_map(|c| c.cpus.iter()).collect()
    }

    /// Allowed CPUs in no one's claim (REEact: getUnallocCores).
    pub fn unallocated(&self) -> CpuSet {
        self.machine.allowed.difference(&self.allocated())
    }

    /// CPUs that someone has for themselves, but not `program`.
    pub fn exclusive_to_others(&self, program: ProgramId) -> CpuSet {
        self.programs
            .iter()
            .filter(|(id, _)| **id != program)
            .filter_map(|(_, p)| p.claim.as_ref())
            .filter(|c| c.exclusive)
            .flat_map(|c| c.cpus.iter())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_listed_with_the_cpus_that_may_be_granted() {
        let mut machine = Machine::flat(4);
        for place in &mut machine.places {
            place.l2 = place.cpu / 2;
        }
        machine.allowed.remove(1);
        let lists: Vec<String> = machine.l2_caches().iter().map(CpuSet::to_string).collect();
        assert_eq!(lists, ["0", "2-3"]);
    }

    #[test]
    fn under_a_quota_fewer_threads_than_cpus_can_run() {
        let machine = Machine {
            capacity: 1.5,
            ..Machine::flat(4)
        };
        assert_eq!(machine.one_per_cpu(), 2);
    }
}
