//! One ring: sets that take turns with each other, directly or through others.

use super::mask::Mask;
use super::pack::{self, Item};
use super::timing::{self, Period};
use super::{Entry, SetId};
use corewise_abi::turn::Turn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A ring and its slots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ring {
    /// Its sets, ascending.
    pub(super) sets: Vec<SetId>,
    /// Their CPUs.
    pub(super) cpus: Mask,
    /// Those that may be moved, the smallest first; some of them.
    pub(super) movable: Vec<SetId>,
    /// Who runs together, as it was packed; empty: everyone at once.
    slots: Vec<Vec<usize>>,
    slices: Vec<u64>,
    /// The threads of all of its sets sleep while they wait.
    asleep: bool,
}

impl Ring {
    /// How many slots its sets need.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Why its sets have the turns that they have.
    pub(super) fn reason(&self) -> String {
        match (self.sets.len(), self.slots.len()) {
            (1, _) => "no other set wants its CPUs".to_owned(),
            (_, 0) if self.asleep => {
                "its threads sleep while they wait, as do those of the sets beside it".to_owned()
            }
            (sets, 0) => format!(
                "all {sets} sets on CPUs {} fit side by side",
                self.cpus.cpus()
            ),
            (sets, slots) => {
                let ms = self.slices.iter().sum::<u64>() as f64 / 1e6;
                let cpus = self.cpus.cpus();
                format!("{sets} sets on CPUs {cpus} take turns: {slots} slots in {ms:.1} ms")
            }
        }
    }

    /// A ring's slots, for sets that are in the order of `self.sets`.
    fn pack(&mut self, sets: &[&Entry], switch_cost_ns: u64) {
        self.asleep = !sets.iter().any(|set| set.needs_turns());
        if self.asleep {
            self.slots.clear();
            self.slices.clear();
            return;
        }
        let (items, cpus) = items(sets);
        let slots = pack::pack(&items, cpus);
        if slots.members.len() < 2 {
            self.slots.clear();
            self.slices.clear();
            return;
        }
        self.slices = timing::slices(&slots, switch_cost_ns);
        self.slots = slots.members;
        // They come round and round: one way of writing that down, so that the same slots are seen to be so.
        let first = (0..self.slots.len()).min_by_key(|&slot| &self.slots[slot]);
        self.slots.rotate_left(first.unwrap_or(0));
        self.slices.rotate_left(first.unwrap_or(0));
    }

    /// Whether its turns are those of another ring.
    fn same_turns(&self, other: &Ring) -> bool {
        self.sets == other.sets && self.slots == other.slots && self.slices == other.slices
    }
}

/// Packs the sets of one ring; the turn that each has from `epoch_ns` on, in their order. `None`: as before,
/// when the sets had the turns of `before`. The slots begin with one of who has received the least by `served`.
pub(super) fn plan(
    ring: &mut Ring,
    sets: &[&Entry],
    before: Option<&Ring>,
    served: &[u64],
    epoch_ns: u64,
    switch_cost_ns: u64,
) -> Option<Vec<Option<Turn>>> {
    ring.pack(sets, switch_cost_ns);
    if before.is_some_and(|before| ring.same_turns(before)) {
        return None;
    }
    if ring.slots.is_empty() {
        return Some(vec![None; sets.len()]);
    }
    let least = |slot: &Vec<usize>| slot.iter().map(|&i| served[i]).min();
    let first = (0..ring.slots.len()).min_by_key(|&slot| least(&ring.slots[slot]));
    let first = first.unwrap_or(0);
    let order = (first..ring.slots.len()).chain(0..first);
    let period = Period::new(order.clone().map(|slot| ring.slices[slot]));
    let mut runs: Vec<Vec<usize>> = vec![Vec::new(); sets.len()];
    for (at, slot) in order.enumerate() {
        for &i in &ring.slots[slot] {
            runs[i].push(at);
        }
    }
    Some(
        runs.iter()
            .map(|runs| period.turn(runs, epoch_ns))
            .collect(),
    )
}

/// The sets as they are packed, and the number of their CPUs. Those that few sets want come first.
fn items(sets: &[&Entry]) -> (Vec<Item>, usize) {
    let mut kinds: BTreeMap<&Mask, u32> = BTreeMap::new();
    for set in sets {
        *kinds.entry(&set.cpus).or_default() += 1;
    }
    let mut wanted: Vec<u32> = Vec::new();
    for (cpus, count) in &kinds {
        for cpu in cpus.iter() {
            *by_cpu(&mut wanted, cpu, 0) += count;
        }
    }
    let wanted = wanted.into_iter().zip(0..).filter(|(count, _)| *count > 0);
    let mut order: Vec<(u32, u32)> = wanted.collect();
    order.sort_unstable();
    let mut numbers: Vec<u32> = Vec::new();
    for ((_, cpu), number) in order.iter().zip(0..) {
        *by_cpu(&mut numbers, *cpu, 0) = number;
    }
    let renumbered = |cpus: &Mask| -> Mask {
        let numbers = cpus
            .iter()
            .filter_map(|cpu| numbers.get(cpu as usize).copied());
        numbers.collect()
    };
    let kinds: BTreeMap<&Mask, Rc<Mask>> = kinds
        .keys()
        .map(|cpus| (*cpus, Rc::new(renumbered(cpus))))
        .collect();
    let item = |set: &&Entry| Item {
        cpus: kinds.get(&set.cpus).cloned().unwrap_or_default(),
        needs: set.needs(),
        weight: set.weight,
    };
    (sets.iter().map(item).collect(), order.len())
}

/// A CPU's place in a list by CPU, which grows as it must.
fn by_cpu<T: Copy>(list: &mut Vec<T>, cpu: u32, otherwise: T) -> &mut T {
    let at = cpu as usize;
    if list.len() <= at {
        list.resize(at + 1, otherwise);
    }
    &mut list[at]
}

/// Parts of `sets` that share no CPU, even through others; each in ascending order, the parts in the order of
/// their first sets. O(sets × words of a mask), and the number of parts.
pub(super) fn parts(sets: &[(SetId, &Mask)]) -> Vec<Ring> {
    // Sets with the same CPUs are one node; nodes are joined over CPUs.
    let mut kinds: BTreeMap<&Mask, usize> = BTreeMap::new();
    for (_, cpus) in sets {
        let next = kinds.len();
        kinds.entry(cpus).or_insert(next);
    }
    let mut parent: Vec<usize> = (0..kinds.len()).collect();
    let mut owner: Vec<Option<usize>> = Vec::new();
    for (cpus, &kind) in &kinds {
        for cpu in cpus.iter() {
            let first = *by_cpu(&mut owner, cpu, None).get_or_insert(kind);
            let (a, b) = (root(&mut parent, first), root(&mut parent, kind));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut rings: BTreeMap<usize, Ring> = BTreeMap::new();
    for (cpus, &kind) in &kinds {
        let ring = rings.entry(root(&mut parent, kind)).or_default();
        ring.cpus.union(cpus);
    }
    for (id, cpus) in sets {
        let kind = root(&mut parent, kinds.get(cpus).copied().unwrap_or(0));
        if let Some(ring) = rings.get_mut(&kind) {
            ring.sets.push(*id);
        }
    }
    rings.into_values().collect()
}

fn root(parent: &mut [usize], mut node: usize) -> usize {
    while parent[node] != node {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    node
}
