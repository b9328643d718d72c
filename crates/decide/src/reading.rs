//! What sensors said. A reading is a moment's cumulative counters; a rate is the difference of two
//! readings. Worlds produce readings, deciding code consumes them.
//!
//! A counter that a sensor could not give is `None`: never zero, so that "nothing happened" and
//! "nobody looked" stay apart.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// How a figure was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Every event was seen (kernel counters, tracepoints).
    Exact,
    /// Estimated from samples taken at intervals.
    Sampled,
}

/// One thread's counters since the thread started. They only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadReading {
    /// Process (thread group) that the thread belongs to.
    pub pid: i32,
    /// The thread, as Linux numbers it.
    pub tid: i32,
    /// Time on a CPU, in nanoseconds.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU, in nanoseconds (the paper's latency, LAT).
    pub cpu_wait_ns: u64,
    /// Time on a CPU in user mode, in nanoseconds.
    pub user_ns: Option<u64>,
    /// Time on a CPU in the kernel, in nanoseconds.
    pub system_ns: Option<u64>,
    /// Switches away because the thread blocked (VCX).
    pub voluntary_switches: Option<u64>,
    /// Switches away because the scheduler took the CPU (ICX).
    pub involuntary_switches: Option<u64>,
    /// Moves from one CPU to another.
    pub migrations: Option<u64>,
    /// Time blocked on a futex (locks, condition variables, barriers, joins), in nanoseconds.
    pub lock_ns: Option<u64>,
    /// Part of `run_ns` that was spent waiting in a loop or yielding, in nanoseconds.
    pub spin_ns: Option<u64>,
}

impl ThreadReading {
    /// Adds another thread's counters to this sum. A counter that either lacks is taken as what the other has.
    pub fn add(&mut self, thread: &ThreadReading) {
        fn add(sum: &mut Option<u64>, value: Option<u64>) {
            if let Some(value) = value {
                *sum = Some(sum.unwrap_or(0) + value);
            }
        }
        self.run_ns += thread.run_ns;
        self.cpu_wait_ns += thread.cpu_wait_ns;
        add(&mut self.user_ns, thread.user_ns);
        add(&mut self.system_ns, thread.system_ns);
        add(&mut self.voluntary_switches, thread.voluntary_switches);
        add(&mut self.involuntary_switches, thread.involuntary_switches);
        add(&mut self.migrations, thread.migrations);
        add(&mut self.lock_ns, thread.lock_ns);
        add(&mut self.spin_ns, thread.spin_ns);
    }
}

/// A program's counters at one moment: its living threads, and the sum over those that have ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramReading {
    /// Monotonic time of the reading, in nanoseconds.
    pub time_ns: u64,
    /// Living threads of the whole process tree.
    pub threads: Vec<ThreadReading>,
    /// Sums over threads that have ended since watching began (`pid` and `tid` are 0).
    pub ended: ThreadReading,
    /// Regions (for instance OpenMP parallel regions) that the program has entered, where they can
    /// be counted from outside: a measure of progress that does not depend on the number of threads.
    pub regions: Option<u64>,
}

/// One CPU's counters since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuReading {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// Time spent running anything, in nanoseconds.
    pub busy_ns: u64,
    /// Time idle (including waiting for I/O), in nanoseconds.
    pub idle_ns: u64,
    /// Time that the hypervisor gave to others, in nanoseconds.
    pub steal_ns: u64,
}

/// What a CPU did between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// Part of the time in which it ran anything (1.0: all of it).
    pub busy: f64,
    /// Part of the time in which it was idle.
    pub idle: f64,
}

impl MachineReading {
    /// What each CPU did since an earlier reading; CPUs that are not in both are left out.
    pub fn since<'a>(&'a self, earlier: &MachineReading) -> impl Iterator<Item = CpuUse> + 'a {
        let span = self.time_ns.saturating_sub(earlier.time_ns).max(1) as f64;
        let before: HashMap<u32, CpuReading> = earlier.cpus.iter().map(|c| (c.cpu, *c)).collect();
        self.cpus.iter().filter_map(move |now| {
            let before = before.get(&now.cpu)?;
            Some(CpuUse {
                cpu: now.cpu,
                busy: now.busy_ns.saturating_sub(before.busy_ns) as f64 / span,
                idle: now.idle_ns.saturating_sub(before.idle_ns) as f64 / span,
            })
        })
    }
}

/// How warm a CPU's core is, and what its hardware does about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuHeat {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// Its core's temperature, in °C.
    pub celsius: f64,
    /// From here on the hardware slows the core down (REEact's T1), in °C; where that is known.
    pub slows_at: Option<f64>,
    /// From here on the hardware stops the core for a time (REEact's T2), in °C.
    pub stops_at: Option<f64>,
}

/// The machine's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineReading {
    /// Monotonic time of the reading, in nanoseconds.
    pub time_ns: u64,
    /// Each CPU that is online.
    pub cpus: Vec<CpuReading>,
    /// Threads that are running or runnable on the whole machine at this moment.
    pub runnable: Option<u32>,
    /// Time in which some thread waited for a CPU (pressure stall information), in nanoseconds.
    pub pressure_ns: Option<u64>,
    /// Instructions that all CPUs have retired together, where they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Temperatures; of the CPUs that have a sensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heat: Vec<CpuHeat>,
}
