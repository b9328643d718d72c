//! What is set in the world beyond claims.

use crate::cpus::CpuSet;
use crate::status::ProgramId;
use serde::{Deserialize, Serialize};

/// Something to be set in the world beyond claims. Each can be undone, and the world writes its undo
/// log before it acts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// The weight of a program's cgroup against others', 1 to 10,000; 100 is usual.
    Weight {
        /// Which program.
        program: ProgramId,
        /// Its weight.
        weight: u32,
    },
    /// The CPUs that a program's cgroup is confined to.
    Cpuset {
        /// Which program.
        program: ProgramId,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// Stop or continue a program by its cgroup.
    Freeze {
        /// Which program.
        program: ProgramId,
        /// Whether it is to be stopped.
        frozen: bool,
    },
    /// The scheduler's slice for a program's threads, in nanoseconds; 0: the usual one.
    Slice {
        /// Which program.
        program: ProgramId,
        /// The slice.
        slice_ns: u64,
    },
    /// The hardware prefetchers of cores.
    Prefetchers {
        /// Whether they are to fetch.
        on: bool,
        /// The cores' CPUs; empty: all that may be granted.
        #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
        cpus: CpuSet,
    },
    /// The highest frequency that CPUs may choose.
    Frequency {
        /// The CPUs; empty: all that may be granted.
        cpus: CpuSet,
        /// In Hz; 0: as it was.
        most_hz: u64,
    },
    /// For how much of the time CPUs run.
    DutyCycle {
        /// The CPUs; empty: all that may be granted.
        cpus: CpuSet,
        /// In percent, at least 1; 100: as it was.
        percent: u32,
    },
    /// The part of each L3 cache that a program may fill. Others keep theirs: it is the program's alone only
    /// if theirs leave it out.
    Cache {
        /// Which program.
        program: ProgramId,
        /// Where its part begins, in percent of the cache.
        from_percent: u32,
        /// Where it ends.
        to_percent: u32,
    },
    /// How much of the memory bandwidth of each L3 cache a program may use.
    Bandwidth {
        /// Which program.
        program: ProgramId,
        /// In percent.
        percent: u32,
    },
}

impl Action {
    /// Which program it concerns; `None`: the machine.
    pub fn program(&self) -> Option<ProgramId> {
        match self {
            Action::Weight { program, .. }
            | Action::Cpuset { program, .. }
            | Action::Freeze { program, .. }
            | Action::Slice { program, .. }
            | Action::Cache { program, .. }
            | Action::Bandwidth { program, .. } => Some(*program),
            Action::Prefetchers { .. } | Action::Frequency { .. } | Action::DutyCycle { .. } => {
                None
            }
        }
    }

    /// The CPUs whose hardware it sets; empty: all that may be granted. `None`: it sets nothing of a CPU.
    pub fn cpus(&self) -> Option<&CpuSet> {
        match self {
            Action::Prefetchers { cpus, .. }
            | Action::Frequency { cpus, .. }
            | Action::DutyCycle { cpus, .. } => Some(cpus),
            _ => None,
        }
    }

    /// The same of other CPUs, where it sets something of CPUs.
    #[must_use]
    pub fn of_cpus(mut self, others: CpuSet) -> Action {
        match &mut self {
            Action::Prefetchers { cpus, .. }
            | Action::Frequency { cpus, .. }
            | Action::DutyCycle { cpus, .. } => *cpus = others,
            _ => {}
        }
        self
    }
}

/// In words, for people: what is set, and of whom.
impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |cpus: &CpuSet| match cpus.is_empty() {
            true => "all CPUs".to_owned(),
            false => format!("CPUs {cpus}"),
        };
        match self {
            Action::Weight { program, weight } => write!(f, "{program}: weight {weight}"),
            Action::Cpuset { program, cpus } => write!(f, "{program}: confined to CPUs {cpus}"),
            Action::Freeze { program, frozen } => {
                let what = if *frozen { "stopped" } else { "continued" };
                write!(f, "{program} is {what}")
            }
            Action::Slice { program, slice_ns } => {
                write!(f, "{program}: slices of {} us", slice_ns / 1_000)
            }
            Action::Prefetchers { on, cpus } => {
                let on = if *on { "on" } else { "off" };
                write!(f, "prefetchers of {}: {on}", of(cpus))
            }
            Action::Frequency { cpus, most_hz: 0 } => {
                write!(f, "frequency of {}: as it was", of(cpus))
            }
            Action::Frequency { cpus, most_hz } => {
                let mhz = most_hz / 1_000_000;
                write!(f, "frequency of {}: at most {mhz} MHz", of(cpus))
            }
            Action::DutyCycle { cpus, percent } => {
                write!(f, "duty cycle of {}: {percent} %", of(cpus))
            }
            Action::Cache {
                program,
                from_percent,
                to_percent,
            } => write!(
                f,
                "{program}: L3 caches from {from_percent} to {to_percent} %"
            ),
            Action::Bandwidth { program, percent } => {
                write!(f, "{program}: {percent} % of the memory bandwidth")
            }
        }
    }
}
