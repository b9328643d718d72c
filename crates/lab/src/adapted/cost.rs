//! `adapters-cost`: what adapters cost a program that they are loaded into: for each parallel region, for
//! each piece of a dynamic loop, and at its start; by difference, interleaved.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::adapted::{Led, compiled};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::measure::Job;
use crate::stats::median;

/// Regions of one run.
const REGIONS: u32 = 2_000_000;
/// Programs that are started one after the other for one figure.
const STARTS: u32 = 100;
const LONGEST: Duration = Duration::from_secs(120);

/// Runs the experiment.
///
/// # Errors
/// If a program cannot be compiled, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "adapters-cost",
        "a program with the adapters loaded and a claim that binds, against the same program without; teams \
         of one thread, so that only the adapters' part differs; a program that ends at once, started and \
         waited for, with and without",
        "everything in the lab's session, the machine otherwise idle",
    );
    let folder = tempfile::tempdir()?;
    let program = compiled(context, "regions.c", folder.path())?;
    let led = Led::new(context)?;
    led.grant(1);
    let plain = Job::new([
        program.into_os_string(),
        "cost".into(),
        REGIONS.to_string().into(),
    ])
    .with("OMP_NUM_THREADS", "1");
    let adapted = led.job(plain.clone())?;
    let start = Job::new([
        "sh",
        "-c",
        &format!("for i in $(seq {STARTS}); do /bin/true; done"),
    ]);
    let adapted_start = led.job(start.clone())?;
    let (mut regions, mut pieces, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..context.rounds(11, 3) {
        let [with, without] = pair(round, &adapted, &plain, costs)?;
        regions.push(with.0 - without.0);
        pieces.push(with.1 - without.1);
        let [with, without] = pair(round, &adapted_start, &start, wall)?;
        starts.push((with - without) * 1e3 / f64::from(STARTS));
        context.say(format_args!(
            "round {}: {:.1} ns a region, {:.1} ns a piece, {:.3} ms a start",
            round + 1,
            regions[regions.len() - 1],
            pieces[pieces.len() - 1],
            starts[starts.len() - 1],
        ));
    }
    let mut table = Table::new("what adapters add", &["to", "median", "unit"]);
    for (to, value, unit) in [
        ("a parallel region", median(&regions), "ns"),
        ("a piece of a dynamic loop", median(&pieces), "ns"),
        ("the start of a process", median(&starts), "ms"),
    ] {
        table.row([to.to_owned(), number(value), unit.to_owned()]);
    }
    report.tables.push(table);
    report.figure("region_ns", median(&regions));
    report.figure("piece_ns", median(&pieces));
    report.figure("start_ms", median(&starts));
    report.bars.push(Bar::at_most(
        "per parallel region, µs (at most)",
        median(&regions) / 1e3,
        0.15,
    ));
    report.bars.push(Bar::at_most(
        "start-up, ms (at most)",
        median(&starts),
        10.0,
    ));
    Ok(report)
}

/// Measures two jobs, now the one first and now the other.
fn pair<T>(
    round: u32,
    first: &Job,
    second: &Job,
    measure: impl Fn(&Job) -> Result<T>,
) -> Result<[T; 2]> {
    if round.is_multiple_of(2) {
        return Ok([measure(first)?, measure(second)?]);
    }
    let last = measure(second)?;
    Ok([measure(first)?, last])
}

fn costs(job: &Job) -> Result<(f64, f64)> {
    let run = job.output(LONGEST)?.success(job)?;
    let text = String::from_utf8_lossy(&run.stdout);
    let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers[..] {
        [region, piece] => Ok((region, piece)),
        _ => bail!("`{}` printed {text:?}", job.text()),
    }
}

fn wall(job: &Job) -> Result<f64> {
    let run = job.run(LONGEST).context("no shell")?.success(job)?;
    Ok(run.wall_seconds)
}
