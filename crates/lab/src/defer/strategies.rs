//! `defer-strategies`: the profiler on real programs, sequentially and with each strategy of deferred calls
//! (the paper's Figure 6), and what two of them do with CPUs and queue over time (Figures 7 and 8).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use corewise_analyses::region::Manner;

use crate::defer::programs::{Instrumented, Sample, all, manner};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::capacity;
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

/// What is compared, by name; the sequential analysis first.
const MANNERS: [(&str, Manner); 5] = [
    ("sequential", Manner::Sequential),
    ("synchronous", Manner::Synchronous),
    ("pool", Manner::Pool),
    ("pool-lowest", Manner::LowestPool),
    ("adaptive", Manner::Adaptive),
];
const ADAPTIVE: usize = 4;
/// How long each measurement of the capacity takes.
pub(super) const CAPACITY: Duration = Duration::from_millis(60);
/// Runs between two of them.
pub(super) const BETWEEN: usize = 8;
/// Programs that show what happens over time.
const OVER_TIME: [&str; 2] = ["lua", "pbzip2"];
const SAMPLES: Duration = Duration::from_millis(20);

/// Runs the experiment.
///
/// # Errors
/// If a program does not build or run, or loses a call.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "defer-strategies",
        "the same analysis of the same programs: at each call, and on deferred calls with each strategy",
        "one session",
    );
    let programs = all(context)?;
    let hooks = context.hooks()?;
    let cells = programs.len() * MANNERS.len();
    let rounds = context.rounds(7, 2);
    let mut seconds = vec![Vec::new(); cells];
    let mut calls = vec![0; programs.len()];
    let mut capacities = Vec::new();
    let mut differ = BTreeSet::new();
    for (index, (_, cell)) in interleaved(0..cells, rounds, 8).into_iter().enumerate() {
        if index % BETWEEN == 0 {
            capacities.push(capacity(CAPACITY)?);
        }
        let program = &programs[cell / MANNERS.len()];
        let which = cell % MANNERS.len();
        let sample = program.profiled(&hooks, manner(MANNERS[which].1))?;
        let counted = &mut calls[cell / MANNERS.len()];
        if program.busy == 1 && *counted != 0 && *counted != sample.calls() {
            differ.insert(program.name.as_str());
        }
        *counted = sample.calls();
        seconds[cell].push(sample.seconds);
    }
    for name in differ {
        report.note(format!("{name} does not make the same calls each time"));
    }
    let capacity = median(&capacities);
    report.figure("capacity", capacity);
    figure_6(&mut report, &programs, &seconds, &calls, capacity);
    for name in OVER_TIME {
        if let Some(program) = programs.iter().find(|program| program.name == name) {
            over_time(&mut report, program, &hooks)?;
        }
    }
    Ok(report)
}

fn figure_6(
    report: &mut Report,
    programs: &[Instrumented],
    seconds: &[Vec<f64>],
    calls: &[u64],
    capacity: f64,
) {
    let mut columns = vec!["program", "CPUs", "calls, million", "sequential, s"];
    columns.extend(MANNERS[1..].iter().map(|(name, _)| *name));
    let mut table = Table::new("speed-up over the sequential analysis", &columns);
    let mut all = vec![[Vec::new(), Vec::new()]; MANNERS.len()];
    let mut worst = f64::INFINITY;
    for (index, program) in programs.iter().enumerate() {
        let cell = |which: usize| &seconds[index * MANNERS.len() + which];
        let speedups: Vec<f64> = (1..MANNERS.len())
            .map(|which| paired_ratio(cell(0), cell(which)).median)
            .collect();
        for (which, speedup) in (1..).zip(&speedups) {
            let (name, _) = MANNERS[which];
            report.figure(format!("{}.{name}.speedup", program.name), *speedup);
            all[which][usize::from(program.busy > 1)].push(*speedup);
        }
        // Against the better of the two that it unites: the control is neither.
        let better = speedups[0].max(speedups[1]);
        worst = worst.min(speedups[ADAPTIVE - 1] / better);
        let cells = [
            program.name.clone(),
            program.busy.to_string(),
            number(calls[index] as f64 / 1e6),
            number(median(cell(0))),
        ];
        table.row(cells.into_iter().chain(speedups.iter().map(|s| number(*s))));
    }
    for (kind, name) in ["single-threaded", "saturating"].iter().enumerate() {
        if all[ADAPTIVE][kind].is_empty() {
            continue;
        }
        let means = (1..MANNERS.len()).map(|which| geometric_mean(&all[which][kind]));
        let means = means.collect::<Vec<_>>();
        for (which, mean) in (1..).zip(&means) {
            report.figure(format!("{name}.{}.speedup", MANNERS[which].0), *mean);
        }
        let head = [
            format!("geometric mean, {name}"),
            String::new(),
            String::new(),
            String::new(),
        ];
        table.row(
            head.into_iter()
                .chain(means.iter().map(|mean| number(*mean))),
        );
        let adaptive = means[ADAPTIVE - 1];
        report.bars.push(match kind {
            0 => Bar::at_least(
                "adaptive on single-threaded programs, over 0.85 × capacity",
                adaptive / (0.85 * capacity),
                1.0,
            ),
            _ => Bar::at_least(
                "adaptive on programs that keep both CPUs busy",
                adaptive,
                1.0,
            ),
        });
    }
    report.bars.push(Bar::at_least(
        "adaptive over the better of synchronous and pool, on the worst program",
        worst,
        0.95,
    ));
    report.tables.push(table);
    report.note(
        "Times are of whole runs, processing included. Speed-ups are medians of the rounds' ratios. Capacity: what \
         two pinned spinning threads do over one, measured between the runs.",
    );
}

/// CPU use and queue length, sampled from outside.
fn over_time(report: &mut Report, program: &Instrumented, hooks: &Path) -> Result<()> {
    let mut table = Table::new(
        format!(
            "{}: CPU use, in CPUs, and buffers in the queue, over the run's tenths",
            program.name
        ),
        &["strategy", "CPUs", "queue"],
    );
    for (name, which) in MANNERS {
        let (sample, series) = sampled(program, hooks, which)?;
        let tenth = |of: &dyn Fn(&(f64, u64)) -> f64| {
            let chunk = series.len().div_ceil(10).max(1);
            let means = series.chunks(chunk).map(|part| {
                let sum: f64 = part.iter().map(of).sum();
                format!("{:.1}", sum / part.len() as f64)
            });
            means.collect::<Vec<_>>().join(" ")
        };
        table.row([name.to_owned(), tenth(&|s| s.0), tenth(&|s| s.1 as f64)]);
        let mean = series.iter().map(|s| s.0).sum::<f64>() / series.len().max(1) as f64;
        report.figure(format!("{}.{name}.mean_cpus", program.name), mean);
        report.figure(
            format!("{}.{name}.buffer_bytes", program.name),
            sample.most_bytes() as f64,
        );
    }
    report.tables.push(table);
    Ok(())
}

/// One run, and its CPU use and queue length each 20 ms.
fn sampled(
    program: &Instrumented,
    hooks: &Path,
    which: Manner,
) -> Result<(Sample, Vec<(f64, u64)>)> {
    let (region, started) = program.started(hooks, manner(which))?;
    let stat = format!("/proc/{}/schedstat", started.pid());
    let tasks = format!("/proc/{}/task", started.pid());
    let mut series = Vec::new();
    let (mut last, mut at) = (0, Instant::now());
    while Path::new(&stat).exists() {
        std::thread::sleep(SAMPLES);
        let run_ns = run_ns_of_all(&tasks);
        let Some(run_ns) = run_ns else { break };
        let passed = at.elapsed().as_nanos() as f64;
        at = Instant::now();
        let queued = region.images().map(|entered| entered.queued()).sum();
        if run_ns >= last && last > 0 {
            series.push(((run_ns - last) as f64 / passed, queued));
        }
        last = run_ns;
        if is_over(started.pid()) {
            break;
        }
    }
    Ok((program.finished(&region, started)?, series))
}

/// The CPU time of all threads that are there now, in ns.
fn run_ns_of_all(tasks: &str) -> Option<u64> {
    let entries = std::fs::read_dir(tasks).ok()?.filter_map(Result::ok);
    let each = entries.filter_map(|task| {
        let path = task.path().join("schedstat");
        crate::load::run_ns(&path.to_string_lossy())
    });
    Some(each.sum())
}

fn is_over(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit(')').next() {
        Some(rest) => rest.trim_start().starts_with('Z') || rest.is_empty(),
        None => true,
    }
}
