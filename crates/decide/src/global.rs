//! The global manager's decisions (REEact's GEM): keeps the status, asks the policy, and checks what
//! the policy orders before it becomes an output.
//!
//! The checks are what programs may rely on, whatever a policy does:
//!
//! - a claim has at least its program's minimum of threads and at least one CPU, all of them allowed;
//! - CPUs that one program has for itself are in no other claim;
//! - a claim that a person has set is not touched by the policy;
//! - a program that the policy forgets may use everything that is not another's alone, and a claim
//!   never keeps CPUs that may no longer be granted;
//! - hardware is set only of CPUs that may be granted;
//! - nothing is put out that changes nothing.

use crate::cpus::CpuSet;
use crate::policy::source::Source;
use crate::policy::{Event, Order, Orders, Policy};
use crate::status::{Claim, LocalRule, Program, ProgramId, Status, Waits, Wants};
use crate::world::{Action, Input, Output};
use std::collections::BTreeMap;

mod gangs;
mod known;
mod readings;

pub use known::Known;

/// Readings are never closer together than this, in nanoseconds.
pub const SHORTEST_PERIOD_NS: u64 = 10_000_000;

/// No program may ask for more threads than this: what a message says is bounded before it is believed.
pub const MOST_THREADS: u32 = 65_536;

/// A program may leave this many requests open; of more, the oldest can no longer be answered.
pub const MOST_OPEN_REQUESTS: usize = 16;

/// The global manager's state. The same inputs at the same times give the same outputs.
pub struct GlobalManager {
    policy: Box<dyn Policy>,
    /// Where the policy comes from, if it took over from another.
    source: Option<Source>,
    status: Status,
    /// Requests that wait for their answers, the oldest first.
    asked: BTreeMap<u32, (ProgramId, crate::status::Request)>,
    next_request: u32,
    /// How many threads a person wants each program to have whose claim one has set: more, or fewer, than
    /// the program can do with now may be what it can do with later.
    wished: BTreeMap<ProgramId, u32>,
    next_reading_ns: Option<u64>,
    last_reading_ns: u64,
    earlier: Option<readings::Earlier>,
    gangs: gangs::Gangs,
}

impl GlobalManager {
    /// A manager without programs, which does not know its machine yet.
    pub fn new(policy: Box<dyn Policy>) -> GlobalManager {
        GlobalManager {
            policy,
            source: None,
            status: Status::default(),
            asked: BTreeMap::new(),
            next_request: 1,
            wished: BTreeMap::new(),
            next_reading_ns: None,
            last_reading_ns: 0,
            earlier: None,
            gangs: gangs::Gangs::default(),
        }
    }

    /// What it knows.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Its policy.
    pub fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    /// How local managers place the threads of a program.
    pub fn local_rule_of(&self, program: ProgramId) -> LocalRule {
        match self.status.programs.get(&program) {
            Some(program) => self.policy.local_rule_of(&program.name),
            None => self.policy.local_rule(),
        }
    }

    /// When it wants readings; `None`: not before something happens.
    pub fn next_reading_ns(&self) -> Option<u64> {
        let gangs = self.gangs.next_reading_ns();
        self.next_reading_ns.into_iter().chain(gangs).min()
    }

    /// Takes an input in, and says what to do.
    pub fn on(&mut self, time_ns: u64, input: &Input) -> Vec<Output> {
        self.status.time_ns = self.status.time_ns.max(time_ns);
        let mut outputs = Vec::new();
        if let Some(event) = self.take(input, &mut outputs) {
            self.tell_policy(&event, &mut outputs);
        }
        self.plan_reading();
        self.gangs.follow(input, &self.status, &mut outputs);
        outputs
    }

    /// Brings the status up to date. `None` if there is nothing that the policy should hear.
    fn take(&mut self, input: &Input, outputs: &mut Vec<Output>) -> Option<Event> {
        match input {
            Input::Machine(machine) => {
                self.status.machine = machine.clone();
                Some(Event::Machine)
            }
            Input::Joined {
                program,
                pid,
                name,
                wants,
            } => {
                let joined = Program {
                    pid: *pid,
                    name: name.clone(),
                    wants: bounded(*wants),
                    claim: None,
                    group: None,
                    spins: false,
                    waits: None,
                    overridden: false,
                    joined_ns: self.status.time_ns,
                    threads: 0,
                    could_use: None,
                    blocked: 0,
                    uses: None,
                    progress_rate: None,
                };
                self.status.programs.insert(*program, joined);
                Some(Event::Joined(*program))
            }
            Input::Asked { program, wants } => {
                self.status.programs.get_mut(program)?.wants = bounded(*wants);
                Some(Event::Asked(*program))
            }
            Input::Threads { program, count } => {
                let now = (*count).min(MOST_THREADS);
                let known = self.status.programs.get_mut(program)?;
                let before = std::mem::replace(&mut known.threads, now);
                (before != now).then_some(Event::Threads {
                    program: *program,
                    before,
                    now,
                })
            }
            Input::Answered {
                program,
                request,
                yes,
            } => {
                // Only the one who was asked may answer, and once.
                let (asked, _) = self.asked.get(request)?;
                if asked != program {
                    return None;
                }
                let (program, what) = self.asked.remove(request)?;
                Some(Event::Answered {
                    program,
                    what,
                    yes: *yes,
                })
            }
            Input::Left { program } => {
                let gone = self.status.programs.remove(program)?;
                self.asked.retain(|_, (asked, _)| asked != program);
                self.wished.remove(program);
                Some(Event::Left {
                    program: *program,
                    claim: gone.claim,
                })
            }
            Input::Readings(readings) => {
                // Between the policy's readings there may be some that only the gangs want.
                let early = self
                    .next_reading_ns
                    .is_none_or(|at| self.status.time_ns < at);
                if early && self.gangs.next_reading_ns().is_some() {
                    return None;
                }
                self.take_readings(readings);
                Some(Event::Readings)
            }
            Input::Overridden { program, claim } => {
                let known = self.status.programs.get_mut(program)?;
                known.overridden = claim.is_some();
                match claim {
                    Some((cpus, threads)) => {
                        self.wished.insert(*program, *threads);
                        self.set_by_a_person(*program, cpus, *threads, outputs);
                    }
                    None => drop(self.wished.remove(program)),
                }
                Some(Event::Overridden(*program))
            }
            // It counts from the next event on that decides anything.
            Input::Group { program, group } => {
                self.status.programs.get_mut(program)?.group = Some(group.clone());
                None
            }
            Input::Spins { program, spins } => {
                let known = self.status.programs.get_mut(program)?;
                let before = std::mem::replace(&mut known.spins, *spins);
                (before != *spins).then_some(Event::Asked(*program))
            }
            // When sets run is not the policy's affair.
            Input::Waits { program, waits } => {
                self.status.programs.get_mut(program)?.waits = Some(Waits {
                    awake: waits.awake.min(MOST_THREADS),
                    ..*waits
                });
                None
            }
            Input::Gang { .. } => None,
            Input::Failed { what, .. } => Some(Event::Failed(what.clone())),
            Input::Policy(source) => match source.make() {
                Ok(policy) => {
                    self.policy = policy;
                    self.source = Some(source.clone());
                    self.asked.clear();
                    Some(Event::Machine)
                }
                // The last good policy stays.
                Err(why) => {
                    let name = &source.name;
                    outputs.push(Output::Note(format!(
                        "the policy {name} is not used: {why}"
                    )));
                    None
                }
            },
        }
    }

    fn tell_policy(&mut self, event: &Event, outputs: &mut Vec<Output>) {
        let mut orders = Orders::default();
        self.policy.on(event, &self.status, &mut orders);
        for order in orders.list {
            outputs.extend(self.checked(order));
        }
        if matches!(event, Event::Joined(_) | Event::Asked(_) | Event::Machine) {
            self.see_to_claims(outputs);
        }
    }

    /// Whatever the policy did or failed to do: every program has a claim, and no claim, not even one that
    /// a person has set, has CPUs that may no longer be granted, or less than its program cannot do
    /// without now. What a person has set is as near to their wish as the program allows now.
    fn see_to_claims(&mut self, outputs: &mut Vec<Output>) {
        let mut unfit = Vec::new();
        for (id, program) in &self.status.programs {
            match &program.claim {
                None => {
                    let everything = Claim {
                        cpus: self.status.machine.allowed.clone(),
                        threads: program.wants.max_threads,
                        exclusive: false,
                    };
                    unfit.push((*id, everything, "the policy says nothing of it"));
                }
                Some(claim) if !claim.cpus.is_subset(&self.status.machine.allowed) => {
                    unfit.push((*id, claim.clone(), "it had CPUs that may not be used now"));
                }
                Some(claim) => {
                    let wished = self.wished.get(id).copied().unwrap_or(claim.threads);
                    if fit(&program.wants, wished) != claim.threads {
                        let fitting = Claim {
                            threads: wished,
                            ..claim.clone()
                        };
                        unfit.push((*id, fitting, "the program asks for other threads"));
                    }
                }
            }
        }
        for (id, claim, reason) in unfit {
            outputs.extend(self.granted(id, claim, reason.to_owned()));
        }
    }

    /// A person's claim: checked like any other, but no order of the policy's. What someone else had
    /// alone, they share from now on.
    fn set_by_a_person(
        &mut self,
        program: ProgramId,
        cpus: &CpuSet,
        threads: u32,
        outputs: &mut Vec<Output>,
    ) {
        let cpus = match cpus.is_empty() {
            true => self.status.machine.allowed.clone(),
            false => cpus.clone(),
        };
        for other in self.status.programs.values_mut() {
            if let Some(claim) = &mut other.claim {
                claim.exclusive &= claim.cpus.is_disjoint(&cpus);
            }
        }
        let claim = Claim {
            cpus,
            threads,
            exclusive: false,
        };
        outputs.extend(self.granted(program, claim, "set by a person".to_owned()));
    }

    /// An order as it may be carried out; `None` if nothing is left of it.
    fn checked(&mut self, order: Order) -> Option<Output> {
        match order {
            Order::Grant {
                program,
                claim,
                reason,
            } => {
                let known = self.status.programs.get(&program)?;
                if known.overridden {
                    return None;
                }
                self.granted(program, claim, reason)
            }
            Order::Ask {
                program,
                what,
                reason,
            } => {
                if !self.status.programs.contains_key(&program) {
                    return None;
                }
                let open = self.asked.iter().filter(|(_, (whom, _))| *whom == program);
                let open: Vec<u32> = open.map(|(request, _)| *request).collect();
                if open.len() >= MOST_OPEN_REQUESTS {
                    self.asked.remove(&open[0]);
                }
                let request = self.next_request;
                self.next_request = self.next_request.wrapping_add(1);
                self.asked.insert(request, (program, what));
                Some(Output::Tell {
                    program,
                    request,
                    what,
                    reason,
                })
            }
            Order::Act { action, reason } => {
                let of = action.program();
                let known = of.is_none_or(|of| self.status.programs.contains_key(&of));
                let action = within(action, &self.status.machine.allowed)?;
                known.then_some(Output::Act { action, reason })
            }
            Order::Note(text) => Some(Output::Note(text)),
        }
    }

    /// Makes a claim fit to be granted, and notes it in the status.
    fn granted(&mut self, id: ProgramId, claim: Claim, reason: String) -> Option<Output> {
        let allowed = &self.status.machine.allowed;
        let taken = self.status.exclusive_to_others(id);
        let mut cpus = claim.cpus.intersection(allowed).difference(&taken);
        let mut exclusive = claim.exclusive;
        if exclusive {
            let all = self.status.programs.iter();
            let others = all.filter(|(other, _)| **other != id);
            let overlaps = others
                .filter_map(|(_, p)| p.claim.as_ref())
                .any(|c| !c.cpus.is_disjoint(&cpus));
            exclusive = !overlaps;
        }
        if cpus.is_empty() {
            // Better to share than to have nowhere to run: nobody is alone any longer.
            cpus = allowed.clone();
            exclusive = false;
            for (_, other) in self.status.programs.iter_mut() {
                if let Some(claim) = &mut other.claim {
                    claim.exclusive = false;
                }
            }
        }
        let program = self.status.programs.get_mut(&id)?;
        let granted = Claim {
            cpus,
            threads: fit(&program.wants, claim.threads),
            exclusive,
        };
        if program.claim.as_ref() == Some(&granted) {
            return None;
        }
        let same_for_the_program = program
            .claim
            .as_ref()
            .is_some_and(|c| c.cpus == granted.cpus && c.threads == granted.threads);
        program.claim = Some(granted.clone());
        (!same_for_the_program).then_some(Output::Grant {
            program: id,
            cpus: granted.cpus,
            threads: granted.threads,
            reason,
        })
    }

    fn plan_reading(&mut self) {
        let period = if self.status.programs.is_empty() {
            None
        } else {
            self.policy.period_ns(&self.status)
        };
        let since = self.earlier.as_ref().map(|_| self.last_reading_ns);
        if self.status.programs.is_empty() {
            self.earlier = None;
            self.status.load = None;
            self.status.cpu_use.clear();
        }
        self.next_reading_ns = period.map(|p| match since {
            // The first readings only say where counting begins: at once.
            None => self.status.time_ns,
            Some(since) => since.saturating_add(p.max(SHORTEST_PERIOD_NS)),
        });
    }
}

/// The same of those CPUs only that may be granted; `None` if none is left.
fn within(action: Action, allowed: &CpuSet) -> Option<Action> {
    let Some(cpus) = action.cpus().filter(|cpus| !cpus.is_empty()) else {
        return Some(action);
    };
    let cpus = cpus.intersection(allowed);
    (!cpus.is_empty()).then(|| action.of_cpus(cpus))
}

/// As near to `threads` as the program's wants (which are bounded) allow.
fn fit(wants: &Wants, threads: u32) -> u32 {
    let least = wants.min_threads;
    threads.clamp(least, wants.max_threads.max(least))
}

fn bounded(wants: Wants) -> Wants {
    let min_threads = wants.min_threads.clamp(1, MOST_THREADS);
    Wants {
        min_threads,
        max_threads: wants.max_threads.clamp(min_threads, MOST_THREADS),
        ..wants
    }
}

impl std::fmt::Debug for GlobalManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GlobalManager")
            .field("policy", &self.policy.name())
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
