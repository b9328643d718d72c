//! How often, and for how long, the hardware slowed a core down because it was too hot.
//!
//! Intel's `thermal_throttle` counts since boot, for each core and its package
//! (Documentation/ABI/testing/sysfs-devices-system-cpu); the times came with Linux 5.10.

use serde::{Deserialize, Serialize};

use crate::Root;
use crate::sysfs::{CPUS, numbered, value};

/// What the hardware did about a CPU's heat since boot. CPUs of one core say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuThrottling {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// How often its core was slowed down.
    pub core_events: u64,
    /// For how long altogether, in nanoseconds; where the kernel says so.
    pub core_ns: Option<u64>,
    /// How often its whole package was slowed down.
    pub package_events: Option<u64>,
    /// For how long altogether, in nanoseconds.
    pub package_ns: Option<u64>,
}

/// What each CPU's hardware did, by CPU; empty where nobody counts. Costs four file reads for each CPU.
pub fn throttling(root: &Root) -> Vec<CpuThrottling> {
    let each = numbered(root, CPUS, "cpu").into_iter();
    each.filter_map(|(cpu, folder)| {
        let of = |what: &str| value::<u64>(root, &format!("{folder}/thermal_throttle/{what}"));
        let ns = |what| of(what).map(|ms| ms.saturating_mul(1_000_000));
        Some(CpuThrottling {
            cpu,
            core_events: of("core_throttle_count")?,
            core_ns: ns("core_throttle_total_time_ms"),
            package_events: of("package_throttle_count"),
            package_ns: ns("package_throttle_total_time_ms"),
        })
    })
    .collect()
}
