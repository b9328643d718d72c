//! `live-tuning`: programs whose regions want different numbers of threads: found while they run, against the best
//! number of each region by an exhaustive sweep.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::adapted::{Led, compiled};
use crate::cells::Condition;
use crate::corewise::Corewise;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::allowed_cpus;
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::programs::{Catalogue, Wait};
use crate::stats::median;

/// How often the made program does both of its regions: some twenty seconds.
const TIMES: u32 = 40_000;
const LONGEST: Duration = Duration::from_secs(300);
/// A region that takes less of the program's time than this is nobody's concern.
const CONCERN: f64 = 0.01;

/// Runs the experiment; `--only made` and `--only lightgbm-large` pick a program, `--only asked` and `--only unasked`
/// whether regions are searched by `--live` or as they are for everybody.
///
/// # Errors
/// If a program cannot be started, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "live-tuning",
        "`corewise run --live` without history, and once more with what it has found, against the same program with the best number of threads for each \
         region (made: every combination as its arguments; LightGBM: each region's mean time with each number, then \
         a run with the best numbers from the start), and as the runtime has it; unasked: `corewise run` of a program \
         whose number was found before, against the same with --no-live, in turn",
        "everything in the lab's session, the machine otherwise idle",
    );
    let mut table = Table::new(
        "medians in seconds",
        &[
            "program",
            "runtime's own",
            "best of each region",
            "live",
            "live/best",
            "comparing",
            "lost, of the run",
            "second run/best",
        ],
    );
    let parts = context.pick(&["made", "lightgbm-large"]);
    let ways = context.pick(&["asked", "unasked"]);
    if ways.contains(&"asked") {
        if parts.contains(&"made") {
            made(context, &mut report, &mut table)?;
        }
        if parts.contains(&"lightgbm-large") {
            real(context, "lightgbm-large", &mut report, &mut table)?;
        }
        report.tables.push(table);
    }
    if ways.contains(&"unasked") {
        unasked(context, &parts, &mut report)?;
    }
    Ok(report)
}

/// What it costs, or gains, that regions are searched although nobody has asked for it.
fn unasked(context: &Context, parts: &[&str], report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut table = Table::new(
        "unasked: medians in seconds",
        &[
            "program",
            "--no-live",
            "first run",
            "later runs",
            "first ÷",
            "later ÷",
        ],
    );
    for name in parts {
        let job = match *name {
            "made" => {
                let program = compiled(context, "regions.c", folder.path())?;
                let times = if context.quick { TIMES / 8 } else { TIMES / 4 };
                let words = ["two", "0", "0", &times.to_string()].map(str::to_owned);
                let program = program.to_string_lossy().into_owned();
                Job::new([program].into_iter().chain(words))
            }
            name => {
                let catalogue = Catalogue::read(context)?;
                catalogue.template(
                    catalogue.program(name)?,
                    if context.quick { 0.5 } else { 2.0 },
                )?
            }
        };
        let mut seconds = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..context.rounds(7, 2) {
            let usual = Usual::new(context, &job)?;
            for which in 0..3 {
                // --no-live is now the first and now the last of three.
                let first = usize::from(round % 2 == 0);
                let (which, words) = match (which + first) % 3 {
                    0 => (0, &["--no-live"][..]),
                    1 => (1, &[][..]),
                    _ => (2, &[][..]),
                };
                seconds[which].push(usual.seconds(words)?);
            }
            let last = seconds
                .each_ref()
                .map(|s| s.last().copied().unwrap_or(f64::NAN));
            context.say(format_args!(
                "{name}, round {}: {:.2} s with --no-live, {:.2} s first, {:.2} s later",
                round + 1,
                last[0],
                last[1],
                last[2]
            ));
        }
        let [none, first, later] = seconds.each_ref().map(|seconds| median(seconds));
        let cells = [none, first, later, first / none, later / none].map(number);
        table.row([(*name).to_owned()].into_iter().chain(cells));
        report.figure(format!("{name}.unasked_first"), first / none);
        report.figure(format!("{name}.unasked_later"), later / none);
        report.bars.push(Bar::at_most(
            format!("{name}: searched unasked, over --no-live (at most)"),
            first.max(later) / none,
            1.03,
        ));
    }
    report.tables.push(table);
    Ok(())
}

/// A program as `corewise run` runs it under a manager, when its number of threads has been found.
struct Usual<'a> {
    manager: Manager,
    corewise: Corewise,
    job: &'a Job,
}

impl<'a> Usual<'a> {
    fn new(context: &Context, job: &'a Job) -> Result<Usual<'a>> {
        let usual = Usual {
            manager: Manager::start(context, "balanced")?,
            corewise: Corewise::new(context)?,
            job,
        };
        let tune = usual.corewise.job(&["tune"], job);
        tune.run(LONGEST)?.success(&tune)?;
        Ok(usual)
    }

    fn seconds(&self, words: &[&str]) -> Result<f64> {
        let job = self
            .corewise
            .job(&[&["run", "--quiet"], words].concat(), self.job)
            .with(
                "COREWISE_RUNTIME_DIR",
                self.manager.folder().to_string_lossy(),
            );
        seconds(&job)
    }
}

/// What was measured of one program.
#[derive(Default)]
struct Times {
    own: Vec<f64>,
    best: Vec<f64>,
    live: Vec<f64>,
    searching: Vec<f64>,
    lost: Vec<f64>,
    again: Vec<f64>,
}

impl Times {
    fn tell(&self, name: &str, report: &mut Report, table: &mut Table) {
        let [own, best, live] = [&self.own, &self.best, &self.live].map(|times| median(times));
        let [searching, lost, again] =
            [&self.searching, &self.lost, &self.again].map(|times| median(times));
        table.row([
            name.to_owned(),
            number(own),
            number(best),
            number(live),
            number(live / best),
            number(searching),
            number(lost / live),
            number(again / best),
        ]);
        report.figure(format!("{name}.comparing_over_live"), searching / live);
        report.figure(format!("{name}.again_over_best"), again / best);
        report.figure(format!("{name}.live_over_best"), live / best);
        report.figure(format!("{name}.own_over_live"), own / live);
        report.bars.push(Bar::at_most(
            format!("{name}: live over the best of each region (at most)"),
            live / best,
            1.03,
        ));
        report.bars.push(Bar::at_most(
            format!("{name}: part of the run that slower numbers have lost (at most)"),
            lost / live,
            0.05,
        ));
    }
}

/// `corewise run --live` of a job, twice: without history, then with what was found.
fn live(context: &Context, job: &Job, all: &mut Times) -> Result<()> {
    let corewise = Corewise::new(context)?;
    let first = corewise.run_live(job, &Condition::Alone.set_up()?)?;
    let second = corewise.run_live(job, &Condition::Alone.set_up()?)?;
    context.say(format_args!(
        "live {:.2} s, {:.2} s of them comparing, {:.3} s lost; then {:.2} s, {:.3} s lost",
        first.run_seconds,
        first.searching_seconds,
        first.lost_seconds,
        second.run_seconds,
        second.lost_seconds,
    ));
    all.live.push(first.run_seconds);
    all.searching.push(first.searching_seconds);
    all.lost.push(first.lost_seconds);
    all.again.push(second.run_seconds);
    Ok(())
}

fn made(context: &Context, report: &mut Report, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compiled(context, "regions.c", folder.path())?;
    let cpus = u32::try_from(allowed_cpus()?.len())?.max(1);
    let times = if context.quick { TIMES / 8 } else { TIMES };
    let job = |first: u32, second: u32| {
        let words = [first, second, times].map(|number| number.to_string());
        let program = program.to_string_lossy().into_owned();
        Job::new([program, "two".to_owned()].into_iter().chain(words))
            .with("OMP_NUM_THREADS", cpus.to_string())
    };
    let mut swept: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
    let mut all = Times::default();
    for round in 0..context.rounds(5, 1) {
        for first in 1..=cpus {
            for second in 1..=cpus {
                let seconds = seconds(&job(first, second))?;
                swept.entry((first, second)).or_default().push(seconds);
            }
        }
        all.own.push(seconds(&job(0, 0))?);
        context.say(format_args!("made, round {}", round + 1));
        live(context, &job(0, 0), &mut all)?;
    }
    let best = swept
        .iter()
        .min_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)));
    let ((first, second), times) = best.context("there is no CPU")?;
    report.note(format!(
        "made: best with {first} threads in the first region and {second} in the second"
    ));
    all.best.clone_from(times);
    all.tell("made", report, table);
    Ok(())
}

fn seconds(job: &Job) -> Result<f64> {
    Ok(job.run(LONGEST)?.success(job)?.wall_seconds)
}

fn real(context: &Context, name: &str, report: &mut Report, table: &mut Table) -> Result<()> {
    let catalogue = Catalogue::read(context)?;
    let program = catalogue.program(name)?;
    catalogue.installed(program)?;
    let cpus = u32::try_from(allowed_cpus()?.len())?.max(1);
    let scale = if context.quick { 0.5 } else { 2.0 };
    let job = catalogue.job(program, cpus, Wait::Default, scale)?;
    let best = best_numbers(context, &job, cpus)?;
    let one = best.values().filter(|threads| **threads < cpus).count();
    report.note(format!(
        "{name}: {} regions of note, {one} of them best with fewer threads than CPUs",
        best.len()
    ));
    let mut all = Times::default();
    for round in 0..context.rounds(5, 1) {
        all.own.push(seconds(&job)?);
        let led = Led::new(context)?;
        for (key, threads) in &best {
            if let Some(region) = led.link().regions().region(*key) {
                region.give(*threads);
            }
        }
        led.link().regions().time(true);
        all.best.push(seconds(&led.job(job.clone())?)?);
        context.say(format_args!("{name}, round {}", round + 1));
        live(context, &job, &mut all)?;
    }
    all.tell(name, report, table);
    Ok(())
}

/// The number of threads with which each region of note is fastest, each number tried in whole runs.
fn best_numbers(context: &Context, job: &Job, cpus: u32) -> Result<BTreeMap<u64, u32>> {
    let mut means: BTreeMap<u64, Vec<(u32, f64)>> = BTreeMap::new();
    let mut note: BTreeMap<u64, u64> = BTreeMap::new();
    for threads in 1..=cpus {
        let led = Led::new(context)?;
        led.grant(threads);
        led.link().regions().time(true);
        seconds(&led.job(job.clone())?)?;
        for (_, timed) in led
            .link()
            .regions()
            .timed()
            .filter(|(_, timed)| timed.first.runs > 0)
        {
            let mean = timed.first.time_ns as f64 / timed.first.runs as f64;
            means.entry(timed.key).or_default().push((threads, mean));
            let most = note.entry(timed.key).or_default();
            *most = timed.first.time_ns.max(*most);
        }
    }
    if means.is_empty() {
        bail!("no region of `{}` was timed", job.text());
    }
    let all: u64 = note.values().sum();
    let best = means.into_iter().filter_map(|(key, means)| {
        let fastest = means.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        (*note.get(&key)? as f64 >= CONCERN * all as f64).then_some((key, fastest.0))
    });
    Ok(best.collect())
}
