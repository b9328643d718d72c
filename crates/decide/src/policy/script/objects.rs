//! What scripts see of the status: objects that can be read and not changed.

use super::data;
use crate::cpus::CpuSet;
use crate::reading::CpuHeat;
use crate::status::{Claim, CpuPlace, Load, Placement, Program, ProgramId, Status};
use rhai::{Array, Dynamic, Engine};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `machine`.
#[derive(Clone)]
pub(super) struct MachineView(pub(super) Arc<Status>);

/// `load`.
#[derive(Clone, Copy)]
pub(super) struct LoadView(pub(super) Load);

/// `program.claim`.
#[derive(Clone, PartialEq)]
pub(super) struct ClaimView(pub(super) Claim);

/// A program.
#[derive(Clone)]
pub(super) struct ProgramView {
    status: Arc<Status>,
    /// Which.
    pub(super) id: ProgramId,
}

impl ProgramView {
    pub(super) fn new(status: &Arc<Status>, id: ProgramId) -> ProgramView {
        ProgramView {
            status: Arc::clone(status),
            id,
        }
    }

    fn program(&self) -> Option<&Program> {
        self.status.programs.get(&self.id)
    }

    fn whole(&self, field: impl Fn(&Program) -> u32) -> i64 {
        self.program().map_or(0, |p| i64::from(field(p)))
    }

    fn maybe<T: Clone + Send + Sync + 'static>(
        &self,
        field: impl Fn(&Program) -> Option<T>,
    ) -> Dynamic {
        let value = self.program().and_then(field);
        value.map_or(Dynamic::UNIT, Dynamic::from)
    }
}

fn program_text(program: &ProgramView) -> String {
    match program.program() {
        Some(known) => format!("{} ({})", program.id, known.name),
        None => program.id.to_string(),
    }
}

fn claim_text(claim: &ClaimView) -> String {
    let alone = if claim.0.exclusive { ", alone" } else { "" };
    format!(
        "{} threads on CPUs {}{alone}",
        claim.0.threads, claim.0.cpus
    )
}

fn load_text(load: LoadView) -> String {
    format!(
        "{:.2} CPUs busy, {:.2} by others",
        load.0.busy, load.0.others
    )
}

fn machine_text(machine: &MachineView) -> String {
    format!("CPUs {}", machine.0.machine.allowed)
}

pub(super) fn register(engine: &mut Engine) {
    machine(engine);
    heat(engine);
    load(engine);
    claim(engine);
    program(engine);
    text(engine, |m: &mut MachineView| machine_text(m));
    text(engine, |l: &mut LoadView| load_text(*l));
    text(engine, |c: &mut ClaimView| claim_text(c));
    text(engine, |p: &mut ProgramView| program_text(p));
}

/// How an object is written in texts.
fn text<T: Clone + Send + Sync + 'static>(
    engine: &mut Engine,
    text: impl Fn(&mut T) -> String + Copy + Send + Sync + 'static,
) {
    for name in ["to_string", "to_debug", "print", "debug"] {
        engine.register_fn(name, text);
    }
}

fn machine(engine: &mut Engine) {
    engine
        .register_type_with_name::<MachineView>("Machine")
        .register_get("cpus", |m: &mut MachineView| {
            data::array(&m.0.machine.allowed)
        })
        .register_get("capacity", |m: &mut MachineView| m.0.machine.capacity)
        .register_get("threads", |m: &mut MachineView| {
            i64::from(m.0.machine.one_per_cpu())
        })
        .register_get("cores", |m: &mut MachineView| groups(m, |p| p.core))
        .register_get("l2", |m: &mut MachineView| groups(m, |p| p.l2))
        .register_get("l3", |m: &mut MachineView| groups(m, |p| p.l3))
        .register_get("nodes", |m: &mut MachineView| groups(m, |p| p.node))
        .register_get("packages", |m: &mut MachineView| groups(m, |p| p.package));
}

/// The CPUs of each core, cache, node or package, in the order of their first CPUs.
fn groups(machine: &MachineView, part: impl Fn(&CpuPlace) -> u32) -> Array {
    let machine = &machine.0.machine;
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for place in &machine.places {
        if machine.allowed.contains(place.cpu) {
            groups.entry(part(place)).or_default().insert(place.cpu);
        }
    }
    let mut groups: Vec<CpuSet> = groups.into_values().collect();
    groups.sort();
    groups.iter().map(|g| data::array(g).into()).collect()
}

/// What is known of the heat of CPUs; nothing of those without a sensor.
fn heat(engine: &mut Engine) {
    type Part = fn(&CpuHeat) -> Option<f64>;
    let parts: [(&str, Part); 3] = [
        ("temperature", |heat| Some(heat.celsius)),
        ("slows_at", |heat| heat.slows_at),
        ("stops_at", |heat| heat.stops_at),
    ];
    for (name, part) in parts {
        engine.register_fn(name, move |machine: &mut MachineView, cpu: i64| {
            let all = machine.0.heat.iter();
            let of_cpu = all.filter(|heat| i64::from(heat.cpu) == cpu).find_map(part);
            of_cpu.map_or(Dynamic::UNIT, Dynamic::from)
        });
    }
}

fn load(engine: &mut Engine) {
    engine
        .register_type_with_name::<LoadView>("Load")
        .register_get("busy", |l: &mut LoadView| l.0.busy)
        .register_get("others", |l: &mut LoadView| l.0.others)
        .register_get("idle", |l: &mut LoadView| l.0.idle)
        .register_get("instructions", |l: &mut LoadView| {
            l.0.instruction_rate.map_or(Dynamic::UNIT, Dynamic::from)
        })
        .register_get("runnable", |l: &mut LoadView| {
            let runnable = l.0.on_allowed_cpus();
            runnable.map_or(Dynamic::UNIT, Dynamic::from)
        });
}

fn claim(engine: &mut Engine) {
    engine
        .register_type_with_name::<ClaimView>("Claim")
        .register_get("cpus", |c: &mut ClaimView| data::array(&c.0.cpus))
        .register_get("threads", |c: &mut ClaimView| i64::from(c.0.threads))
        .register_get("alone", |c: &mut ClaimView| c.0.exclusive)
        .register_fn("==", |a: ClaimView, b: ClaimView| a == b)
        .register_fn("!=", |a: ClaimView, b: ClaimView| a != b);
}

fn program(engine: &mut Engine) {
    engine
        .register_type_with_name::<ProgramView>("Program")
        .register_get("id", |p: &mut ProgramView| {
            i64::try_from(p.id.0).unwrap_or(i64::MAX)
        })
        .register_get("pid", |p: &mut ProgramView| {
            p.program().map_or(0, |p| i64::from(p.pid))
        })
        .register_get("name", |p: &mut ProgramView| {
            let name = p.program().map_or("", |p| p.name.as_str());
            data::cut(name, super::MAX_STRING).to_owned()
        })
        .register_get("min", |p: &mut ProgramView| {
            p.whole(|p| p.wants.min_threads)
        })
        .register_get("max", |p: &mut ProgramView| {
            p.whole(|p| p.wants.max_threads)
        })
        .register_get("placement", |p: &mut ProgramView| {
            match p.program().map(|p| p.wants.placement) {
                Some(Placement::Compact) => "compact",
                Some(Placement::Scatter) => "scatter",
                Some(Placement::Any) | None => "any",
            }
        })
        .register_get("malleable", |p: &mut ProgramView| {
            p.program().is_some_and(|p| p.wants.malleable)
        })
        .register_get("overridden", |p: &mut ProgramView| {
            p.program().is_some_and(|p| p.overridden)
        })
        .register_get("claim", |p: &mut ProgramView| {
            let claim = p.program().and_then(|p| p.claim.clone());
            claim.map_or(Dynamic::UNIT, |c| Dynamic::from(ClaimView(c)))
        })
        .register_get("joined_ms", |p: &mut ProgramView| {
            let ms = p.program().map_or(0, |p| p.joined_ns / 1_000_000);
            i64::try_from(ms).unwrap_or(i64::MAX)
        })
        .register_get("threads", |p: &mut ProgramView| p.whole(|p| p.threads))
        .register_get("blocked", |p: &mut ProgramView| p.whole(|p| p.blocked))
        .register_get("could_use", |p: &mut ProgramView| {
            p.maybe(|p| p.could_use.map(i64::from))
        })
        .register_get("uses", |p: &mut ProgramView| p.maybe(|p| p.uses))
        .register_get("rate", |p: &mut ProgramView| p.maybe(|p| p.progress_rate))
        .register_fn("==", |a: ProgramView, b: ProgramView| a.id == b.id)
        .register_fn("!=", |a: ProgramView, b: ProgramView| a.id != b.id);
}
