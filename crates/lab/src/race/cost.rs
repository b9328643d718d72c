//! `race-cost`: the slow-down and the memory of `corewise race` on real threaded programs, beside
//! ThreadSanitizer's on the same files, with each strategy; and the speed-up of each over the analysis at each
//! access (the paper's Table 4).

use std::time::Duration;

use anyhow::{Result, bail};

use super::{FOUND, raced, with_tsan};
use crate::defer::programs::{Instrumented, threaded};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::capacity;
use crate::measure::Job;
use crate::peak::Peak;
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

const LONGEST: Duration = Duration::from_secs(300);
/// What is compared: first the program itself, then ThreadSanitizer, then the analysis at each access, and the
/// strategies.
const CELLS: [&str; 6] = [
    "plain",
    "tsan",
    "sequential",
    "synchronous",
    "pool",
    "adaptive",
];
const TSAN: usize = 1;
const SEQUENTIAL: usize = 2;
const ADAPTIVE: usize = 5;

/// How many threads each program gets, and what that leaves free.
const SETTINGS: [(u32, &str); 2] = [(2, "all CPUs busy"), (1, "a CPU free")];

/// What was measured of one program, in one setting, for each cell.
#[derive(Clone, Default)]
struct Measured {
    seconds: [Vec<f64>; CELLS.len()],
    mib: [Vec<f64>; CELLS.len()],
}

/// Runs the experiment.
///
/// # Errors
/// If a program does not build or run, or prints something else than it does as it is.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "race-cost",
        "plain programs; compiled with -fsanitize=thread on ThreadSanitizer, and on corewise race by strategy",
        "one session",
    );
    let programs = threaded(context)?;
    let corewise = context.corewise()?;
    let peak = Peak::new(&context.root)?;
    let job = |program: &Instrumented, cell: &str| -> Job {
        match cell {
            "plain" => program.plain(),
            "tsan" => with_tsan(&program.raced()),
            strategy => raced(&corewise, &["--strategy", strategy], &program.raced()),
        }
    };
    let cases: Vec<_> = SETTINGS
        .iter()
        .flat_map(|(threads, _)| programs.iter().map(|p| p.with_threads(*threads)))
        .collect();
    let mut measured = vec![Measured::default(); cases.len()];
    let mut reported = vec![[false; CELLS.len()]; programs.len()];
    let mut printed = vec![None; cases.len()];
    let mut capacities = Vec::new();
    let cells = CELLS.len();
    for (_, index) in interleaved(0..cells * cases.len(), context.rounds(3, 1), 12) {
        let (case, cell) = (index / cells, index % cells);
        let job = job(&cases[case], CELLS[cell]);
        capacities.push(capacity(Duration::from_millis(60))?);
        let (run, told) = peak.output(&job, LONGEST)?;
        let run = match run.status.code() {
            Some(FOUND) if cell > 0 => {
                reported[case % programs.len()][cell] = true;
                run
            }
            _ => run.success(&job)?,
        };
        let expected = printed[case].get_or_insert_with(|| run.stdout.clone());
        if cases[case].prints_the_same && *expected != run.stdout {
            bail!(
                "{} prints something else as {}: `{}`",
                cases[case].name,
                CELLS[cell],
                job.text()
            );
        }
        measured[case].seconds[cell].push(told.seconds);
        measured[case].mib[cell].push(told.mib);
    }
    report.figure("capacity", median(&capacities));
    let mut races = Table::new("which report races", &["program", "tsan", "adaptive"]);
    let said = |races: bool| if races { "yes" } else { "no" }.to_owned();
    for (program, cells) in programs.iter().zip(&reported) {
        races.row([
            program.name.clone(),
            said(cells[TSAN]),
            said(cells[ADAPTIVE]),
        ]);
    }
    let false_alarms = reported
        .iter()
        .filter(|cells| cells[ADAPTIVE] && !cells[TSAN]);
    report.bars.push(Bar::at_most(
        "programs in which only corewise race reports races",
        false_alarms.count() as f64,
        0.0,
    ));
    report.tables.push(races);
    for ((threads, setting), measured) in SETTINGS.iter().zip(measured.chunks(programs.len())) {
        judge(&mut report, *threads, setting, &programs, measured);
    }
    report.note("The paper's figures are of Java programs on two machines of four cores.");
    Ok(report)
}

/// Shows what was measured with so many threads, against the bars.
fn judge(
    report: &mut Report,
    threads: u32,
    setting: &str,
    programs: &[Instrumented],
    measured: &[Measured],
) {
    let mut columns = vec!["program", "plain, s"];
    columns.extend(&CELLS[1..]);
    let mut times = Table::new(format!("{setting}: times the plain program"), &columns);
    let mut memory = Table::new(
        format!("{setting}: most memory of one process, MiB"),
        &["program", "plain", "tsan", "adaptive"],
    );
    let mut all = vec![Vec::new(); CELLS.len()];
    let mut speedups = vec![Vec::new(); CELLS.len()];
    let mut memories = Vec::new();
    for (program, of) in programs.iter().zip(measured) {
        let mut row = vec![program.name.clone(), number(median(&of.seconds[0]))];
        for cell in 1..CELLS.len() {
            let ratio = paired_ratio(&of.seconds[cell], &of.seconds[0]).median;
            all[cell].push(ratio);
            speedups[cell].push(paired_ratio(&of.seconds[SEQUENTIAL], &of.seconds[cell]).median);
            report.figure(
                format!("{}.{threads}.{}.times", program.name, CELLS[cell]),
                ratio,
            );
            row.push(number(ratio));
        }
        times.row(row);
        let peak = |cell: usize| median(&of.mib[cell]);
        let peaks = [0, TSAN, ADAPTIVE].map(peak);
        memory.row([program.name.clone()].into_iter().chain(peaks.map(number)));
        memories.push(peak(ADAPTIVE) / peak(TSAN));
    }
    let mean = |cell: usize| geometric_mean(&all[cell]);
    let mut row = vec!["geometric mean".to_owned(), String::new()];
    row.extend((1..CELLS.len()).map(|cell| number(mean(cell))));
    times.row(row);
    let limit = if threads > 1 { 1.0 } else { 0.5 };
    report.bars.push(Bar::at_most(
        format!("{setting}: slow-down over ThreadSanitizer's, geometric mean"),
        mean(ADAPTIVE) / mean(TSAN),
        limit,
    ));
    report.bars.push(Bar::at_most(
        format!("{setting}: memory over ThreadSanitizer's, the worst program"),
        memories.iter().copied().fold(0.0, f64::max),
        1.0,
    ));
    let mut table = Table::new(
        format!("{setting}: speed-up over the analysis at each access"),
        &["strategy", "here", "paper"],
    );
    for (cell, paper) in [(3, "0.99, 1.03"), (4, "1.98, 1.86"), (5, "2.22, 2.22")] {
        let speedup = geometric_mean(&speedups[cell]);
        report.figure(format!("{}.{threads}.speedup", CELLS[cell]), speedup);
        table.row([CELLS[cell].to_owned(), number(speedup), paper.to_owned()]);
    }
    report.tables.extend([times, memory, table]);
}
