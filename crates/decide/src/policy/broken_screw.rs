//! `broken-screw`: programs leave the CPUs that get too hot (REEact, section 4.1, Policy 1.a and 1.b).
//!
//! Each program gets CPUs of its own, as many as it wants threads, drawn at random from the free ones. Every ten
//! seconds each of them is looked at:
//!
//! - from T1 on ([`CpuHeat::slows_at`]), where the hardware slows it down: the first free CPU that is below T1 takes
//!   its place;
//! - from T2 on ([`CpuHeat::stops_at`]), where the hardware stops it: it is hot for this program from now on, and the
//!   coolest free CPU that is not, and is below T2, takes its place. If there is none, the program stays.
//!
//! Where the paper is silent: a program that finds fewer free CPUs than it wants has those; if there are none, it
//! shares one, drawn at random, until one is free. A CPU without a sensor counts as cool. Where no temperature can
//! be read, it is said once, and nobody moves.

use crate::cpus::CpuSet;
use crate::policy::memory::{Memory, seed};
use crate::policy::{Decides, Event, Orders, Policy};
use crate::reading::CpuHeat;
use crate::status::{LocalRule, Program, ProgramId, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Its name.
pub const BROKEN_SCREW: &str = "broken-screw";

/// Time between looks, in nanoseconds.
pub const PERIOD_NS: u64 = 10_000_000_000;

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BrokenScrew {
    #[serde(with = "seed")]
    random: fastrand::Rng,
    /// The CPUs that each program has been given; no CPU is in two.
    own: BTreeMap<ProgramId, CpuSet>,
    /// CPUs on which each program has got too hot.
    hot: BTreeMap<ProgramId, CpuSet>,
    /// It was said that nothing can be read.
    said: bool,
}

impl PartialEq for BrokenScrew {
    fn eq(&self, other: &BrokenScrew) -> bool {
        let known = |b: &BrokenScrew| (b.random.get_seed(), b.said);
        known(self) == known(other) && self.hot == other.hot && self.own == other.own
    }
}

impl Default for BrokenScrew {
    fn default() -> BrokenScrew {
        BrokenScrew::with_seed(0)
    }
}

impl BrokenScrew {
    /// One whose random numbers start there.
    pub fn with_seed(seed: u64) -> BrokenScrew {
        BrokenScrew {
            random: fastrand::Rng::with_seed(seed),
            own: BTreeMap::new(),
            hot: BTreeMap::new(),
            said: false,
        }
    }
}

impl Policy for BrokenScrew {
    fn name(&self) -> String {
        BROKEN_SCREW.to_owned()
    }

    fn local_rule(&self) -> LocalRule {
        LocalRule::Whole
    }

    fn period_ns(&self, _status: &Status) -> Option<u64> {
        Some(PERIOD_NS)
    }

    fn wants_heat(&self) -> bool {
        true
    }

    fn decides(&self) -> Decides {
        Decides {
            own_cpus: true,
            ..Decides::default()
        }
    }

    fn memory(&self) -> Memory {
        Memory::BrokenScrew(Box::new(self.clone()))
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        match event {
            Event::Readings => self.look(status, orders),
            Event::Left { program, .. } => {
                self.hot.remove(program);
                self.place(status, orders);
            }
            Event::Machine | Event::Joined(_) | Event::Asked(_) | Event::Overridden(_) => {
                self.place(status, orders);
            }
            Event::Threads { .. } | Event::Answered { .. } | Event::Failed(_) => {}
        }
    }
}

impl BrokenScrew {
    /// Gives CPUs to those who have too few of their own.
    fn place(&mut self, status: &Status, orders: &mut Orders) {
        let allowed = &status.machine.allowed;
        let here = |id: &ProgramId| status.programs.get(id).is_some_and(|p| !p.overridden);
        self.own.retain(|id, cpus| {
            *cpus = cpus.intersection(allowed);
            here(id)
        });
        let mut free = self.free(status);
        for (id, program) in status.programs.iter().filter(|(id, _)| here(id)) {
            let wants = program.wants.max_threads.min(status.machine.one_per_cpu());
            let mut cpus = self.own.get(id).cloned().unwrap_or_default();
            while cpus.count() < wants
                && let Some(cpu) = self.any(&free)
            {
                free.remove(cpu);
                cpus.insert(cpu);
            }
            self.own.insert(*id, cpus.clone());
            let had = program.claim.as_ref().map(|claim| &claim.cpus);
            if cpus.is_empty() {
                let stays = had.is_some_and(|had| !had.is_disjoint(allowed));
                if let Some(cpu) = self.any(allowed).filter(|_| !stays) {
                    let cpus = CpuSet::from_iter([cpu]);
                    grant(*id, program, cpus, "no CPU is free: it shares one", orders);
                }
            } else if had != Some(&cpus) {
                let reason = format!("free CPUs, drawn at random: {cpus}");
                grant(*id, program, cpus, reason, orders);
            }
        }
    }

    /// CPUs that are nobody's.
    fn free(&self, status: &Status) -> CpuSet {
        let people = status.programs.values().filter(|p| p.overridden);
        let set = people.filter_map(|p| p.claim.as_ref().map(|claim| &claim.cpus));
        let taken = self.own.values().chain(set).flat_map(CpuSet::iter);
        status.machine.allowed.difference(&taken.collect())
    }

    fn any(&mut self, cpus: &CpuSet) -> Option<u32> {
        let count = cpus.count() as usize;
        (count > 0).then(|| cpus.iter().nth(self.random.usize(..count)))?
    }

    /// Moves programs from CPUs that are too hot.
    fn look(&mut self, status: &Status, orders: &mut Orders) {
        if status.heat.is_empty() && !std::mem::replace(&mut self.said, true) {
            orders.note("no temperature can be read here: nobody is moved");
        }
        let mut free = self.free(status);
        for (id, program) in &status.programs {
            let Some(own) = self.own.get(id).cloned() else {
                continue;
            };
            let mut cpus = own.clone();
            let mut reasons = Vec::new();
            for cpu in own.iter() {
                let Some(found) = self.cooler(*id, cpu, &free, status) else {
                    continue;
                };
                free.remove(found.cpu);
                free.insert(cpu);
                cpus.remove(cpu);
                cpus.insert(found.cpu);
                reasons.push(found.reason);
            }
            if cpus != own {
                self.own.insert(*id, cpus.clone());
                grant(*id, program, cpus, reasons.join("; "), orders);
            }
        }
    }

    /// A better CPU than this one, if it is too hot.
    fn cooler(
        &mut self,
        program: ProgramId,
        cpu: u32,
        free: &CpuSet,
        status: &Status,
    ) -> Option<Found> {
        let heat = |cpu: u32| status.heat.iter().find(|heat| heat.cpu == cpu);
        let now = heat(cpu)?;
        let (slows, stops) = (limit(now.slows_at), limit(now.stops_at));
        let celsius = |cpu: u32| heat(cpu).map_or(f64::NEG_INFINITY, |heat| heat.celsius);
        if now.celsius >= stops {
            let hot = self.hot.entry(program).or_default();
            hot.insert(cpu);
            let candidates = free.iter().filter(|cpu| !hot.contains(*cpu));
            let coolest = candidates
                .filter(|cpu| celsius(*cpu) < stops)
                .min_by(|a, b| celsius(*a).total_cmp(&celsius(*b)));
            return coolest.map(|to| found(now, to, "it is stopped at", stops));
        }
        if now.celsius >= slows {
            let cool = free.iter().find(|cpu| celsius(*cpu) < slows);
            return cool.map(|to| found(now, to, "it is slowed down from", slows));
        }
        None
    }
}

/// Grants these CPUs; a malleable program runs as many threads.
fn grant(
    id: ProgramId,
    program: &Program,
    cpus: CpuSet,
    reason: impl Into<String>,
    orders: &mut Orders,
) {
    let threads = match program.wants.malleable {
        true => cpus.count(),
        false => program.wants.max_threads,
    };
    orders.grant_shared(id, cpus, threads.max(program.wants.min_threads), reason);
}

/// A CPU to move to, and why.
struct Found {
    cpu: u32,
    reason: String,
}

fn found(from: &CpuHeat, to: u32, what: &str, limit: f64) -> Found {
    let CpuHeat { cpu, celsius, .. } = from;
    Found {
        cpu: to,
        reason: format!(
            "CPU {cpu} has {celsius:.0} °C, and {what} {limit:.0} °C: CPU {to} is cooler"
        ),
    }
}

/// Where nothing happens at any temperature, there is no limit.
fn limit(celsius: Option<f64>) -> f64 {
    celsius.unwrap_or(f64::INFINITY)
}
