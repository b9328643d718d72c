//! `race-cost`: the slow-down and the memory of `corewise race` on real threaded programs, beside
//! ThreadSanitizer's on the same files, with each strategy; and the speed-up of each over the analysis at each
//! access (the paper's Table 4).

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{raced, with_tsan};
use crate::defer::programs::{Instrumented, these};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::capacity;
use crate::measure::Job;
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

const PROGRAMS: [&str; 1] = ["pbzip2"];
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

/// Runs the experiment.
///
/// # Errors
/// If a program does not build or run.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "race-cost",
        "plain programs; compiled with -fsanitize=thread on ThreadSanitizer, and on corewise race by strategy",
        "one session",
    );
    let programs = these(context, &PROGRAMS)?;
    let corewise = context.corewise()?;
    let folder = tempfile::tempdir()?;
    let told = folder.path().join("resources");
    // GNU time's resources are of the process itself, as Linux tells them when it is waited for.
    let job = |program: &Instrumented, cell: &str| -> Job {
        match cell {
            "plain" => program.plain(),
            "tsan" => with_tsan(&program.raced()),
            strategy => raced(
                &corewise,
                &["--exit-code", "0", "--strategy", strategy],
                &program.raced(),
            ),
        }
    };
    let mut seconds = vec![Vec::new(); CELLS.len() * programs.len()];
    let mut bytes = vec![Vec::new(); CELLS.len() * programs.len()];
    let mut capacities = Vec::new();
    for (_, cell) in interleaved(0..seconds.len(), context.rounds(5, 1), 12) {
        let program = &programs[cell / CELLS.len()];
        let job = job(program, CELLS[cell % CELLS.len()]);
        capacities.push(capacity(Duration::from_millis(60))?);
        let timed = job.under([
            "/usr/bin/python3".to_owned(),
            "-c".to_owned(),
            PEAK.to_owned(),
            told.to_string_lossy().into_owned(),
        ]);
        let run = timed.run(LONGEST)?.success(&timed)?;
        let peak = std::fs::read_to_string(&told).context("no peak of memory was told")?;
        seconds[cell].push(run.wall_seconds);
        bytes[cell].push(peak.trim().parse::<f64>()? / 1024.0);
    }
    report.figure("capacity", median(&capacities));
    let mut columns = vec!["program", "plain, s"];
    columns.extend(&CELLS[1..]);
    let mut times = Table::new("times the plain program", &columns);
    let mut memory = Table::new(
        "most memory of one process, MiB",
        &["program", "plain", "tsan", "adaptive"],
    );
    let mut all = vec![Vec::new(); CELLS.len()];
    let mut speedups = vec![Vec::new(); CELLS.len()];
    for (index, program) in programs.iter().enumerate() {
        let of = |cell: usize| &seconds[index * CELLS.len() + cell];
        let mut row = vec![program.name.clone(), number(median(of(0)))];
        for cell in 1..CELLS.len() {
            let ratio = paired_ratio(of(cell), of(0)).median;
            all[cell].push(ratio);
            speedups[cell].push(paired_ratio(of(SEQUENTIAL), of(cell)).median);
            report.figure(format!("{}.{}.times", program.name, CELLS[cell]), ratio);
            row.push(number(ratio));
        }
        times.row(row);
        let peak = |cell: usize| median(&bytes[index * CELLS.len() + cell]);
        let peaks = [0, TSAN, ADAPTIVE].map(peak);
        memory.row([program.name.clone()].into_iter().chain(peaks.map(number)));
        report.bars.push(Bar::at_most(
            format!("{}: memory over ThreadSanitizer's", program.name),
            peak(ADAPTIVE) / peak(TSAN),
            1.0,
        ));
    }
    let mean = |cell: usize| geometric_mean(&all[cell]);
    report.bars.push(Bar::at_most(
        "slow-down over ThreadSanitizer's where the program keeps all CPUs busy, geometric mean",
        mean(ADAPTIVE) / mean(TSAN),
        1.0,
    ));
    let mut table = Table::new(
        "speed-up over the analysis at each access",
        &["strategy", "here", "paper"],
    );
    for (cell, paper) in [(3, "0.99, 1.03"), (4, "1.98, 1.86"), (5, "2.22, 2.22")] {
        let speedup = geometric_mean(&speedups[cell]);
        report.figure(format!("{}.speedup", CELLS[cell]), speedup);
        table.row([CELLS[cell].to_owned(), number(speedup), paper.to_owned()]);
    }
    report.tables.extend([times, memory, table]);
    report.note("The paper's figures are of Java programs on two machines of four cores.");
    Ok(report)
}

/// Runs a command, and writes the most memory that a process of it had, in KiB.
const PEAK: &str = "import os, resource, subprocess, sys\n\
code = subprocess.call(sys.argv[2:])\n\
with open(sys.argv[1], 'w') as out: out.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n\
os._exit(code if code >= 0 else 128 - code)\n";
