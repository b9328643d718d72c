//! The programs of the experiments about managing: the lab starts itself again with the argument
//! [`ARGUMENT`] and a part to play. What they print is one line of JSON each.
//!
//! - `job LOOPS`: one thread that does a fixed amount of work: a one-thread program.
//! - `fixed UNITS LOOPS THREADS`: a fixed number of threads that share out units of work of LOOPS
//!   each: a program as it is without management.
//! - `team UNITS LOOPS [THREADS]`: the same work done by a [`Team`](corewise_program::Team) that follows its
//!   claim.
//! - `beside UNITS LOOPS THREADS managed|alone|outlived`: a local manager, or only a parent, beside
//!   `fixed`, which dies with it; or a local manager whose program outlives it.
//! - `reader spinning|sleeping`: follows its claim, and says when it saw which generation.
//! - `reads`: says what reading its claim costs.
//! - `member [FILE]`: joins, and stays until its input ends; writes when it did into FILE.
//! - `intruder SOCKET PID`: tries to read and to change the claim of another user's program, and says in
//!   how many ways it could.
//! - `play FILE THREADS LOOPS_PER_MS`: does what a program's description says
//!   ([`crate::simulated::real::player`]).
//!
//! Work is loops, not CPU time: [`loops_per_ms`] says how many make a millisecond here.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

mod managed;

/// The first argument that makes the lab be one of these programs.
pub const ARGUMENT: &str = "managed-program";

/// The variable that says when to begin.
pub const START_AT: &str = "COREWISE_LAB_START_AT";

/// Is this process to be such a program? Then it is, and the exit code comes back.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        return None;
    }
    let words: Vec<String> = arguments.collect();
    Some(match play(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("managed program: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn play(words: &[String]) -> Result<()> {
    let number = |index: usize| -> Result<u64> {
        let word = words.get(index).context("an argument is missing")?;
        word.parse()
            .with_context(|| format!("{word:?} is no number"))
    };
    match words.first().map(String::as_str) {
        Some("job") => job(number(1)?),
        Some("fixed") => {
            let threads = usize::try_from(number(3)?)?;
            let units = number(1)?;
            let loops = number(2)?;
            shared_out(units, |done| fixed(units, loops, threads, done))
        }
        Some("team") => {
            let units = number(1)?;
            let loops = number(2)?;
            let most = if words.len() > 3 {
                Some(number(3)?)
            } else {
                None
            };
            shared_out(units, |done| managed::team(units, loops, most, done))
        }
        Some("beside") => {
            let how = words.get(4).map_or("alone", String::as_str);
            managed::beside(words.get(1..4).context("an argument is missing")?, how)
        }
        Some("reader") => managed::reader(words.get(1).is_some_and(|w| w == "sleeping")),
        Some("reads") => managed::reads(),
        Some("member") => managed::member(words.get(1).map(Path::new)),
        Some("play") => print(&crate::simulated::real::player::part(&words[1..])?),
        Some("intruder") => {
            let socket = words.get(1).context("an argument is missing")?;
            managed::intruder(Path::new(socket), i32::try_from(number(2)?)?)
        }
        other => bail!("{other:?} is no part that a program can play"),
    }
}

/// The monotonic clock in nanoseconds: the same for all processes.
pub fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// CPU time that this process has used, in nanoseconds.
fn run_ns() -> u64 {
    clock_ns(ClockId::ProcessCPUTime)
}

/// What a clock shows, in nanoseconds.
pub(crate) fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Work that no compiler leaves out: the result of `loops` steps that depend on each other.
pub fn work(loops: u64) -> u64 {
    let mut state = loops | 1;
    for _ in 0..loops {
        state = std::hint::black_box(state).wrapping_mul(6_364_136_223_846_793_005) ^ 1;
    }
    state
}

/// How many loops of [`work`] one CPU does in a millisecond: the best of some tries, so that others
/// on the machine do not matter.
pub fn loops_per_ms() -> u64 {
    let loops = 2_000_000;
    let best = (0..7)
        .map(|_| {
            let began = Instant::now();
            std::hint::black_box(work(loops));
            began.elapsed()
        })
        .min()
        .unwrap_or(Duration::from_millis(1));
    (loops as f64 / best.as_secs_f64() / 1000.0).max(1.0) as u64
}

/// When a job ran.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct JobRan {
    /// When it began to work, by the monotonic clock.
    pub began_ns: u64,
    /// When it was done.
    pub ended_ns: u64,
    /// CPU time that it used.
    pub run_ns: u64,
}

/// When a program saw which claim.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Saw {
    /// The claim's generation, as the program's library counts it.
    pub generation: u64,
    /// Its threads.
    pub threads: u32,
    /// When, by the monotonic clock.
    pub seen_ns: u64,
}

/// What reading a claim costs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadCosts {
    /// Whether a manager kept the claim.
    pub managed: bool,
    /// Generation and threads, in nanoseconds.
    pub threads_ns: f64,
    /// The CPU set, in nanoseconds.
    pub cpus_ns: f64,
}

/// What a local manager beside a program says at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// What the program said.
    pub program: Shared,
}

/// How a program that shares out work went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shared {
    /// When it began to work, by the monotonic clock.
    pub began_ns: u64,
    /// When all was done.
    pub ended_ns: u64,
    /// CPU time that it used.
    pub run_ns: u64,
    /// The sum of what the units gave: the same however they were shared out.
    pub sum: u64,
}

fn job(loops: u64) -> Result<()> {
    let began_ns = now_ns();
    let before_ns = run_ns();
    std::hint::black_box(work(loops));
    print(&JobRan {
        began_ns,
        run_ns: run_ns() - before_ns,
        ended_ns: now_ns(),
    })
}

/// What unit `index` gives. All are of the same length.
pub fn unit(index: u64, loops: u64) -> u64 {
    numbered(work(loops), index)
}

fn numbered(worked: u64, index: u64) -> u64 {
    worked.wrapping_add(index).rotate_left(7)
}

/// The sum of all units, without doing them all.
pub fn expected_sum(units: u64, loops: u64) -> u64 {
    let worked = work(loops);
    (0..units).fold(0, |sum: u64, index| {
        sum.wrapping_add(numbered(worked, index))
    })
}

/// Runs `body`, which counts units as they are done and gives their sum.
fn shared_out(units: u64, body: impl FnOnce(&AtomicU64) -> Result<u64>) -> Result<()> {
    let done = AtomicU64::new(0);
    // The lab waits for this line before it starts anything beside.
    println!("began");
    std::io::stdout().flush()?;
    wait_for_the_start();
    let began_ns = now_ns();
    let before_ns = run_ns();
    let sum = body(&done);
    let ended_ns = now_ns();
    if done.load(Ordering::Relaxed) != units {
        bail!(
            "{} of {units} units were done",
            done.load(Ordering::Relaxed)
        );
    }
    print(&Shared {
        began_ns,
        ended_ns,
        run_ns: run_ns() - before_ns,
        sum: sum?,
    })
}

/// Programs that are to begin at the same time are told when, by the monotonic clock.
fn wait_for_the_start() {
    let at = std::env::var(START_AT).ok().and_then(|at| at.parse().ok());
    let left = at.map_or(0, |at: u64| at.saturating_sub(now_ns()));
    std::thread::sleep(Duration::from_nanos(left));
}

fn fixed(units: u64, loops: u64, threads: usize, done: &AtomicU64) -> Result<u64> {
    let next = AtomicU64::new(0);
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= units {
                        return;
                    }
                    sum.fetch_add(unit(index, loops), Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    Ok(sum.into_inner())
}

fn print<T: Serialize>(value: &T) -> Result<()> {
    // Not println!: the lab may be gone.
    writeln!(std::io::stdout(), "{}", serde_json::to_string(value)?)?;
    Ok(())
}

/// Until the lab closes our input, or dies.
fn wait_for_the_end() {
    let mut rest = Vec::new();
    // An error means the same as the end.
    let _ = std::io::stdin().lock().read_to_end(&mut rest);
}
