//! `gang-survive`: managers and hosts of gangs are killed at random moments. Nothing may stay stopped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corewise_machine::control::process::{processes_below, threads};
use rustix::process::{Pid, Signal, kill_process};

use crate::experiment::{Bar, Context, Report, Table};
use crate::gang::copies::{self, Endless, Program};
use crate::gang::pairs::as_gang;
use crate::manage::stage::Manager;
use crate::measure::Job;

/// Copies of the spinning program, with a thread for each CPU.
const COPIES: usize = 2;
/// They are given so long to begin taking turns.
const PATIENCE: Duration = Duration::from_secs(5);
/// Programs are watched so much longer than nothing may stay so.
const WATCHED_ON: Duration = Duration::from_millis(200);

/// Who is killed.
const KILLED: [&str; 3] = ["manager", "host", "both"];

/// How programs are kept from running out of their turn.
#[derive(Clone, Copy)]
struct Way {
    /// For `--only`.
    name: &'static str,
    /// Whether somebody traces them who does nothing, so that they cannot be stopped.
    traced: bool,
    /// Whether a process is kept from running by this, or was left so.
    holds: fn(i32) -> bool,
    /// What that is called.
    held: &'static str,
    /// Nothing may stay so for as long.
    limit: Duration,
    rounds: u32,
}

const WAYS: [Way; 2] = [
    Way {
        name: "stopped",
        traced: false,
        holds: is_stopped,
        held: "stopped",
        limit: Duration::from_millis(100),
        rounds: 200,
    },
    // They run all the while: it is about what was set being put back.
    Way {
        name: "traced",
        traced: true,
        holds: is_in_a_group,
        held: "in its group",
        limit: Duration::from_secs(1),
        rounds: 30,
    },
];

/// Runs the experiment: 200 rounds with programs that are stopped, 30 with those that come last, each with another
/// moment. `--only stopped` or `traced`.
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
    let picked = context.pick(&WAYS.map(|way| way.name));
    for way in WAYS.iter().filter(|way| picked.contains(&way.name)) {
        kill_some(context, way, &spin, &mut report)?;
    }
    Ok(report)
}

fn kill_some(context: &Context, way: &Way, spin: &Program, report: &mut Report) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(6);
    let mut found: [Found; 3] = Default::default();
    for round in 0..context.rounds(way.rounds, 9) {
        let which = round as usize % KILLED.len();
        let mut manager = Manager::start(context, "balanced")?;
        let gang = as_gang(context, &manager)?;
        let gang = |job: Job| match way.traced {
            true => gang(job.under(copies::TRACED)),
            false => gang(job),
        };
        let running = Endless::start(spin, COPIES, &gang)?;
        let found = &mut found[which];
        found.rounds += 1;
        found.without_turns += u32::from(!take_turns(&running, way));
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
        if which == 2 && way.traced {
            // What is left then the next manager puts back.
            manager.start_again()?;
        }
        let longest = longest_held(&bodies, way);
        found.longest_ms = found.longest_ms.max(longest.as_secs_f64() * 1e3);
        found.left += u32::from(longest >= way.limit);
        for pid in bodies {
            kill(Some(pid));
        }
    }
    let mut table = Table::new(
        format!("{} programs, by who was killed", way.name),
        &[
            "killed",
            "rounds",
            "took no turns before",
            &format!("{} for {} ms or more", way.held, way.limit.as_millis()),
            "longest, ms",
        ],
    );
    for (name, found) in KILLED.iter().zip(&found) {
        table.row([
            (*name).to_owned(),
            found.rounds.to_string(),
            found.without_turns.to_string(),
            found.left.to_string(),
            format!("{:.1}", found.longest_ms),
        ]);
        report.figure(format!("{}.{name}.longest_ms", way.name), found.longest_ms);
    }
    report.tables.push(table);
    let sum = |of: &dyn Fn(&Found) -> u32| f64::from(found.iter().map(of).sum::<u32>());
    report.figure(format!("{}.rounds", way.name), sum(&|f| f.rounds));
    report.bars.push(Bar::at_most(
        format!(
            "rounds in which {} ones stayed {} too long",
            way.name, way.held
        ),
        sum(&|f| f.left),
        0.0,
    ));
    report.bars.push(Bar::at_most(
        format!("rounds in which {} ones took no turns before", way.name),
        sum(&|f| f.without_turns),
        0.0,
    ));
    Ok(())
}

#[derive(Default)]
struct Found {
    rounds: u32,
    without_turns: u32,
    left: u32,
    longest_ms: f64,
}

fn kill(pid: Option<i32>) {
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // An error means that it has ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Whether each program has been seen to be kept from running.
fn take_turns(running: &Endless, way: &Way) -> bool {
    let began = Instant::now();
    let mut seen = [false; COPIES];
    while began.elapsed() < PATIENCE {
        for (seen, host) in seen.iter_mut().zip(running.pids()) {
            *seen |= processes_below(host).into_iter().any(way.holds);
        }
        if seen.iter().all(|seen| *seen) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    false
}

/// The longest time for which one of these processes is seen to be kept from running from now on. A group that was
/// left may be made again, for another manager's turns: of groups the time until they are left counts.
fn longest_held(pids: &[i32], way: &Way) -> Duration {
    let began = Instant::now();
    let mut watched: Vec<(i32, Option<Instant>)> = pids.iter().map(|pid| (*pid, None)).collect();
    let mut longest = Duration::ZERO;
    while began.elapsed() < way.limit + WATCHED_ON {
        watched.retain_mut(|(pid, since)| match (way.holds)(*pid) {
            true => {
                let since = since.get_or_insert_with(Instant::now);
                longest = longest.max(since.elapsed());
                true
            }
            false => {
                *since = None;
                !way.traced
            }
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

/// Whether a process is in a cgroup that was made for its program's turns.
fn is_in_a_group(pid: i32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
    groups.is_ok_and(|groups| groups.contains("corewise-"))
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
