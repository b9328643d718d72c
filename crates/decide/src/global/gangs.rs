//! Programs that are gangs: the sets that they make, and the turns that the gang schedule gives them.
//!
//! The policy says which CPUs and how many threads a gang has; the schedule only says when it runs. A gang
//! is a set on the CPUs of its claim. Where that is all of a large machine, it is relocatable, with as many CPUs
//! as it has threads, so that parts of the machine take their decisions alone. While it takes turns there its programs
//! are granted those CPUs of their claims, else Linux would run its threads where another part's gang has its slice;
//! and all of them again when it runs always. Elsewhere which CPUs its threads run on is left to Linux. But at no
//! time may more threads run than there are CPUs.
//!
//! Who is a gang says so, or is found out: a program whose number of threads cannot be changed, at least two of
//! which hardly ever sleep, and which spends much of its time in loops that wait. A gang whose threads are seen to
//! sleep while they wait is left to Linux, which serves it better: whoever has nothing to do makes room. It takes
//! turns only beside gangs that need them.
//!
//! A name with slashes says that a gang is within another: `job/stage` takes its turns within those of `job`.

use crate::cpus::CpuSet;
use crate::gang::{Demand, HARDLY_SPINS, Nested, Set, SetId, USUAL_WEIGHT, Where};
use crate::global::GlobalManager;
use crate::status::{Gang, Program, ProgramId, Status, Waits};
use crate::world::{Input, Output};
use corewise_abi::turn::Turn;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Up to so many CPUs, all gangs that may use all of them are one ring: sets that are tied to no place are packed
/// better side by side.
const ONE_RING: u32 = 64;

/// What it costs to stop one gang and to let another go, on all of its CPUs, as long as nobody has measured it:
/// 34 to 52 µs for two threads with seized ptrace. What is measured is rounded up to a multiple of this, so that
/// plans do not change with every measurement.
const SWITCH_COST_NS: u64 = 50_000;

/// From this part of its time on, in thousandths, a program that spins is found to be a gang; below
/// [`HARDLY_SPINS`] it is not any longer.
const SPINS: u32 = 200;

/// One program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Member {
    gang: Gang,
    /// It has not said that it is a gang: it was found out.
    #[serde(default)]
    found: bool,
    set: SetId,
    demand: Demand,
    told: Option<Turn>,
    /// It was granted these of its claim's CPUs: its set's place.
    #[serde(default)]
    placed: Option<CpuSet>,
}

/// All programs that are gangs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Gangs {
    schedule: Nested,
    members: BTreeMap<ProgramId, Member>,
    sets: BTreeMap<SetId, BTreeSet<ProgramId>>,
    named: BTreeMap<String, SetId>,
    /// Those that others are within, by their names.
    groups: BTreeMap<String, SetId>,
    next_set: u64,
    /// Since when they wait for readings, and how long.
    read_ns: Option<(u64, u64)>,
}

impl GlobalManager {
    /// What a program has said of itself, or was found out, if it is a gang.
    pub fn gang(&self, program: ProgramId) -> Option<&Gang> {
        self.gangs.gang(program)
    }

    /// The CPUs of its claim that a gang's program is granted while its gang takes turns there; `None`: all of them.
    pub fn place(&self, program: ProgramId) -> Option<&CpuSet> {
        self.gangs.members.get(&program)?.placed.as_ref()
    }

    /// When a program runs; `None`: always.
    pub fn turn(&self, program: ProgramId) -> Option<&Turn> {
        self.gangs.members.get(&program)?.told.as_ref()
    }
}

impl Gangs {
    /// What a program has said of itself, or was found out, if it is a gang.
    pub(super) fn gang(&self, program: ProgramId) -> Option<&Gang> {
        self.members.get(&program).map(|member| &member.gang)
    }

    /// What a program has said of itself, if it has said that it is a gang.
    pub(super) fn asked(&self, program: ProgramId) -> Option<&Gang> {
        let member = self.members.get(&program).filter(|member| !member.found)?;
        Some(&member.gang)
    }

    /// When readings are wanted.
    pub(super) fn next_reading_ns(&self) -> Option<u64> {
        self.read_ns
            .map(|(since, period)| since.saturating_add(period))
    }

    /// Takes in what has happened, once the status is up to date and the policy has decided, and what was
    /// decided on that; tells programs their turns. Costs nothing while no program is a gang.
    pub(super) fn follow(&mut self, input: &Input, status: &Status, outputs: &mut Vec<Output>) {
        let mut touched: BTreeSet<SetId> = BTreeSet::new();
        let groups_before = self.groups.len();
        match input {
            Input::Gang { program, gang } => {
                touched.extend(self.leave(*program, status, outputs));
                if let Some(gang) = gang
                    .as_ref()
                    .filter(|_| status.programs.contains_key(program))
                {
                    touched.insert(self.join(*program, gang, status));
                }
            }
            Input::Left { program } => touched.extend(self.leave(*program, status, outputs)),
            Input::Waits { program, .. } => touched.extend(self.waits(*program, status, outputs)),
            _ if self.members.is_empty() => return,
            Input::Readings(readings) => {
                self.read(readings, status);
                touched.extend(self.sets.keys());
            }
            Input::Machine(machine) => {
                self.schedule.machine(machine);
                touched.extend(self.sets.keys());
            }
            Input::Threads { program, .. } | Input::Asked { program, .. } => {
                touched.extend(self.set_of(*program));
            }
            _ => {}
        }
        let granted = outputs.iter().filter_map(|output| match output {
            Output::Grant { program, .. } => self.set_of(*program),
            _ => None,
        });
        touched.extend(granted);
        if touched.is_empty() {
            return;
        }
        if self.groups.len() != groups_before {
            // Whether a set is a group's own depends on the others.
            touched.extend(self.named.values());
        }
        for set in &touched {
            self.describe(*set, status);
        }
        let mut moved = touched.clone();
        for change in self.schedule.plan(status.time_ns) {
            touched.remove(&change.set);
            moved.insert(change.set);
            self.tell(change.set, change.turn.as_ref(), &change.reason, outputs);
        }
        // Who has joined a set that has a turn already.
        for set in touched {
            let turn = self.schedule.turn(set).cloned();
            self.tell(
                set,
                turn.as_ref(),
                "its gang takes turns with others",
                outputs,
            );
        }
        for set in moved {
            self.place(set, status, outputs);
        }
        self.plan_reading(status, matches!(input, Input::Readings(_)));
    }

    fn set_of(&self, program: ProgramId) -> Option<SetId> {
        self.members.get(&program).map(|member| member.set)
    }

    /// A program is a gang from now on; its set.
    fn join(&mut self, program: ProgramId, gang: &Gang, status: &Status) -> SetId {
        if self.members.is_empty() {
            self.schedule.machine(&status.machine);
            self.schedule.switch_cost_ns(SWITCH_COST_NS);
        }
        let named = self.named.get(&gang.name).copied();
        let set = named.unwrap_or_else(|| self.new_set());
        if !gang.name.is_empty() {
            self.named.insert(gang.name.clone(), set);
            for group in groups_of(&gang.name) {
                if !self.groups.contains_key(group) {
                    let id = self.new_set();
                    self.groups.insert(group.to_owned(), id);
                }
            }
        }
        self.sets.entry(set).or_default().insert(program);
        let member = Member {
            gang: gang.clone(),
            found: false,
            set,
            demand: Demand::new(),
            told: None,
            placed: None,
        };
        self.members.insert(program, member);
        set
    }

    /// It was seen how a program's threads wait: it may be found to be a gang, or not to be one; its set.
    fn waits(
        &mut self,
        program: ProgramId,
        status: &Status,
        outputs: &mut Vec<Output>,
    ) -> Option<SetId> {
        let known = status.programs.get(&program)?;
        let waits = known.waits?;
        let set = match self.members.get(&program) {
            Some(member) if member.found && no_longer_found(known, &waits) => {
                self.leave(program, status, outputs)?
            }
            Some(member) => member.set,
            None => {
                let reason = found(known, &waits)?;
                let gang = Gang {
                    name: String::new(),
                    keeps_idle: false,
                    weight: USUAL_WEIGHT,
                };
                let set = self.join(program, &gang, status);
                if let Some(member) = self.members.get_mut(&program) {
                    member.found = true;
                }
                outputs.push(Output::Note(format!("{program} is a gang: {reason}")));
                set
            }
        };
        let costs = self.members.keys().filter_map(|member| {
            let waits = status.programs.get(member)?.waits?;
            Some(u64::from(waits.switch_ns))
        });
        let cost = costs.max().unwrap_or(0).max(1);
        self.schedule
            .switch_cost_ns(cost.next_multiple_of(SWITCH_COST_NS));
        Some(set)
    }

    /// A program is no gang any longer; the set that it was of. If it has a turn, and is there still, it is
    /// told that it has none.
    fn leave(
        &mut self,
        program: ProgramId,
        status: &Status,
        outputs: &mut Vec<Output>,
    ) -> Option<SetId> {
        let member = self.members.remove(&program)?;
        if let Some(known) = status.programs.get(&program) {
            let reason = "it is a gang no longer".to_owned();
            if member.told.is_some() {
                let reason = reason.clone();
                let turn = None;
                outputs.push(Output::Turn {
                    program,
                    turn,
                    reason,
                });
            }
            outputs.extend(member.whole_claim(program, known, reason));
        }
        if let Some(programs) = self.sets.get_mut(&member.set) {
            programs.remove(&program);
            if programs.is_empty() {
                if let Some(group) = self.groups.get(&member.gang.name) {
                    self.schedule.weigh(*group, USUAL_WEIGHT);
                }
                self.sets.remove(&member.set);
                self.named.remove(&member.gang.name);
                let named = &self.named;
                self.groups.retain(|group, _| {
                    named
                        .keys()
                        .any(|name| groups_of(name).any(|of| of == group))
                });
            }
        }
        Some(member.set)
    }

    /// Tells the schedule what a set is now.
    fn describe(&mut self, id: SetId, status: &Status) {
        let Some(set) = self.set(id, status) else {
            self.schedule.remove(id);
            return;
        };
        let name = self.name(id);
        let own = self.groups.get(name).copied();
        let groups = groups_of(name).filter_map(|group| self.groups.get(group).copied());
        // Programs of the group's own name are a set within it, like those of longer names.
        let groups: Vec<SetId> = groups.chain(own).collect();
        let weight = set.weight;
        self.schedule.set(set, &groups);
        if let Some(group) = own {
            self.schedule.weigh(group, weight);
        }
    }

    /// The name of a set; empty: it has none.
    fn name(&self, id: SetId) -> &str {
        let mut programs = self.sets.get(&id).into_iter().flatten();
        let member = programs.find_map(|program| self.members.get(program));
        member.map_or("", |member| member.gang.name.as_str())
    }

    fn new_set(&mut self) -> SetId {
        self.next_set += 1;
        SetId(self.next_set)
    }

    /// A set as its programs are now; `None`: nothing of it has to run at the same time.
    fn set(&self, id: SetId, status: &Status) -> Option<Set> {
        let allowed = &status.machine.allowed;
        let (mut wanted, mut demand, mut programs) = (0u32, 0u32, 0);
        let (mut keeps_idle, mut weight) = (false, 1);
        // Threads that hardly sleep; not known of all: none is taken to sleep.
        let mut awake = Some(0u32);
        let mut cpus = CpuSet::new();
        for program in self.sets.get(&id)? {
            let member = self.members.get(program)?;
            let program = status.programs.get(program)?;
            let claim = program.claim.as_ref()?;
            let threads = threads(program);
            wanted = wanted.saturating_add(threads);
            demand = demand.saturating_add(member.demand.cpus(threads));
            keeps_idle |= member.gang.keeps_idle;
            weight = weight.max(member.gang.weight);
            awake = awake
                .zip(program.waits)
                .map(|(awake, waits)| awake.saturating_add(waits.awake));
            cpus.extend(claim.cpus.iter());
            // One thread alone needs nobody at the same time.
            programs += if program.wants.malleable && claim.threads < 2 {
                0
            } else {
                1
            };
        }
        if programs == 0 {
            return None;
        }
        let cpus = cpus.intersection(allowed);
        let whole = cpus.len() == allowed.len();
        if whole && keeps_idle {
            // It keeps those idle that its threads could use, not all that there are.
            demand = wanted;
        }
        let cpus = match whole && cpus.count() > ONE_RING {
            true => Where::Any(wanted.min(cpus.count())),
            false => Where::On(cpus),
        };
        Some(Set {
            id,
            cpus,
            demand,
            keeps_idle: keeps_idle && !whole,
            // One alone waits for nobody who is awake.
            sleeps: !keeps_idle && awake.is_some_and(|awake| awake < 2),
            weight,
        })
    }

    /// Tells those of a set whose turn is another one now.
    fn tell(&mut self, set: SetId, turn: Option<&Turn>, reason: &str, outputs: &mut Vec<Output>) {
        for program in self.sets.get(&set).into_iter().flatten() {
            let Some(member) = self.members.get_mut(program) else {
                continue;
            };
            if member.told.as_ref() == turn {
                continue;
            }
            member.told = turn.cloned();
            member.demand.turned();
            outputs.push(Output::Turn {
                program: *program,
                turn: turn.cloned(),
                reason: reason.to_owned(),
            });
        }
    }
}

mod places;
mod reads;

/// The names of the groups that a set of this name is within, the outermost first.
fn groups_of(name: &str) -> impl Iterator<Item = &str> {
    let slashes = name.match_indices('/').map(|(at, _)| &name[..at]);
    slashes.filter(|group| !group.is_empty())
}

/// Why a program is found to be a gang, if it is.
fn found(program: &Program, waits: &Waits) -> Option<String> {
    let spinning = waits.spinning.filter(|spinning| *spinning >= SPINS)?;
    let gang = !program.wants.malleable && waits.awake >= 2;
    gang.then(|| {
        format!(
            "{} of its threads hardly sleep, and spend {} % of their time in loops that wait; it cannot \
             have fewer",
            waits.awake,
            spinning / 10
        )
    })
}

/// Whether one that was found to be a gang has become another program since.
fn no_longer_found(program: &Program, waits: &Waits) -> bool {
    let spins = waits.spinning.is_some_and(|part| part >= HARDLY_SPINS);
    program.wants.malleable || !spins
}

/// Threads that a program can have running at once.
fn threads(program: &Program) -> u32 {
    let granted = program.claim.as_ref().map_or(1, |claim| claim.threads);
    match program.wants.malleable {
        true => granted,
        // It may have told of them before it had made all of them.
        false => program.threads.max(granted),
    }
}

#[cfg(test)]
mod tests;
