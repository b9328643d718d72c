//! `race-same`: the verdicts on programs do not depend on who processes what they recorded, in what pieces, on
//! how many CPUs.

use std::time::Duration;

use anyhow::Result;

use super::{Cases, FOUND, raced};
use crate::experiment::{Bar, Context, Report, Table};
use crate::measure::Job;

const LONGEST: Duration = Duration::from_secs(60);
const STRATEGIES: [&str; 4] = ["sequential", "synchronous", "pool", "adaptive"];
const CAPACITIES: [&str; 3] = ["7", "256", "16384"];

/// Runs the experiment.
///
/// # Errors
/// If the programs do not compile or run.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "race-same",
        "the verdicts of corewise race on the same small programs, by strategy, capacity and CPUs",
        "one session",
    );
    let cases = Cases::compiled(context)?;
    let corewise = context.corewise()?;
    let mut table = Table::new(
        "programs whose verdict is wrong",
        &["strategy", "capacity", "CPUs", "programs"],
    );
    let mut wrong = 0;
    let mut runs = 0;
    for strategy in STRATEGIES {
        for capacity in CAPACITIES {
            for cpus in ["0", "all"] {
                let mut differing = Vec::new();
                for case in &cases.names {
                    let options = [
                        "--strategy",
                        strategy,
                        "--capacity",
                        capacity,
                        "--memory",
                        "256",
                    ];
                    let job = Job::new([cases.instrumented.as_os_str(), case.as_ref()]);
                    let mut job = raced(&corewise, &options, &job);
                    if cpus == "0" {
                        job = job.under(["taskset", "-c", "0"]);
                    }
                    let run = job.run(LONGEST)?;
                    runs += 1;
                    let found = run.status.code() == Some(FOUND);
                    if found != case.starts_with("race_") {
                        differing.push(case.as_str());
                    }
                }
                wrong += differing.len();
                if !differing.is_empty() {
                    table.row([strategy, capacity, cpus, &differing.join(" ")].map(str::to_owned));
                }
            }
        }
    }
    report.figure("runs", f64::from(runs));
    report.figure("wrong", wrong as f64);
    report.tables.push(table);
    report.bars.push(Bar::at_most(
        "runs whose verdict is not the program's",
        wrong as f64,
        0.0,
    ));
    report.note(
        "These are live runs, which differ in what happens when; the same log in all orders of its buffers is a \
         property test (crates/analyses/tests/race_same.rs).",
    );
    Ok(report)
}
