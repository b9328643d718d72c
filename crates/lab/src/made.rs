//! A made program that knows of itself what the experiment `readings` reads of it: how long its
//! threads ran, waited for locks and for a CPU, how often they were switched and migrated.
//!
//! The lab starts itself again with the argument [`ARGUMENT`] and what to do. The program begins
//! when it reads a line, prints what it knows as one JSON object, and ends when its standard input
//! ends. Every thread is pinned, so that each of its migrations is its own doing.
//!
//! Safety: `getrusage` fills a structure that lives across the call.
#![allow(unsafe_code)]

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::thread::CpuSet;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::actor::clock_ns;

/// The first argument that makes the lab be this program.
pub const ARGUMENT: &str = "made-program";

/// How often a waiting thread waits for its lock, a sleeping one sleeps, a moving one moves.
const WAITS: u32 = 40;
const SLEEPS: u32 = 2000;
const MOVES: u32 = 400;

/// What a thread knows of itself; what it has no way to know is `None`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Known {
    /// The thread's number.
    pub tid: i32,
    /// What it did: `waits`, `sleeps`, `moves` or `competes`.
    pub does: String,
    /// Time on a CPU, by the thread's own CPU clock.
    pub run_ns: u64,
    /// Time runnable without a CPU: what passed while it never blocked, less its run time.
    pub cpu_wait_ns: Option<u64>,
    /// Time blocked on locks: what passed in waiting calls, less run time and CPU wait in them.
    pub lock_ns: Option<u64>,
    /// Switches by `getrusage`; for a thread that only sleeps, the number of its sleeps.
    pub voluntary_switches: u64,
    /// Switches by `getrusage`.
    pub involuntary_switches: u64,
    /// Changes of CPU that it made itself.
    pub migrations: u64,
}

/// Is this process to be the made program? Then it is, and the exit code comes back.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        return None;
    }
    let what = arguments.next().unwrap_or_default();
    Some(match run(&what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("made program: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn run(what: &str) -> Result<()> {
    let cpus = own_cpus()?;
    pin(cpus[0])?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match what {
        "stay" => print(&everything(&cpus, false)?)?,
        "end" => print(&everything(&cpus, true)?)?,
        "crowd" => crowd(),
        _ => bail!("{what:?} is none of stay, end, crowd"),
    }
    while std::io::stdin().lock().read_line(&mut line)? > 0 {}
    Ok(())
}

fn print(known: &[Known]) -> Result<()> {
    println!("{}", serde_json::to_string(known)?);
    Ok(())
}

/// 64 threads, each of which works for a moment about a hundred times a second.
fn crowd() {
    for _ in 0..63 {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_millis(8));
                work(Duration::from_micros(50));
            }
        });
    }
}

/// All that the program can do; its threads end when they are done, or stay asleep.
fn everything(cpus: &[usize], end: bool) -> Result<Vec<Known>> {
    let (tell, told) = channel();
    let mut known = Vec::new();

    let round = Arc::new((Mutex::new(0u32), Condvar::new()));
    let mut threads = 0;
    for index in 0..4 {
        let round = Arc::clone(&round);
        start(&tell, end, cpus[index % cpus.len()], "waits", move || {
            waits(&round)
        });
        threads += 1;
    }
    for index in 0..2 {
        start(&tell, end, cpus[index % cpus.len()], "sleeps", sleeps);
        threads += 1;
    }
    if let [first, second, ..] = *cpus {
        start(&tell, end, first, "moves", move || moves(first, second));
        threads += 1;
    }
    for _ in 0..WAITS {
        std::thread::sleep(Duration::from_millis(25));
        *round.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        round.1.notify_all();
    }
    collect(&told, threads, &mut known)?;
    // Apart from the others, because these leave no CPU to them.
    for _ in 0..2 {
        for cpu in cpus {
            start(&tell, end, *cpu, "competes", competes);
        }
    }
    collect(&told, 2 * cpus.len(), &mut known)?;
    // Whoever ends has ended by now.
    std::thread::sleep(Duration::from_millis(50));
    Ok(known)
}

fn collect(told: &Receiver<Result<Known>>, count: usize, known: &mut Vec<Known>) -> Result<()> {
    let mut left = count;
    while left > 0 {
        // Not a blocking receive: the main thread's waits for a lock would have to be known too.
        match told.try_recv() {
            Ok(result) => {
                known.push(result?);
                left -= 1;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Ok(())
}

/// What a job knows besides what every thread knows.
#[derive(Default)]
struct Own {
    cpu_wait_ns: Option<u64>,
    lock_ns: Option<u64>,
    voluntary_switches: Option<u64>,
    migrations: u64,
}

fn start(
    tell: &Sender<Result<Known>>,
    end: bool,
    cpu: usize,
    does: &str,
    job: impl FnOnce() -> Result<Own> + Send + 'static,
) {
    let (tell, does) = (tell.clone(), does.to_owned());
    std::thread::spawn(move || {
        let _ = tell.send(be(cpu, does, job));
        if !end {
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
    });
}

fn be(cpu: usize, does: String, job: impl FnOnce() -> Result<Own>) -> Result<Known> {
    let moved = u64::from(pin(cpu)?);
    let before = usage();
    let own = job()?;
    let after = usage();
    let voluntary = after.ru_nvcsw.unsigned_abs();
    Ok(Known {
        tid: rustix::thread::gettid().as_raw_nonzero().get(),
        does,
        run_ns: cpu_clock(),
        cpu_wait_ns: own.cpu_wait_ns,
        lock_ns: own.lock_ns,
        voluntary_switches: own
            .voluntary_switches
            .map_or(voluntary, |count| before.ru_nvcsw.unsigned_abs() + count),
        involuntary_switches: after.ru_nivcsw.unsigned_abs(),
        migrations: moved + own.migrations,
    })
}

/// Waits for a condition whose lock all waiting threads share, and works a little in between.
fn waits(round: &(Mutex<u32>, Condvar)) -> Result<Own> {
    let mut lock_ns = 0;
    for turn in 1..=WAITS {
        let (start, run, wait) = (Instant::now(), cpu_clock(), cpu_wait()?);
        let mut now = round.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *now < turn {
            now = round.1.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        drop(now);
        let passed = nanoseconds(start.elapsed());
        lock_ns += passed.saturating_sub(cpu_clock() - run + (cpu_wait()? - wait));
        work(Duration::from_millis(1));
    }
    Ok(Own {
        lock_ns: Some(lock_ns),
        ..Own::default()
    })
}

fn sleeps() -> Result<Own> {
    for _ in 0..SLEEPS {
        std::thread::sleep(Duration::from_micros(300));
    }
    Ok(Own {
        voluntary_switches: Some(u64::from(SLEEPS)),
        ..Own::default()
    })
}

fn moves(first: usize, second: usize) -> Result<Own> {
    let mut migrations = 0;
    for turn in 0..MOVES {
        let to = if turn % 2 == 0 { second } else { first };
        migrations += u64::from(pin(to)?);
        work(Duration::from_micros(200));
    }
    Ok(Own {
        migrations,
        ..Own::default()
    })
}

/// Never blocks, so all time that it does not run it waits for a CPU.
fn competes() -> Result<Own> {
    let (start, run) = (Instant::now(), cpu_clock());
    work(Duration::from_secs(1));
    let ran = cpu_clock() - run;
    Ok(Own {
        cpu_wait_ns: Some(nanoseconds(start.elapsed()).saturating_sub(ran)),
        ..Own::default()
    })
}

fn work(time: Duration) {
    let end = Instant::now() + time;
    let mut x = 1u32;
    while Instant::now() < end {
        for _ in 0..500 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        }
        std::hint::black_box(x);
    }
}

/// Pins this thread; true if that moved it to another CPU.
fn pin(cpu: usize) -> Result<bool> {
    let before = rustix::thread::sched_getcpu();
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).context("this thread cannot be pinned")?;
    Ok(before != rustix::thread::sched_getcpu())
}

fn own_cpus() -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("the affinity cannot be read")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .take(2)
        .collect())
}

/// This thread's time on a CPU, in nanoseconds.
pub fn cpu_clock() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// This thread's time without a CPU though runnable, as the kernel tells the thread itself.
fn cpu_wait() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let field = text
        .split(' ')
        .nth(1)
        .context("schedstat has no second field")?;
    Ok(field.parse()?)
}

fn usage() -> libc::rusage {
    // SAFETY: a structure of integers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives across the call. It fails only for a wrong first argument.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
