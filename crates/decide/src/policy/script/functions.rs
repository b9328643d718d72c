//! What scripts can call: orders, and help in choosing CPUs.

use super::data::{array, count, cpu_set};
use super::desk::{Failed, SharedDesk};
use super::objects::ProgramView;
use crate::cpus::CpuSet;
use crate::policy::{Order, choose};
use crate::status::{Claim, Placement, ProgramId, Request};
use crate::world::Action;
use rhai::{Array, Dynamic, Engine};

pub(super) fn register(engine: &mut Engine, desk: &SharedDesk) {
    grants(engine, desk);
    requests_and_notes(engine, desk);
    actions(engine, desk);
    hardware(engine, desk);
    sets(engine);
    choosing(engine, desk);
}

/// A program, or its number.
fn id(program: &Dynamic) -> Result<ProgramId, Failed> {
    if let Some(program) = program.read_lock::<ProgramView>() {
        return Ok(program.id);
    }
    let id = program.as_int().ok().and_then(|id| u64::try_from(id).ok());
    id.map(ProgramId)
        .ok_or_else(|| format!("not a program: {}", super::data::shown(program)).into())
}

fn grants(engine: &mut Engine, desk: &SharedDesk) {
    for (name, exclusive) in [("grant", false), ("grant_alone", true)] {
        let desk = desk.clone();
        engine.register_fn(
            name,
            move |program: Dynamic, cpus: Array, threads: i64, reason: &str| {
                let claim = Claim {
                    cpus: cpu_set(&cpus)?,
                    threads: count("a number of threads", threads)?,
                    exclusive,
                };
                desk.lock().order(Order::Grant {
                    program: id(&program)?,
                    claim,
                    reason: reason.to_owned(),
                })
            },
        );
    }
}

fn requests_and_notes(engine: &mut Engine, desk: &SharedDesk) {
    let asking = desk.clone();
    engine.register_fn("ask", move |program: Dynamic, what: &str, reason: &str| {
        let what = match what {
            "expand" => Request::Expand,
            "shrink" => Request::Shrink,
            other => {
                return Err(failed(&format!(
                    "a program can be asked to \"expand\" or to \"shrink\", not to \"{other}\""
                )));
            }
        };
        asking.lock().order(Order::Ask {
            program: id(&program)?,
            what,
            reason: reason.to_owned(),
        })
    });
    let noting = desk.clone();
    engine.register_fn("note", move |text: &str| {
        noting.lock().order(Order::Note(text.to_owned()))
    });
}

fn act(desk: &SharedDesk, action: Action, reason: &str) -> Result<(), Failed> {
    desk.lock().order(Order::Act {
        action,
        reason: reason.to_owned(),
    })
}

fn actions(engine: &mut Engine, desk: &SharedDesk) {
    let own = desk.clone();
    engine.register_fn(
        "set_weight",
        move |program: Dynamic, weight: i64, reason: &str| {
            if !(1..=10_000).contains(&weight) {
                return Err(failed("a weight is from 1 to 10000; 100 is usual"));
            }
            let (program, weight) = (id(&program)?, count("a weight", weight)?);
            act(&own, Action::Weight { program, weight }, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_cpuset",
        move |program: Dynamic, cpus: Array, reason: &str| {
            let (program, cpus) = (id(&program)?, cpu_set(&cpus)?);
            act(&own, Action::Cpuset { program, cpus }, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_frozen",
        move |program: Dynamic, frozen: bool, reason: &str| {
            let program = id(&program)?;
            act(&own, Action::Freeze { program, frozen }, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_slice_us",
        move |program: Dynamic, slice_us: i64, reason: &str| {
            let slice_ns = u64::from(count("a slice", slice_us)?) * 1_000;
            let program = id(&program)?;
            act(&own, Action::Slice { program, slice_ns }, reason)
        },
    );
}

fn hardware(engine: &mut Engine, desk: &SharedDesk) {
    let own = desk.clone();
    engine.register_fn(
        "set_prefetchers",
        move |cpus: Array, on: bool, reason: &str| {
            let cpus = some_cpus(&cpus)?;
            act(&own, Action::Prefetchers { on, cpus }, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_frequency_mhz",
        move |cpus: Array, mhz: i64, reason: &str| {
            let most_hz = u64::from(count("a frequency", mhz)?) * 1_000_000;
            let cpus = some_cpus(&cpus)?;
            act(&own, Action::Frequency { cpus, most_hz }, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_duty_cycle",
        move |cpus: Array, percent: i64, reason: &str| {
            let (cpus, percent) = (some_cpus(&cpus)?, percent_of("a duty cycle", percent)?);
            act(&own, Action::DutyCycle { cpus, percent }, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_cache",
        move |program: Dynamic, from: i64, to: i64, reason: &str| {
            let program = id(&program)?;
            let from_percent = count("a part of a cache", from)?.min(100);
            let to_percent = percent_of("a part of a cache", to)?;
            let action = Action::Cache {
                program,
                from_percent,
                to_percent,
            };
            act(&own, action, reason)
        },
    );
    let own = desk.clone();
    engine.register_fn(
        "set_bandwidth",
        move |program: Dynamic, percent: i64, reason: &str| {
            let (program, percent) = (id(&program)?, percent_of("a bandwidth", percent)?);
            act(&own, Action::Bandwidth { program, percent }, reason)
        },
    );
}

/// No CPUs would mean all: whoever has none in hand does not mean that.
fn some_cpus(cpus: &[Dynamic]) -> Result<CpuSet, Failed> {
    let cpus = cpu_set(cpus)?;
    match cpus.is_empty() {
        true => Err(failed("there is no CPU in the list")),
        false => Ok(cpus),
    }
}

fn percent_of(what: &str, percent: i64) -> Result<u32, Failed> {
    match u32::try_from(percent) {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err(failed(&format!(
            "{what} is from 1 to 100 percent, not {percent}"
        ))),
    }
}

fn failed(what: &str) -> Failed {
    what.into()
}

/// A function of two sets of CPUs.
type OfTwo = fn(&CpuSet, &CpuSet) -> CpuSet;

fn sets(engine: &mut Engine) {
    let functions: [(&str, OfTwo); 3] = [
        ("union", CpuSet::union),
        ("common", CpuSet::intersection),
        ("without", CpuSet::difference),
    ];
    for (name, function) in functions {
        engine.register_fn(name, move |a: Array, b: Array| {
            Ok::<Array, Failed>(array(&function(&cpu_set(&a)?, &cpu_set(&b)?)))
        });
    }
}

fn choosing(engine: &mut Engine, desk: &SharedDesk) {
    let own = desk.clone();
    engine.register_fn("pick", move |cpus: Array, threads: i64, how: &str| {
        resized(&own, &[], &cpus, threads, how)
    });
    let own = desk.clone();
    engine.register_fn(
        "resize",
        move |have: Array, more: Array, threads: i64, how: &str| {
            resized(&own, &have, &more, threads, how)
        },
    );
    let own = desk.clone();
    engine.register_fn("permute", move |mut list: Array| {
        own.lock().random.shuffle(&mut list);
        list
    });
    let own = desk.clone();
    engine.register_fn("program", move |id: i64| {
        let desk = own.lock();
        let status = desk.status()?;
        let id = ProgramId(u64::try_from(id).unwrap_or(u64::MAX));
        Ok::<Dynamic, Failed>(match status.programs.contains_key(&id) {
            true => Dynamic::from(ProgramView::new(status, id)),
            false => Dynamic::UNIT,
        })
    });
}

fn resized(
    desk: &SharedDesk,
    have: &[Dynamic],
    more: &[Dynamic],
    threads: i64,
    how: &str,
) -> Result<Array, Failed> {
    let placement = match how {
        "any" => Placement::Any,
        "compact" => Placement::Compact,
        "scatter" => Placement::Scatter,
        other => {
            return Err(failed(&format!(
                "CPUs are chosen \"any\", \"compact\" or \"scatter\", not \"{other}\""
            )));
        }
    };
    let (have, more) = (cpu_set(have)?, cpu_set(more)?);
    let threads = count("a number of CPUs", threads)?;
    let desk = desk.lock();
    let machine = &desk.status()?.machine;
    Ok(array(&choose::resize(
        machine, &have, &more, threads, placement,
    )))
}
