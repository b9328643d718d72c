//! The machine as far as the manager may use it, looked at again while programs run.

use corewise_decide::status::{CpuPlace, Machine};
use corewise_machine::topology::Place;
use corewise_machine::{Error, Root, Topology, effective_cpus};

/// Numbers from here on stand for what a machine does not have (a CPU without an L3 above it): they
/// differ from those of what it has.
const MISSING: u32 = 1 << 20;

/// Looks at the machine.
#[derive(Debug)]
pub(crate) struct MachineWatch {
    root: Root,
    places: Vec<CpuPlace>,
    last: Option<Machine>,
}

impl MachineWatch {
    /// Reads the topology: some milliseconds. Where it cannot be read, every CPU counts as far from
    /// every other.
    pub(crate) fn new() -> MachineWatch {
        let places = match Topology::this_machine() {
            Ok(topology) => topology.places().iter().map(place).collect(),
            Err(_) => Vec::new(),
        };
        MachineWatch {
            root: Root::system(),
            places,
            last: None,
        }
    }

    /// What may be used now, if that has changed since the last look. Costs 60 µs and more with more
    /// control groups.
    ///
    /// # Errors
    /// When nothing says which CPUs there are.
    pub(crate) fn look(&mut self) -> Result<Option<Machine>, Error> {
        let effective = effective_cpus(&self.root, None)?;
        let known = |cpu: &u32| self.places.iter().any(|p| p.cpu == *cpu);
        if !self.places.is_empty() && !effective.cpus.iter().all(known) {
            // A CPU that came online: the topology is another.
            if let Ok(topology) = Topology::this_machine() {
                self.places = topology.places().iter().map(place).collect();
            }
        }
        let machine = Machine {
            places: effective.cpus.iter().map(|cpu| self.place(*cpu)).collect(),
            allowed: effective.cpus.iter().copied().collect(),
            capacity: effective.count,
        };
        if self.last.as_ref() == Some(&machine) {
            return Ok(None);
        }
        self.last = Some(machine.clone());
        Ok(Some(machine))
    }

    /// Whether a look has succeeded.
    pub(crate) fn is_known(&self) -> bool {
        self.last.is_some()
    }

    fn place(&self, cpu: u32) -> CpuPlace {
        let known = self.places.iter().find(|p| p.cpu == cpu).copied();
        known.unwrap_or(CpuPlace {
            cpu,
            core: MISSING + cpu,
            l2: MISSING + cpu,
            l3: MISSING + cpu,
            node: 0,
            package: 0,
        })
    }
}

/// What a CPU has no cache of shares nothing on that level: L2 with its core, L3 with its package.
fn place(place: &Place) -> CpuPlace {
    let core = place.core.unwrap_or(MISSING + place.cpu);
    let package = place.package.unwrap_or(0);
    CpuPlace {
        cpu: place.cpu,
        core,
        l2: place.l2.unwrap_or(MISSING + core),
        l3: place.l3.unwrap_or(MISSING + package),
        node: place.numa_node.unwrap_or(0),
        package,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_cache_is_shared_by_nobody_who_is_apart() {
        let topology = Topology::from_synthetic("package:2 core:2 pu:2").unwrap();
        let places: Vec<CpuPlace> = topology.places().iter().map(place).collect();
        assert_eq!(places[0].l2, places[1].l2, "siblings");
        assert_ne!(places[0].l2, places[2].l2, "cores of a package");
        assert_eq!(places[0].l3, places[2].l3, "cores of a package");
        assert_ne!(places[0].l3, places[4].l3, "packages");
    }

    #[test]
    fn what_has_not_changed_is_told_once() {
        let mut watch = MachineWatch::new();
        let first = watch.look().unwrap().unwrap();
        assert!(first.capacity > 0.0);
        assert_eq!(first.places.len(), first.allowed.len());
        assert_eq!(watch.look().unwrap(), None);
    }
}
