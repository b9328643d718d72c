//! `adapters-cost`: what adapters cost a program that they are loaded into: for each parallel region, for
//! each piece of a dynamic loop, for each lock that nobody else wants, and at its start, by difference; and how many
//! tasks oneTBB does; interleaved.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::adapted::{Led, compiled, compiled_on_onetbb};
use crate::corewise::Corewise;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::allowed_cpus;
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::stats::{estimate, median};

/// Regions of one run.
const REGIONS: u32 = 2_000_000;
/// Locks of one run.
const LOCKS: u32 = 20_000_000;
/// Tasks of one run, of either kind.
const TASKS: u32 = 6_000_000;
/// Programs that are started one after the other for one figure.
const STARTS: u32 = 100;
const LONGEST: Duration = Duration::from_secs(120);

/// Runs the experiment; `--only tasks` measures only oneTBB's, `--only run` what `corewise run` adds to a start,
/// `--only others` the rest.
///
/// # Errors
/// If a program cannot be compiled, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "adapters-cost",
        "a program with the adapters loaded and a claim that binds, against the same program without; teams \
         of one thread, so that only the adapters' part differs; locks that nobody else wants, taken and given \
         back, while blocked time is counted and while it is not; a program that ends at once, started and \
         waited for, with and without; oneTBB's tasks of some 100 ns, with a claim of all CPUs",
        "everything in the lab's session, the machine otherwise idle",
    );
    let folder = tempfile::tempdir()?;
    let parts = context.pick(&["tasks", "run", "others"]);
    if parts.contains(&"tasks") {
        tasks(context, folder.path(), &mut report)?;
    }
    if parts.contains(&"run") {
        starts_of_run(context, &mut report)?;
    }
    if parts.contains(&"others") {
        differences(context, folder.path(), &mut report)?;
    }
    Ok(report)
}

/// How many tasks oneTBB does with the adapter, against without.
fn tasks(context: &Context, folder: &Path, report: &mut Report) -> Result<()> {
    let program = compiled_on_onetbb(context, "tasks.cpp", folder)?;
    let led = Led::new(context)?;
    led.grant(u32::try_from(allowed_cpus()?.len())?);
    let plain = Job::new([program.into_os_string(), TASKS.to_string().into()]);
    let adapted = led.job(plain.clone())?;
    let mut throughput = [Vec::new(), Vec::new()];
    for round in 0..context.rounds(21, 3) {
        let [with, without] = pair(round, &adapted, &plain, numbers::<2>)?;
        for (kind, throughput) in throughput.iter_mut().enumerate() {
            throughput.push(without[kind] / with[kind]);
        }
    }
    let mut table = Table::new(
        "oneTBB's tasks a second with the adapter over those without",
        &["tasks of", "median", "from", "to"],
    );
    for ((of, name), throughput) in [("a parallel loop", "loop"), ("a group", "group")]
        .into_iter()
        .zip(&throughput)
    {
        let ratio = estimate(throughput);
        let cells = [ratio.median, ratio.low, ratio.high].map(number);
        table.row([of.to_owned()].into_iter().chain(cells));
        report.figure(format!("tasks_of_{name}_ratio"), ratio.median);
        let name =
            format!("oneTBB's tasks of {of} a second, over those without the adapter (at least)");
        report.bars.push(Bar::at_least(name, ratio.median, 0.99));
    }
    report.tables.push(table);
    Ok(())
}

/// What `corewise run` adds to the time of a program that ends at once: `true`, and an interpreter into which the
/// adapters are loaded.
fn starts_of_run(context: &Context, report: &mut Report) -> Result<()> {
    let manager = Manager::start(context, "balanced")?;
    let corewise = Corewise::new(context)?;
    let python = context.python()?.to_string_lossy().into_owned();
    let mut table = Table::new(
        "what `corewise run --as-is` adds",
        &["to", "median", "unit"],
    );
    for (name, words) in [
        ("true", vec!["true"]),
        ("python", vec![python.as_str(), "-c", "pass"]),
    ] {
        let plain = Job::new(words);
        let managed = corewise
            .job(&["run", "--quiet", "--as-is"], &plain)
            .with("COREWISE_RUNTIME_DIR", manager.folder().to_string_lossy());
        let mut added = Vec::new();
        for round in 0..context.rounds(31, 5) {
            let [with, without] = pair(round, &managed, &plain, wall)?;
            added.push((with - without) * 1e3);
        }
        let cells = [name.to_owned(), number(median(&added)), "ms".to_owned()];
        table.row(cells);
        report.figure(format!("run_{name}_ms"), median(&added));
    }
    report.tables.push(table);
    Ok(())
}

fn differences(context: &Context, folder: &Path, report: &mut Report) -> Result<()> {
    let program = compiled(context, "regions.c", folder)?;
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
    let locks = locks(context, &led, folder)?;
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
    for lock in &locks {
        for (when, name, added) in [
            ("counting", "counting", &lock.counting),
            ("not counting", "loaded", &lock.loaded),
        ] {
            let (value, unit) = (median(added), "ns".to_owned());
            table.row([format!("{}, {when}", lock.what), number(value), unit]);
            report.figure(format!("{}_{name}_ns", lock.name), value);
        }
        report.figure(format!("{}_plain_ns", lock.name), median(&lock.plain));
    }
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
    if let Some(mutex) = locks.first() {
        report.bars.push(Bar::at_most(
            "per uncontended lock and unlock of a mutex while counting, ns (at most)",
            median(&mutex.counting),
            5.0,
        ));
    }
    report.bars.push(Bar::at_most(
        "start-up, ms (at most)",
        median(&starts),
        10.0,
    ));
    Ok(())
}

/// What is added to locking and unlocking one kind of lock that nobody else wants, each round; and what it takes
/// without. Nanoseconds.
struct Lock {
    what: &'static str,
    name: &'static str,
    counting: Vec<f64>,
    loaded: Vec<f64>,
    plain: Vec<f64>,
}

/// Measures locks: with the adapters counting, loaded only, and without, in turn.
fn locks(context: &Context, led: &Led, folder: &Path) -> Result<Vec<Lock>> {
    let program = compiled(context, "locks.c", folder)?;
    let plain = Job::new([program.into_os_string(), LOCKS.to_string().into()]);
    let adapted = led.job(plain.clone())?;
    let lock = |(what, name)| Lock {
        what,
        name,
        counting: Vec::new(),
        loaded: Vec::new(),
        plain: Vec::new(),
    };
    let mut all: Vec<Lock> = [
        ("a mutex, locked and unlocked", "mutex"),
        ("a semaphore, waited for and posted", "semaphore"),
        ("a read-write lock, written and unlocked", "rwlock"),
    ]
    .map(lock)
    .into();
    for round in 0..context.rounds(21, 3) {
        let mut times = [[0.0; 3]; 3];
        for turn in 0..3 {
            // Each is first, second and last in turn.
            let which = (turn + round as usize) % 3;
            led.link().locks().count(which == 0);
            let job = if which == 2 { &plain } else { &adapted };
            times[which] = numbers(job)?;
        }
        for (kind, lock) in all.iter_mut().enumerate() {
            lock.counting.push(times[0][kind] - times[2][kind]);
            lock.loaded.push(times[1][kind] - times[2][kind]);
            lock.plain.push(times[2][kind]);
        }
    }
    led.link().locks().count(false);
    for lock in &all {
        context.say(format_args!(
            "{}: {:.1} ns, {:.1} more while counting, {:.1} while not",
            lock.what,
            median(&lock.plain),
            median(&lock.counting),
            median(&lock.loaded)
        ));
    }
    Ok(all)
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
    let [region, piece] = numbers(job)?;
    Ok((region, piece))
}

/// The numbers that a job prints.
fn numbers<const N: usize>(job: &Job) -> Result<[f64; N]> {
    let run = job.output(LONGEST)?.success(job)?;
    let text = String::from_utf8_lossy(&run.stdout);
    let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers.try_into() {
        Ok(numbers) => Ok(numbers),
        Err(_) => bail!("`{}` printed {text:?}", job.text()),
    }
}

fn wall(job: &Job) -> Result<f64> {
    let run = job.run(LONGEST).context("no shell")?.success(job)?;
    Ok(run.wall_seconds)
}
