//! What other programs use now: the number that a choice beside neighbours depends on.

use corewise_decide::reading::MachineReading;
use corewise_machine::{Error, HostReader, Root};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

/// How busy others keep a set of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// CPUs that others use (1.0 = one CPU busy).
    pub others: f64,
}

/// Looks at `cpus` for `span`. Kernel ticks are 10 ms: below 30 ms the answer is rough.
///
/// # Errors
/// Without `/proc/stat`.
pub fn measure(cpus: &[u32], span: Duration) -> Result<Load, Error> {
    let mut host = HostReader::open(&Root::system())?;
    let before = host.read()?;
    std::thread::sleep(span);
    let after = host.read()?;
    Ok(between(&before, &after, cpus))
}

/// The load on `cpus` between two readings. This process sleeps meanwhile, so all of it is others'.
fn between(before: &MachineReading, after: &MachineReading, cpus: &[u32]) -> Load {
    let earlier: HashMap<u32, _> = before.cpus.iter().map(|c| (c.cpu, c)).collect();
    let span = after.time_ns.saturating_sub(before.time_ns).max(1) as f64;
    let others = after
        .cpus
        .iter()
        .filter(|c| cpus.contains(&c.cpu))
        .filter_map(|c| earlier.get(&c.cpu).map(|old| (old, c)))
        // Idle time is exact where the tick stops on idle CPUs; busy time is counted in ticks.
        .map(|(old, c)| (1.0 - c.idle_ns.saturating_sub(old.idle_ns) as f64 / span).clamp(0.0, 1.0))
        .sum();
    Load { others }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::reading::CpuReading;

    #[test]
    fn only_the_named_cpus_count() {
        let at = |time_ns, idle: [u64; 3]| MachineReading {
            time_ns,
            cpus: idle
                .iter()
                .zip(0..)
                .map(|(&idle_ns, cpu)| CpuReading {
                    cpu,
                    idle_ns,
                    ..CpuReading::default()
                })
                .collect(),
            ..MachineReading::default()
        };
        let load = between(&at(0, [0; 3]), &at(100, [100, 40, 0]), &[0, 1]);
        assert!((load.others - 0.6).abs() < 1e-9, "{load:?}");
    }
}
