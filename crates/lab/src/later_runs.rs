//! Experiment `later-runs`: real programs, each run again and again by `corewise run`, once with trials of other
//! numbers of threads and once without, interleaved: what trials cost, and what they win.

use anyhow::Result;

use crate::cells::Condition;
use crate::corewise::{Corewise, Ran};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::programs::Catalogue;
use crate::stats::median;

/// Programs that are told their number in an argument; those whose regions are searched while they run try nothing.
const PROGRAMS: [&str; 3] = ["zstd", "xz", "pbzip2"];

/// Runs of each program, of each kind.
const RUNS: u32 = 30;

/// Of the catalogue's inputs: runs of some seconds, beside which a probe is not long.
const SCALE: f64 = 1.2;

/// Of the last so many runs the median is taken.
const LAST: usize = 10;

/// Measures each program.
///
/// # Errors
/// If a program is not installed, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "later-runs",
        "`corewise run` again and again, with a history of its own: with trials of other numbers of threads, and with \
         --no-trials",
        "all in the lab's",
    );
    let catalogue = Catalogue::read(context)?;
    let mut table = Table::new(
        "programs' own runs, alone",
        &[
            "program",
            "found",
            "last",
            "trials",
            "runs undisturbed",
            "last runs, s",
            "without trials, s",
            "ratio",
            "all runs, s",
            "without trials, s",
            "ratio",
        ],
    );
    let (mut all_tries, mut all_keeps) = (0.0, 0.0);
    for name in context.pick(&PROGRAMS) {
        let program = catalogue.program(name)?;
        catalogue.installed(program)?;
        let job = catalogue.template(program, SCALE)?;
        let tries = Corewise::new(context)?;
        let keeps = tries.forgetful()?;
        let alone = Condition::Alone.set_up()?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 0..context.rounds(RUNS, 4) {
            let one = |corewise: &Corewise, words: &[&str], into: &mut Vec<Ran>| -> Result<()> {
                into.push(corewise.run_with(words, &job, &alone)?);
                Ok(())
            };
            // Whoever comes first has the colder files.
            let trying: &[&str] = &["--alone"];
            let keeping: &[&str] = &["--alone", "--no-trials"];
            if round % 2 == 0 {
                one(&tries, trying, &mut with)?;
                one(&keeps, keeping, &mut without)?;
            } else {
                one(&keeps, keeping, &mut without)?;
                one(&tries, trying, &mut with)?;
            }
            if let Some(last) = with.last().filter(|ran| ran.trial) {
                context.say(format_args!(
                    "{name}, run {}: a trial with {} threads, {:.2} s",
                    round + 1,
                    last.setting,
                    last.run_seconds
                ));
            }
        }
        let seconds = |of: &[Ran]| of.iter().map(|ran| ran.run_seconds).collect::<Vec<_>>();
        let last = |of: &[Ran]| median(&seconds(&of[of.len().saturating_sub(LAST)..]));
        // The search before the first run is no part of a run; probes before trials are part of what trials cost.
        let whole = |of: &[Ran]| -> f64 {
            let later = of.iter().skip(1);
            later.map(|ran| ran.whole_seconds).sum::<f64>() + of[0].run_seconds
        };
        let (all, kept) = (whole(&with), whole(&without));
        let trials = with.iter().filter(|ran| ran.trial).count();
        let undisturbed = with.iter().filter(|ran| ran.undisturbed).count();
        let number_of = |ran: Option<&Ran>| ran.map_or_else(String::new, |r| r.setting.to_string());
        table.row([
            name.to_owned(),
            number_of(with.first()),
            number_of(with.last()),
            trials.to_string(),
            format!("{undisturbed} of {}", with.len()),
            number(last(&with)),
            number(last(&without)),
            number(last(&with) / last(&without)),
            number(all),
            number(kept),
            number(all / kept),
        ]);
        report.figure(format!("{name}.trials"), trials as f64);
        report.figure(format!("{name}.undisturbed_runs"), undisturbed as f64);
        report.figure(
            format!("{name}.last_runs_over_without_trials"),
            last(&with) / last(&without),
        );
        report.figure(format!("{name}.all_runs_over_without_trials"), all / kept);
        all_tries += all;
        all_keeps += kept;
    }
    report.tables.push(table);
    report.bars.push(Bar::at_most(
        "all runs with trials and their probes over all without (at most)",
        all_tries / all_keeps,
        1.03,
    ));
    report.note(format!(
        "medians of the last {LAST} runs; all runs: {RUNS} of each kind, without the search before the first; trials may \
         cost 2 % of them, and runs of equal numbers differ by about as much"
    ));
    Ok(report)
}
