//! `sim-gangs`: Table 1 of "Non-intrusive Coscheduling for General Purpose Operating Systems" (Schönherr, Lutz,
//! Richling 2012, section 5.2) on the simulated four-core machine: the fair scheduler, the paper's scheme (sets that
//! keep the CPUs that they do not use), and ours.
//!
//! One number is fitted: how often a virtual machine's threads take a ticket lock, to the fair scheduler in setup 1.
//! All the rest is predicted. And what sleeps while it waits is left to the scheduler, though it says that it is a
//! gang.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use corewise_sim::program::ProgramSpec;

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::gang::partial::{Kind, SETUPS, Setup, once, scenario};
use crate::stats::median;

/// What a prediction may be off the paper, in percentage points.
const OFF: f64 = 10.0;

/// What came of one setup and approach: medians.
struct Cell {
    /// Until a virtual machine has ended, in the mean, and one of them alone, in seconds.
    seconds: f64,
    alone: f64,
    /// The paper's measure: what bin packing would take, over that, in percent.
    relative: f64,
    /// Its lowest and highest over the seeds.
    range: (f64, f64),
}

/// Runs the experiment.
///
/// # Errors
/// If a file is missing or wrong, or a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-gangs",
        "virtual machines that compile on four simulated CPUs: the fair scheduler, sets that keep their idle CPUs idle, and \
         ours, against bin packing of one alone, and against the paper's Table 1",
        "all in one, simulated",
    );
    let mut table = Table::new(
        "mean time of a virtual machine, alone, and relative performance against bin packing, in %",
        &[
            "setup", "approach", "time, s", "alone, s", "relative", "seeds", "paper",
        ],
    );
    let rounds = context.rounds(11, 1);
    for setup in &SETUPS {
        let [coscheduled, _, without] = setup.paper;
        let text = machine(context, if setup.number == 3 { "-two" } else { "" })?;
        let approaches = [
            ("fair scheduler", Kind::Plain, Some(without)),
            ("the paper's scheme", Kind::KeepIdle, Some(coscheduled)),
            ("ours", Kind::Gangs, None),
        ];
        for (approach, kind, paper) in approaches {
            let cell = cell(context, setup, kind, &text, rounds)?;
            let name = approach
                .replace("the ", "")
                .replace("'s ", "_")
                .replace(' ', "_");
            report.figure(
                format!("setup_{}_{name}_percent", setup.number),
                cell.relative,
            );
            let (low, high) = cell.range;
            table.row([
                setup.number.to_string(),
                approach.to_owned(),
                number(cell.seconds),
                number(cell.alone),
                format!("{:.1}", cell.relative),
                format!("{low:.1} to {high:.1}"),
                paper.map_or("-".to_owned(), |paper| format!("{paper:.1}")),
            ]);
            let fitted = setup.number == 1 && matches!(kind, Kind::Plain);
            if let Some(paper) = paper.filter(|_| !fitted) {
                report.bars.push(Bar::at_most(
                    format!(
                        "setup {}, {approach}: points off the paper's {paper} % (at most)",
                        setup.number
                    ),
                    (cell.relative - paper).abs(),
                    OFF,
                ));
            }
            if matches!(kind, Kind::Gangs) {
                report.bars.push(Bar::at_least(
                    format!(
                        "setup {}, ours: relative performance, % (at least)",
                        setup.number
                    ),
                    cell.relative,
                    90.0,
                ));
            }
        }
    }
    report.tables.push(table);
    pauses(context, &mut report, rounds)?;
    sleepers(context, &mut report, rounds)?;
    report.note(
        "fitted: how often a ticket lock is taken, to the fair scheduler in setup 1 (paper: 3.9 %)",
    );
    report.note(format!(
        "medians of {rounds} seeds; four CPUs of one machine, switches of 50 µs"
    ));
    Ok(report)
}

/// How much of it depends on that virtual CPUs are never idle: the fair scheduler, where they are now and then, and
/// locks are fitted to setup 1 again.
fn pauses(context: &Context, report: &mut Report, rounds: u32) -> Result<()> {
    let text = machine(context, "-pauses")?;
    let [first, second, _] = &SETUPS;
    for setup in [first, second] {
        let cell = cell(context, setup, Kind::Plain, &text, rounds)?;
        let number = setup.number;
        report.figure(
            format!("setup_{number}_fair_scheduler_with_pauses_percent"),
            cell.relative,
        );
    }
    Ok(())
}

/// Setup 1 with threads that sleep while they wait, as gangs and not.
fn sleepers(context: &Context, report: &mut Report, rounds: u32) -> Result<()> {
    let [setup, ..] = &SETUPS;
    let text = machine(context, "")?.replace("\"spin\"", "\"block\"");
    let gangs = cell(context, setup, Kind::Gangs, &text, rounds)?;
    let plain = cell(context, setup, Kind::Plain, &text, rounds)?;
    let ratio = gangs.seconds / plain.seconds;
    report.figure("sleepers_as_gangs_over_fair_scheduler", ratio);
    report.bars.push(Bar::at_most(
        "setup 1 with threads that sleep while they wait: time as gangs over that under the fair scheduler (at most)",
        ratio,
        1.02,
    ));
    Ok(())
}

/// The text of a virtual machine's description.
fn machine(context: &Context, name: &str) -> Result<String> {
    let file = format!("experiments/programs/virtual-machine-ticket-locks{name}.toml");
    std::fs::read_to_string(context.root.join(&file)).context(file)
}

fn cell(context: &Context, setup: &Setup, kind: Kind, text: &str, rounds: u32) -> Result<Cell> {
    let spec = Arc::new(ProgramSpec::from_toml(text)?);
    let path = setup.path(&context.root);
    let (mut seconds, mut alone, mut relative) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..rounds {
        let mean = |kind| -> Result<(f64, u32)> {
            let mut scenario = scenario(&path, kind, seed)?;
            for entry in &mut scenario.entries {
                entry.spec = Arc::clone(&spec);
            }
            let times = once(&scenario)?.times;
            let copies = times.len() as u32;
            Ok((times.iter().sum::<f64>() / f64::from(copies), copies))
        };
        let (one, _) = mean(Kind::Alone)?;
        let (many, copies) = mean(kind)?;
        seconds.push(many);
        alone.push(one);
        relative.push(100.0 * one * f64::from(copies.div_ceil(setup.side_by_side())) / many);
    }
    Ok(Cell {
        seconds: median(&seconds),
        alone: median(&alone),
        relative: median(&relative),
        range: (
            relative.iter().copied().fold(f64::INFINITY, f64::min),
            relative.iter().copied().fold(0.0, f64::max),
        ),
    })
}
