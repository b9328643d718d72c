//! `gang-collective`: how long it takes to stop and to continue all threads of a program, and how much of the time
//! all threads of a set run at once.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use corewise_machine::control::process::threads;
use corewise_machine::control::turns::{Means, Seizing, Yielding, hurry};
use corewise_machine::undo::LogOnDemand;

use crate::adapted::compiled;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::gang::copies;
use crate::gang::pairs::{as_gang, managed};
use crate::gang::together::{Share, shares};
use crate::load::allowed_cpus;
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::stats::{median, paired_ratio, percentile};

/// Numbers of threads that are stopped at once.
const THREADS: [u32; 4] = [2, 4, 8, 64];
/// The program runs so long between two stops, and stands still so long.
const RUNS: Duration = Duration::from_millis(4);
const STANDS: Duration = Duration::from_millis(4);
/// Nothing here takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// What `--only` takes; each takes less than two minutes: switches by each means, two gangs by turns by each means (one
/// that is traced cannot be seized), and what it costs where there is no gang.
const PARTS: [&str; 5] = [
    "ptrace",
    "cpu.idle",
    "together",
    "together-traced",
    "hackbench",
];

/// Runs the experiment. `--only` takes its parts: see `PARTS`.
///
/// # Errors
/// If a program does not compile or start, or cannot be stopped.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "gang-collective",
        "stopping and continuing 2 to 64 spinning threads; two gangs of as many spinning threads as CPUs, by turns; and \
         hackbench where there is no gang, managed and plain",
        "one session",
    );
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let mut table = Table::new(
        "one collective switch, µs",
        &[
            "means",
            "threads",
            "stop",
            "p99",
            "worst",
            "go",
            "p99",
            "worst",
            "stopped without a CPU",
        ],
    );
    for part in context.pick(&PARTS) {
        match part {
            "together" => together(context, folder.path(), false, &mut report)?,
            "together-traced" => together(context, folder.path(), true, &mut report)?,
            "hackbench" => without_sets(context, &mut report)?,
            means => switches(context, folder.path(), means, &mut table, &mut report)?,
        }
    }
    if !table.rows.is_empty() {
        report.tables.push(table);
        report.note(
            "Stop: from the call until no thread of the program is on a CPU any more; threads that wait for a CPU then \
             find out when they get one. Go: until the last thread was let go. cpu.idle: until the kernel has taken \
             it; who comes last then is off its CPU at the scheduler's next tick.",
        );
    }
    Ok(report)
}

/// The paper's measure of what it costs where there is nothing to coschedule: messages between many threads
/// (hackbench), managed, against plain.
fn without_sets(context: &Context, report: &mut Report) -> Result<()> {
    let manager = Manager::start(context, "balanced")?;
    let under = managed(context, &manager, &[])?;
    let loops = if context.quick { "2000" } else { "10000" };
    let job = || {
        Job::new(
            ["hackbench", "-T", "-g", "2", "-l", loops]
                .map(str::to_owned)
                .to_vec(),
        )
    };
    let ways: [&dyn Fn(Job) -> Job; 2] = [&under, &|job| job];
    let mut seconds: [Vec<f64>; 2] = Default::default();
    for _ in 0..context.rounds(11, 3) {
        for (wrap, seconds) in ways.iter().zip(&mut seconds) {
            let job = wrap(job());
            let run = job.start(false)?.finish(LONGEST)?;
            seconds.push(run.success(&job)?.wall_seconds);
        }
    }
    report.figure("hackbench.managed_seconds", median(&seconds[0]));
    report.figure("hackbench.plain_seconds", median(&seconds[1]));
    report.bars.push(Bar::at_most(
        "hackbench without any set, managed over plain, median of pairs (at most)",
        paired_ratio(&seconds[0], &seconds[1]).median,
        1.021,
    ));
    Ok(())
}

/// What one number of threads showed, in µs.
#[derive(Default)]
struct Times {
    stop: Vec<f64>,
    go: Vec<f64>,
    awaited: u32,
}

fn switches(
    context: &Context,
    folder: &Path,
    means: &'static str,
    table: &mut Table,
    report: &mut Report,
) -> Result<()> {
    let spin = copies::spin(context, folder)?;
    for count in THREADS {
        let job = spin.endless(count);
        let started = job.start(false)?;
        let pid = i32::try_from(started.pid())?;
        // Not what --rounds says: of a few switches there is no 99th percentile.
        let rounds = if context.quick { 100 } else { 1_000 };
        // Tracing belongs to a thread; this one runs as those do that keep turns.
        let undo = folder.join("undo");
        let measured = std::thread::spawn(move || {
            let log = LogOnDemand::new(undo, "lab");
            let means: Box<dyn Means + '_> = match means {
                "ptrace" => Box::new(Seizing::of(pid)?),
                _ => Box::new(Yielding::of(pid, &log)?),
            };
            measure(pid, count, rounds, means)
        })
        .join();
        let _ = started.finish(Duration::ZERO);
        let (name, times) = measured.ok().context("a thread failed")??;
        let quantiles = |us: &[f64]| [median(us), percentile(us, 0.99), percentile(us, 1.0)];
        let (stop, go) = (quantiles(&times.stop), quantiles(&times.go));
        for (what, [median, p99, _]) in [("stop", stop), ("go", go)] {
            report.figure(format!("{name}.{count}.{what}_us_median"), median);
            report.figure(format!("{name}.{count}.{what}_us_p99"), p99);
        }
        let awaited = f64::from(times.awaited) / f64::from(rounds);
        let cells = [name.to_owned(), count.to_string()].into_iter();
        let cells = cells.chain(stop.into_iter().chain(go).map(number));
        table.row(cells.chain([format!("{awaited:.1} a stop")]));
        context.say(format!(
            "{count} threads: {:.1} µs to stop, {:.1} µs to go on",
            stop[0], go[0]
        ));
    }
    Ok(())
}

fn measure(
    pid: i32,
    count: u32,
    rounds: u32,
    mut means: Box<dyn Means + '_>,
) -> Result<(&'static str, Times)> {
    hurry();
    let began = Instant::now();
    while threads(pid).len() <= count as usize {
        if began.elapsed() > LONGEST {
            bail!("the program did not start its {count} threads");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut times = Times::default();
    for _ in 0..rounds {
        std::thread::sleep(RUNS);
        let stopped = means.stop()?;
        times.awaited += stopped.awaited;
        times
            .stop
            .push((stopped.last_ns - stopped.began_ns) as f64 / 1e3);
        std::thread::sleep(STANDS);
        means.look()?;
        times.go.push(let_go(means.as_mut())?);
    }
    Ok((means.name(), times))
}

/// Lets all go on. How long that took, in µs.
fn let_go(means: &mut dyn Means) -> Result<f64> {
    let began = Instant::now();
    while means.go().awaited > 0 {
        if began.elapsed() > LONGEST {
            bail!("the program does not go on");
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(began.elapsed().as_secs_f64() * 1e6)
}

/// Two gangs of as many spinning threads as CPUs, which are `traced` by somebody who does nothing, or by nobody.
fn together(context: &Context, folder: &Path, traced: bool, report: &mut Report) -> Result<()> {
    let program = compiled(context, "together.c", folder)?;
    let cpus = allowed_cpus()?.len();
    let seconds = if context.quick { 4 } else { 20 };
    let which = match traced {
        true => "two traced gangs by turns: share of the time, %",
        false => "two gangs by turns: share of the time, %",
    };
    let mut table = Table::new(
        which,
        &["run", "all of one set", "others took a CPU", "neither"],
    );
    let mut kept = Vec::new();
    for round in 0..context.rounds(5, 1) {
        let manager = Manager::start(context, "balanced")?;
        let gang = as_gang(context, &manager)?;
        let files = [0, 1].map(|copy| folder.join(format!("stretches-{copy}")));
        let started = files
            .iter()
            .map(|file| {
                let words = [
                    program.clone().into_os_string(),
                    cpus.to_string().into(),
                    seconds.to_string().into(),
                    file.clone().into_os_string(),
                ];
                let job = Job::new(words);
                let job = match traced {
                    true => job.under(copies::TRACED),
                    false => job,
                };
                gang(job).start(false)
            })
            .collect::<Result<Vec<_>>>()?;
        for started in started {
            let run = started.finish(LONGEST)?;
            if run.timed_out {
                bail!("{} did not end", program.display());
            }
        }
        let share: Share = shares(&files, cpus)?;
        table.row([
            (round + 1).to_string(),
            format!("{:.3}", share.together * 100.0),
            format!("{:.3}", share.others * 100.0),
            format!("{:.3}", share.apart * 100.0),
        ]);
        kept.push(share.together_without_others() * 100.0);
    }
    report.tables.push(table);
    let together = median(&kept);
    if traced {
        // The bar is the best means'.
        report.figure("together_traced_percent", together);
        return Ok(());
    }
    report.figure("together_percent", together);
    report.bars.push(Bar::at_least(
        "share of the time in which all threads of a set run at once, not counting CPUs taken by others, %",
        together,
        99.5,
    ));
    report.note(
        "A CPU was taken by others where a set's thread was away within its own slice, while no thread of the other \
         set ran. The first second and the last tenth of one are left out.",
    );
    Ok(())
}
