//! The machine as far as the manager may use it, looked at again while programs run: the effective CPUs,
//! and of these what an outer manager has granted, if there is one.

use corewise_decide::cpus::CpuSet;
use corewise_decide::status::{CpuPlace, Machine};
use corewise_machine::topology::unknown_place;
use corewise_machine::{EffectiveCpus, Error, Root, Topology, effective_cpus};

/// What an outer manager has granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OuterClaim {
    pub(crate) cpus: CpuSet,
    pub(crate) threads: u32,
}

/// Looks at the machine.
#[derive(Debug)]
pub(crate) struct MachineWatch {
    root: Root,
    places: Vec<CpuPlace>,
    effective: Option<EffectiveCpus>,
    outer: Option<OuterClaim>,
    last: Option<Machine>,
}

impl MachineWatch {
    /// Reads the topology: some milliseconds. Where it cannot be read, every CPU counts as far from
    /// every other.
    pub(crate) fn new() -> MachineWatch {
        let places = match Topology::this_machine() {
            Ok(topology) => topology.places().iter().map(CpuPlace::from).collect(),
            Err(_) => Vec::new(),
        };
        MachineWatch {
            root: Root::system(),
            places,
            effective: None,
            outer: None,
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
                self.places = topology.places().iter().map(CpuPlace::from).collect();
            }
        }
        self.effective = Some(effective);
        Ok(self.changed())
    }

    /// What may be used within this outer claim from now on (`None`: there is none, and all effective
    /// CPUs may be used), if that is something else than before. Costs no look at the machine.
    pub(crate) fn within(&mut self, outer: Option<OuterClaim>) -> Option<Machine> {
        if self.outer == outer {
            return None;
        }
        self.outer = outer;
        self.changed()
    }

    /// The CPUs that may be granted; none before the first look.
    pub(crate) fn allowed(&self) -> &CpuSet {
        const NONE: &CpuSet = &CpuSet::new();
        self.last.as_ref().map_or(NONE, |machine| &machine.allowed)
    }

    /// The outer claim.
    pub(crate) fn outer(&self) -> Option<&OuterClaim> {
        self.outer.as_ref()
    }

    fn changed(&mut self) -> Option<Machine> {
        let effective = self.effective.as_ref()?;
        let (allowed, capacity) = bounded(effective, self.outer.as_ref());
        let machine = Machine {
            places: effective.cpus.iter().map(|cpu| self.place(*cpu)).collect(),
            allowed,
            capacity,
        };
        if self.last.as_ref() == Some(&machine) {
            return None;
        }
        self.last = Some(machine.clone());
        Some(machine)
    }

    /// Whether a look has succeeded.
    pub(crate) fn is_known(&self) -> bool {
        self.last.is_some()
    }

    fn place(&self, cpu: u32) -> CpuPlace {
        let known = self.places.iter().find(|p| p.cpu == cpu).copied();
        known.unwrap_or_else(|| unknown_place(cpu))
    }
}

/// Which CPUs, and how much time of them. An outer claim of CPUs that are not effective here (a cpuset of
/// our own) cannot be kept to: then its number of threads still is.
fn bounded(effective: &EffectiveCpus, outer: Option<&OuterClaim>) -> (CpuSet, f64) {
    let all: CpuSet = effective.cpus.iter().copied().collect();
    let Some(outer) = outer else {
        return (all, effective.count);
    };
    let granted = all.intersection(&outer.cpus);
    let allowed = if granted.is_empty() { all } else { granted };
    let most = allowed.count().min(outer.threads).max(1);
    (allowed, effective.count.min(f64::from(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_changed_is_told_once() {
        let mut watch = MachineWatch::new();
        let first = watch.look().unwrap().unwrap();
        assert!(first.capacity > 0.0);
        assert_eq!(first.places.len(), first.allowed.len());
        assert_eq!(watch.look().unwrap(), None);
    }
    fn effective(cpus: &[u32], count: f64) -> EffectiveCpus {
        EffectiveCpus {
            cpus: cpus.to_vec(),
            quota: None,
            count,
            limits: Vec::new(),
        }
    }

    fn outer(cpus: &[u32], threads: u32) -> Option<OuterClaim> {
        let cpus = cpus.iter().copied().collect();
        Some(OuterClaim { cpus, threads })
    }

    #[test]
    fn an_outer_claim_and_the_effective_cpus_bound_each_other() {
        let four = effective(&[0, 1, 2, 3], 4.0);
        let bounds = |outer: Option<OuterClaim>| {
            let (allowed, capacity) = bounded(&four, outer.as_ref());
            (allowed.to_string(), capacity)
        };
        assert_eq!(bounds(None), ("0-3".to_owned(), 4.0));
        assert_eq!(bounds(outer(&[2, 3, 4, 5], 4)), ("2-3".to_owned(), 2.0));
        // CPUs that are shared with others: the number of threads keeps the peace.
        assert_eq!(bounds(outer(&[0, 1, 2, 3], 1)), ("0-3".to_owned(), 1.0));
        let (_, capacity) = bounded(&effective(&[0, 1], 0.5), outer(&[0, 1], 2).as_ref());
        assert_eq!(capacity, 0.5, "a quota stays");
    }

    #[test]
    fn a_claim_that_leaves_no_cpu_and_no_thread_still_leaves_something() {
        let (allowed, capacity) = bounded(&effective(&[0, 1], 2.0), outer(&[7], 0).as_ref());
        assert_eq!((allowed.to_string(), capacity), ("0-1".to_owned(), 1.0));
    }

    #[test]
    fn a_claim_that_comes_and_goes_changes_the_machine_at_once() {
        let mut watch = MachineWatch::new();
        assert_eq!(watch.within(None), None, "before the first look");
        let whole = watch.look().unwrap().unwrap();
        let first = whole.allowed.iter().next().unwrap();
        let within = watch.within(outer(&[first], 1));
        if whole.allowed.count() > 1 {
            assert_eq!(within.unwrap().allowed.count(), 1);
            assert_eq!(watch.look().unwrap(), None, "looking changes nothing");
            assert_eq!(watch.within(None), Some(whole));
        }
    }
}
