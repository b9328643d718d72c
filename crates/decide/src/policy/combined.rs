//! Several policies at once, each over its own programs or CPUs.
//!
//! REEact's paper (section 2) speaks of several global managers, and combines policies by hand. Here each
//! policy sees a status in which there are only its programs and its CPUs, and what it orders reaches no
//! further. What two of them would both set is refused before they begin, with the reason
//! ([`Combined::new`]):
//!
//! - the claims of one program: two that grant claims to the same programs;
//! - the CPUs of one program alone: two that keep CPUs for their programs, and have CPUs in common;
//! - the prefetchers, frequency or duty cycle of one CPU;
//! - and two that judge by the instructions which the whole machine retires: each would judge the other's
//!   doing.
//!
//! A policy that leaves claims to others ([`Part::claims`]) sees all programs and sets only the machine's
//! hardware. A program that is nobody's may use everything that is not another's alone, as one that any
//! policy forgets.

use super::memory::Memory;
use super::source::Source;
use super::{Decides, Event, Order, Orders, Policy};
use crate::cpus::CpuSet;
use crate::status::{LocalRule, ProgramId, Status};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod conflicts;
mod names;

/// One of several policies, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The policy.
    pub source: Source,
    /// Names of its programs, in which `*` stands for any text; none: all that no other policy names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
    /// Its CPUs; `None`: all that no other policy names, or simply all where it grants no claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Whether it grants claims; else it leaves programs to others, and sets only the machine's hardware.
    pub claims: bool,
}

/// What several policies know beyond the status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CombinedMemory {
    parts: Vec<(Memory, Option<u64>)>,
    known: Known,
}

/// What they know together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Known {
    /// Whose each program is, by the number of the part.
    members: BTreeMap<ProgramId, usize>,
    /// Whose orders the last event has led to that may fail.
    acted: BTreeSet<usize>,
    /// The time of the last readings, in nanoseconds.
    read_ns: u64,
}

/// See the module.
pub struct Combined {
    name: String,
    parts: Vec<Running>,
    known: Known,
}

struct Running {
    part: Part,
    policy: Box<dyn Policy>,
    /// CPUs that are others': they have named them, and this one has named none.
    others: CpuSet,
    /// When it was told of readings last, in nanoseconds.
    told_ns: Option<u64>,
}

impl Combined {
    /// Makes the policies. `name` is what people call them together.
    ///
    /// # Errors
    /// Why they cannot decide at the same time, for people; or why one of them cannot be made.
    pub fn new(name: &str, parts: &[Part]) -> Result<Combined, String> {
        let named = parts.iter().filter_map(|part| part.cpus.as_ref());
        let named: CpuSet = named.flat_map(CpuSet::iter).collect();
        let parts: Result<Vec<Running>, String> = parts
            .iter()
            .map(|part| {
                let takes_the_rest = part.claims && part.cpus.is_none();
                Ok(Running {
                    policy: part.source.make()?,
                    part: part.clone(),
                    others: if takes_the_rest {
                        named.clone()
                    } else {
                        CpuSet::new()
                    },
                    told_ns: None,
                })
            })
            .collect();
        let combined = Combined {
            name: name.to_owned(),
            parts: parts?,
            known: Known::default(),
        };
        conflicts::none(&combined.parts)?;
        Ok(combined)
    }

    /// Makes them as they were when they knew this.
    ///
    /// # Errors
    /// As [`Combined::new`]; and if it is others' memory.
    pub(super) fn remake(
        name: &str,
        parts: &[Part],
        memory: CombinedMemory,
    ) -> Result<Combined, String> {
        let mut combined = Combined::new(name, parts)?;
        if memory.parts.len() != parts.len() {
            return Err(format!("what is to be remembered is not of {name:?}"));
        }
        for (running, (memory, told_ns)) in combined.parts.iter_mut().zip(memory.parts) {
            running.policy = running.part.source.remake(memory)?;
            running.told_ns = told_ns;
        }
        combined.known = memory.known;
        Ok(combined)
    }

    /// Whose a program of this name is.
    fn owner(&self, name: &str) -> Option<usize> {
        let grants = || self.parts.iter().enumerate().filter(|(_, r)| r.part.claims);
        let named = grants().find(|(_, r)| r.part.programs.iter().any(|p| names::fits(p, name)));
        let rest = || grants().find(|(_, r)| r.part.programs.is_empty());
        named.or_else(rest).map(|(index, _)| index)
    }

    /// Who hears of an event.
    fn listeners(&self, event: &Event, status: &Status) -> BTreeSet<usize> {
        let hears = |index: usize, running: &Running| match event {
            Event::Machine => true,
            Event::Joined(program)
            | Event::Asked(program)
            | Event::Overridden(program)
            | Event::Threads { program, .. }
            | Event::Answered { program, .. }
            | Event::Left { program, .. } => {
                !running.part.claims || self.known.members.get(program) == Some(&index)
            }
            // Nobody says whose order it was; but only what was ordered last can have failed.
            Event::Failed(_) => self.known.acted.is_empty() || self.known.acted.contains(&index),
            Event::Readings => running
                .due_ns(status)
                .is_some_and(|due| due <= status.time_ns),
        };
        let each = self.parts.iter().enumerate();
        each.filter(|(index, running)| hears(*index, running))
            .map(|(index, _)| index)
            .collect()
    }
}

impl Running {
    /// When it wants readings.
    fn due_ns(&self, status: &Status) -> Option<u64> {
        let period_ns = self.policy.period_ns(status)?;
        Some(
            self.told_ns
                .map_or(0, |told| told.saturating_add(period_ns)),
        )
    }

    /// Its CPUs. Where none of them may be granted now, it has to do with those that may.
    fn cpus(&self, status: &Status) -> CpuSet {
        let allowed = &status.machine.allowed;
        let own = match &self.part.cpus {
            Some(cpus) => cpus.intersection(allowed),
            None => allowed.difference(&self.others),
        };
        if own.is_empty() { allowed.clone() } else { own }
    }

    /// The status as this policy sees it: its programs, its CPUs.
    fn sees(&self, index: usize, status: &Status, members: &BTreeMap<ProgramId, usize>) -> Status {
        let cpus = self.cpus(status);
        let mut seen = status.clone();
        if self.part.claims {
            seen.programs
                .retain(|id, _| members.get(id) == Some(&index));
        }
        let used = seen.programs.values().filter_map(|p| p.uses).sum();
        let each = status.cpu_use.iter().copied();
        seen.load = status.load.map(|load| load.of_cpus(&cpus, each, used));
        seen.heat.retain(|heat| cpus.contains(heat.cpu));
        seen.machine.capacity = seen.machine.capacity.min(cpus.len() as f64);
        seen.machine.allowed = cpus;
        seen
    }

    /// What may be carried out of what it orders.
    fn bounded(&self, order: Order, seen: &Status) -> Option<Order> {
        let claims = self.part.claims;
        let own = |id: &ProgramId| claims && seen.programs.contains_key(id);
        let cpus = &seen.machine.allowed;
        let named = |text: String| format!("{}: {text}", self.policy.name());
        Some(match order {
            Order::Grant {
                program,
                mut claim,
                reason,
            } => {
                let within = claim.cpus.intersection(cpus);
                claim.cpus = if within.is_empty() {
                    cpus.clone()
                } else {
                    within
                };
                let reason = named(reason);
                own(&program).then_some(Order::Grant {
                    program,
                    claim,
                    reason,
                })?
            }
            Order::Ask {
                program,
                what,
                reason,
            } => {
                let reason = named(reason);
                own(&program).then_some(Order::Ask {
                    program,
                    what,
                    reason,
                })?
            }
            Order::Act { action, reason } => {
                let reason = named(reason);
                let has_all = self.part.cpus.is_none() && self.others.is_empty();
                let action = match (action.program(), action.cpus()) {
                    (Some(program), _) => own(&program).then_some(action)?,
                    (None, Some(set)) if !set.is_empty() => {
                        let within = set.intersection(cpus);
                        (!within.is_empty()).then(|| action.of_cpus(within))?
                    }
                    (None, Some(_)) if !has_all => action.of_cpus(cpus.clone()),
                    _ => action,
                };
                Order::Act { action, reason }
            }
            Order::Note(text) => Order::Note(named(text)),
        })
    }
}

impl Policy for Combined {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn local_rule(&self) -> LocalRule {
        LocalRule::Whole
    }

    fn local_rule_of(&self, name: &str) -> LocalRule {
        let owner = self.owner(name);
        owner.map_or(LocalRule::Leave, |owner| {
            self.parts[owner].policy.local_rule_of(name)
        })
    }

    fn period_ns(&self, status: &Status) -> Option<u64> {
        let due = self
            .parts
            .iter()
            .filter_map(|running| running.due_ns(status))
            .min()?;
        Some(due.saturating_sub(self.known.read_ns))
    }

    fn wants_heat(&self) -> bool {
        self.parts.iter().any(|running| running.policy.wants_heat())
    }

    fn decides(&self) -> Decides {
        let each = self.parts.iter().map(|running| running.policy.decides());
        each.fold(Decides::default(), |sum, one| Decides {
            own_cpus: sum.own_cpus || one.own_cpus,
            prefetchers: sum.prefetchers || one.prefetchers,
            frequencies: sum.frequencies || one.frequencies,
            duty_cycles: sum.duty_cycles || one.duty_cycles,
            instructions: sum.instructions || one.instructions,
        })
    }

    fn memory(&self) -> Memory {
        let each = self.parts.iter();
        Memory::Combined(Box::new(CombinedMemory {
            parts: each
                .map(|running| (running.policy.memory(), running.told_ns))
                .collect(),
            known: self.known.clone(),
        }))
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        for (id, program) in &status.programs {
            if !self.known.members.contains_key(id)
                && let Some(owner) = self.owner(&program.name)
            {
                self.known.members.insert(*id, owner);
            }
        }
        let listeners = self.listeners(event, status);
        if *event == Event::Readings {
            self.known.read_ns = status.time_ns;
        }
        if !matches!(event, Event::Failed(_)) {
            self.known.acted.clear();
        }
        for index in listeners {
            let running = &mut self.parts[index];
            let seen = running.sees(index, status, &self.known.members);
            if *event == Event::Readings {
                running.told_ns = Some(status.time_ns);
            }
            let mut own = Orders::default();
            running.policy.on(event, &seen, &mut own);
            let may_fail = |order: &Order| matches!(order, Order::Act { .. } | Order::Ask { .. });
            if own.list.iter().any(may_fail) {
                self.known.acted.insert(index);
            }
            let kept = own
                .list
                .into_iter()
                .filter_map(|order| running.bounded(order, &seen));
            orders.list.extend(kept);
        }
        if let Event::Left { program, .. } = event {
            self.known.members.remove(program);
        }
    }
}
