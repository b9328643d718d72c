//! The gang schedule: when coscheduled sets run (threads that need each other, and so should run at the same
//! time or not at all).
//!
//! Problem: programs that spin or synchronise finely collapse when their threads are descheduled apart. So
//! sets that want the same CPUs take turns: all threads of a set run, then all threads of another. Ousterhout's
//! matrix (1982) has a row for each slice and a column for each CPU; Schönherr, Lutz and Richling ("Non-intrusive
//! coscheduling for general purpose operating systems", 2012) let each set be scheduled in the part of the
//! machine that holds it, so that other parts take no notice.
//!
//! Approach: a schedule is *told once*, not taken decision by decision: each set has a [`Turn`] that holds until
//! another is told. Sets that share CPUs, directly or through others, are a *ring*: its turns have one epoch and
//! one period. Rings know nothing of each other: a change in one is not even looked at in another. Within a
//! ring, sets that fit side by side share a *slot* (`pack`). What fits all at once takes no turns, and costs
//! nothing.
//!
//! - `awake`: whether a set needs turns at all; `demand`: how many CPUs a set uses while it runs.
//! - `place`: where relocatable sets go.
//! - `ring`: the rings; `pack`: their slots; `timing`: slices, periods and windows.
//! - `nested`: sets within sets; `within`: turns within a turn.

use crate::cpus::CpuSet;
use crate::status::Machine;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

mod awake;
mod demand;
mod entry;
mod mask;
mod nested;
mod pack;
mod place;
mod ring;
mod timing;
mod within;

pub use awake::{Awake, LOOK_AT_FIRST_NS, LOOK_OFTEN_NS};
pub use corewise_abi::message::{MOST_WEIGHT, USUAL_WEIGHT};
pub use corewise_abi::turn::{MOST_WINDOWS, Turn, Window};
pub use demand::{Demand, Seen};
pub use nested::Nested;
pub use timing::{LONGEST_SLICE_NS, SHORTEST_SLICE_NS, USUAL_PERIOD_NS, ran_ns};

use entry::Entry;
use mask::Mask;
use place::Places;
use ring::Ring;

/// How long after a decision its turns begin: until then everyone concerned should have read theirs.
pub const LEAD_NS: u64 = 1_000_000;

/// A program that spends a smaller part of its time in loops that wait, in thousandths, hardly spins.
pub const HARDLY_SPINS: u32 = 50;

/// Relocatable sets that one plan moves, at most.
const MOST_MOVES: usize = 4;

/// Rings and sets of each that are looked at for a move, at most.
const LOOKED_AT: usize = 8;

/// A coscheduled set, numbered by who keeps the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SetId(pub u64);

/// The CPUs of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Where {
    /// These; those of them that are allowed. A set without any is not scheduled: it runs always.
    On(CpuSet),
    /// So many, wherever that is best; at most as many as the machine has. They may be moved.
    Any(u32),
}

/// A coscheduled set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Its number.
    pub id: SetId,
    /// Its CPUs.
    pub cpus: Where,
    /// How many CPUs its threads can use at once; taken to be at least 1, and at most those that it has.
    pub demand: u32,
    /// CPUs that its threads do not use stay idle in its slots.
    pub keeps_idle: bool,
    /// Its threads sleep while they wait for each other, so that they do not need to run at the same time. Such
    /// sets take turns with those that need to, but not with each other alone.
    pub sleeps: bool,
    /// Its share of the time against other sets, 1 to [`MOST_WEIGHT`].
    pub weight: u32,
}

/// What is new for one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub set: SetId,
    /// When it runs from now on; `None`: always.
    pub turn: Option<Turn>,
    /// Where a relocatable set goes; `None`: it stays where it is, or is not relocatable.
    pub cpus: Option<CpuSet>,
    /// Why.
    pub reason: String,
}

/// The schedule of all sets of a machine. The same calls at the same times give the same answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    places: Places,
    sets: BTreeMap<SetId, Entry>,
    rings: BTreeMap<u64, Ring>,
    /// The ring of each CPU.
    ring_of: Vec<Option<u64>>,
    next_ring: u64,
    /// Rings whose sets have changed, sets that are in no ring yet, and sets that are gone but have a turn.
    changed: BTreeSet<u64>,
    loose: BTreeSet<SetId>,
    gone: BTreeMap<SetId, Turn>,
    /// CPUs have become free: somebody may want to move there.
    freed: bool,
    switch_cost_ns: u64,
}

impl Schedule {
    /// A schedule without sets, which does not know its machine yet: until it does, no set is scheduled.
    pub fn new() -> Schedule {
        Schedule::default()
    }

    /// The machine, at first and when what may be used of it changes. O(sets × CPUs) if it does.
    pub fn machine(&mut self, machine: &Machine) {
        let places = Places::new(machine);
        if places.same_machine(&self.places) {
            return;
        }
        self.places = places;
        self.freed = true;
        self.changed.extend(self.rings.keys());
        for (id, mut entry) in std::mem::take(&mut self.sets) {
            entry.ring = None;
            let whole = entry.cpus.count() == entry.count;
            if !whole || !entry.cpus.is_subset(self.places.allowed()) {
                entry.cpus = Mask::default();
            }
            self.settle(id, entry);
        }
    }

    /// What it costs to switch from one set to another, in nanoseconds of all of its CPUs: slices are long
    /// enough for that to be at most 0.5 % of them, but at most [`LONGEST_SLICE_NS`].
    pub fn switch_cost_ns(&mut self, cost_ns: u64) {
        if std::mem::replace(&mut self.switch_cost_ns, cost_ns) != cost_ns {
            self.changed.extend(self.rings.keys());
        }
    }

    /// How many sets there are.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// Whether there is no set.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Where a set is; `None` if it is not there.
    pub fn cpus(&self, set: SetId) -> Option<CpuSet> {
        self.sets.get(&set).map(|entry| entry.cpus.cpus())
    }

    /// The place that was chosen for a relocatable set; `None`: it is not one, or not there.
    pub fn place(&self, set: SetId) -> Option<CpuSet> {
        let entry = self.sets.get(&set).filter(|entry| entry.count > 0)?;
        Some(entry.cpus.cpus())
    }

    /// When a set runs, as it was told last; `None`: always.
    pub fn turn(&self, set: SetId) -> Option<&Turn> {
        self.sets.get(&set)?.told.as_ref()
    }

    /// Adds a set, or says that it has changed. O(CPUs); [`Schedule::plan`] does the rest.
    pub fn set(&mut self, set: Set) {
        let (asked, count) = match &set.cpus {
            Where::On(cpus) => (cpus.iter().collect(), 0),
            Where::Any(count) => (Mask::default(), (*count).max(1)),
        };
        let demand = set.demand.max(1);
        let weight = set.weight.clamp(1, MOST_WEIGHT);
        let new = Entry {
            asked,
            count,
            demand,
            keeps_idle: set.keeps_idle,
            sleeps: set.sleeps,
            weight,
            cpus: Mask::default(),
            moved: false,
            ring: None,
            turn: None,
            told: None,
            served: None,
            counted_ns: u64::MAX,
        };
        let entry = match self.sets.remove(&set.id) {
            None => {
                // It still has the turn that it had as a set before.
                let told = self.gone.remove(&set.id);
                Entry {
                    turn: told.clone(),
                    told,
                    ..new
                }
            }
            Some(old) if old.asks_as(&new) => {
                self.sets.insert(set.id, old);
                return;
            }
            Some(mut old) => {
                self.loosen(set.id, &mut old);
                // A relocatable set stays where it is, if that is still its size.
                let cpus = match count > 0 && old.count == count {
                    true => old.cpus,
                    false => Mask::default(),
                };
                Entry {
                    asked: new.asked,
                    count,
                    demand,
                    keeps_idle: set.keeps_idle,
                    sleeps: set.sleeps,
                    weight,
                    cpus,
                    ..old
                }
            }
        };
        self.settle(set.id, entry);
    }

    /// Takes a set out. O(CPUs). If it had a turn the next plan says that it has none.
    pub fn remove(&mut self, set: SetId) {
        if let Some(mut entry) = self.sets.remove(&set) {
            self.loosen(set, &mut entry);
            self.loose.remove(&set);
            self.gone.extend(entry.told.map(|turn| (set, turn)));
        }
    }

    /// Out of its ring and its place, which it keeps in mind.
    fn loosen(&mut self, id: SetId, entry: &mut Entry) {
        self.places.note(&entry.cpus, entry.needs(), false);
        self.freed = true;
        self.changed.extend(entry.ring.take());
        self.loose.insert(id);
    }

    /// Into a place; its ring is found by the next plan.
    fn settle(&mut self, id: SetId, mut entry: Entry) {
        if entry.count == 0 {
            entry.cpus = entry.asked.intersection(self.places.allowed());
        } else if entry.cpus.is_empty() {
            let needs = entry.needs_of(entry.count);
            entry.cpus = self.places.best(entry.count, needs);
            entry.moved = true;
        }
        self.places.note(&entry.cpus, entry.needs(), true);
        self.loose.insert(id);
        self.sets.insert(id, entry);
    }

    /// What is new since the last plan. Only rings in which something has changed are looked at: O(n log n) for
    /// n sets in them, and nothing if there are none.
    pub fn plan(&mut self, time_ns: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.changed.is_empty() && self.loose.is_empty() && self.gone.is_empty() {
            return changes;
        }
        // Why each set has the turn that it has now, as far as that was planned again.
        let mut planned = BTreeMap::new();
        self.plan_changed(time_ns, &mut planned);
        if std::mem::take(&mut self.freed) {
            for _ in 0..MOST_MOVES {
                if !self.move_one() {
                    break;
                }
                self.plan_changed(time_ns, &mut planned);
            }
        }
        for (set, reason) in planned {
            let entry = self.sets.get_mut(&set);
            changes.extend(entry.and_then(|entry| entry.tell(set, &reason)));
        }
        let gone = std::mem::take(&mut self.gone);
        changes.extend(gone.into_keys().map(|set| Change {
            set,
            turn: None,
            cpus: None,
            reason: "it is a set no longer".to_owned(),
        }));
        changes
    }

    fn plan_changed(&mut self, time_ns: u64, planned: &mut BTreeMap<SetId, Rc<str>>) {
        // Rings that a loose set touches are its rings, too.
        let mut sets = std::mem::take(&mut self.loose);
        for cpus in sets.iter().filter_map(|id| Some(&self.sets.get(id)?.cpus)) {
            let rings = cpus.iter().filter_map(|cpu| self.ring_of.get(cpu as usize));
            self.changed.extend(rings.flatten());
        }
        let mut before: BTreeMap<SetId, Ring> = BTreeMap::new();
        for id in std::mem::take(&mut self.changed) {
            let Some(ring) = self.rings.remove(&id) else {
                continue;
            };
            self.note_ring(&ring.cpus, None);
            sets.extend(&ring.sets);
            if let Some(first) = ring.sets.first() {
                before.insert(*first, ring);
            }
        }
        let mut members = Vec::with_capacity(sets.len());
        for id in sets {
            let Some(entry) = self.sets.get_mut(&id) else {
                continue;
            };
            entry.count(time_ns);
            if entry.cpus.is_empty() {
                entry.turn = None;
                planned.insert(id, "none of its CPUs may be used".into());
            } else {
                members.push(id);
            }
        }
        let masks = members.iter().map(|id| (*id, &self.sets[id].cpus));
        for ring in ring::parts(&masks.collect::<Vec<_>>()) {
            let before = ring.sets.first().and_then(|first| before.get(first));
            self.plan_ring(ring, before, time_ns, planned);
        }
    }

    fn plan_ring(
        &mut self,
        mut ring: Ring,
        before: Option<&Ring>,
        time_ns: u64,
        planned: &mut BTreeMap<SetId, Rc<str>>,
    ) {
        let id = self.next_ring;
        self.next_ring += 1;
        let entries: Vec<&Entry> = ring.sets.iter().map(|set| &self.sets[set]).collect();
        let counts: Vec<u32> = entries.iter().map(|entry| entry.count).collect();
        // Who comes has waited for nothing yet.
        let most = entries.iter().filter_map(|e| e.served).max().unwrap_or(0);
        let mut served: Vec<u64> = entries.iter().map(|e| e.served.unwrap_or(most)).collect();
        let least = served.iter().copied().min().unwrap_or(0);
        served.iter_mut().for_each(|served| *served -= least);
        let epoch_ns = time_ns.saturating_add(LEAD_NS);
        let cost = self.switch_cost_ns;
        let mut turns = ring::plan(&mut ring, &entries, before, &served, epoch_ns, cost);
        let reason: Rc<str> = ring.reason().into();
        for (at, set) in ring.sets.iter().enumerate() {
            let Some(entry) = self.sets.get_mut(set) else {
                continue;
            };
            entry.ring = Some(id);
            entry.served = (ring.slots() > 1).then_some(served[at]);
            if let Some(turn) = turns.as_mut().and_then(|turns| turns.get_mut(at)) {
                entry.turn = turn.take();
            }
            planned.insert(*set, reason.clone());
        }
        self.note_ring(&ring.cpus, Some(id));
        if ring.slots() > 1 {
            let sets = ring.sets.iter().zip(counts);
            let mut movable: Vec<(u32, SetId)> = sets.map(|(set, count)| (count, *set)).collect();
            movable.retain(|(count, _)| *count > 0);
            movable.sort_unstable();
            movable.truncate(LOOKED_AT);
            ring.movable = movable.into_iter().map(|(_, set)| set).collect();
        }
        self.rings.insert(id, ring);
    }

    fn note_ring(&mut self, cpus: &Mask, ring: Option<u64>) {
        for cpu in cpus.iter() {
            let at = cpu as usize;
            if self.ring_of.len() <= at {
                self.ring_of.resize(at + 1, None);
            }
            self.ring_of[at] = ring;
        }
    }

    /// Moves one relocatable set out of the ring with the most slots, if that helps. Whether one was moved.
    fn move_one(&mut self) -> bool {
        let rings = self
            .rings
            .iter()
            .filter(|(_, ring)| !ring.movable.is_empty());
        let mut rings: Vec<(usize, u64)> = rings.map(|(id, ring)| (ring.slots(), *id)).collect();
        rings.sort_by_key(|(slots, id)| (std::cmp::Reverse(*slots), *id));
        for (_, ring) in rings.into_iter().take(LOOKED_AT) {
            let movable = self.rings.get(&ring).map(|ring| ring.movable.clone());
            for set in movable.into_iter().flatten() {
                if self.moved(set, ring) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether a set of that ring was moved.
    fn moved(&mut self, set: SetId, ring: u64) -> bool {
        if self
            .sets
            .get(&set)
            .is_none_or(|entry| entry.ring != Some(ring))
        {
            return false;
        }
        let Some(mut entry) = self.sets.remove(&set) else {
            return false;
        };
        self.places.note(&entry.cpus, entry.needs(), false);
        let there = self.places.best(entry.count, entry.needs());
        let better = self.places.is_better(&there, &entry.cpus, entry.needs());
        if better {
            entry.cpus = there;
            entry.moved = true;
            self.changed.extend(entry.ring.take());
            self.loose.insert(set);
        }
        self.places.note(&entry.cpus, entry.needs(), true);
        self.sets.insert(set, entry);
        better
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
