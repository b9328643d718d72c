//! Experiment `tune-real`: does `corewise tune` find the number of threads that suits, on real
//! programs, alone and beside others; what does the search cost; and what does a recalled result
//! cost?

use std::time::Duration;

use anyhow::{Result, bail};

use crate::cells::{Cell, Condition, Plan, Verdict};
use crate::corewise::{Corewise, Tuned};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::capacity;
use crate::measure::Job;
use crate::programs::{Catalogue, Program};
use crate::stats::{median, paired_difference};

/// What is run unless `--only` says otherwise; the rest of the catalogue can be named there.
const PROGRAMS: [&str; 9] = [
    "lightgbm",
    "numpy-svd",
    "kmeans",
    "pbzip2",
    "pigz",
    "xz",
    "zstd",
    "x265",
    "primesieve",
];
/// Run time of the program that the search's cost is set against, in seconds.
const LONG_RUN_SECONDS: f64 = 20.0;
/// The program whose recalled runs are timed, and its scale: short, so that the difference shows.
const RECALLED: (&str, f64) = ("pigz", 0.1);

/// Measures every cell, the search on long runs, and recalled runs.
pub fn run(context: &Context) -> Result<Report> {
    let catalogue = Catalogue::read(context)?;
    let corewise = Corewise::new(context)?;
    let programs = programs(context, &catalogue)?;
    let conditions = Condition::picked(context, &Condition::ALL);
    let rounds = context.rounds(6, 2);
    let mut report = Report::new(
        context,
        "tune-real",
        "what `corewise tune` chose against the best of every number of threads up to twice the \
         effective CPUs (and each way of waiting), found on half of the rounds and judged on the \
         other half",
        "the program, corewise and the hog of hog-same-session in the lab's session; the hog of \
         hog-own-session in its own; quota-1 in a cgroup, where Linux groups nothing by session",
    );
    let mut table = Table::new(
        "cells (ratio: time of the choice over that of the best which leaves the hog its share)",
        &[
            "cell", "chosen", "best", "ratio", "any best", "hog kept", "× plain", "search s",
            "start s",
        ],
    );
    let (mut cells, mut capacities) = (Vec::new(), Vec::new());
    for program in &programs {
        for &condition in &conditions {
            capacities.push(capacity(Duration::from_millis(250))?);
            let name = format!("{}.{}", program.name, condition.name());
            let (tuned, cell) =
                measure(context, &catalogue, &corewise, program, condition, rounds)?;
            let verdict = cell.verdict(tuned.setting);
            add_cell(&mut report, &mut table, &name, &tuned, &verdict);
            cells.push(verdict);
        }
    }
    report.tables.push(table);
    bars(&mut report, &cells);
    search_cost(context, &catalogue, &corewise, &programs, &mut report)?;
    recalled(context, &catalogue, &corewise, &mut report)?;
    report.figure("capacity.median", median(&capacities));
    report.note(
        "a candidate that took 1.3 times the best in the first round is not run again, one that \
         takes 3 times the best in the first round is ended: neither can be the best",
    );
    report.note("capacity: what two pinned threads do over what one does (2: two whole CPUs)");
    Ok(report)
}

/// The programs that the user named, of the whole catalogue; else the usual ones.
fn programs<'a>(context: &Context, catalogue: &'a Catalogue) -> Result<Vec<&'a Program>> {
    let all = catalogue
        .programs
        .iter()
        .map(|program| program.name.as_str());
    let all = all.collect::<Vec<_>>();
    let names = match (context.names_any(&all), context.quick) {
        (true, _) => context.pick(&all),
        (false, true) => PROGRAMS[3..5].to_vec(),
        (false, false) => PROGRAMS.to_vec(),
    };
    let mut programs = Vec::new();
    for name in names {
        let program = catalogue.program(name)?;
        catalogue.installed(program)?;
        programs.push(program);
    }
    Ok(programs)
}

fn measure(
    context: &Context,
    catalogue: &Catalogue,
    corewise: &Corewise,
    program: &Program,
    condition: Condition,
    rounds: u32,
) -> Result<(Tuned, Cell)> {
    let template = catalogue.template(program, 1.0)?;
    // A history of its own: what was learned in another condition must not help here.
    let tuned = corewise
        .forgetful()?
        .tune(&template, &condition.set_up()?)?;
    context.say(format_args!(
        "{}, {}: corewise chose {} after {:.2} s ({} probes): {}",
        program.name,
        condition.name(),
        tuned.setting,
        tuned.search_seconds,
        tuned.probes,
        tuned.stop_reason,
    ));
    let plan = Plan {
        rounds,
        scale: 1.0,
        keep: &[tuned.setting],
    };
    let nothing = &mut |_, _: &_| Ok(());
    let cell = Cell::measure(context, catalogue, program, condition, &plan, nothing)?;
    Ok((tuned, cell))
}

fn add_cell(report: &mut Report, table: &mut Table, name: &str, tuned: &Tuned, cell: &Verdict) {
    report.figure(format!("{name}.chosen"), tuned.setting.threads.into());
    report.figure(format!("{name}.best"), cell.best.threads.into());
    report.figure(format!("{name}.ratio"), cell.ratio);
    report.figure(format!("{name}.ratio_unrestricted"), cell.unrestricted);
    report.figure(format!("{name}.speedup_over_plain"), cell.over_plain);
    report.figure(format!("{name}.search_seconds"), tuned.search_seconds);
    report.figure(format!("{name}.startup_seconds"), tuned.startup_seconds);
    if let Some(kept) = cell.hog_kept {
        report.figure(format!("{name}.hog_kept"), kept);
    }
    table.row([
        name.to_owned(),
        tuned.setting.to_string(),
        cell.best.to_string(),
        number(cell.ratio),
        number(cell.unrestricted),
        cell.hog_kept.map_or("-".to_owned(), number),
        number(cell.over_plain),
        number(tuned.search_seconds),
        number(tuned.startup_seconds),
    ]);
}

fn bars(report: &mut Report, cells: &[Verdict]) {
    let share = |count: usize, of: usize| count as f64 / of as f64;
    let hold = |cell: &&Verdict| cell.ratio <= 1.05 && cell.hog_keeps_its_share();
    let holding = cells.iter().filter(hold).count();
    report.bars.push(Bar::at_least(
        "share of cells within 1.05 of the best, the hog keeping its share",
        share(holding, cells.len()),
        0.9,
    ));
    let anyhow = cells.iter().filter(|cell| cell.unrestricted <= 1.05);
    let anyhow = share(anyhow.count(), cells.len());
    report.figure("cells.within_1.05_of_any_best", anyhow);
    let ratios = cells.iter().map(|cell| cell.ratio).collect::<Vec<_>>();
    report.figure("cells.ratio.median", median(&ratios));
    report.figure(
        "cells.ratio.worst",
        ratios.iter().copied().fold(0.0, f64::max),
    );
    let beside = cells.iter().filter(|cell| cell.hog_kept.is_some()).count();
    if beside > 0 {
        let kept = cells
            .iter()
            .filter(|cell| cell.hog_kept.is_some() && cell.hog_keeps_its_share())
            .count();
        report.figure("cells.hog_keeps_its_share", share(kept, beside));
    }
}

/// The search on runs of about 20 seconds, alone: what it takes besides the program's start-ups.
fn search_cost(
    context: &Context,
    catalogue: &Catalogue,
    corewise: &Corewise,
    programs: &[&Program],
    report: &mut Report,
) -> Result<()> {
    let mut table = Table::new(
        "cost of the search, as a share of a run of 20 s",
        &["program", "without start-ups", "start-ups", "probes"],
    );
    let mut costs = Vec::new();
    let count = if context.quick { 1 } else { programs.len() };
    for program in programs.iter().take(count) {
        let scale = LONG_RUN_SECONDS / program.alone.map_or(2.0, |[_, two]| two);
        let template = catalogue.template(program, scale)?;
        context.say(format_args!("{}: the search on a long run", program.name));
        let alone = Condition::Alone.set_up()?;
        let tuned = corewise.forgetful()?.tune(&template, &alone)?;
        let cost = tuned.search_seconds / LONG_RUN_SECONDS;
        let startup = tuned.startup_seconds / LONG_RUN_SECONDS;
        report.figure(format!("{}.search_cost", program.name), cost);
        report.figure(format!("{}.startup_cost", program.name), startup);
        table.row([
            program.name.clone(),
            number(cost),
            number(startup),
            tuned.probes.to_string(),
        ]);
        costs.push(cost);
    }
    report.tables.push(table);
    report.bars.push(Bar::at_most(
        "search without start-ups, share of a 20 s run (the program where it costs most)",
        costs.iter().copied().fold(0.0, f64::max),
        0.05,
    ));
    Ok(())
}

/// `corewise run` with a result in its history against the same command run plainly.
fn recalled(
    context: &Context,
    catalogue: &Catalogue,
    corewise: &Corewise,
    report: &mut Report,
) -> Result<()> {
    let (name, scale) = RECALLED;
    let program = catalogue.program(name)?;
    let template = catalogue.template(program, scale)?;
    let alone = Condition::Alone.set_up()?;
    let corewise = corewise.forgetful()?;
    context.say(format_args!("{name}: recalled runs against plain ones"));
    let tuned = corewise.tune(&template, &alone)?.setting;
    let plain: Job = catalogue.job(program, tuned.threads, tuned.wait, scale)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..context.rounds(30, 5) {
        let mut managed = || -> Result<()> {
            let ran = corewise.run(&template, &alone)?;
            if ran.setting.threads != tuned.threads {
                bail!("{name}: tuned to {tuned}, but ran with {}", ran.setting);
            }
            with.push(ran.whole_seconds * 1e3);
            Ok(())
        };
        if round % 2 == 0 {
            managed()?;
        }
        let (run, _) = alone.run(&plain, Duration::from_secs(60), false)?;
        without.push(run.success(&plain)?.wall_seconds * 1e3);
        if round % 2 == 1 {
            managed()?;
        }
    }
    let cost = paired_difference(&with, &without);
    report.figure("recalled.cost_ms", cost.median);
    report.figure("recalled.cost_ms.low", cost.low);
    report.figure("recalled.cost_ms.high", cost.high);
    report.bars.push(Bar::at_most(
        "a recalled result's cost, ms (median)",
        cost.median,
        50.0,
    ));
    Ok(())
}
