//! What the kernel's work and the caches cost on a machine.

use super::Distance;
use serde::{Deserialize, Serialize};

/// Costs that hwloc does not know. The defaults are rough figures of a server of the 2020s; a machine
/// file sets those that it knows, with their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// The scheduler's tick, in nanoseconds, 100,000 to 100,000,000: 4,000,000 at CONFIG_HZ=250.
    pub tick_ns: u64,
    /// A switch from one thread to another, in nanoseconds.
    pub switch_ns: u64,
    /// What waking another thread costs the waker, in nanoseconds.
    pub wake_ns: u64,
    /// From a wake-up to the first instruction on a CPU that was idle, in nanoseconds. (On a virtual
    /// machine the hypervisor wakes the CPU, which takes ten times as long.)
    pub idle_wake_ns: u64,
    /// The same, if the CPU was idle for less than `nap_ns`.
    pub nap_wake_ns: u64,
    /// A CPU that was idle for less than this was not yet put to sleep, in nanoseconds; 0: it sleeps at
    /// once. (A hypervisor polls for some time before it takes the CPU away.)
    pub nap_ns: u64,
    /// What waking a thread costs the waker in addition, if it comes to another CPU that is idle, in
    /// nanoseconds. (The interrupt; on a virtual machine it takes an exit.)
    pub idle_ipi_ns: u64,
    /// Creating a thread, for the one that does it, in nanoseconds.
    pub spawn_ns: u64,
    /// A call of `sched_yield` that finds nobody else to run, in nanoseconds.
    pub yield_ns: u64,
    /// Until a spinning thread sees what an SMT sibling wrote, in nanoseconds.
    pub line_core_ns: u64,
    /// The same, for a CPU that shares its L2.
    pub line_l2_ns: u64,
    /// The same, for a CPU that shares its L3.
    pub line_l3_ns: u64,
    /// The same, for another CPU of its NUMA node.
    pub line_node_ns: u64,
    /// The same, for a CPU of another NUMA node.
    pub line_remote_ns: u64,
    /// Refilling a KiB of working set from the L3, in nanoseconds.
    pub refill_l3_ns_per_kib: u64,
    /// Refilling a KiB of working set from the node's memory.
    pub refill_memory_ns_per_kib: u64,
    /// Refilling a KiB of working set from another node's memory.
    pub refill_remote_ns_per_kib: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            tick_ns: 4_000_000,
            switch_ns: 1_500,
            wake_ns: 1_000,
            idle_wake_ns: 3_000,
            nap_wake_ns: 3_000,
            nap_ns: 0,
            idle_ipi_ns: 0,
            spawn_ns: 15_000,
            yield_ns: 500,
            line_core_ns: 20,
            line_l2_ns: 30,
            line_l3_ns: 60,
            line_node_ns: 120,
            line_remote_ns: 200,
            refill_l3_ns_per_kib: 40,
            refill_memory_ns_per_kib: 100,
            refill_remote_ns_per_kib: 160,
        }
    }
}

/// No single cost may be longer than this, in nanoseconds.
const LONGEST_NS: u64 = 100_000_000;

impl Costs {
    /// How long a cache line takes to a CPU at that distance.
    pub fn line_ns(&self, distance: Distance) -> u64 {
        match distance {
            Distance::Same => 0,
            Distance::Core => self.line_core_ns,
            Distance::L2 => self.line_l2_ns,
            Distance::L3 => self.line_l3_ns,
            Distance::Node => self.line_node_ns,
            Distance::Remote => self.line_remote_ns,
        }
    }

    /// How long a thread that has moved that far takes to have `working_set_bytes` in its caches again,
    /// which hold at most `l2_bytes` and `l3_bytes`.
    pub fn refill_ns(
        &self,
        distance: Distance,
        working_set_bytes: u64,
        l2_bytes: u64,
        l3_bytes: u64,
    ) -> u64 {
        let all = working_set_bytes.min(l2_bytes.max(l3_bytes));
        let (bytes, per_kib) = match distance {
            Distance::Same | Distance::Core | Distance::L2 => return 0,
            Distance::L3 => (working_set_bytes.min(l2_bytes), self.refill_l3_ns_per_kib),
            Distance::Node => (all, self.refill_memory_ns_per_kib),
            Distance::Remote => (all, self.refill_remote_ns_per_kib),
        };
        bytes.div_ceil(1024).saturating_mul(per_kib)
    }

    /// The first cost out of its range: its key and the reason.
    pub(super) fn wrong(&self) -> Option<(&'static str, String)> {
        if !(100_000..=100_000_000).contains(&self.tick_ns) {
            let why = format!("{} is not between 100000 and 100000000", self.tick_ns);
            return Some(("tick_ns", why));
        }
        let all = [
            ("switch_ns", self.switch_ns),
            ("wake_ns", self.wake_ns),
            ("idle_wake_ns", self.idle_wake_ns),
            ("nap_wake_ns", self.nap_wake_ns),
            ("nap_ns", self.nap_ns),
            ("idle_ipi_ns", self.idle_ipi_ns),
            ("spawn_ns", self.spawn_ns),
            ("line_core_ns", self.line_core_ns),
            ("line_l2_ns", self.line_l2_ns),
            ("line_l3_ns", self.line_l3_ns),
            ("line_node_ns", self.line_node_ns),
            ("line_remote_ns", self.line_remote_ns),
            ("refill_l3_ns_per_kib", self.refill_l3_ns_per_kib),
            ("refill_memory_ns_per_kib", self.refill_memory_ns_per_kib),
            ("refill_remote_ns_per_kib", self.refill_remote_ns_per_kib),
        ];
        let too_long = all.into_iter().find(|(_, ns)| *ns > LONGEST_NS);
        let too_long = too_long.map(|(key, ns)| (key, format!("{ns} is above {LONGEST_NS}")));
        // A yield that takes no time would make a spinning thread's loop endless.
        let yields = (!(50..=LONGEST_NS).contains(&self.yield_ns)).then(|| {
            let why = format!("{} is not between 50 and {LONGEST_NS}", self.yield_ns);
            ("yield_ns", why)
        });
        too_long.or(yields)
    }
}
