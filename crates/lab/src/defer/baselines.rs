//! `defer-baselines`: what the analysis costs where it runs at each call, and where each call is a task of its
//! own on a thread pool: what buffers are for (the paper's section 2: 10.6 and 13.1 times, and up to 190).

use anyhow::Result;
use corewise_analyses::region::{Manner, Wanted};

use crate::defer::programs::{manner, these};
use crate::experiment::{Context, Report, Table, number};
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

/// Those with few calls: one task a call takes long.
const PROGRAMS: [&str; 3] = ["bzip2", "cadical", "tinyscheme"];

/// Runs the experiment.
///
/// # Errors
/// If a program does not build or run, or loses a call.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "defer-baselines",
        "plain programs, the instrumentation alone, the sequential analysis, one task a call, and deferred calls",
        "one session",
    );
    let programs = these(context, &PROGRAMS)?;
    let hooks = context.hooks()?;
    let naive = Wanted {
        capacity: 1,
        queue: 1024,
        ..manner(Manner::Pool)
    };
    let cells = [
        ("plain", None),
        ("instrumented, nobody listens", None),
        ("hooks alone", Some(manner(Manner::Nothing))),
        ("sequential", Some(manner(Manner::Sequential))),
        ("one task a call", Some(naive)),
        ("adaptive", Some(manner(Manner::Adaptive))),
    ];
    let count = cells.len() * programs.len();
    let mut seconds = vec![Vec::new(); count];
    for (_, cell) in interleaved(0..count, context.rounds(5, 1), 10) {
        let program = &programs[cell / cells.len()];
        let sample = match cells[cell % cells.len()] {
            ("plain", _) => program.run(&program.plain())?,
            (_, None) => program.run(&program.hooked())?,
            (_, Some(wanted)) => program.profiled(&hooks, wanted)?,
        };
        seconds[cell].push(sample.seconds);
    }
    let mut columns = vec!["program", "plain, s"];
    columns.extend(cells[1..].iter().map(|(name, _)| *name));
    let mut table = Table::new("times the plain program", &columns);
    let mut all = vec![Vec::new(); cells.len()];
    for (index, program) in programs.iter().enumerate() {
        let of = |cell: usize| &seconds[index * cells.len() + cell];
        let ratios = (1..cells.len()).map(|cell| paired_ratio(of(cell), of(0)).median);
        let ratios = ratios.collect::<Vec<_>>();
        for (cell, ratio) in (1..).zip(&ratios) {
            report.figure(format!("{}.{}.times", program.name, cells[cell].0), *ratio);
            all[cell].push(*ratio);
        }
        let head = [program.name.clone(), number(median(of(0)))];
        table.row(head.into_iter().chain(ratios.iter().map(|r| number(*r))));
    }
    let means = all[1..].iter().map(|ratios| number(geometric_mean(ratios)));
    let head = ["geometric mean".to_owned(), String::new()];
    table.row(head.into_iter().chain(means));
    for (cell, ratios) in cells.iter().zip(&all).skip(1) {
        report.figure(format!("mean.{}.times", cell.0), geometric_mean(ratios));
    }
    report.tables.push(table);
    report.note("One task a call: buffers of one call, and as many threads as CPUs behind a queue of 1,024.");
    Ok(report)
}
