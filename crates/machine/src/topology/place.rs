//! Where CPUs stand, as hwloc says it and as what decides wants it.

use corewise_decide::status::CpuPlace;
use serde::{Deserialize, Serialize};

/// Numbers from here on stand for what a machine does not have (a CPU without an L3 above it): they
/// differ from those of what it has.
const MISSING: u32 = 1 << 20;

/// Where one CPU stands: positions among the objects of each kind in the whole machine, from 0 in
/// the tree's order; `None` where the machine has no such level above this CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// Its package.
    pub package: Option<u32>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its L3 cache.
    pub l3: Option<u32>,
    /// Its L2 cache.
    pub l2: Option<u32>,
    /// Its core.
    pub core: Option<u32>,
}

/// What a CPU has no cache of shares nothing on that level: it shares an L2 with its core, and an L3 with
/// its package.
impl From<&Place> for CpuPlace {
    fn from(place: &Place) -> CpuPlace {
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
}

/// A CPU of which nothing is known: it is far from every other one, but for its memory.
pub fn unknown_place(cpu: u32) -> CpuPlace {
    CpuPlace {
        cpu,
        core: MISSING + cpu,
        l2: MISSING + cpu,
        l3: MISSING + cpu,
        node: 0,
        package: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;

    #[test]
    fn a_missing_cache_is_shared_by_nobody_who_is_apart() {
        let topology = Topology::from_synthetic("package:2 core:2 pu:2").unwrap();
        let places: Vec<CpuPlace> = topology.places().iter().map(CpuPlace::from).collect();
        assert_eq!(places[0].l2, places[1].l2, "siblings");
        assert_ne!(places[0].l2, places[2].l2, "cores of a package");
        assert_eq!(places[0].l3, places[2].l3, "cores of a package");
        assert_ne!(places[0].l3, places[4].l3, "packages");
    }

    #[test]
    fn one_of_which_nothing_is_known_shares_no_cache() {
        let (one, other) = (unknown_place(0), unknown_place(1));
        assert!(one.core != other.core && one.l2 != other.l2 && one.l3 != other.l3);
    }
}
