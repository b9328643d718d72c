//! Sets within sets: a group takes its turn among the sets beside it, and shares it out among its own.
//!
//! Problem: the parts of a larger job (the stages of a pipeline, the jobs of one user) are sets of their own, and
//! the job as a whole should have one share of the machine, however many parts it has. The paper nests
//! coscheduled sets, each of which has a hierarchy of run queues of its own (Schönherr, Lutz and Richling 2012,
//! section 3); with turns that are told once there is nobody to ask at each switch.
//!
//! Approach: each group has a [`Schedule`] inside, on the CPUs that it has outside. Its turns count the time that
//! the group runs: they are laid along the windows of the group's own turn, which then repeats after so many of
//! its periods that the parts keep slices of their usual length (`within`). To the schedule outside a group is a
//! set like others. Programs never hear of groups.

use super::within::{Place, within};
use super::{Change, Schedule, Set, SetId, USUAL_WEIGHT, Where};
use crate::cpus::CpuSet;
use crate::status::Machine;
use corewise_abi::turn::Turn;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The schedule of sets, some of which may be within others. The same calls at the same times give the same
/// answers. Without groups it is a [`Schedule`], and costs what that costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nested {
    machine: Machine,
    switch_cost_ns: u64,
    top: Schedule,
    groups: BTreeMap<SetId, Group>,
    sets: BTreeMap<SetId, Placed>,
    told: BTreeMap<SetId, Turn>,
    /// Sets that have come, gone or been moved: their turns are looked at though no schedule says so.
    touched: BTreeSet<SetId>,
    /// Groups whose sets have changed.
    changed: BTreeSet<SetId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Placed {
    set: Set,
    within: Option<SetId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Group {
    within: Option<SetId>,
    /// How many groups it is within.
    depth: usize,
    weight: u32,
    inside: Schedule,
    /// The CPUs that it has, as the schedule inside knows them.
    cpus: CpuSet,
    sets: BTreeSet<SetId>,
    /// When it runs; `None`: always.
    turn: Option<Turn>,
}

/// Sets of which something is new: where they go, and why.
type News = BTreeMap<SetId, (Option<CpuSet>, String)>;

impl Nested {
    /// The machine, at first and when what may be used of it changes.
    pub fn machine(&mut self, machine: &Machine) {
        if self.machine == *machine {
            return;
        }
        self.machine.clone_from(machine);
        self.top.machine(machine);
        for (id, group) in &mut self.groups {
            group.cpus = CpuSet::new();
            self.changed.insert(*id);
        }
    }

    /// What it costs to switch; see [`Schedule::switch_cost_ns`].
    pub fn switch_cost_ns(&mut self, cost_ns: u64) {
        self.switch_cost_ns = cost_ns;
        self.top.switch_cost_ns(cost_ns);
        for group in self.groups.values_mut() {
            group.inside.switch_cost_ns(cost_ns);
        }
    }

    /// When a set runs, as it was told last; `None`: always.
    pub fn turn(&self, set: SetId) -> Option<&Turn> {
        self.told.get(&set)
    }

    /// The place that was chosen for a relocatable set, within its groups' or of its own; `None`: it is not one, or not
    /// there.
    pub fn place(&self, set: SetId) -> Option<CpuSet> {
        let mut inside = self.groups.values().map(|group| &group.inside);
        let top = self.top.place(set);
        top.or_else(|| inside.find_map(|inside| inside.place(set)))
    }

    /// Adds a set, or says that it has changed, within these groups, the outermost first. Groups are there as
    /// long as a set is within them.
    pub fn set(&mut self, set: Set, groups: &[SetId]) {
        let innermost = groups.last().copied();
        let id = set.id;
        match self.sets.get(&id) {
            Some(old) if old.within != innermost => self.take_out(id),
            Some(old) if old.set == set => return,
            _ => {}
        }
        let mut within = None;
        for (depth, group) in groups.iter().enumerate() {
            self.groups.entry(*group).or_insert_with(|| {
                let mut inside = Schedule::new();
                inside.switch_cost_ns(self.switch_cost_ns);
                Group {
                    within,
                    depth,
                    weight: USUAL_WEIGHT,
                    inside,
                    cpus: CpuSet::new(),
                    sets: BTreeSet::new(),
                    turn: None,
                }
            });
            if let Some(outer) = within.and_then(|outer| self.groups.get_mut(&outer)) {
                outer.sets.insert(*group);
            }
            within = Some(*group);
        }
        match innermost.and_then(|group| self.groups.get_mut(&group)) {
            Some(group) => {
                group.sets.insert(id);
                group.inside.set(set.clone());
                // A group that is new has its turn from those around it.
                self.changed.extend(groups);
            }
            None => self.top.set(set.clone()),
        }
        let placed = Placed {
            set,
            within: innermost,
        };
        if self.sets.insert(id, placed).is_none() {
            self.touched.insert(id);
        }
    }

    /// The share of a group against the sets beside it, 1 to [`MOST_WEIGHT`](super::MOST_WEIGHT); the usual one
    /// if it is never said.
    pub fn weigh(&mut self, group: SetId, weight: u32) {
        if let Some(known) = self.groups.get_mut(&group)
            && std::mem::replace(&mut known.weight, weight) != weight
        {
            self.changed.insert(group);
        }
    }

    /// Takes a set out. If it had a turn the next plan says that it has none.
    pub fn remove(&mut self, set: SetId) {
        if self.sets.contains_key(&set) {
            self.take_out(set);
        }
    }

    fn take_out(&mut self, id: SetId) {
        self.touched.insert(id);
        let within = self.sets.remove(&id).and_then(|placed| placed.within);
        self.take_from(within, id);
    }

    /// Takes a set or a group out of where it is, and groups with it that have nothing inside then.
    fn take_from(&mut self, mut within: Option<SetId>, mut id: SetId) {
        while let Some(group) = within {
            let Some(known) = self.groups.get_mut(&group) else {
                return;
            };
            known.sets.remove(&id);
            known.inside.remove(id);
            self.changed.insert(group);
            if !known.sets.is_empty() {
                return;
            }
            within = known.within;
            self.groups.remove(&group);
            self.changed.remove(&group);
            id = group;
        }
        self.top.remove(id);
    }

    /// What is new since the last plan; see [`Schedule::plan`]. Groups cost what their sets cost as sets of the
    /// machine.
    pub fn plan(&mut self, time_ns: u64) -> Vec<Change> {
        let mut order: Vec<(usize, SetId)> =
            self.groups.iter().map(|(id, g)| (g.depth, *id)).collect();
        order.sort_unstable();
        let changed = self.describe_groups(&order);
        let mut news = News::new();
        for id in std::mem::take(&mut self.touched) {
            news.insert(id, (None, "it is a set no longer".to_owned()));
        }
        for change in self.top.plan(time_ns) {
            news.insert(change.set, (change.cpus, change.reason));
        }
        let mut turns: BTreeMap<SetId, Option<Turn>> = BTreeMap::new();
        for (_, id) in order {
            self.plan_group(id, &changed, time_ns, &mut news, &mut turns);
        }
        let mut changes = Vec::new();
        for (id, (cpus, reason)) in news {
            let within = self.sets.get(&id).map(|placed| placed.within);
            let turn = match within {
                Some(None) => self.top.turn(id).cloned(),
                // Nothing within it was planned again.
                Some(Some(_)) => match turns.remove(&id) {
                    Some(turn) => turn,
                    None => continue,
                },
                None => None,
            };
            changes.extend(self.tell(id, turn, cpus, reason));
        }
        changes
    }

    /// Tells the schedules outside what groups are now, the innermost first. Which have changed inside.
    fn describe_groups(&mut self, order: &[(usize, SetId)]) -> BTreeSet<SetId> {
        if self.changed.is_empty() {
            return BTreeSet::new();
        }
        let changed = std::mem::take(&mut self.changed);
        let mut described: BTreeMap<SetId, Set> = BTreeMap::new();
        for (_, id) in order.iter().rev() {
            let Some(group) = self.groups.get(id) else {
                continue;
            };
            let sets = group.sets.iter().filter_map(|set| {
                let placed = self.sets.get(set).map(|placed| &placed.set);
                placed.or_else(|| described.get(set))
            });
            let set = as_one(*id, group.weight, sets);
            described.insert(*id, set.clone());
            match group.within.and_then(|outer| self.groups.get_mut(&outer)) {
                Some(outer) => outer.inside.set(set),
                None => self.top.set(set),
            }
        }
        changed
    }

    /// Plans what is inside of a group, if its own turn or what is inside has changed.
    fn plan_group(
        &mut self,
        id: SetId,
        changed: &BTreeSet<SetId>,
        time_ns: u64,
        news: &mut News,
        turns: &mut BTreeMap<SetId, Option<Turn>>,
    ) {
        let Some(known) = self.groups.get(&id) else {
            return;
        };
        let (turn, cpus) = match known.within {
            None => (self.top.turn(id).cloned(), self.top.cpus(id)),
            Some(outer) => {
                let turn = turns.get(&id).cloned();
                let cpus = self.groups.get(&outer).and_then(|g| g.inside.cpus(id));
                (turn.unwrap_or_else(|| known.turn.clone()), cpus)
            }
        };
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let cpus = cpus.unwrap_or_default();
        if group.cpus != cpus {
            group.cpus.clone_from(&cpus);
            group.inside.machine(&Machine {
                allowed: cpus,
                ..self.machine.clone()
            });
        }
        let other_turn = group.turn != turn;
        group.turn = turn;
        let changes = group.inside.plan(time_ns);
        if changes.is_empty() && !other_turn && !changed.contains(&id) {
            return;
        }
        let outer_reason = news.get(&id).map(|(_, reason)| reason.clone());
        let usual = || "its group takes turns with others".to_owned();
        let mut reasons: BTreeMap<SetId, (Option<CpuSet>, String)> = changes
            .into_iter()
            .map(|change| (change.set, (change.cpus, change.reason)))
            .collect();
        let inside = group.sets.iter().map(|set| (*set, group.inside.turn(*set)));
        let places = within(group.turn.as_ref(), inside);
        for (set, Place { turn, of_inside }) in places {
            let news_of = reasons.remove(&set);
            let reason = match (news_of, of_inside) {
                (Some(news), true) => news,
                (news, _) => (
                    news.and_then(|(cpus, _)| cpus),
                    outer_reason.clone().unwrap_or_else(usual),
                ),
            };
            news.insert(set, reason);
            turns.insert(set, turn);
        }
    }

    /// What is to be told to a set, if it is not what it was told.
    fn tell(
        &mut self,
        id: SetId,
        turn: Option<Turn>,
        cpus: Option<CpuSet>,
        reason: String,
    ) -> Option<Change> {
        if self.groups.contains_key(&id) {
            return None;
        }
        let same = match (self.told.get(&id), &turn) {
            (None, None) => true,
            (Some(old), Some(new)) => is_same(old, new),
            _ => false,
        };
        if same && cpus.is_none() {
            return None;
        }
        if !same {
            match &turn {
                Some(turn) => self.told.insert(id, turn.clone()),
                None => self.told.remove(&id),
            };
        }
        Some(Change {
            set: id,
            turn: self.told.get(&id).cloned(),
            cpus,
            reason,
        })
    }
}

/// A group as a set among others: what it has inside could run at the same time. Whoever is inside may be tied to a
/// part of the group's CPUs: then all of them are the group's in its turns, since which others it could spare depends
/// on who runs inside.
fn as_one<'a>(id: SetId, weight: u32, sets: impl Iterator<Item = &'a Set>) -> Set {
    let mut on: Option<CpuSet> = None;
    let (mut any, mut demand) = (0u32, 0u32);
    let (mut sleeps, mut tied) = (true, false);
    for set in sets {
        let count = match &set.cpus {
            Where::On(cpus) => {
                tied |= on.as_ref().is_some_and(|on| on != cpus);
                let on = on.get_or_insert_default();
                on.extend(cpus.iter());
                cpus.count()
            }
            Where::Any(count) => {
                tied = true;
                any = any.saturating_add(*count);
                *count
            }
        };
        let needs = match set.keeps_idle {
            true => count,
            false => set.demand.clamp(1, count.max(1)),
        };
        demand = demand.saturating_add(needs);
        sleeps &= set.sleeps && !set.keeps_idle;
    }
    Set {
        id,
        cpus: match on {
            None => Where::Any(any.max(1)),
            Some(on) => Where::On(on),
        },
        demand: if tied { u32::MAX } else { demand },
        keeps_idle: false,
        sleeps,
        weight,
    }
}

/// Whether two turns say the same from the later one's beginning on.
fn is_same(old: &Turn, new: &Turn) -> bool {
    old.period_ns == new.period_ns
        && old.windows == new.windows
        && old
            .epoch_ns
            .abs_diff(new.epoch_ns)
            .is_multiple_of(old.period_ns.max(1))
}

#[cfg(test)]
mod tests;
