//! `race-truth`: small programs with and without races: which tool finds which, and which finds what is not
//! there.

use std::time::Duration;

use anyhow::Result;

use super::{Cases, FOUND, raced, with_tsan};
use crate::experiment::{Bar, Context, Report, Table};
use crate::measure::Job;

const LONGEST: Duration = Duration::from_secs(60);
const TOOLS: [&str; 5] = ["happens-before", "lockset", "tsan", "helgrind", "drd"];
const OURS: usize = 0;
const TSAN: usize = 2;

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
    let cases = Cases::compiled(context)?;
    let corewise = context.corewise()?;
    let rounds = context.rounds(10, 2);
    let valgrind = Job::new(["valgrind", "--version"]).run(LONGEST).is_ok();
    if !valgrind {
        report.note("valgrind is missing (scripts/setup --programs): Helgrind and DRD did not run");
    }
    let job = |tool: &str, case: &str| match tool {
        "happens-before" | "lockset" => {
            let job = Job::new([cases.instrumented.as_os_str(), case.as_ref()]);
            raced(&corewise, &["--order", tool, "--memory", "256"], &job)
        }
        "tsan" => with_tsan(&Job::new([cases.instrumented.as_os_str(), case.as_ref()])),
        tool => Job::new([cases.plain.as_os_str(), case.as_ref()]).under([
            "valgrind".to_owned(),
            format!("--tool={tool}"),
            format!("--error-exitcode={FOUND}"),
            "-q".to_owned(),
        ]),
    };
    // For each tool and case, in how many runs it found something.
    let mut found = vec![vec![0; cases.names.len()]; TOOLS.len()];
    for round in 0..rounds {
        for (index, case) in cases.names.iter().enumerate() {
            for (tool, name) in TOOLS.iter().enumerate() {
                // A minute of valgrind says the same each time.
                let by_valgrind = tool > TSAN;
                if by_valgrind && (!valgrind || round > 0) {
                    continue;
                }
                let run = job(name, case).run(LONGEST)?;
                found[tool][index] += u32::from(run.status.code() == Some(FOUND));
            }
        }
    }
    let is_race = |index: usize| cases.names[index].starts_with("race_");
    let races = (0..cases.names.len())
        .filter(|index| is_race(*index))
        .count();
    let mut table = Table::new(
        format!(
            "{races} programs with races, {} without",
            cases.names.len() - races
        ),
        &["tool", "detected", "missed", "false alarms", "which"],
    );
    let mut worse = Vec::new();
    for (tool, name) in TOOLS.iter().enumerate() {
        if tool > TSAN && !valgrind {
            continue;
        }
        let any = |index: &usize| found[tool][*index] > 0;
        let all = 0..cases.names.len();
        let detected = all.clone().filter(|i| is_race(*i)).filter(any).count();
        let alarms = all.clone().filter(|i| !is_race(*i)).filter(any).count();
        let wrong = all.filter(|index| is_race(*index) != any(index));
        let wrong: Vec<_> = wrong.map(|index| cases.names[index].as_str()).collect();
        report.figure(format!("{name}.detected"), detected as f64);
        report.figure(format!("{name}.false_alarms"), alarms as f64);
        table.row([
            (*name).to_owned(),
            detected.to_string(),
            (races - detected).to_string(),
            alarms.to_string(),
            wrong.join(" "),
        ]);
    }
    let mut alarms_of_ours = 0;
    for (index, case) in cases.names.iter().enumerate() {
        let (ours, theirs) = (found[OURS][index], found[TSAN][index]);
        if is_race(index) && ours == 0 && theirs > 0 {
            worse.push(case.as_str());
        }
        alarms_of_ours += u32::from(!is_race(index) && ours > 0 && theirs == 0);
    }
    report.tables.push(table);
    report.bars.push(Bar::at_most(
        "happens-before: races that only ThreadSanitizer found",
        worse.len() as f64,
        0.0,
    ));
    report.bars.push(Bar::at_most(
        "happens-before: false alarms where ThreadSanitizer has none",
        f64::from(alarms_of_ours),
        0.0,
    ));
    report.note(format!(
        "{rounds} runs of each program under corewise and ThreadSanitizer, one under valgrind's tools; a race counts as \
         detected if one run found it. The programs are {}.",
        super::CASES
    ));
    Ok(report)
}
