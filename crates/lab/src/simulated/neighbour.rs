//! `sim-neighbour`: why programs whose threads spin collapse beside one busy neighbour, with and without
//! autogroup: a program of many short parallel regions, spinning and blocking, one thread of it, and a
//! blocking pipeline, beside one busy thread, on 2, 8 and 24 CPUs; and where their threads' time goes.

use anyhow::{Context as _, Result};
use corewise_sim::report::ProgramReport;
use corewise_sim::scenario::{Scenario, read};
use corewise_sim::world::{Options, simulate};

use crate::experiment::{Bar, Context, Report, Table, number};

const CPUS: [u32; 3] = [2, 8, 24];

/// Longer than this, in virtual milliseconds, nobody waits.
const LIMIT_MS: u64 = 1_000_000;

/// What suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Spinning,
    Passive,
    OneThread,
    Pipeline,
}

const VICTIMS: [Victim; 4] = [
    Victim::Spinning,
    Victim::Passive,
    Victim::OneThread,
    Victim::Pipeline,
];

impl Victim {
    fn key(self) -> &'static str {
        match self {
            Victim::Spinning => "spinning",
            Victim::Passive => "passive",
            Victim::OneThread => "one_thread",
            Victim::Pipeline => "pipeline",
        }
    }

    fn said(self) -> &'static str {
        match self {
            Victim::Spinning => "short regions, spinning",
            Victim::Passive => "the same, blocking",
            Victim::OneThread => "the same, one thread",
            Victim::Pipeline => "pipeline, blocking",
        }
    }

    /// Its file and its number of threads.
    fn entry(self, cpus: u32) -> (&'static str, u32) {
        match self {
            Victim::Spinning => ("lightgbm.toml", cpus),
            Victim::Passive => ("lightgbm-passive.toml", cpus),
            Victim::OneThread => ("lightgbm.toml", 1),
            Victim::Pipeline => ("pbzip2.toml", cpus),
        }
    }
}

/// Beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    SameSession,
    OwnSession,
    /// Another session where sessions are nothing to the scheduler (`kernel.sched_autogroup_enabled=0`).
    WithoutAutogroup,
}

const CONDITIONS: [Beside; 4] = [
    Beside::Nothing,
    Beside::SameSession,
    Beside::OwnSession,
    Beside::WithoutAutogroup,
];

impl Beside {
    fn key(self) -> &'static str {
        match self {
            Beside::Nothing => "alone",
            Beside::SameSession => "same_session",
            Beside::OwnSession => "own_session",
            Beside::WithoutAutogroup => "without_autogroup",
        }
    }

    fn said(self) -> &'static str {
        match self {
            Beside::Nothing => "nothing",
            Beside::SameSession => "a busy thread, same session",
            Beside::OwnSession => "a busy thread, session of its own",
            Beside::WithoutAutogroup => "the same, autogroup off",
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// If a program's file is missing or wrong.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-neighbour",
        "simulated: programs beside one busy thread against the same programs alone, plain Linux",
        "as each row says",
    );
    let mut table = Table::new(
        "a program with a thread for each CPU beside one busy thread; where its threads' time goes, in %",
        &[
            "program",
            "CPUs",
            "beside",
            "seconds",
            "slow-down",
            "works",
            "spins",
            "waits for a CPU",
            "blocked",
        ],
    );
    for cpus in CPUS {
        for victim in VICTIMS {
            let mut alone = f64::NAN;
            for beside in CONDITIONS {
                let program = simulated(context, victim, cpus, beside)?;
                if beside == Beside::Nothing {
                    alone = program.wall_seconds;
                }
                let key = format!("{}_{}_{cpus}_cpus", victim.key(), beside.key());
                report.figure(format!("{key}_seconds"), program.wall_seconds);
                report.figure(format!("{key}_slow_down"), program.wall_seconds / alone);
                table.row(row(victim, cpus, beside, &program, alone));
            }
        }
        context.say(format_args!("{cpus} CPUs done"));
    }
    report.tables.push(table);
    judge(&mut report);
    notes(&mut report);
    Ok(report)
}

fn simulated(
    context: &Context,
    victim: Victim,
    cpus: u32,
    beside: Beside,
) -> Result<ProgramReport> {
    let (file, threads) = victim.entry(cpus);
    let autogroup = beside != Beside::WithoutAutogroup;
    let mut text = format!(
        "machine = \"flat:{cpus}\"\npolicy = \"none\"\nautogroup = {autogroup}\nlimit_ms = {LIMIT_MS}\n\
         [[program]]\nname = \"victim\"\nfile = \"../programs/{file}\"\nthreads = {threads}\n\
         session = \"terminal\"\n"
    );
    if beside != Beside::Nothing {
        let session = match beside {
            Beside::SameSession => "terminal",
            _ => "another terminal",
        };
        text += &format!(
            "[[program]]\nname = \"hog\"\nfile = \"../programs/hog.toml\"\nthreads = 1\n\
             managed = false\nbackground = true\nsession = \"{session}\"\n"
        );
    }
    let path = context
        .root
        .join("experiments/scenarios/sim-neighbour.toml");
    let scenario = Scenario::from_toml(&text, &path, &read)?;
    let outcome = simulate(&scenario, Options::default())?;
    let programs = outcome.report.programs.into_iter();
    let mut victims = programs.filter(|p| p.entry == "victim");
    victims.next().context("the program did not start")
}

fn row(
    victim: Victim,
    cpus: u32,
    beside: Beside,
    program: &ProgramReport,
    alone: f64,
) -> Vec<String> {
    let p = program;
    let blocked = p.lock_seconds + p.io_seconds;
    let all = p.run_seconds + p.wait_seconds + blocked;
    let percent = |seconds: f64| format!("{:.0}", 100.0 * seconds / all);
    let took = match p.end_seconds {
        Some(_) => number(p.wall_seconds),
        None => format!("over {}", number(p.wall_seconds)),
    };
    vec![
        victim.said().to_owned(),
        cpus.to_string(),
        beside.said().to_owned(),
        took,
        number(p.wall_seconds / alone),
        percent(p.run_seconds - p.spin_seconds),
        percent(p.spin_seconds),
        percent(p.wait_seconds),
        percent(blocked),
    ]
}

fn judge(report: &mut Report) {
    let seconds = |victim: Victim, beside: Beside, cpus: u32| {
        let key = format!("{}_{}_{cpus}_cpus_seconds", victim.key(), beside.key());
        report.figures.get(&key).copied().unwrap_or(f64::NAN)
    };
    let own = |victim| seconds(victim, Beside::OwnSession, 2);
    let mut bars = vec![
        Bar::at_least(
            "2 CPUs, neighbour in a session of its own: spinning over blocking",
            own(Victim::Spinning) / own(Victim::Passive),
            3.0,
        ),
        Bar::at_least(
            "2 CPUs, neighbour in a session of its own: spinning over one thread",
            own(Victim::Spinning) / own(Victim::OneThread),
            3.0,
        ),
    ];
    for cpus in CPUS {
        let own = seconds(Victim::Spinning, Beside::OwnSession, cpus);
        bars.push(Bar::at_least(
            format!("{cpus} CPUs, spinning: session of its own over without autogroup"),
            own / seconds(Victim::Spinning, Beside::WithoutAutogroup, cpus),
            1.0,
        ));
    }
    report.bars.extend(bars);
}

fn notes(report: &mut Report) {
    report.note(
        "why: at the end of a region everybody waits for the thread whose CPU the neighbour has; those \
         that spin meanwhile are busy for the scheduler, so that no CPU is idle that the thread could be \
         moved to, and they use up their group's share. Threads that block leave their CPU to it",
    );
    report.note(
        "a neighbour in a session of its own has as large a share of its CPU as all of the program's \
         threads have of all CPUs together: with two threads, the one beside it runs a third of the time; \
         the more threads the program has, the less is that thread's weight on its CPU",
    );
    report
        .note("one thread, and a pipeline that blocks, lose what the neighbour takes and no more");
}
