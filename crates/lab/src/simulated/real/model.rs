//! The same workloads in the simulated world.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use corewise_sim::kernel::Quota;
use corewise_sim::machine::{Costs, SimMachine};
use corewise_sim::program::ProgramSpec;
use corewise_sim::scenario::{Entry, Group, Scenario, Share};
use corewise_sim::world::{Options, simulate};

use super::workloads::Workload;
use crate::cells::Condition;
use crate::stats::median;

/// What a neighbour has run before the workload starts, in nanoseconds.
const BEFORE_NS: u64 = 203_000_000;
/// Where it takes longer than this, in virtual nanoseconds, something is wrong.
const LONGEST_NS: u64 = 600_000_000_000;

/// The machine's file.
///
/// # Errors
/// Where it cannot be read or is wrong.
pub fn machine(root: &Path) -> Result<SimMachine> {
    let folder = root.join("experiments/machines");
    let path = folder.join("two-cpus.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let xml = |file: &str| std::fs::read_to_string(folder.join(file));
    SimMachine::from_toml(&text, xml).with_context(|| format!("{} is wrong", path.display()))
}

/// The workload as a scenario under plain Linux.
///
/// # Errors
/// If the hog's description is wrong.
pub fn scenario(workload: &Workload, machine: &SimMachine, seed: u64) -> Result<Scenario> {
    let mut scenario = Scenario::new(&*workload.name, machine.clone());
    scenario.seed = seed;
    scenario.limit_ns = LONGEST_NS;
    let mut entry = Entry::new("workload", Arc::clone(&workload.spec));
    entry.threads = Some(workload.threads);
    entry.managed = None;
    match workload.condition {
        Condition::Alone => {}
        Condition::HogSameSession => scenario.entries.push(hog("main")?),
        Condition::HogOwnSession => scenario.entries.push(hog("another")?),
        Condition::Quota => {
            entry.share = Share::Group(0);
            scenario.groups.push(Group {
                name: "quota".to_owned(),
                weight: 100,
                quota: Some(Quota {
                    quota_ns: 100_000_000,
                    period_ns: 100_000_000,
                }),
            });
        }
    }
    if !scenario.entries.is_empty() {
        entry.start_ns = BEFORE_NS;
    }
    scenario.entries.push(entry);
    Ok(scenario)
}

fn hog(session: &str) -> Result<Entry> {
    let text = "name = \"hog\"\n[[phase]]\nrepeat = \"forever\"\nserial = { work_ms = 10_000 }\n";
    let mut hog = Entry::new("hog", Arc::new(ProgramSpec::from_toml(text)?));
    hog.threads = Some(1);
    hog.managed = None;
    hog.background = true;
    hog.share = Share::Session(session.to_owned());
    Ok(hog)
}

/// How long the workload takes on that machine, in virtual seconds: the median over seeds.
///
/// # Errors
/// If the model does not come to its end.
pub fn predict(
    workload: &Workload,
    machine: &SimMachine,
    costs: Costs,
    seeds: std::ops::Range<u64>,
) -> Result<f64> {
    let mut machine = machine.clone();
    machine.costs = costs;
    let mut seconds = Vec::new();
    for seed in seeds {
        let scenario = scenario(workload, &machine, seed)?;
        let report = simulate(&scenario, Options::default())?.report;
        let program = report.programs.iter().find(|p| p.entry == "workload");
        match program.filter(|program| program.end_seconds.is_some()) {
            Some(program) => seconds.push(program.wall_seconds),
            None => bail!("{} does not end in the model", workload.name),
        }
    }
    Ok(median(&seconds))
}
