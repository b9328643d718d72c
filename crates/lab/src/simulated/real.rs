//! `sim-real`: what the simulated world says of this machine, against this machine. Made workloads are run
//! in both worlds from the same files; real programs are set against descriptions of them. The machine's
//! costs are fitted on one half of the made workloads; the other half and the real programs judge.
//!
//! Measured times are brought to one speed by calibration loops before and after each run ([`Speed`]): those
//! of made workloads by the loop that they consist of, those of real programs by one that is like them, and
//! to the speed at which their descriptions were made.
//! A run is taken again, a few times, while the speeds before and after it differ, or others or the
//! hypervisor took CPU time away.

pub mod calibrate;
pub mod costs;
pub mod model;
pub mod player;
pub mod workloads;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use corewise_sim::machine::SimMachine;

use crate::actor;
use crate::cells::Condition;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::allowed_cpus;
use crate::measure::{Job, Run};
use crate::programs::{Catalogue, Wait};
use crate::stats::{interleaved, median};
use calibrate::{Loop, Speed, Used, wait_for_quiet};
use costs::{FITTED, fit};
use player::Played;
use workloads::{Compared, Half, Workload};

/// Speeds before and after a run may differ by this part; of all CPU time, these parts may be stolen by the
/// hypervisor, or used by others.
const STEADY: f64 = 0.05;
const STOLEN: f64 = 0.01;
const OTHERS: f64 = 0.02;
/// So long is waited for a moment in which nobody else runs.
const PATIENCE: Duration = Duration::from_secs(20);
/// So often a run is taken again.
const AGAIN: u32 = 4;
/// No run takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Seeds of a prediction.
const SEEDS: std::ops::Range<u64> = 0..5;
/// The bars.
const WORST: f64 = 0.15;
const MEDIAN: f64 = 0.07;
/// The word of `--only` that judges anew what was measured before (the report in the folder of `--out`).
const JUDGE: &str = "judge";

/// Measured seconds of each workload, by name: one for each round.
type Measured = BTreeMap<String, Vec<f64>>;

/// Runs the experiment. `--only NAME` takes some workloads; `--only judge --out DIR` measures nothing and
/// takes the times of DIR/sim-real.json.
///
/// # Errors
/// If a workload cannot be run in either world.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-real",
        "times in the simulated world, with costs fitted on half of the made workloads, against \
         measured times at the same speed of the CPUs",
        "workloads and the hog of hog-same-session in the lab's session; the hog of hog-own-session in \
         its own; quota-1 in a control group",
    );
    let Compared {
        workloads: all,
        described_at,
    } = workloads::read(&context.root)?;
    let names = all.iter().map(|workload| &*workload.name);
    let names = context.pick(&names.collect::<Vec<_>>());
    let mut chosen = all.clone();
    chosen.retain(|workload| names.contains(&&*workload.name));
    let machine = model::machine(&context.root)?;
    let times = match context.names_any(&[JUDGE]) {
        true => measured_before(context, &mut chosen)?,
        false => measure(context, &chosen, described_at, &mut report)?,
    };
    judge(context, &chosen, &machine, &times, &mut report)?;
    Ok(report)
}

fn figure_of(name: &str) -> String {
    format!("{name}.measured_seconds")
}

fn measured_before(context: &Context, chosen: &mut Vec<Workload>) -> Result<BTreeMap<String, f64>> {
    let Some(out) = &context.out else {
        bail!("`--only {JUDGE}` needs `--out` with the folder of a report");
    };
    let path = out.join("sim-real.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    let time = |w: &Workload| report["figures"][figure_of(&w.name)].as_f64();
    chosen.retain(|workload| time(workload).is_some());
    let times = chosen
        .iter()
        .filter_map(|w| Some((w.name.clone(), time(w)?)));
    Ok(times.collect())
}

fn measure(
    context: &Context,
    chosen: &[Workload],
    described_at: f64,
    report: &mut Report,
) -> Result<BTreeMap<String, f64>> {
    let catalogue = Catalogue::read(context)?;
    wait_for_quiet(3 * PATIENCE);
    let reference = Reference {
        chain: fastest(Loop::Chain)?,
        histogram: described_at,
    };
    report.figure("reference_loops_per_ms", reference.chain * 1e6);
    report.figure(
        "reference_histogram_steps_per_ms",
        fastest(Loop::Histogram)? * 1e6,
    );
    let mut times = Measured::new();
    let mut pairs = Vec::new();
    let mut unsteady = 0;
    let rounds = context.rounds(7, 2);
    for (round, cell) in interleaved(0..chosen.len(), rounds, 4) {
        let workload = &chosen[cell];
        let one = steady(workload, &catalogue, reference)?;
        context.say(format_args!(
            "{}, round {} of {rounds}: {:.4} s (by the clock {:.4} s, {:.2} CPUs busy, speed {:.3} alone, {:.3} \
             both{})",
            workload.name,
            round + 1,
            one.seconds,
            one.wall_seconds,
            one.busy,
            one.speed.alone / reference.of(workload.calibration()),
            one.speed.both / reference.of(workload.calibration()),
            if one.off > 1.0 { "; unsteady" } else { "" },
        ));
        unsteady += u32::from(one.off > 1.0);
        if workload.calibration() == Loop::Chain {
            pairs.push(2.0 * one.speed.both / one.speed.alone);
        }
        let times = times.entry(workload.name.clone()).or_default();
        times.push(one.seconds);
    }
    report.figure("capacity", median(&pairs));
    report.figure("unsteady_runs", f64::from(unsteady));
    let spread = times.values().map(|times| {
        let mid = median(times);
        let off = times.iter().map(|time| (time / mid - 1.0).abs());
        median(&off.collect::<Vec<_>>())
    });
    report.figure(
        "measured_median_deviation",
        median(&spread.collect::<Vec<_>>()),
    );
    let medians = times
        .iter()
        .map(|(name, times)| (name.clone(), median(times)));
    Ok(medians.collect())
}

/// Speeds to which times are brought, in steps a nanosecond of one CPU.
#[derive(Clone, Copy)]
struct Reference {
    chain: f64,
    histogram: f64,
}

impl Reference {
    fn of(self, calibration: Loop) -> f64 {
        match calibration {
            Loop::Chain => self.chain,
            Loop::Histogram => self.histogram,
        }
    }
}

/// The fastest of a few measurements of one CPU.
fn fastest(of: Loop) -> Result<f64> {
    let speeds = (0..5).map(|_| Speed::measure(of));
    let speeds = speeds.collect::<Result<Vec<_>>>()?;
    Ok(speeds.iter().map(|speed| speed.alone).fold(0.0, f64::max))
}

/// One run.
struct One {
    /// What it would have taken at the reference's speed.
    seconds: f64,
    wall_seconds: f64,
    /// CPUs that were busy, the hog's included.
    busy: f64,
    speed: Speed,
    /// How unsteady the machine was.
    off: f64,
}

/// The steadiest of a few runs; the first that is steady enough.
fn steady(workload: &Workload, catalogue: &Catalogue, reference: Reference) -> Result<One> {
    let mut best: Option<One> = None;
    for _ in 0..=AGAIN {
        let one = once(workload, catalogue, reference)?;
        let is_steady = one.off <= 1.0;
        if best.as_ref().is_none_or(|best| one.off < best.off) {
            best = Some(one);
        }
        if is_steady {
            break;
        }
    }
    best.context("nothing was measured")
}

fn once(workload: &Workload, catalogue: &Catalogue, reference: Reference) -> Result<One> {
    let job = job(workload, catalogue, reference.chain)?;
    wait_for_quiet(PATIENCE);
    let before = Speed::measure(workload.calibration())?;
    let surroundings = workload.condition.set_up()?;
    let used = Used::now();
    let (run, hog) = surroundings.run(&job, TIMEOUT, workload.real.is_none())?;
    let used = Used::now().since(used);
    drop(surroundings);
    let after = Speed::measure(workload.calibration())?;
    let run = run.success(&job)?;
    let (run_seconds, own_seconds) = (run.wall_seconds, run.cpu_seconds());
    let (wall_seconds, cpu_seconds) = match workload.real {
        Some(_) => (run.wall_seconds, run.cpu_seconds()),
        None => played(&run, workload)?,
    };
    let busy = cpu_seconds / wall_seconds + hog.unwrap_or(0.0);
    let speed = before.mean(after);
    let all = run_seconds * allowed_cpus()?.len() as f64;
    let own = own_seconds + hog.unwrap_or(0.0) * run_seconds;
    // Ticks are counted whole: two of them say nothing.
    let others = (used.busy - own - 0.02).max(0.0);
    Ok(One {
        seconds: wall_seconds * speed.while_busy(busy) / reference.of(workload.calibration()),
        wall_seconds,
        busy,
        speed,
        off: (before.differs(after) / STEADY)
            .max(used.stolen / all / STOLEN)
            .max(others / all / OTHERS),
    })
}

/// Wall and CPU time that the player says.
fn played(run: &Run, workload: &Workload) -> Result<(f64, f64)> {
    let said = String::from_utf8_lossy(&run.stdout);
    let played: Played = serde_json::from_str(said.trim())
        .with_context(|| format!("the player of {} said {said:?}", workload.name))?;
    if let Some(work_ns) = workload.spec.work_ns()
        && work_ns.abs_diff(played.work_ns) > work_ns / 1000 + 1000
    {
        bail!(
            "{}: {} of {work_ns} ns of work were played",
            workload.name,
            played.work_ns
        );
    }
    let wall_ns = played.ended_ns - played.began_ns;
    Ok((wall_ns as f64 / 1e9, played.run_ns as f64 / 1e9))
}

fn job(workload: &Workload, catalogue: &Catalogue, reference: f64) -> Result<Job> {
    if let Some(real) = &workload.real {
        let program = catalogue.program(real)?;
        catalogue.installed(program)?;
        return catalogue.job(program, workload.threads, Wait::Default, 1.0);
    }
    let own = std::env::current_exe().context("the lab cannot find itself")?;
    let mut job = Job::new([own]);
    let words = [
        actor::ARGUMENT.to_owned(),
        "play".to_owned(),
        workload.file.display().to_string(),
        workload.threads.to_string(),
        format!("{}", reference * 1e6),
    ];
    job.argv.extend(words.map(Into::into));
    Ok(job)
}

/// Fits the costs on one half, and predicts everything.
fn judge(
    context: &Context,
    chosen: &[Workload],
    machine: &SimMachine,
    times: &BTreeMap<String, f64>,
    report: &mut Report,
) -> Result<()> {
    let fitted = chosen.iter().filter(|w| w.half == Half::Fitted);
    let fitted = fitted.collect::<Vec<_>>();
    let (costs, loss) = match fitted.is_empty() {
        true => (machine.costs, f64::NAN),
        false => fit(machine.costs, |costs| {
            let mut sum = 0.0;
            for workload in &fitted {
                let predicted = model::predict(workload, machine, *costs, SEEDS)?;
                sum += (predicted / times[&workload.name]).ln().powi(2);
            }
            Ok((sum / fitted.len() as f64).sqrt())
        })?,
    };
    context.say(format_args!("fitted: {costs:?}, off by {loss:.4}"));
    report.figure("fit.root_mean_square_error", loss);
    for cost in FITTED {
        report.figure(format!("fit.{}", cost.name), cost.of(&costs) as f64);
    }
    let columns = [
        "workload",
        "threads",
        "condition",
        "for",
        "measured",
        "predicted",
        "error",
    ];
    let mut table = Table::new("seconds", &columns);
    let mut errors = Vec::new();
    // Of each real program with one thread: measured over predicted.
    let mut alone = BTreeMap::new();
    for workload in chosen {
        let measured = times[&workload.name];
        let predicted = model::predict(workload, machine, costs, SEEDS)?;
        let error = predicted / measured - 1.0;
        let name = &workload.name;
        report.figure(figure_of(name), measured);
        report.figure(format!("{name}.predicted_seconds"), predicted);
        report.figure(format!("{name}.error"), error);
        if let Some(real) = &workload.real {
            let is_first = workload.threads == 1 && workload.condition == Condition::Alone;
            if is_first {
                alone.insert(real, measured / predicted);
            } else if let Some(slower) = alone.get(real) {
                let relative = predicted * slower / measured - 1.0;
                report.figure(format!("{name}.error_over_one_thread"), relative);
            }
        }
        let is_judged = workload.half == Half::Judged;
        if is_judged {
            errors.push((error.abs(), name.clone()));
        }
        table.row([
            name.clone(),
            workload.threads.to_string(),
            workload.condition.name().to_owned(),
            if is_judged { "judging" } else { "fitting" }.to_owned(),
            number(measured),
            number(predicted),
            format!("{:+.1} %", error * 100.0),
        ]);
    }
    report.tables.push(table);
    let all = errors.iter().map(|(error, _)| *error).collect::<Vec<_>>();
    report.bars.push(Bar::at_most(
        "median error of what judges (at most)",
        median(&all),
        MEDIAN,
    ));
    for (error, name) in errors {
        report.bars.push(Bar::at_most(
            format!("{name}: predicted against measured, error (at most)"),
            error,
            WORST,
        ));
    }
    report.note(
        "error_over_one_thread: how often as long as with one thread alone, predicted against measured: \
         without what the host's caches and memory did to the program's speed since it was described",
    );
    report.note(
        "measured: the median over rounds, each brought to the reference's speed by calibration loops \
         before and after it; predicted: the median over five seeds",
    );
    Ok(())
}
