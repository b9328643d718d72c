//! What the simulated machine is: where its CPUs are, what its memory can carry, and what the kernel's
//! work costs on it.
//!
//! It is built from a TOML file that names a topology (hwloc's XML, or hwloc's synthetic notation) and
//! says what hwloc does not know: bandwidths, costs, and what heat does.

mod costs;
mod error;
mod heat;
mod load;
#[cfg(test)]
mod tests;

use corewise_decide::cpus::CpuSet;
use corewise_decide::status::{CpuPlace, Machine};
use serde::{Deserialize, Serialize};

pub use costs::Costs;
pub use error::Error;
pub use heat::HeatModel;

/// Machines with more CPUs than this are refused.
pub const MAX_CPUS: u32 = 4096;

/// How an operating system deals CPUs out to threads. In machine files `"linux"` (the default), or
/// `{ solaris = { quantum_ns = 100_000_000 } }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Scheduler {
    /// Linux 6.18: fair queues, and balancing between them.
    #[default]
    Linux,
    /// OpenSolaris 2009.06, time-sharing class: a thread has its CPU for a quantum, then the next one has it.
    Solaris {
        /// The quantum, in nanoseconds: 1,000,000 to 1,000,000,000.
        quantum_ns: u64,
    },
}

/// A NUMA node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Node {
    /// What it can carry, in bytes a second.
    pub bandwidth_bytes_per_s: f64,
    /// How much longer threads of other nodes wait for this memory than its own, 1.0: no longer.
    pub remote_factor: f64,
}

/// What the machine is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimMachine {
    /// A name for people.
    pub name: String,
    /// Where each CPU is; `places[i].cpu == i`. Cores and caches are numbered over the whole machine. As
    /// in the manager, CPUs without an L2 share one with their core, without an L3 with their package.
    pub places: Vec<CpuPlace>,
    /// Whether there is an L3. Without one, the kernel takes the L2 for the last-level cache.
    pub has_l3: bool,
    /// What the kernel's work and the caches cost.
    pub costs: Costs,
    /// Speed of an SMT sibling while one of its siblings is busy too, above 0, at most 1 (no effect).
    pub smt: f64,
    /// The NUMA nodes; `places[i].node` is a position in it.
    pub nodes: Vec<Node>,
    /// Size of an L2 cache, in bytes.
    pub l2_bytes: u64,
    /// Size of an L3 cache, in bytes; 0: there is none.
    pub l3_bytes: u64,
    /// How its operating system deals CPUs out to threads.
    pub scheduler: Scheduler,
    /// Its power and temperature, if they are modelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat: Option<HeatModel>,
}

/// How far two CPUs are from each other: the nearest thing that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Distance {
    /// They are the same CPU.
    Same,
    /// They are SMT siblings.
    Core,
    /// They share an L2.
    L2,
    /// They share an L3.
    L3,
    /// They share a NUMA node.
    Node,
    /// They share nothing but the machine.
    Remote,
}

impl SimMachine {
    /// `cpus` equal CPUs (1 to [`MAX_CPUS`], else the nearest of these) of one package and one L3, with an
    /// L2 each, without SMT and with the usual costs: for tests and rough models.
    pub fn flat(cpus: u32) -> SimMachine {
        let place = |cpu| CpuPlace {
            cpu,
            core: cpu,
            l2: cpu,
            ..CpuPlace::default()
        };
        SimMachine {
            name: format!("flat {cpus}"),
            places: (0..cpus.clamp(1, MAX_CPUS)).map(place).collect(),
            has_l3: true,
            costs: Costs::default(),
            smt: 1.0,
            nodes: vec![Node {
                bandwidth_bytes_per_s: load::BANDWIDTH_BYTES_PER_S * f64::from(cpus.div_ceil(8)),
                remote_factor: 1.0,
            }],
            l2_bytes: 1 << 20,
            l3_bytes: 32 << 20,
            scheduler: Scheduler::Linux,
            heat: None,
        }
    }

    /// How many CPUs it has.
    pub fn cpus(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(MAX_CPUS)
    }

    /// The machine as decisions see it, of which `allowed` may be used (what it lacks is left out).
    pub fn to_decide(&self, allowed: &CpuSet) -> Machine {
        let allowed = allowed.intersection(&CpuSet::first(self.cpus()));
        Machine {
            places: self.places.clone(),
            capacity: f64::from(allowed.count()),
            allowed,
        }
    }

    /// How far two CPUs are from each other. CPUs that the machine lacks are far from all others.
    pub fn distance(&self, a: u32, b: u32) -> Distance {
        let place = |cpu: u32| self.places.get(cpu as usize);
        let (Some(x), Some(y)) = (place(a), place(b)) else {
            return Distance::Remote;
        };
        if a == b {
            Distance::Same
        } else if x.core == y.core {
            Distance::Core
        } else if x.l2 == y.l2 {
            Distance::L2
        } else if self.has_l3 && x.l3 == y.l3 {
            Distance::L3
        } else if x.node == y.node {
            Distance::Node
        } else {
            Distance::Remote
        }
    }

    /// The number of a CPU's last-level cache; equal where it is the same one. 0 for a CPU that the
    /// machine lacks.
    pub fn last_level_cache(&self, cpu: u32) -> u32 {
        let place = self.places.get(cpu as usize);
        place.map_or(0, |p| if self.has_l3 { p.l3 } else { p.l2 })
    }
}
