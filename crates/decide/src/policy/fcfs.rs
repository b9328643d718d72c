//! `fcfs`: first come, first served, as in the example of section 2.1 of REEact's paper.
//!
//! Each thread that a program creates is given a CPU of its own as long as there are any. When none is
//! left, the program's further threads share its own CPUs, from the first one on
//! ([`LocalRule::OneEach`]). When threads end or programs leave, their CPUs are offered to the programs
//! that share, in the order of their arrival; the offer is a grant, which the program's local manager may
//! use at once.
//!
//! How many CPUs a program asks for:
//! - a malleable one: as many as it wants threads, and it runs as many threads as it gets CPUs;
//! - a rigid one: one for each thread that it has said to have. Until it has said so, its minimum; if it
//!   says nothing for [`PATIENCE_NS`], as many as it wants threads.
//!
//! Where the paper is silent:
//! - A program that finds no CPU free at its join is a guest on one CPU of another, which both then
//!   share: the paper has a thread without a CPU share one too. It is the CPU with the fewest programs, of
//!   the program that has the most CPUs, and that program's last one. Guests are first to be offered
//!   what gets free. So nobody is starved, and nobody loses what they came first for.
//! - Under a quota no more CPUs are given away than may be used at a time.
//! - CPUs that a person has set for a program are nobody else's, if the program fills them and others
//!   are left.

use crate::cpus::CpuSet;
use crate::policy::memory::Memory;
use crate::policy::plan::{Planned, carry_out};
use crate::policy::{Decides, Event, Orders, Policy, choose};
use crate::status::{Claim, LocalRule, Program, ProgramId, Status};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How long a rigid program may be silent about its threads, in nanoseconds.
pub const PATIENCE_NS: u64 = 100_000_000;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fcfs {
    /// The CPUs that each program has been given. No CPU is in two.
    own: BTreeMap<ProgramId, CpuSet>,
    /// Where those are who have none of their own.
    guests: BTreeMap<ProgramId, u32>,
}

impl Policy for Fcfs {
    fn name(&self) -> String {
        "fcfs".to_owned()
    }

    fn local_rule(&self) -> LocalRule {
        LocalRule::OneEach
    }

    fn period_ns(&self, status: &Status) -> Option<u64> {
        // Readings say nothing that matters here, but that time has passed.
        let waiting = |p: &Program| is_silent(p) && !patience_is_over(p, status);
        status.programs.values().any(waiting).then_some(PATIENCE_NS)
    }

    fn decides(&self) -> Decides {
        Decides {
            own_cpus: true,
            ..Decides::default()
        }
    }

    fn memory(&self) -> Memory {
        Memory::Fcfs(self.clone())
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        if !matches!(event, Event::Failed(_)) {
            self.settle(status, orders);
        }
    }
}

impl Fcfs {
    /// Gives back, gives out, and finds places for guests, until everybody has what they should.
    fn settle(&mut self, status: &Status, orders: &mut Orders) {
        let machine = &status.machine;
        let filled = filled_by_people(status);
        let mut free = machine.allowed.difference(&filled);
        self.take_back(status, &free);
        for own in self.own.values() {
            free = free.difference(own);
        }
        let used: u32 = self.own.values().map(CpuSet::count).sum();
        let mut left = machine
            .one_per_cpu()
            .saturating_sub(filled.count())
            .saturating_sub(used)
            .min(free.count());

        let mut offered = BTreeMap::new();
        let order = by_arrival(status);
        // Those who have nothing come first, with one CPU each; then everybody in turn.
        for guests_only in [true, false] {
            for (id, program) in &order {
                let own = self.own.entry(*id).or_default();
                let lacks = needs(program, status).saturating_sub(own.count());
                let count = match guests_only {
                    true => lacks.min(1) * u32::from(own.is_empty()),
                    false => lacks,
                };
                let placement = program.wants.placement;
                let more = choose::more(machine, own, &free, count.min(left), placement);
                left -= more.count();
                free = free.difference(&more);
                *offered.entry(*id).or_default() += more.count();
                own.extend(more.iter());
            }
        }
        self.place_guests(status, &filled);
        carry_out(self.plan(status, &offered), status, orders);
    }

    /// What programs have too much, may no longer use, or left behind, is theirs no longer.
    fn take_back(&mut self, status: &Status, usable: &CpuSet) {
        let here = |id: &ProgramId| status.programs.get(id).filter(|p| !p.overridden);
        self.guests.retain(|id, _| here(id).is_some());
        self.own.retain(|id, _| here(id).is_some());
        for (id, program) in by_arrival(status) {
            // Of whom nothing is known but a claim: another policy has granted it. It is theirs, if it
            // is nobody's else.
            if !self.own.contains_key(&id) {
                let others = self.own.values().flat_map(CpuSet::iter).collect();
                let claim = program.claim.as_ref().filter(|c| c.exclusive);
                let had = claim.map(|c| c.cpus.difference(&others));
                self.own.insert(id, had.unwrap_or_default());
            }
            let needs = needs(program, status);
            if let Some(own) = self.own.get_mut(&id) {
                *own = own.intersection(usable);
                let none = CpuSet::new();
                let placement = program.wants.placement;
                *own = choose::resize(
                    &status.machine,
                    own,
                    &none,
                    needs.min(own.count()),
                    placement,
                );
            }
        }
    }

    /// Gives everyone who has no CPU a place on another's.
    fn place_guests(&mut self, status: &Status, filled: &CpuSet) {
        // How many CPUs the owner of each CPU has.
        let owners: BTreeMap<u32, u32> = self
            .own
            .values()
            .flat_map(|own| own.iter().map(|cpu| (cpu, own.count())))
            .collect();
        let allowed = &status.machine.allowed;
        let mut places = allowed.difference(filled);
        if places.is_empty() {
            places = allowed.clone();
        }
        self.guests.retain(|id, cpu| {
            places.contains(*cpu) && self.own.get(id).is_some_and(CpuSet::is_empty)
        });
        let homeless: Vec<ProgramId> = self
            .own
            .iter()
            .filter(|(id, own)| own.is_empty() && !self.guests.contains_key(id))
            .map(|(id, _)| *id)
            .collect();
        for id in homeless {
            let best = places.iter().min_by_key(|&cpu| {
                let guests = self.guests.values().filter(|&&c| c == cpu).count();
                let owner = owners.get(&cpu);
                let there = guests + usize::from(owner.is_some());
                (there, Reverse((owner.copied().unwrap_or(0), cpu)))
            });
            if let Some(cpu) = best {
                self.guests.insert(id, cpu);
            }
        }
    }

    fn plan(&self, status: &Status, offered: &BTreeMap<ProgramId, u32>) -> Vec<Planned> {
        let by_people: CpuSet = status
            .programs
            .values()
            .filter(|p| p.overridden)
            .filter_map(|p| p.claim.as_ref())
            .flat_map(|c| c.cpus.iter())
            .collect();
        let visited: CpuSet = self.guests.values().copied().collect();
        let mut plan = Vec::new();
        for (id, program) in by_arrival(status) {
            let Some(own) = self.own.get(&id) else {
                continue;
            };
            let needs = needs(program, status);
            let wants = &program.wants;
            let threads = match wants.malleable {
                true => own.count().max(1),
                false => program.threads.max(needs),
            };
            let threads = threads.clamp(wants.min_threads, wants.max_threads);
            let guest = self.guests.get(&id).copied();
            let exclusive =
                guest.is_none() && own.is_disjoint(&by_people) && own.is_disjoint(&visited);
            let cpus = match guest {
                Some(cpu) => CpuSet::from_iter([cpu]),
                None => own.clone(),
            };
            let had_some = program.claim.as_ref().is_some_and(|c| !c.cpus.is_empty());
            let more = offered.get(&id).copied().unwrap_or(0);
            let reason = match guest {
                Some(cpu) => format!("no CPU is left for it: it is a guest on CPU {cpu}"),
                None if had_some && more > 0 => {
                    format!("of the {needs} CPUs that it asks for, {more} more were free")
                }
                None if own.count() < needs => {
                    format!(
                        "of the {needs} CPUs that it asks for, {} were left",
                        own.len()
                    )
                }
                None => format!("all CPUs that it asks for: {needs}"),
            };
            plan.push(Planned {
                program: id,
                claim: Claim {
                    cpus,
                    threads,
                    exclusive,
                },
                reason,
            });
        }
        plan
    }
}

/// The programs that the policy decides for, in the order of their arrival.
fn by_arrival(status: &Status) -> Vec<(ProgramId, &Program)> {
    let decided = status.programs.iter().filter(|(_, p)| !p.overridden);
    let mut order: Vec<_> = decided.map(|(id, p)| (*id, p)).collect();
    order.sort_by_key(|(id, p)| (p.joined_ns, *id));
    order
}

fn is_silent(program: &Program) -> bool {
    !program.wants.malleable && !program.overridden && program.threads == 0
}

fn patience_is_over(program: &Program, status: &Status) -> bool {
    status.time_ns.saturating_sub(program.joined_ns) >= PATIENCE_NS
}

/// How many CPUs a program asks for; see the module.
fn needs(program: &Program, status: &Status) -> u32 {
    let wants = &program.wants;
    if wants.malleable || (is_silent(program) && patience_is_over(program, status)) {
        wants.max_threads
    } else {
        program.threads.max(wants.min_threads)
    }
}

/// CPUs of claims that people have set and that are full, as long as others are left.
fn filled_by_people(status: &Status) -> CpuSet {
    let set: CpuSet = status
        .programs
        .values()
        .filter(|p| p.overridden)
        .filter_map(|p| p.claim.as_ref())
        .filter(|c| c.threads >= c.cpus.count())
        .flat_map(|c| c.cpus.iter())
        .collect();
    match status.machine.allowed.is_subset(&set) {
        true => CpuSet::new(),
        false => set.intersection(&status.machine.allowed),
    }
}
