//! `race-truth`: small programs with and without races: which tool finds which, and which finds what is not
//! there.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::{Cases, FOUND, public, raced, with_tsan};
use crate::experiment::{Bar, Context, Report, Table};
use crate::measure::Job;

const LONGEST: Duration = Duration::from_secs(15);
const TOOLS: [&str; 5] = ["happens-before", "lockset", "tsan", "helgrind", "drd"];
const OURS: usize = 0;
const TSAN: usize = 2;

/// A program whose verdict is known.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Whether it has a data race.
    pub races: bool,
    /// Compiled with `-fsanitize=thread`.
    pub instrumented: Job,
    /// Compiled without, for valgrind's tools. `None`: it cannot be.
    pub plain: Option<Job>,
}

/// In how many runs which tool found something in a program.
struct Found {
    of: [u32; TOOLS.len()],
    /// The tool did not end in time, or cannot be tried.
    untried: [bool; TOOLS.len()],
}

/// Runs the experiment.
///
/// # Errors
/// If the programs do not compile, or a tool does not run.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "race-truth",
        "the verdicts of corewise race (both orders), ThreadSanitizer, Helgrind and DRD on the same small programs",
        "one session",
    );
    let corewise = context.corewise()?;
    let valgrind = Job::new(["valgrind", "--version"])
        .run(LONGEST)
        .is_ok_and(|run| run.status.success());
    if !valgrind {
        report.note("valgrind is missing (scripts/setup --programs): Helgrind and DRD did not run");
    }
    let rounds = context.rounds(10, 2);
    let cases = Cases::compiled(context)?;
    let own = cases.names.iter().map(|case| Program {
        name: case.clone(),
        races: case.starts_with("race_"),
        instrumented: Job::new([cases.instrumented.as_os_str(), case.as_ref()]),
        plain: Some(Job::new([cases.plain.as_os_str(), case.as_ref()])),
    });
    let own: Vec<_> = own
        .filter(|program| context.only.is_empty() || context.names_any(&[&program.name]))
        .collect();
    let public = public::compiled(context, valgrind)?;
    for (set, programs) in [("", &own), ("compiler-rt.", &public.programs)] {
        if !programs.is_empty() {
            let found = programs
                .iter()
                .map(|program| tried(context, program, &corewise, rounds, valgrind))
                .collect::<Result<Vec<_>>>()?;
            judge(&mut report, set, programs, &found);
        }
    }
    report.note(format!(
        "{rounds} runs of each program under corewise and ThreadSanitizer, or until something is found where there is \
         a race; one under valgrind's tools. A race counts as detected if one run found it. Our own programs are {}; \
         the others are compiler-rt's tests of ThreadSanitizer (Debian's LLVM 14): {} of their files have no verdict \
         on data races or need options, and gcc does not compile {}.",
        super::CASES,
        public.without_verdict,
        match public.not_compiled.as_slice() {
            [] => "none".to_owned(),
            files => files.join(", "),
        }
    ));
    Ok(report)
}

fn tried(
    context: &Context,
    program: &Program,
    corewise: &Path,
    rounds: u32,
    valgrind: bool,
) -> Result<Found> {
    let mut found = Found {
        of: [0; TOOLS.len()],
        untried: [false; TOOLS.len()],
    };
    for round in 0..rounds {
        for (tool, name) in TOOLS.iter().enumerate() {
            // A minute of valgrind says the same each time.
            let enough = tool > TSAN && round > 0 || program.races && found.of[tool] > 0;
            if found.untried[tool] || enough {
                continue;
            }
            let job = match *name {
                "happens-before" | "lockset" => Some(raced(
                    corewise,
                    &["--order", name, "--memory", "256"],
                    &program.instrumented,
                )),
                "tsan" => Some(with_tsan(&program.instrumented)),
                tool => program.plain.as_ref().filter(|_| valgrind).map(|plain| {
                    plain.under([
                        "valgrind".to_owned(),
                        format!("--tool={tool}"),
                        format!("--error-exitcode={FOUND}"),
                        "-q".to_owned(),
                    ])
                }),
            };
            let Some(job) = job else {
                found.untried[tool] = true;
                continue;
            };
            let run = job.run(LONGEST)?;
            found.of[tool] += u32::from(run.status.code() == Some(FOUND));
            if run.timed_out {
                context.say(format!("{name} does not end on {}", program.name));
                found.untried[tool] = true;
            }
        }
    }
    Ok(found)
}

fn judge(report: &mut Report, set: &str, programs: &[Program], found: &[Found]) {
    let races = programs.iter().filter(|program| program.races).count();
    let from = match set {
        "" => "our own",
        _ => "compiler-rt's tests",
    };
    let mut table = Table::new(
        format!(
            "{from}: {races} programs with races, {} without",
            programs.len() - races
        ),
        &[
            "tool",
            "detected",
            "missed",
            "false alarms",
            "not tried",
            "which",
        ],
    );
    let all = || programs.iter().zip(found);
    for (tool, name) in TOOLS.iter().enumerate() {
        let tried = || all().filter(|(_, found)| !found.untried[tool]);
        if tried().next().is_none() {
            continue;
        }
        let with = |racy: bool, seen: bool| {
            tried()
                .filter(move |(program, found)| {
                    program.races == racy && (found.of[tool] > 0) == seen
                })
                .count()
        };
        let (detected, missed, alarms) = (with(true, true), with(true, false), with(false, true));
        let wrong = tried().filter(|(program, found)| program.races != (found.of[tool] > 0));
        let wrong: Vec<_> = wrong.map(|(program, _)| program.name.as_str()).collect();
        report.figure(format!("{set}{name}.detected"), detected as f64);
        report.figure(format!("{set}{name}.missed"), missed as f64);
        report.figure(format!("{set}{name}.false_alarms"), alarms as f64);
        table.row([
            (*name).to_owned(),
            detected.to_string(),
            missed.to_string(),
            alarms.to_string(),
            (programs.len() - tried().count()).to_string(),
            wrong.join(" "),
        ]);
    }
    report.tables.push(table);
    let only = |racy: bool, ours: bool| {
        all()
            .filter(|(program, found)| {
                program.races == racy
                    && !found.untried[OURS]
                    && !found.untried[TSAN]
                    && (found.of[OURS] > 0) == ours
                    && (found.of[TSAN] > 0) != ours
            })
            .count()
    };
    report.bars.push(Bar::at_most(
        format!("{from}, happens-before: races that only ThreadSanitizer found"),
        only(true, false) as f64,
        0.0,
    ));
    report.bars.push(Bar::at_most(
        format!("{from}, happens-before: false alarms where ThreadSanitizer has none"),
        only(false, true) as f64,
        0.0,
    ));
}
