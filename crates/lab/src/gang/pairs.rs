//! `gang-pairs`: two and four copies of programs whose threads need each other, with as many threads each as
//! there are CPUs: by turns, and as plain Linux runs them.
//!
//! Relative performance is the paper's measure ("Non-intrusive Coscheduling for General Purpose Operating
//! Systems", Table 1): what simple bin packing would take, that is the copies one after the other, over what
//! the copies took on average.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::gang::copies::{self, Program, Ran};
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::stats::median;

/// How many copies, and whether each has a session of its own.
const SIDES: [(usize, bool); 4] = [(2, true), (2, false), (4, true), (4, false)];

/// Runs the experiment. `--only` takes programs, and numbers of copies.
///
/// # Errors
/// If a program does not compile, is not installed, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "gang-pairs",
        "copies of one program as gangs, under management without being said to be gangs, and on plain Linux, and one copy alone \
         before and after the managed ones, one after the other in each round; relative performance: copies × time alone ÷ mean time of the copies",
        "each copy in a session of its own, and all in one",
    );
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let programs = copies::programs(context, folder.path())?;
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    let picked = context.pick(&names);
    let manager = Manager::start(context, "balanced")?;
    let asked = as_gang(context, &manager)?;
    let unasked = managed(context, &manager, &[])?;
    let mut cells: BTreeMap<(usize, usize), Cell> = BTreeMap::new();
    let counts = context.pick(&["2", "4"]);
    let mut sides = SIDES.to_vec();
    sides.retain(|(count, _)| counts.contains(&count.to_string().as_str()));
    if context.quick {
        sides.truncate(1);
    }
    let rounds = context.rounds(3, 1);
    let picked: Vec<(usize, &Program)> = programs
        .iter()
        .enumerate()
        .filter(|(_, program)| picked.contains(&program.name))
        .collect();
    for round in 0..rounds {
        for (index, program) in &picked {
            for (side, (count, own)) in sides.iter().enumerate() {
                let session = |job: Job| match own {
                    true => job.under(["setsid", "--wait"]),
                    false => job,
                };
                let cell = cells.entry((*index, side)).or_default();
                let mut alone = copies::run(program, 1, folder.path(), &session)?;
                let gang = |job| session(asked(job));
                let gang = copies::run(program, *count, folder.path(), &gang)?;
                let found = |job| session(unasked(job));
                let found = copies::run(program, *count, folder.path(), &found)?;
                // All else is relative to it, and the machine may have become faster or slower meanwhile.
                let again = copies::run(program, 1, folder.path(), &session)?;
                alone.seconds.extend(again.seconds);
                let plain = copies::run(program, *count, folder.path(), &session)?;
                context.say(format_args!(
                    "{}, {count} copies, {}, round {}: alone {:.2} s, gangs {:.2} s, unasked {:.2} s, plain {:.2} s",
                    program.name,
                    sessions(*own),
                    round + 1,
                    alone.mean(),
                    gang.mean(),
                    found.mean(),
                    plain.mean()
                ));
                cell.add(*count, &alone, [&gang, &found, &plain]);
            }
        }
    }
    table(&mut report, &picked, &sides, &cells);
    bars(&mut report, &picked, &cells);
    report.figure("longest_slice_ms", longest_slice_ms(&manager)?);
    let longest = report.figures["longest_slice_ms"];
    report
        .bars
        .push(Bar::at_most("longest slice, ms (at most)", longest, 50.0));
    Ok(report)
}

/// A program as a gang under this manager: as it is, with its own number of threads.
///
/// # Errors
/// If there is no corewise to run it.
pub fn as_gang(context: &Context, manager: &Manager) -> Result<impl Fn(Job) -> Job + use<>> {
    managed(context, manager, &["--gang"])
}

/// A program under this manager, run with these options: as it is otherwise, with its own number of threads.
///
/// # Errors
/// If there is no corewise to run it.
pub fn managed(
    context: &Context,
    manager: &Manager,
    options: &'static [&'static str],
) -> Result<impl Fn(Job) -> Job + use<>> {
    let corewise = context.corewise()?.into_os_string();
    let runtime = manager.folder().to_string_lossy().into_owned();
    Ok(move |job: Job| {
        let words = ["run", "--quiet", "--as-is", "--no-adapters"].iter();
        let words = words.chain(options).chain(&["--"]).map(Into::into);
        job.under(std::iter::once(corewise.clone()).chain(words))
            .with("COREWISE_RUNTIME_DIR", runtime.clone())
    })
}

/// What one program showed in one arrangement, a value for each round.
#[derive(Default)]
struct Cell {
    gang: Vec<f64>,
    /// The same where nobody has said that they are gangs.
    found: Vec<f64>,
    plain: Vec<f64>,
    /// Plain time over the time as gangs, and over that unasked.
    over_plain: Vec<f64>,
    found_over_plain: Vec<f64>,
    unevenness: Vec<f64>,
    cut: usize,
}

impl Cell {
    fn add(&mut self, copies: usize, alone: &Ran, [gang, found, plain]: [&Ran; 3]) {
        let packed = copies as f64 * alone.mean();
        self.gang.push(packed / gang.mean());
        self.found.push(packed / found.mean());
        self.found_over_plain.push(plain.mean() / found.mean());
        self.plain.push(packed / plain.mean());
        self.over_plain.push(plain.mean() / gang.mean());
        self.unevenness.extend(&gang.unevenness);
        self.cut += plain.cut();
    }
}

fn sessions(own: bool) -> &'static str {
    match own {
        true => "own sessions",
        false => "one session",
    }
}

fn table(
    report: &mut Report,
    programs: &[(usize, &Program)],
    sides: &[(usize, bool)],
    cells: &BTreeMap<(usize, usize), Cell>,
) {
    let mut table = Table::new(
        "relative performance, medians",
        &[
            "program",
            "copies",
            "sessions",
            "as gangs",
            "unasked",
            "plain",
            "plain time ÷ gangs",
            "÷ unasked",
            "unevenness, median",
            "worst",
        ],
    );
    let mut cut = 0;
    for (index, program) in programs {
        for (side, (copies, own)) in sides.iter().enumerate() {
            let Some(cell) = cells.get(&(*index, side)) else {
                continue;
            };
            let worst = cell.unevenness.iter().copied().fold(0.0, f64::max);
            let even = median(&cell.unevenness);
            table.row([
                program.name.to_owned(),
                copies.to_string(),
                sessions(*own).to_owned(),
                number(median(&cell.gang)),
                number(median(&cell.found)),
                number(median(&cell.plain)),
                number(median(&cell.over_plain)),
                number(median(&cell.found_over_plain)),
                number(even),
                number(worst),
            ]);
            let session = if *own { "own" } else { "one" };
            let key = format!("{}.{copies}.{session}", program.name);
            report.figure(format!("{key}.relative"), median(&cell.gang));
            report.figure(format!("{key}.found_relative"), median(&cell.found));
            report.figure(format!("{key}.plain_relative"), median(&cell.plain));
            report.figure(format!("{key}.over_plain"), median(&cell.over_plain));
            report.figure(format!("{key}.unevenness"), even);
            report.figure(format!("{key}.worst_unevenness"), worst);
            cut += cell.cut;
        }
    }
    for (_, program) in programs {
        report.note(format!("{}: {}", program.name, program.about));
    }
    report.figure("plain_copies_ended_at_the_limit", cut as f64);
    report.tables.push(table);
}

fn bars(
    report: &mut Report,
    programs: &[(usize, &Program)],
    cells: &BTreeMap<(usize, usize), Cell>,
) {
    let of = |which: &dyn Fn(&Program) -> bool| -> Vec<&Cell> {
        let chosen = programs.iter().filter(|(_, program)| which(program));
        chosen
            .flat_map(|(index, _)| cells.iter().filter(move |((i, _), _)| i == index))
            .map(|(_, cell)| cell)
            .collect()
    };
    let least = |cells: &[&Cell], value: &dyn Fn(&Cell) -> f64| {
        cells
            .iter()
            .map(|cell| value(cell))
            .fold(f64::INFINITY, f64::min)
    };
    let gangs = of(&|program| program.needs_its_threads);
    let all = of(&|_| true);
    report.bars.push(Bar::at_least(
        "relative performance as gangs, worst cell of spinning and OpenMP programs (at least)",
        least(&gangs, &|cell| median(&cell.gang)),
        0.97,
    ));
    report.bars.push(Bar::at_least(
        "plain time over time as gangs, worst cell (at least)",
        least(&all, &|cell| median(&cell.over_plain)),
        0.98,
    ));
    report.bars.push(Bar::at_least(
        "the same unasked (at least)",
        least(&all, &|cell| median(&cell.found_over_plain)),
        0.98,
    ));
    let worst = |cell: &Cell| cell.unevenness.iter().copied().fold(0.0, f64::max);
    report.bars.push(Bar::at_most(
        "difference of the copies' progress in a second, worst second of any cell (at most)",
        all.iter().map(|cell| worst(cell)).fold(0.0, f64::max),
        0.10,
    ));
}

/// The longest window of any turn that the manager has given, by its journal.
fn longest_slice_ms(manager: &Manager) -> Result<f64> {
    let path = manager.folder().join("journal.jsonl");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut longest = 0;
    for line in lines {
        for output in line["outputs"].as_array().into_iter().flatten() {
            for window in output["turn"]["turn"]["windows"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let at = |key: &str| window[key].as_u64().unwrap_or(0);
                longest = longest.max(at("end_ns").saturating_sub(at("begin_ns")));
            }
        }
    }
    Ok(longest as f64 / 1e6)
}
