//! Where relocatable sets go: the hierarchy of the machine, and how much is wanted of each CPU.
//!
//! A set goes to the smallest unit (core, L2, L3, node, package, machine) that holds it, so that its threads
//! share caches, and that is split between sets only where no whole one is free. Within a unit it lies at a
//! multiple of its own size, so that sets of a size lie on top of each other and not across each other: what
//! lies across makes its neighbours wait for each other.

use super::mask::Mask;
use crate::status::{CpuPlace, Machine};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What one thread wants of a CPU, in the units of [`Places`].
const ONE: u64 = 1 << 20;

/// The allowed CPUs in the order of the topology, its units, and what sets want of each CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Places {
    order: Vec<u32>,
    allowed: Mask,
    /// Where in the order the units of each level are, the smallest level first; the machine last.
    levels: Vec<Vec<Range<usize>>>,
    /// What is wanted of each CPU, in the order, in [`ONE`]s.
    wanted: Vec<u64>,
}

/// A place for a set.
#[derive(Clone, Debug)]
struct Candidate {
    range: Range<usize>,
    /// What is wanted of it by others.
    wanted: u64,
}

impl Places {
    /// The places of a machine, on which nobody wants anything yet.
    pub(super) fn new(machine: &Machine) -> Places {
        let mut places: Vec<CpuPlace> = machine.places.clone();
        places.retain(|p| machine.allowed.contains(p.cpu));
        places.sort_by_key(|p| (p.package, p.node, p.l3, p.l2, p.core, p.cpu));
        places.dedup_by_key(|p| p.cpu);
        let keys: [fn(&CpuPlace) -> u32; 6] = [
            |p| p.core,
            |p| p.l2,
            |p| p.l3,
            |p| p.node,
            |p| p.package,
            |_| 0,
        ];
        Places {
            order: places.iter().map(|p| p.cpu).collect(),
            allowed: places.iter().map(|p| p.cpu).collect(),
            levels: keys.map(|key| units(&places, key)).into(),
            wanted: vec![0; places.len()],
        }
    }

    /// Whether this is of the same machine, whatever is wanted of it.
    pub(super) fn same_machine(&self, other: &Places) -> bool {
        self.order == other.order && self.levels == other.levels
    }

    pub(super) fn allowed(&self) -> &Mask {
        &self.allowed
    }

    /// Notes that a set wants `needs` of its CPUs, or no longer. O(CPUs).
    pub(super) fn note(&mut self, cpus: &Mask, needs: u32, more: bool) {
        let Some(each) = (u64::from(needs) * ONE).checked_div(u64::from(cpus.count())) else {
            return;
        };
        for (cpu, wanted) in self.order.iter().zip(&mut self.wanted) {
            if cpus.contains(*cpu) {
                *wanted = match more {
                    true => *wanted + each,
                    false => wanted.saturating_sub(each),
                };
            }
        }
    }

    /// The best place for a set of `count` CPUs that needs some of them at once: where it fits beside those who
    /// are there, in the smallest unit; otherwise where the least is wanted. O(CPUs).
    pub(super) fn best(&self, count: u32, needs: u32) -> Mask {
        let count = (count.max(1) as usize).min(self.order.len());
        let room = (count as u64).saturating_sub(u64::from(needs)) * ONE;
        let mut best: Option<Candidate> = None;
        for units in &self.levels {
            let found = units.iter().filter(|unit| unit.len() >= count);
            let found = found.flat_map(|unit| self.within(unit, count));
            let Some(found) = found.min_by_key(|c| (c.wanted, c.range.start)) else {
                continue;
            };
            if best.as_ref().is_none_or(|best| found.wanted < best.wanted) {
                best = Some(found);
            }
            if best.as_ref().is_some_and(|best| best.wanted <= room) {
                break;
            }
        }
        best.map_or_else(Mask::default, |best| self.mask(best.range))
    }

    /// Whether a set that needs `needs` of `here`, where not all fit, does clearly better in `there`: it fits
    /// beside the others there, or they want less than those whom it leaves. Neither place counts the set itself.
    pub(super) fn is_better(&self, there: &Mask, here: &Mask, needs: u32) -> bool {
        let room = u64::from(there.count()) * ONE;
        let after = self.wanted_of(there) + u64::from(needs) * ONE;
        there != here && (after <= room || after < self.wanted_of(here))
    }

    fn wanted_of(&self, cpus: &Mask) -> u64 {
        let all = self.order.iter().zip(&self.wanted);
        let these = all.filter(|(cpu, _)| cpus.contains(**cpu));
        these.map(|(_, wanted)| wanted).sum()
    }

    fn within(&self, unit: &Range<usize>, count: usize) -> impl Iterator<Item = Candidate> {
        let last = unit.end - count;
        let aligned = unit.clone().step_by(count).filter(move |at| *at < last);
        let candidate = move |at: usize| Candidate {
            range: at..at + count,
            wanted: self.wanted[at..at + count].iter().sum(),
        };
        aligned.chain([last]).map(candidate)
    }

    fn mask(&self, range: Range<usize>) -> Mask {
        self.order[range].iter().copied().collect()
    }
}

fn units(places: &[CpuPlace], key: fn(&CpuPlace) -> u32) -> Vec<Range<usize>> {
    let mut begin = 0;
    let chunk = |chunk: &[CpuPlace]| {
        let unit = begin..begin + chunk.len();
        begin = unit.end;
        unit
    };
    places
        .chunk_by(|a, b| key(a) == key(b))
        .map(chunk)
        .collect()
}
