//! `neighbour-comes-and-goes`: a busy process appears and disappears every few seconds beside a program that
//! nobody changed: managed, against an oracle that knows the moments and switches the number of threads at
//! them, against plain Linux, and against each fixed number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::adapted::Led;
use crate::cells::Condition;
use crate::corewise::Corewise;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::{Hog, Session, allowed_cpus};
use crate::manage::stage::Manager;
use crate::measure::{Job, Run};
use crate::programs::{Catalogue, Wait};
use crate::stats::median;

/// Each with how many times its usual work it is given, to last some fifteen seconds.
const PROGRAMS: [(&str, f64); 4] = [
    ("lightgbm-large", 6.0),
    ("numpy-svd", 10.0),
    ("numba-omp", 30.0),
    ("numba-tbb", 30.0),
];
/// How long the neighbour is there, and then away.
const PHASE: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(240);
const SESSIONS: [(&str, Session); 2] = [
    ("same-session", Session::Same),
    ("own-session", Session::Own),
];

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As many threads as CPUs, left alone.
    Plain,
    /// One thread.
    One,
    /// The number of threads switched by who knows when the neighbour comes and goes.
    Oracle,
    /// `corewise run`.
    Managed,
}

const WAYS: [Way; 4] = [Way::Plain, Way::One, Way::Oracle, Way::Managed];

/// One run.
struct Ran {
    seconds: f64,
    /// The part of one CPU that the neighbour had while it was there.
    neighbour: f64,
}

/// Runs the experiment.
///
/// # Errors
/// If a program or the manager cannot be started, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "neighbour-comes-and-goes",
        "`corewise run` under a manager (what it learned of the program on the idle machine is recalled), \
         against the same program whose number of threads is switched between one and one for each CPU at the \
         very moments when the neighbour comes and goes (the oracle), against one for each CPU and against one \
         throughout",
        "the program in the lab's session; the neighbour there, or in its own",
    );
    let catalogue = Catalogue::read(context)?;
    let mut table = Table::new(
        "medians in seconds; the neighbour's part of a CPU while it is there",
        &[
            "cell",
            "plain",
            "one",
            "oracle",
            "managed",
            "managed/oracle",
            "plain/managed",
            "neighbour: plain",
            "oracle",
            "managed",
        ],
    );
    let sessions = context.pick(&SESSIONS.map(|(name, _)| name));
    let picked = context.pick(&PROGRAMS.map(|(name, _)| name));
    for (name, scale) in PROGRAMS {
        if !picked.contains(&name) {
            continue;
        }
        for (session_name, session) in SESSIONS {
            if sessions.contains(&session_name) {
                let cell = Cell {
                    key: format!("{name}.{session_name}"),
                    program: name,
                    scale,
                    session,
                };
                cell.measure(context, &catalogue, &mut report, &mut table)?;
            }
        }
    }
    report.tables.push(table);
    Ok(report)
}

/// A program beside a neighbour.
struct Cell {
    key: String,
    program: &'static str,
    /// How many times its usual work.
    scale: f64,
    session: Session,
}

impl Cell {
    fn measure(
        &self,
        context: &Context,
        catalogue: &Catalogue,
        report: &mut Report,
        table: &mut Table,
    ) -> Result<()> {
        let Cell { key, session, .. } = self;
        let session = *session;
        let program = catalogue.program(self.program)?;
        catalogue.installed(program)?;
        let scale = if context.quick {
            self.scale / 2.0
        } else {
            self.scale
        };
        let cpus = u32::try_from(allowed_cpus()?.len())?.max(1);
        let manager = Manager::start(context, "balanced")?;
        let corewise = Corewise::new(context)?;
        let managed = catalogue.template(program, scale)?;
        let managed = managed.with("COREWISE_RUNTIME_DIR", manager.folder().to_string_lossy());
        // What is learned on the idle machine is recalled in the runs that count.
        corewise.run_managed(&managed, &Condition::Alone.set_up()?)?;
        let mut runs: [Vec<Ran>; WAYS.len()] = Default::default();
        for round in 0..context.rounds(5, 1) {
            for (way, runs) in WAYS.iter().zip(&mut runs) {
                let ran = match way {
                    Way::Plain => {
                        fixed(catalogue.job(program, cpus, Wait::Default, scale)?, session)?
                    }
                    Way::One => fixed(catalogue.job(program, 1, Wait::Default, scale)?, session)?,
                    Way::Oracle => {
                        let led = Led::new(context)?;
                        led.grant(cpus);
                        let job = led.job(catalogue.job(program, cpus, Wait::Default, scale)?)?;
                        let switch = |there: bool| led.grant(if there { 1 } else { cpus });
                        beside(session, switch, || {
                            Ok(job.run(LONGEST)?.success(&job)?.wall_seconds)
                        })?
                    }
                    Way::Managed => beside(
                        session,
                        |_| {},
                        || {
                            let ran =
                                corewise.run_managed(&managed, &Condition::Alone.set_up()?)?;
                            Ok(ran.run_seconds)
                        },
                    )?,
                };
                context.say(format_args!(
                    "{key}, round {}: {way:?} took {:.2} s, the neighbour had {:.2} CPUs",
                    round + 1,
                    ran.seconds,
                    ran.neighbour
                ));
                runs.push(ran);
            }
        }
        let seconds = |way: usize| median(&runs[way].iter().map(|r| r.seconds).collect::<Vec<_>>());
        let share = |way: usize| median(&runs[way].iter().map(|r| r.neighbour).collect::<Vec<_>>());
        let [plain, one, oracle, managed] = [0, 1, 2, 3].map(seconds);
        table.row([
            key.clone(),
            number(plain),
            number(one),
            number(oracle),
            number(managed),
            number(managed / oracle),
            number(plain / managed),
            number(share(0)),
            number(share(2)),
            number(share(3)),
        ]);
        report.figure(format!("{key}.managed_over_oracle"), managed / oracle);
        report.figure(format!("{key}.plain_over_managed"), plain / managed);
        report.figure(format!("{key}.one_over_managed"), one / managed);
        report.bars.push(Bar::at_most(
            format!("{key}: managed time over the oracle's (at most)"),
            managed / oracle,
            1.10,
        ));
        report.bars.push(Bar::at_least(
            format!("{key}: the neighbour's part, managed over plain (at least)"),
            share(3) / share(0),
            0.95,
        ));
        Ok(())
    }
}

fn fixed(job: Job, session: Session) -> Result<Ran> {
    beside(
        session,
        |_| {},
        || {
            let run: Run = job.run(LONGEST)?.success(&job)?;
            Ok(run.wall_seconds)
        },
    )
}

/// Runs a program beside a neighbour that comes and goes; `switch` is told when.
fn beside(
    session: Session,
    switch: impl Fn(bool) + Sync,
    program: impl FnOnce() -> Result<f64>,
) -> Result<Ran> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| come_and_go(session, &switch, &done));
        let seconds = program();
        done.store(true, Ordering::Relaxed);
        let neighbour = neighbour.join();
        Ok(Ran {
            seconds: seconds?,
            neighbour: neighbour.ok().context("the neighbour's thread failed")??,
        })
    })
}

/// Away for a phase, there for a phase, until the program has ended; the part of a CPU that the neighbour had
/// while it was there beside the program.
fn come_and_go(
    session: Session,
    switch: &(impl Fn(bool) + Sync),
    done: &AtomicBool,
) -> Result<f64> {
    let (mut had, mut there) = (0.0, 0.0);
    loop {
        if !pass(PHASE, done) {
            break;
        }
        let hog = Hog::start(session)?;
        switch(true);
        let (began, before) = (Instant::now(), hog.run_ns()?);
        let goes_on = pass(PHASE, done);
        had += (hog.run_ns()? - before) as f64 / 1e9;
        there += began.elapsed().as_secs_f64();
        drop(hog);
        switch(false);
        if !goes_on {
            break;
        }
    }
    Ok(had / there)
}

/// Lets so much time pass; false as soon as the program has ended.
fn pass(time: Duration, done: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if done.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
