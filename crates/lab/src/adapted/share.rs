//! `share`: what Linux gives a busy thread of a session of its own, beside real programs of another session. By the
//! rule (sessions share first) it should have one CPU of two beside anything that wants more; `co-run` and the
//! searches count on that.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::experiment::{Context, Report, Table, number};
use crate::load::{Hog, Session, allowed_cpus};
use crate::programs::{Catalogue, Wait};
use crate::stats::estimate;

/// Programs with the part of their usual work that lasts for [`MEASURED`] beside a busy thread.
const PROGRAMS: [(&str, f64); 4] = [
    ("primesieve", 6.0),
    ("x265", 12.0),
    ("hackbench", 12.0),
    ("mariadb", 8.0),
];
/// Until a program does what it is run for: a server has to be started.
const STARTING: Duration = Duration::from_millis(2_500);
const MEASURED: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(120);

/// Runs the experiment; `--only NAME` takes one of the programs.
///
/// # Errors
/// If a program is not installed, fails, or ends too soon.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "share",
        "CPUs that one busy thread gets beside a program with as many threads as CPUs",
        "the busy thread in one session, the program in another",
    );
    let catalogue = Catalogue::read(context)?;
    let picked = context.pick(&PROGRAMS.map(|(name, _)| name));
    let cpus = u32::try_from(allowed_cpus()?.len())?.max(1);
    let mut table = Table::new(
        "CPUs that a busy thread gets",
        &["beside", "median", "from", "to"],
    );
    for (name, scale) in PROGRAMS.iter().filter(|(name, _)| picked.contains(name)) {
        let program = catalogue.program(name)?;
        catalogue.installed(program)?;
        let job = catalogue.job(program, cpus, Wait::Default, *scale)?;
        let job = job.under(["setsid", "--wait"]);
        let mut shares = Vec::new();
        for _ in 0..context.rounds(3, 1) {
            let running = job.start(false)?;
            std::thread::sleep(STARTING);
            let hog = Hog::start(Session::Own)?;
            let (before, began) = (hog.run_ns()?, Instant::now());
            std::thread::sleep(MEASURED);
            let used = hog.run_ns()?.saturating_sub(before) as f64;
            let share = used / began.elapsed().as_nanos() as f64;
            let still_runs = !has_ended(running.pid());
            let measured = Instant::now();
            drop(hog);
            running.finish(LONGEST)?.success(&job)?;
            if !still_runs {
                bail!("`{}` ended while it was measured beside", job.text());
            }
            context.say(format_args!(
                "{name}: {share:.3} CPUs; it ended {:.1} s later",
                measured.elapsed().as_secs_f64()
            ));
            shares.push(share);
        }
        let share = estimate(&shares);
        let cells = [share.median, share.low, share.high].map(number);
        table.row([(*name).to_owned()].into_iter().chain(cells));
        report.figure(format!("{name}.share"), share.median);
    }
    report.tables.push(table);
    Ok(report)
}

/// Whether a child of ours has ended, though nobody has waited for it yet.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything; then comes the state.
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z'))
}
