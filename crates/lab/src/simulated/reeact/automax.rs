//! `sim-automax`: a program that can grow and shrink beside waves of one, two and three jobs of one thread, under
//! AutoMax and with fixed numbers of threads, on the simulated four-core machine (REEact, section 4.2 and Figure 5).
//!
//! The text says to which fixed number AutoMax's times are closest, in each panel: that is what is held.

use anyhow::{Context as _, Result};
use corewise_decide::policy::source::Source;
use corewise_decide::status::Placement;
use corewise_sim::machine::SimMachine;
use corewise_sim::scenario::{Entry, Managed, NextWave, Scenario};

use super::{entry, machine, ran};
use crate::experiment::{Bar, Context, Report, Table, number};

/// What the text says of a panel: to which fixed number of threads the program's time is closest, and the jobs'.
struct Panel {
    letter: char,
    jobs: u32,
    program: u32,
    job: u32,
}

const PANELS: [Panel; 3] = [
    Panel {
        letter: 'a',
        jobs: 1,
        program: 4,
        job: 3,
    },
    Panel {
        letter: 'b',
        jobs: 2,
        program: 3,
        job: 3,
    },
    Panel {
        letter: 'c',
        jobs: 3,
        program: 3,
        job: 2,
    },
];

/// Policies that are run: the one of the paper, and those of corewise.
const POLICIES: [&str; 3] = ["automax-paper", "automax", "balanced"];

/// How the program is run.
#[derive(Clone, Copy)]
enum Way {
    Fixed(u32),
    Policy(&'static str),
}

/// Seconds of the program, and of the jobs in the mean.
type Times = (f64, f64);

/// One of the two times.
type Of = fn(&Times) -> f64;

/// Runs the experiment.
///
/// # Errors
/// If the machine's file is missing or wrong, or a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-automax",
        "simulated: a malleable program beside waves of jobs under AutoMax, against 1 to 4 fixed threads",
        "all in one",
    );
    let machine = machine(&context.root, "e5335.toml")?;
    let mut table = Table::new(
        "seconds: the program, and the jobs of a wave in the mean",
        &["panel", "jobs", "run as", "program", "jobs' mean"],
    );
    for panel in &PANELS {
        let fixed = (1..=4).map(|threads| once(&machine, panel.jobs, Way::Fixed(threads)));
        let fixed = fixed.collect::<Result<Vec<Times>>>()?;
        let mut add = |way: String, times: Times| {
            let cells = [panel.letter.to_string(), panel.jobs.to_string(), way];
            table.row(cells.into_iter().chain([number(times.0), number(times.1)]));
        };
        for (threads, times) in (1..).zip(&fixed) {
            add(format!("{threads} threads"), *times);
        }
        for policy in POLICIES {
            let times = once(&machine, panel.jobs, Way::Policy(policy))?;
            add(policy.to_owned(), times);
            let key = format!("{}_jobs_{}", panel.jobs, policy.replace('-', "_"));
            report.figure(format!("{key}_program_seconds"), times.0);
            report.figure(format!("{key}_job_seconds"), times.1);
            if policy == POLICIES[0] {
                judge(&mut report, panel, &fixed, times);
            }
        }
    }
    report.tables.push(table);
    report.note("the program: 800 CPU seconds in units of 10 ms for whoever comes first; jobs of 50 s, three waves, 30 s between them");
    report.note("the length of the program's work is not published");
    Ok(report)
}

fn judge(report: &mut Report, panel: &Panel, fixed: &[Times], times: Times) {
    let letter = panel.letter;
    let columns: [(&str, Of, u32); 2] = [
        ("program", |times| times.0, panel.program),
        ("jobs", |times| times.1, panel.job),
    ];
    for (what, of, papers) in columns {
        let ours = of(&times);
        let away = |times: &Times| (of(times) - ours).abs();
        let nearest = fixed.iter().map(away).fold(f64::INFINITY, f64::min);
        // Fixed numbers whose times are the same cannot be told apart.
        let same = |times: &Times| away(times) <= nearest + 0.01 * ours;
        let closest = (1_u32..).zip(fixed).filter(|(_, times)| same(times));
        let off = closest.map(|(threads, _)| f64::from(threads.abs_diff(papers)));
        report.bars.push(Bar::at_most(
            format!("Figure 5({letter}), {what}: threads from the fixed number that is closest in the paper, {papers} (at most)"),
            off.fold(f64::INFINITY, f64::min),
            0.0,
        ));
    }
    let pairs = || fixed.windows(2).map(|pair| (pair[0], pair[1]));
    let in_order = pairs().all(|(few, many)| many.0 < few.0 && many.1 >= few.1);
    report.bars.push(Bar::at_least(
        format!("Figure 5({letter}): with more fixed threads the program is faster and the jobs are not (1: so)"),
        f64::from(u8::from(in_order)),
        1.0,
    ));
    let starved = fixed.last().map_or(f64::NAN, |times| times.1);
    report.bars.push(Bar::at_most(
        format!(
            "Figure 5({letter}): jobs under AutoMax over jobs beside 4 fixed threads (at most)"
        ),
        times.1 / starved,
        0.95,
    ));
}

fn once(machine: &SimMachine, jobs: u32, way: Way) -> Result<Times> {
    let mut scenario = Scenario::new(format!("{jobs} jobs"), machine.clone());
    scenario.limit_ns = 4_000_000_000_000;
    let text = "name = \"blackscholes\"\nmalleable = true\n[[phase]]\n\
                region = { work_ms = 800_000, schedule = \"dynamic\", units = 80_000 }\n";
    let mut program = entry("blackscholes", text)?;
    match way {
        Way::Fixed(threads) => {
            program.threads = Some(threads);
            program.managed = None;
        }
        Way::Policy(name) => {
            scenario.policy = Some(Source::built_in(name));
            program.threads = Some(4);
            program.managed = Some(Managed::Malleable {
                min_threads: 1,
                max_threads: Some(4),
                placement: Placement::Any,
            });
        }
    }
    scenario.entries.push(program);
    scenario.entries.push(job(jobs)?);
    let report = ran(&scenario)?;
    let of = |name: &str| -> Vec<f64> {
        let ours = report.programs.iter().filter(|p| p.entry == name);
        ours.map(|p| p.wall_seconds).collect()
    };
    let jobs = of("job");
    let program = of("blackscholes").first().copied();
    let mean = jobs.iter().sum::<f64>() / jobs.len().max(1) as f64;
    Ok((program.context("the program has not run")?, mean))
}

fn job(count: u32) -> Result<Entry> {
    let text = "name = \"job\"\nthreads = 1\n[[phase]]\nserial = { work_ms = 50_000 }\n";
    let mut job = entry("job", text)?;
    job.threads = Some(1);
    job.count = count;
    job.start_ns = 10_000_000_000;
    job.waves = 3;
    job.next_wave = NextWave::Pause(30_000_000_000);
    job.managed = None;
    Ok(job)
}
