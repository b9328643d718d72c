//! What other programs use now: the number that a choice beside neighbours depends on.

use corewise_decide::reading::MachineReading;
use corewise_machine::neighbours::{NeighbourLook, Neighbours};
use corewise_machine::{Error, HostReader, Root};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// How busy others keep a set of CPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Each CPU, and the part of it that is used (1.0 = all of it).
    pub cpus: Vec<(u32, f64)>,
    /// CPUs that this process used itself.
    pub own: f64,
    /// CPUs of these that other scheduling groups used, each: other sessions, other cgroups.
    pub groups: Vec<f64>,
}

impl Load {
    /// CPUs that others use (1.0 = one CPU busy).
    pub fn others(&self) -> f64 {
        (self.cpus.iter().map(|c| c.1).sum::<f64>() - self.own).max(0.0)
    }

    /// CPUs that nobody uses; where there is none, the idlest one. A CPU that is used less than a
    /// quarter of the time is idle: short looks are rough.
    pub fn idle(&self) -> Vec<u32> {
        let mut idle: Vec<u32> = self
            .cpus
            .iter()
            .filter(|c| c.1 < 0.25)
            .map(|c| c.0)
            .collect();
        if idle.is_empty() {
            idle.extend(self.idlest_first().first());
        }
        idle
    }

    /// The CPUs, idlest first; of equals the one with the lower number.
    pub fn idlest_first(&self) -> Vec<u32> {
        let mut cpus = self.cpus.clone();
        cpus.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        cpus.into_iter().map(|c| c.0).collect()
    }
}

/// Looks at `cpus` for `span`. Kernel ticks are 10 ms: below 30 ms the answer is rough.
///
/// # Errors
/// Without `/proc/stat`.
pub fn measure(cpus: &[u32], span: Duration) -> Result<Load, Error> {
    let mut host = HostReader::open(&Root::system())?;
    let own_before = own_cpu_ns();
    let before = host.read()?;
    let look = NeighbourLook::begin();
    std::thread::sleep(span);
    let neighbours = look.end();
    let after = host.read()?;
    let own_ns = own_cpu_ns().saturating_sub(own_before);
    let mut load = between(&before, &after, cpus);
    load.own = own_ns as f64 / after.time_ns.saturating_sub(before.time_ns).max(1) as f64;
    load.groups = groups(&neighbours, load.others());
    Ok(load)
}

/// What other scheduling groups use of CPUs of which others use `others` altogether.
fn groups(neighbours: &Neighbours, others: f64) -> Vec<f64> {
    let mut groups = neighbours.groups.clone();
    let unseen = others - neighbours.seen;
    if neighbours.hidden && unseen > 0.0 {
        // Another container's, in groups of their own. Which, nobody can tell: as one.
        groups.push(unseen);
    }
    // Part of what was seen may have been on CPUs that do not matter here.
    let all = neighbours.seen.max(groups.iter().sum());
    if all > others {
        groups.iter_mut().for_each(|group| *group *= others / all);
    }
    groups
}

/// What others use of some CPUs while a program runs.
#[derive(Debug)]
pub struct Meanwhile {
    cpus: Vec<u32>,
    host: HostReader,
    before: MachineReading,
    own_ns: u64,
}

impl Meanwhile {
    /// Begins to count; 0.1 ms. `None` without `/proc/stat`.
    pub fn begin(cpus: &[u32]) -> Option<Meanwhile> {
        let mut host = HostReader::open(&Root::system()).ok()?;
        let before = host.read().ok()?;
        Some(Meanwhile {
            cpus: cpus.to_vec(),
            host,
            before,
            own_ns: own_cpu_ns(),
        })
    }

    /// CPUs that others have used on average since then, beside a program that has used `program_ns` nanoseconds of
    /// CPU time. What a hypervisor gave to others counts, too. `None` where nothing can be read any more.
    pub fn end(mut self, program_ns: u64) -> Option<f64> {
        let after = self.host.read().ok()?;
        let own_ns = own_cpu_ns().saturating_sub(self.own_ns);
        let span_ns = after.time_ns.saturating_sub(self.before.time_ns).max(1);
        let mut load = between(&self.before, &after, &self.cpus);
        load.own = (own_ns + program_ns) as f64 / span_ns as f64;
        Some(load.others())
    }
}

/// CPU time of this process, all of its threads.
fn own_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// The load on `cpus` between two readings, whoever it is from.
fn between(before: &MachineReading, after: &MachineReading, cpus: &[u32]) -> Load {
    Load {
        // Idle time is exact where the tick stops on idle CPUs; busy time is counted in ticks.
        cpus: after
            .since(before)
            .filter(|cpu| cpus.contains(&cpu.cpu))
            .map(|cpu| (cpu.cpu, (1.0 - cpu.idle).clamp(0.0, 1.0)))
            .collect(),
        ..Load::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::reading::CpuReading;

    #[test]
    fn on_a_full_machine_the_idlest_cpu_counts_as_idle() {
        let load = Load {
            cpus: vec![(0, 0.9), (1, 0.7), (2, 1.0)],
            ..Load::default()
        };
        assert_eq!(load.idle(), [1]);
    }

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
        assert!((load.others() - 0.6).abs() < 1e-9, "{load:?}");
        assert_eq!(load.idlest_first(), [0, 1]);
        assert_eq!(load.idle(), [0]);
    }

    #[test]
    fn only_what_other_groups_use_of_these_cpus_counts() {
        let neighbours = |groups: &[f64], seen, hidden| Neighbours {
            groups: groups.to_vec(),
            seen,
            hidden,
        };
        // A process of our own session and one of another.
        assert_eq!(groups(&neighbours(&[1.0], 2.0, false), 2.0), [1.0]);
        // Half of what was seen ran elsewhere.
        assert_eq!(groups(&neighbours(&[2.0], 4.0, false), 2.0), [1.0]);
        // What is busy and cannot be seen is another container's, or has ended already.
        assert_eq!(groups(&neighbours(&[], 0.5, true), 2.0), [1.5]);
        assert!(groups(&neighbours(&[], 0.5, false), 2.0).is_empty());
    }
}
