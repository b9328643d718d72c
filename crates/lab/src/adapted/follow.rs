//! `follow`: how soon each runtime follows a change of its program's claim.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::actor::now_ns;
use crate::adapted::{Led, compiled};
use crate::experiment::{Context, Report, Table, number};
use crate::measure::Job;
use crate::stats::median;

/// A program that does not follow within this time does not follow.
const LONGEST: Duration = Duration::from_secs(10);

/// Runs the experiment.
///
/// # Errors
/// If a program cannot be started, or does not follow.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "follow",
        "the time from a change of the claim until the program's runtime acts by it: the beginning of its \
         first region of the new size, or its own setting",
        "everything in the lab's session, the machine otherwise idle",
    );
    let folder = tempfile::tempdir()?;
    let regions = compiled(context, "regions.c", folder.path())?;
    let libgomp = Job::new([regions.into_os_string(), "follow".into()]);
    let script = context.root.join("experiments/py/openblas_follow.py");
    let openblas = Job::new([context.python()?, script]);
    let runtimes = [
        (
            "libgomp",
            "regions of some 50 µs",
            libgomp.with("OMP_NUM_THREADS", "2"),
        ),
        (
            "OpenBLAS",
            "its setter is called",
            openblas.with("OPENBLAS_NUM_THREADS", "2"),
        ),
    ];
    let mut table = Table::new(
        "microseconds until a new claim is followed",
        &[
            "runtime",
            "shrinks: median",
            "worst",
            "grows: median",
            "worst",
            "what was seen",
        ],
    );
    for (name, seen, job) in runtimes {
        let (mut shrinks, mut grows) = (Vec::new(), Vec::new());
        let led = Led::new(context)?;
        let mut program = Program::start(&led.job(job)?)?;
        program.until("2")?;
        for _ in 0..context.rounds(200, 30) {
            for (threads, times) in [("1", &mut shrinks), ("2", &mut grows)] {
                // Not in step with the program's regions.
                std::thread::sleep(Duration::from_micros(1000 + fastrand::u64(..4000)));
                let began = now_ns();
                led.grant(threads.parse()?);
                let followed = program.until(threads)?;
                times.push(followed.saturating_sub(began) as f64 / 1e3);
            }
        }
        let worst = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        table.row([
            name.to_owned(),
            number(median(&shrinks)),
            number(worst(&shrinks)),
            number(median(&grows)),
            number(worst(&grows)),
            seen.to_owned(),
        ]);
        report.figure(format!("{name}.shrinks_median_us"), median(&shrinks));
        report.figure(format!("{name}.grows_median_us"), median(&grows));
    }
    report.tables.push(table);
    Ok(report)
}

/// A program that says when it follows.
struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    fn start(job: &Job) -> Result<Program> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&job.argv);
        command.envs(job.variables.iter().map(|(name, value)| (name, value)));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("could not start a program with setpriv (package util-linux)")?;
        let output = child.stdout.take().context("it has no output")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Program { child, lines })
    }

    /// Waits until it has so many threads; when it did.
    fn until(&mut self, threads: &str) -> Result<u64> {
        loop {
            let line = self
                .lines
                .recv_timeout(LONGEST)
                .context("the program does not follow")?;
            let (number, when) = line.split_once(' ').unwrap_or_default();
            if number == threads {
                return Ok(when.parse()?);
            }
            if when.is_empty() {
                bail!("the program said {line:?}");
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
