//! `gang-survive`: managers and hosts of gangs are killed at random moments. Nothing may stay stopped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corewise_machine::control::process::{processes_below, threads};
use rustix::process::{Pid, Signal, kill_process};

use crate::experiment::{Bar, Context, Report, Table};
use crate::gang::copies::{self, Endless};
use crate::gang::pairs::as_gang;
use crate::manage::stage::Manager;

/// Copies of the spinning program, with a thread for each CPU.
const COPIES: usize = 2;
/// How long programs are watched after somebody was killed.
const WATCHED: Duration = Duration::from_millis(300);
/// They are given so long to begin taking turns.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who is killed.
const KILLED: [&str; 3] = ["manager", "host", "both"];

/// Runs the experiment: 200 rounds, each with another moment.
///
/// # Errors
/// If a program does not compile or start.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "gang-survive",
        "two spinning programs as gangs; the manager, a program's host, or both are killed (SIGKILL) at random moments",
        "one session",
    );
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let spin = copies::spin(context, folder.path())?;
    let mut random = fastrand::Rng::with_seed(6);
    let mut found: [Found; 3] = Default::default();
    for round in 0..context.rounds(200, 9) {
        let which = round as usize % KILLED.len();
        let mut manager = Manager::start(context, "balanced")?;
        let gang = as_gang(context, &manager)?;
        let running = Endless::start(&spin, COPIES, &gang)?;
        let found = &mut found[which];
        found.rounds += 1;
        found.without_turns += u32::from(!take_turns(&running));
        std::thread::sleep(Duration::from_micros(random.u64(0..150_000)));
        // The host goes first: its program must not be taken for one that has ended.
        let bodies: Vec<i32> = running
            .pids()
            .into_iter()
            .flat_map(processes_below)
            .collect();
        if which != 0 {
            kill(running.pids().first().copied());
        }
        if which != 1 {
            manager.kill()?;
        }
        let longest = longest_stopped(&bodies);
        found.longest_ms = found.longest_ms.max(longest.as_secs_f64() * 1e3);
        found.left_stopped += u32::from(longest >= WATCHED / 3);
        for pid in bodies {
            kill(Some(pid));
        }
    }
    let mut table = Table::new(
        "by who was killed",
        &[
            "killed",
            "rounds",
            "took no turns before",
            "stopped for 100 ms or more",
            "longest stop, ms",
        ],
    );
    for (name, found) in KILLED.iter().zip(&found) {
        table.row([
            (*name).to_owned(),
            found.rounds.to_string(),
            found.without_turns.to_string(),
            found.left_stopped.to_string(),
            format!("{:.1}", found.longest_ms),
        ]);
        report.figure(format!("{name}.longest_stop_ms"), found.longest_ms);
    }
    report.tables.push(table);
    let sum = |of: &dyn Fn(&Found) -> u32| f64::from(found.iter().map(of).sum::<u32>());
    report.figure("rounds", sum(&|f| f.rounds));
    report.bars.push(Bar::at_most(
        "rounds in which a thread stayed stopped for 100 ms or more",
        sum(&|f| f.left_stopped),
        0.0,
    ));
    report.bars.push(Bar::at_most(
        "rounds in which the programs took no turns before",
        sum(&|f| f.without_turns),
        0.0,
    ));
    Ok(report)
}

#[derive(Default)]
struct Found {
    rounds: u32,
    without_turns: u32,
    left_stopped: u32,
    longest_ms: f64,
}

fn kill(pid: Option<i32>) {
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // An error means that it has ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Whether each program has been seen stopped.
fn take_turns(running: &Endless) -> bool {
    let began = Instant::now();
    let mut seen = [false; COPIES];
    while began.elapsed() < PATIENCE {
        for (seen, host) in seen.iter_mut().zip(running.pids()) {
            *seen |= processes_below(host).into_iter().any(is_stopped);
        }
        if seen.iter().all(|seen| *seen) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    false
}

/// The longest time for which one of these processes is seen stopped from now on.
fn longest_stopped(pids: &[i32]) -> Duration {
    let began = Instant::now();
    let mut since: Vec<Option<Instant>> = vec![None; pids.len()];
    let mut longest = Duration::ZERO;
    while began.elapsed() < WATCHED {
        for (since, pid) in since.iter_mut().zip(pids) {
            match is_stopped(*pid) {
                true => {
                    let since = since.get_or_insert_with(Instant::now);
                    longest = longest.max(since.elapsed());
                }
                false => *since = None,
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

/// Whether a thread of this process is stopped: by a signal or a tracer.
fn is_stopped(pid: i32) -> bool {
    threads(pid).into_iter().any(|tid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat"));
        stat.is_ok_and(|stat| {
            let state = stat
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.chars().next());
            matches!(state, Some('t' | 'T'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_stopped_and_one_that_was_stopped_is() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        assert!(!is_stopped(pid));
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        let began = Instant::now();
        while !is_stopped(pid) {
            assert!(began.elapsed() < PATIENCE);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
