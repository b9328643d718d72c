//! Choosing CPUs: which ones a claim gets when it grows, and which it gives back when it shrinks.
//!
//! A claim keeps what it has: growing only adds, shrinking only takes away. CPUs are chosen one after
//! the other, each the best for what has been chosen so far; of equal ones the lowest is taken and the
//! highest given back, so that on a machine without structure claims are in order.
//!
//! - [`Placement::Compact`]: where most of the claim is already, from package to core; a new claim goes
//!   where it just fits, so that large gaps stay for large claims.
//! - [`Placement::Scatter`]: where least of the claim is, from package to core.
//! - [`Placement::Any`]: cores on which nobody else is, one thread a core as long as there are enough
//!   of them (two threads on SMT siblings are slower than on two cores), then the siblings; and close to
//!   what it has, as far as nodes and L3 caches go.
//!
//! Cost: (CPUs to choose from) × (CPUs chosen) steps of a few nanoseconds.

use crate::cpus::CpuSet;
use crate::status::{CpuPlace, Machine, Placement};
use std::collections::BTreeMap;

/// What CPUs can have in common, from the widest to the narrowest.
const LEVELS: usize = 5;
const NODE: usize = 1;
const L3: usize = 2;
const CORE: usize = 4;

/// A CPU's place: for each level, which of the things there it belongs to.
type Place = [usize; LEVELS];

/// What is compared; the smallest is chosen, or kept.
type Key = [i64; 2 * LEVELS];

/// `count` CPUs for a claim that has `have`: of those it has as many as it may keep, and the best of
/// `free` for the rest. Fewer if there are not as many.
pub fn resize(
    machine: &Machine,
    have: &CpuSet,
    free: &CpuSet,
    count: u32,
    placement: Placement,
) -> CpuSet {
    match have.count().checked_sub(count) {
        Some(too_many) => have.difference(&fewer(machine, have, too_many, placement)),
        None => have.union(&more(machine, have, free, count - have.count(), placement)),
    }
}

/// `count` CPUs of `free` (all of them, if it has no more) to be added to a claim that has `have`.
pub fn more(
    machine: &Machine,
    have: &CpuSet,
    free: &CpuSet,
    count: u32,
    placement: Placement,
) -> CpuSet {
    let mut free: Vec<u32> = free.difference(have).iter().collect();
    let mut chosen = CpuSet::new();
    if free.len() <= count as usize {
        chosen.extend(free);
        return chosen;
    }
    let map = Map::new(machine, have.iter().chain(free.iter().copied()));
    let mut own = map.counted(have.iter());
    let mut left = map.counted(free.iter().copied());
    // Nobody's but ours and the free ones: the others of a core are strangers'.
    let strangers = map.strangers(machine, &own, &left);
    // Cores for one thread each.
    let mut cores = map.counted([]);
    for cpu in &free {
        let place = map.place(*cpu);
        let is_first = cores.at(CORE, &place) == 0 && own.at(CORE, &place) == 0;
        if is_first && strangers[place[CORE]] == 0 {
            cores.add(&place);
        }
    }
    for missing in (1..=count).rev() {
        let key = |cpu: u32| {
            let place = map.place(cpu);
            match placement {
                Placement::Compact => compact(&place, &own, &left, missing),
                Placement::Scatter => scatter(&place, &own, &left),
                Placement::Any => anywhere(&place, &own, &cores, &strangers, missing),
            }
        };
        let best = (0..free.len()).min_by_key(|&index| (key(free[index]), free[index]));
        let Some(best) = best else { break };
        let cpu = free.swap_remove(best);
        chosen.insert(cpu);
        let place = map.place(cpu);
        own.add(&place);
        left.take(&place);
        if cores.at(CORE, &place) > 0 {
            cores.take(&place);
        }
    }
    chosen
}

/// `count` CPUs (all, if there are no more) that a claim of `have` can best do without.
pub fn fewer(machine: &Machine, have: &CpuSet, count: u32, placement: Placement) -> CpuSet {
    let mut rest: Vec<u32> = have.iter().collect();
    if rest.len() <= count as usize {
        return have.clone();
    }
    let map = Map::new(machine, have.iter());
    let mut own = map.counted(have.iter());
    let mut given = CpuSet::new();
    for _ in 0..count {
        let key = |cpu: u32| {
            let place = map.place(cpu);
            let own = |level: usize| own.at(level, &place);
            let mut key: Key = [0; 2 * LEVELS];
            match placement {
                Placement::Compact => (0..LEVELS).for_each(|level| key[level] = -own(level)),
                Placement::Scatter => (0..LEVELS).for_each(|level| key[level] = own(level)),
                Placement::Any => {
                    key[..3].copy_from_slice(&[own(CORE), -own(NODE), -own(L3)]);
                }
            }
            key
        };
        let worst = (0..rest.len()).max_by_key(|&index| (key(rest[index]), rest[index]));
        let Some(worst) = worst else { break };
        let cpu = rest.swap_remove(worst);
        given.insert(cpu);
        own.take(&map.place(cpu));
    }
    given
}

/// How badly `missing` CPUs fit among `free` ones: what would be left over, or, if they do not fit,
/// more than any that fits.
fn misfit(free: i64, missing: u32) -> i64 {
    let missing = i64::from(missing);
    if free >= missing {
        free - missing
    } else {
        i64::from(u32::MAX) - free
    }
}

fn compact(place: &Place, own: &Counts, left: &Counts, missing: u32) -> Key {
    let mut key = [0; 2 * LEVELS];
    for level in 0..LEVELS {
        let here = own.at(level, place);
        key[2 * level] = -here;
        if here == 0 {
            key[2 * level + 1] = misfit(left.at(level, place), missing);
        }
    }
    key
}

fn scatter(place: &Place, own: &Counts, left: &Counts) -> Key {
    let mut key = [0; 2 * LEVELS];
    for level in 0..LEVELS {
        key[level] = own.at(level, place);
        key[LEVELS + level] = -left.at(level, place);
    }
    key
}

fn anywhere(place: &Place, own: &Counts, cores: &Counts, strangers: &[i64], missing: u32) -> Key {
    let mut key = [0; 2 * LEVELS];
    key[0] = i64::from(strangers[place[CORE]] > 0);
    key[1] = own.at(CORE, place);
    for (index, level) in [NODE, L3].into_iter().enumerate() {
        let here = own.at(level, place);
        key[2 + 2 * index] = -here;
        if here == 0 {
            key[3 + 2 * index] = misfit(cores.at(level, place), missing);
        }
    }
    key
}

/// Where the CPUs in question are, with what they can have in common numbered from 0 on.
struct Map {
    places: BTreeMap<u32, Place>,
    things: [usize; LEVELS],
}

impl Map {
    fn new(machine: &Machine, cpus: impl Iterator<Item = u32>) -> Map {
        let known: BTreeMap<u32, &CpuPlace> = machine.places.iter().map(|p| (p.cpu, p)).collect();
        let mut numbers: [BTreeMap<u32, usize>; LEVELS] = Default::default();
        let mut things = [0; LEVELS];
        let mut places = BTreeMap::new();
        for cpu in cpus {
            let mut place = [0; LEVELS];
            let ids = known
                .get(&cpu)
                .map(|p| [p.package, p.node, p.l3, p.l2, p.core]);
            for level in 0..LEVELS {
                let number = things[level];
                place[level] = match ids {
                    Some(ids) => *numbers[level].entry(ids[level]).or_insert(number),
                    // Nobody knows where it is: it has nothing in common with any other.
                    None => number,
                };
                things[level] = number.max(place[level] + 1);
            }
            places.insert(cpu, place);
        }
        Map { places, things }
    }

    fn place(&self, cpu: u32) -> Place {
        self.places.get(&cpu).copied().unwrap_or_default()
    }

    fn counted(&self, cpus: impl IntoIterator<Item = u32>) -> Counts {
        let mut counts = Counts(self.things.map(|things| vec![0; things]));
        for cpu in cpus {
            counts.add(&self.place(cpu));
        }
        counts
    }

    /// For each core: how many of its CPUs are neither ours nor free.
    fn strangers(&self, machine: &Machine, own: &Counts, left: &Counts) -> Vec<i64> {
        let mut of_core: BTreeMap<u32, i64> = BTreeMap::new();
        for place in &machine.places {
            *of_core.entry(place.core).or_default() += 1;
        }
        let mut strangers = vec![0; self.things[CORE]];
        for place in &machine.places {
            if let Some(ours) = self.places.get(&place.cpu) {
                let all = of_core.get(&place.core).copied().unwrap_or(0);
                strangers[ours[CORE]] = all - own.at(CORE, ours) - left.at(CORE, ours);
            }
        }
        strangers
    }
}

/// How many CPUs there are of each thing of each level.
struct Counts([Vec<i64>; LEVELS]);

impl Counts {
    fn at(&self, level: usize, place: &Place) -> i64 {
        self.0[level][place[level]]
    }

    fn add(&mut self, place: &Place) {
        self.change(place, 1);
    }

    fn take(&mut self, place: &Place) {
        self.change(place, -1);
    }

    fn change(&mut self, place: &Place, by: i64) {
        for (counts, thing) in self.0.iter_mut().zip(place) {
            counts[*thing] += by;
        }
    }
}

#[cfg(test)]
mod tests;
