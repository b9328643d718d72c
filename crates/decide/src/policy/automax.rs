//! `automax`: Policies 2.a and 2.b of REEact's paper (section 4.2). The machine is kept fully used, yet no
//! program is starved: while fewer threads want CPUs than there are, one program after the other is
//! asked to run a thread more; while more do, to run one less.
//!
//! A round, as in Policy 2.a: the load is compared with `total − ε1` and `total + ε2`; outside of these
//! bounds, the programs are put into a random order and asked one at a time until one says yes; its
//! claim grows or shrinks by one thread. Then there is a pause, in which programs follow and the load
//! settles. Policy 2.b, the answer, is the program's.
//!
//! *The load* is "a measure of how many cores the system would need to properly run the current
//! workload": the threads that run or are runnable, averaged over the last readings. Threads that wait
//! for a CPU count, which CPU time would not show on a full machine; those that spin count like any other;
//! those that sleep do not, nor does the reader. Where the run queue cannot be read, it is the busy CPUs
//! and what the programs' threads could not get.
//!
//! What the paper leaves open, and what differs here:
//! - It gives no ε: half a CPU each by default, the middle between one thread too many and none.
//! - A program that cannot do what it would be asked (it is rigid, has its minimum or maximum, or says
//!   that it could not use more) is not asked: it would refuse.
//! - A program that does not answer in time is passed over, and not asked again before it has answered.
//!   If it still says yes later, it has its thread more or less then.
//! - When nobody says yes, the pause doubles, up to [`Settings::longest_pause_ns`].
//! - A program begins with the threads for which the machine has room by its last load and by the other
//!   claims, and with its minimum at least; a rigid one with all that it wants.
//! - Everybody may run on every CPU.

use crate::policy::memory::{Memory, seed};
use crate::policy::recent::Recent;
use crate::policy::{Event, Orders, Policy};
use crate::status::{Claim, LocalRule, Program, ProgramId, Request, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

mod settings;

pub use settings::Settings;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoMax {
    settings: Settings,
    #[serde(with = "seed")]
    random: fastrand::Rng,
    load: Recent,
    last_reading_ns: u64,
    round: Round,
    /// The pause after a round in which nobody says yes.
    pause_ns: u64,
    /// When a claim was last changed by a round.
    changed_ns: u64,
    /// Who has not answered in time.
    silent: BTreeSet<ProgramId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Round {
    /// Nothing is done, and no load is noted, until then.
    Pause { until_ns: u64 },
    /// The load is watched.
    Watch,
    /// A program has been asked.
    Asking {
        what: Request,
        whom: ProgramId,
        since_ns: u64,
        /// Who comes next, from the end on.
        rest: Vec<ProgramId>,
    },
}

impl Default for AutoMax {
    fn default() -> AutoMax {
        AutoMax::new(Settings::default(), 0)
    }
}

impl AutoMax {
    /// With these settings; `seed` makes the random order of programs.
    pub fn new(settings: Settings, seed: u64) -> AutoMax {
        AutoMax {
            pause_ns: settings.pause_ns,
            settings,
            random: fastrand::Rng::with_seed(seed),
            load: Recent::default(),
            last_reading_ns: 0,
            round: Round::Watch,
            changed_ns: 0,
            silent: BTreeSet::new(),
        }
    }

    /// As in the paper: five seconds between rounds.
    pub fn paper() -> AutoMax {
        AutoMax::new(Settings::paper(), 0)
    }

    fn on_readings(&mut self, status: &Status, orders: &mut Orders) {
        let now = status.time_ns;
        let span = now.saturating_sub(self.last_reading_ns);
        self.last_reading_ns = now;
        match &mut self.round {
            Round::Pause { until_ns } if now < *until_ns => return,
            Round::Pause { .. } => self.round = Round::Watch,
            Round::Watch => {}
            Round::Asking {
                whom,
                since_ns,
                rest,
                what,
            } => {
                if now.saturating_sub(*since_ns) < self.settings.answer_ns {
                    return;
                }
                let (whom, rest, what) = (*whom, std::mem::take(rest), *what);
                self.silent.insert(whom);
                orders.note(format!(
                    "{whom} did not answer in time: the next one is asked"
                ));
                self.ask_next(what, rest, status, orders);
                return;
            }
        }
        if now < self.changed_ns.saturating_add(self.settings.follow_ns) && is_following(status) {
            return;
        }
        if let Some(load) = needed(status) {
            self.load.push(now, span, load);
        }
        self.begin_round(status, orders);
    }

    /// Lines 10 to 18 of Policy 2.a.
    fn begin_round(&mut self, status: &Status, orders: &mut Orders) {
        let settings = &self.settings;
        let crowded = self
            .load
            .mean_of(settings.crowded_readings, settings.crowded_readings)
            .and_then(|load| self.outside(load, status))
            .filter(|what| *what == Request::Shrink);
        let load = self
            .load
            .mean_of(settings.least_readings, settings.readings);
        let what = match (crowded, load) {
            (Some(shrink), _) => shrink,
            (None, None) => return,
            (None, Some(load)) => match self.outside(load, status) {
                Some(what) => what,
                None => {
                    self.pause_ns = self.settings.pause_ns;
                    return;
                }
            },
        };
        let can = |(_, p): &(&ProgramId, &Program)| can_change(p, what);
        let able = status.programs.iter().filter(can).map(|(id, _)| *id);
        let mut rest: Vec<ProgramId> = able.filter(|id| !self.silent.contains(id)).collect();
        if !rest.is_empty() {
            self.random.shuffle(&mut rest);
            self.ask_next(what, rest, status, orders);
        }
    }

    /// Lines 19 to 26: the next one, or the round is over.
    fn ask_next(
        &mut self,
        what: Request,
        mut rest: Vec<ProgramId>,
        status: &Status,
        orders: &mut Orders,
    ) {
        let able = |id: &ProgramId| {
            let program = status.programs.get(id);
            program.is_some_and(|p| can_change(p, what))
        };
        while let Some(whom) = rest.pop() {
            if able(&whom) {
                let since_ns = status.time_ns;
                let load = self.load.mean_of(1, self.settings.readings);
                orders.ask(whom, what, because(what, load.unwrap_or(0.0), status));
                self.round = Round::Asking {
                    what,
                    whom,
                    since_ns,
                    rest,
                };
                return;
            }
        }
        self.pause(status, self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(self.settings.longest_pause_ns);
    }

    fn pause(&mut self, status: &Status, pause_ns: u64) {
        self.load.clear();
        let until_ns = status.time_ns.saturating_add(pause_ns);
        self.round = Round::Pause { until_ns };
    }

    fn outside(&self, load: f64, status: &Status) -> Option<Request> {
        let total = f64::from(status.machine.one_per_cpu());
        if load < total - self.settings.below {
            Some(Request::Expand)
        } else if load > total + self.settings.above {
            Some(Request::Shrink)
        } else {
            None
        }
    }

    fn on_answer(
        &mut self,
        id: ProgramId,
        what: Request,
        yes: bool,
        status: &Status,
        orders: &mut Orders,
    ) {
        self.silent.remove(&id);
        let rest = match &mut self.round {
            Round::Asking {
                whom, what: asked, ..
            } if *whom != id || *asked != what => None,
            Round::Asking { rest, .. } => Some(std::mem::take(rest)),
            _ => None,
        };
        let claim = status.programs.get(&id).and_then(|p| p.claim.as_ref());
        if let (true, Some(claim)) = (yes, claim) {
            let (threads, reason) = match what {
                Request::Expand => (claim.threads.saturating_add(1), "it said yes to expanding"),
                Request::Shrink => (claim.threads.saturating_sub(1), "it said yes to shrinking"),
            };
            let cpus = status.machine.allowed.clone();
            orders.grant_shared(id, cpus, threads.max(1), reason);
            self.changed_ns = status.time_ns;
        }
        match (rest, yes) {
            (Some(rest), false) => self.ask_next(what, rest, status, orders),
            (Some(_), true) => {
                self.pause_ns = self.settings.pause_ns;
                self.pause(status, self.pause_ns);
            }
            // An answer that comes late; if a claim has changed, the load begins anew.
            (None, _) => self.load.clear(),
        }
    }

    /// What a program begins with, or goes on with when it asks for something else.
    fn give(&mut self, id: ProgramId, status: &Status, orders: &mut Orders) {
        let Some(program) = status.programs.get(&id) else {
            return;
        };
        let wants = &program.wants;
        let (threads, reason) = match wants.malleable {
            false => (wants.max_threads, "it is rigid: all that it wants"),
            true => {
                let has = program.claim.as_ref().map_or(0, |c| c.threads);
                let room = self.room(id, status);
                let reason = match room.saturating_add(has) {
                    0 => "the machine is full: its minimum",
                    _ => "as many threads as the machine has room for",
                };
                (room.saturating_add(has), reason)
            }
        };
        let threads = threads.clamp(wants.min_threads, wants.max_threads);
        let cpus = status.machine.allowed.clone();
        orders.grant_shared(id, cpus, threads, reason);
    }

    /// For how many threads more than now the machine has room.
    fn room(&self, id: ProgramId, status: &Status) -> u32 {
        let total = status.machine.one_per_cpu();
        let others = status.programs.iter().filter(|(other, _)| **other != id);
        let claimed: u32 = others
            .filter_map(|(_, p)| p.claim.as_ref())
            .map(|c| c.threads.min(total))
            .fold(0, u32::saturating_add);
        let own = status.programs.get(&id).and_then(|p| p.claim.as_ref());
        let claimed = claimed.saturating_add(own.map_or(0, |c| c.threads));
        let load = self.load.mean_of(1, self.settings.readings);
        let load = load.map_or(0, |load| load.max(0.0).round() as u32);
        total.saturating_sub(claimed.max(load))
    }
}

impl Policy for AutoMax {
    fn name(&self) -> String {
        let is_paper = self.settings == Settings::paper();
        if is_paper { "automax-paper" } else { "automax" }.to_owned()
    }

    fn local_rule(&self) -> LocalRule {
        LocalRule::Leave
    }

    fn memory(&self) -> Memory {
        Memory::AutoMax(Box::new(self.clone()))
    }

    fn period_ns(&self, status: &Status) -> Option<u64> {
        let settings = &self.settings;
        // Hurry only if something can be done about it.
        let outside = self.load.last().and_then(|load| self.outside(load, status));
        let able = |what| status.programs.values().any(|p| can_change(p, what));
        let outside = outside.is_some_and(able);
        let few = self
            .load
            .mean_of(settings.least_readings, settings.readings)
            .is_none();
        Some(match outside || few {
            true => settings.hurried_ns,
            false => settings.reading_ns,
        })
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        match event {
            Event::Readings => self.on_readings(status, orders),
            Event::Joined(id) | Event::Asked(id) => self.give(*id, status, orders),
            Event::Answered { program, what, yes } => {
                self.on_answer(*program, *what, *yes, status, orders);
            }
            Event::Left { program, .. } => {
                self.silent.remove(program);
                self.no_longer(*program, status, orders);
            }
            Event::Overridden(id) => {
                if status.programs.get(id).is_some_and(|p| p.overridden) {
                    self.no_longer(*id, status, orders);
                } else {
                    self.give(*id, status, orders);
                }
            }
            Event::Machine => {
                self.load.clear();
                for (id, program) in &status.programs {
                    match &program.claim {
                        Some(Claim { threads, .. }) => {
                            let cpus = status.machine.allowed.clone();
                            orders.grant_shared(*id, cpus, *threads, "all CPUs are for all");
                        }
                        None => self.give(*id, status, orders),
                    }
                }
            }
            Event::Threads { .. } | Event::Failed(_) => {}
        }
    }
}

impl AutoMax {
    /// A program cannot be waited for any longer.
    fn no_longer(&mut self, id: ProgramId, status: &Status, orders: &mut Orders) {
        if let Round::Asking {
            whom, rest, what, ..
        } = &mut self.round
            && *whom == id
        {
            let (rest, what) = (std::mem::take(rest), *what);
            self.ask_next(what, rest, status, orders);
        }
    }
}

/// How many CPUs the workload would need now; see the module.
fn needed(status: &Status) -> Option<f64> {
    let load = status.load.as_ref()?;
    if let Some(threads) = load.on_allowed_cpus() {
        return Some(threads);
    }
    let waiting: f64 = status
        .programs
        .values()
        .filter_map(|p| {
            let active = p.threads.saturating_sub(p.blocked);
            let can_run = p.claim.as_ref().map_or(active, |c| active.min(c.threads));
            Some((f64::from(can_run) - p.uses?).max(0.0))
        })
        .sum();
    // Threads that wait for something else than a CPU are no load while CPUs are idle.
    let total = status.machine.one_per_cpu();
    let full = load.busy > f64::from(total) - 0.25;
    Some(load.busy + if full { waiting } else { 0.0 })
}

/// Whether some program still has more threads than it may run.
fn is_following(status: &Status) -> bool {
    let behind = |p: &Program| {
        let claim = p.claim.as_ref().filter(|_| p.wants.malleable);
        claim.is_some_and(|c| p.threads.saturating_sub(p.blocked) > c.threads)
    };
    status.programs.values().any(behind)
}

/// Whether a program could do what it would be asked.
fn can_change(program: &Program, what: Request) -> bool {
    let Some(claim) = program.claim.as_ref() else {
        return false;
    };
    let wants = &program.wants;
    let possible = match what {
        Request::Expand => {
            let could = program.could_use.unwrap_or(wants.max_threads);
            claim.threads < wants.max_threads.min(could)
        }
        Request::Shrink => claim.threads > wants.min_threads,
    };
    possible && wants.malleable && !program.overridden
}

fn because(what: Request, load: f64, status: &Status) -> String {
    let total = status.machine.one_per_cpu();
    let more_or_less = match what {
        Request::Expand => "CPUs are free",
        Request::Shrink => "threads wait for CPUs",
    };
    format!("{load:.1} threads want to run on {total} CPUs: {more_or_less}")
}
