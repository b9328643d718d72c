//! REEact's case studies on the simulated machines that its paper had: a broken screw (section 4.1), AutoMax (4.2),
//! and prefetchers (4.3).

pub mod automax;
pub mod prefetch;
pub mod screw;
pub mod together;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use corewise_sim::machine::SimMachine;
use corewise_sim::program::ProgramSpec;
use corewise_sim::report::{Ended, Report};
use corewise_sim::scenario::{Entry, Scenario};
use corewise_sim::world::{Options, simulate};

/// A machine of experiments/machines.
fn machine(root: &Path, name: &str) -> Result<SimMachine> {
    let folder = root.join("experiments/machines");
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let xml = |file: &str| std::fs::read_to_string(folder.join(file));
    SimMachine::from_toml(&text, xml).with_context(|| format!("{} is wrong", path.display()))
}

/// A program of a scenario, by its description.
fn entry(name: &str, text: &str) -> Result<Entry> {
    let spec = ProgramSpec::from_toml(text).with_context(|| format!("{name} is wrong"))?;
    Ok(Entry::new(name, Arc::new(spec)))
}

/// What runs on every system now and then.
fn system() -> Result<Entry> {
    let mut system = entry(
        "system",
        "name = \"system\"\n[[phase]]\n[[phase.group]]\nname = \"daemon\"\nthreads = 3\nrepeat = \"forever\"\n\
         steps = [{ sleep_us = 90_000 }, { work_us = 300 }]\n",
    )?;
    system.managed = None;
    system.background = true;
    Ok(system)
}

/// Runs a scenario to its end.
fn ran(scenario: &Scenario) -> Result<Report> {
    let report = simulate(scenario, Options::default())?.report;
    ensure!(
        report.ended == Ended::Done,
        "{}: {:?}: {:?}",
        scenario.name,
        report.ended,
        report.deadlock
    );
    Ok(report)
}
