//! CPUs of its own for each program.

use super::{Balanced, Basis, Programs};
use crate::cpus::CpuSet;
use crate::policy::choose;
use crate::status::{ProgramId, Status};
use std::collections::BTreeMap;

impl Balanced {
    /// CPUs for each program that are no other's: first everyone keeps what they may keep, then those
    /// who need more get it from the rest.
    pub(super) fn sets_apart(
        &self,
        status: &Status,
        basis: &Basis,
        programs: &Programs<'_>,
    ) -> BTreeMap<ProgramId, CpuSet> {
        let machine = &status.machine;
        let mut free = basis.cpus.clone();
        let mut sets = BTreeMap::new();
        let count = |id: &ProgramId| self.size(*id, basis.threads.get(id).copied().unwrap_or(1));
        // Those who were alone on their CPUs come first: their threads are there.
        for alone in [true, false] {
            for (id, program) in programs {
                let placement = program.wants.placement;
                let claim = program.claim.as_ref();
                if claim.is_some_and(|c| c.exclusive) != alone {
                    continue;
                }
                let has = claim.map_or_else(CpuSet::new, |c| c.cpus.intersection(&free));
                let count = count(id).min(has.count());
                let kept = choose::resize(machine, &has, &CpuSet::new(), count, placement);
                free = free.difference(&kept);
                sets.insert(*id, kept);
            }
        }
        for (id, program) in programs {
            let kept = sets.remove(id).unwrap_or_default();
            let set = choose::resize(machine, &kept, &free, count(id), program.wants.placement);
            free = free.difference(&set);
            sets.insert(*id, set);
        }
        sets
    }
}
