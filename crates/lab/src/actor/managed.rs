//! The parts that a managed program plays.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use corewise_abi::message::{Join, ToManager, ToProgram};
use corewise_local::outside::{Outside, Program};
use corewise_program::{Claim, Cpus, Numa, Team};
use corewise_wire::{Channel, Folder};

use crate::manage::stage::join_as;

use super::{ARGUMENT, Beside, ReadCosts, Saw, Shared, now_ns, print, unit, wait_for_the_end};

/// More threads than any machine has CPUs: a program that can use whatever there is.
const ALL: u32 = 1024;

/// Shares units out among a team that follows its claim; gives their sum.
pub(super) fn team(units: u64, loops: u64, most: Option<u64>, done: &AtomicU64) -> Result<u64> {
    let claim = Claim::join("team");
    let most = most.map_or(ALL, |most| u32::try_from(most).unwrap_or(ALL));
    claim.invade(Cpus(1..=most), Numa::Any);
    let team = Team::new(&claim);
    let sum = AtomicU64::new(0);
    team.parallel_for(0..usize::try_from(units)?, 1, |range| {
        for index in range {
            sum.fetch_add(unit(index as u64, loops), Ordering::Relaxed);
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    claim.retreat(1);
    Ok(sum.into_inner())
}

/// A local manager beside a program nobody changed, as in `corewise run`; or only its parent.
pub(super) fn beside(words: &[String], how: &str) -> Result<()> {
    let own = std::env::current_exe().context("the lab cannot find itself")?;
    let mut command = match how {
        "outlived" => Command::new(own),
        _ => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(own);
            command
        }
    };
    let mut child = command
        .args([ARGUMENT, "fixed"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("could not start the program")?;
    let pid = i32::try_from(child.id())?;
    let mut output = BufReader::new(child.stdout.take().context("no output")?).lines();
    if output.next().context("the program did not begin")?? != "began" {
        bail!("the program said something else than that it began");
    }
    let outside = match how {
        "managed" | "outlived" => {
            let threads: u32 = words.last().context("no threads")?.parse()?;
            let program = Program::rigid(pid, "fixed".to_owned(), threads);
            let nobody = Box::new(|_: &Folder| Err("the lab starts the manager".to_owned()));
            let outside = Outside::start(program, Folder::of_user()?, nobody, None);
            Some(outside.context("no thread for the local manager")?)
        }
        _ => None,
    };
    println!("began {pid}");
    std::io::stdout().flush()?;
    let line = output.next().context("the program said nothing")??;
    if !child.wait()?.success() {
        bail!("the program failed");
    }
    drop(outside.map(Outside::finish));
    let program: Shared = serde_json::from_str(&line)?;
    print(&Beside { program })
}

/// Follows its claim, and says when it saw which generation.
pub(super) fn reader(sleeping: bool) -> Result<()> {
    let claim = Claim::join("reader");
    if !claim.is_managed() {
        bail!("there is no manager");
    }
    claim.invade(Cpus(1..=ALL), Numa::Any);
    // The lab ends its reader by killing it.
    let mut seen = claim.generation();
    say(&claim, seen, now_ns())?;
    loop {
        if sleeping {
            claim.wait_change(seen, None);
        } else {
            while claim.generation() == seen {
                std::hint::spin_loop();
            }
        }
        let seen_ns = now_ns();
        seen = claim.generation();
        say(&claim, seen, seen_ns)?;
    }
}

fn say(claim: &Claim, generation: u64, seen_ns: u64) -> Result<()> {
    print(&Saw {
        generation,
        threads: claim.threads(),
        seen_ns,
    })?;
    Ok(std::io::stdout().flush()?)
}

/// What reading the claim costs: the fastest of some tries, each of many reads.
pub(super) fn reads() -> Result<()> {
    const READS: u32 = 2_000_000;
    let claim = Claim::join("reads");
    claim.invade(Cpus(1..=ALL), Numa::Any);
    let cost = |read: &dyn Fn()| {
        let tries = (0..9).map(|_| {
            let began = Instant::now();
            read();
            began.elapsed().as_nanos() as f64 / f64::from(READS)
        });
        tries.fold(f64::INFINITY, f64::min)
    };
    let threads_ns = cost(&|| {
        for _ in 0..READS {
            std::hint::black_box(std::hint::black_box(&claim).threads());
        }
    });
    let words = std::thread::available_parallelism()?
        .get()
        .div_ceil(64)
        .max(1);
    let cpus_ns = cost(&|| {
        let mut set = vec![0; words];
        for _ in 0..READS {
            let read = std::hint::black_box(&claim).cpus_into(std::hint::black_box(&mut set));
            std::hint::black_box(read);
        }
    });
    print(&ReadCosts {
        managed: claim.is_managed(),
        threads_ns,
        cpus_ns,
    })
}

/// Joins, and stays until its input ends; into `file`, if there is one, it writes when it came to its end:
/// nobody wakes for it, as the reader of a pipe would, to be in the way of what is measured.
pub(super) fn member(file: Option<&Path>) -> Result<()> {
    let claim = Claim::join("member");
    claim.invade(Cpus(1..=ALL), Numa::Any);
    println!("joined");
    std::io::stdout().flush()?;
    wait_for_the_end();
    if !claim.is_managed() {
        bail!("there was no manager at the end");
    }
    if let Some(file) = file {
        let mut file = std::fs::File::create(file)?;
        file.write_all(now_ns().to_string().as_bytes())?;
    }
    // As a program that returns from main: no destructors of ours, only the kernel's.
    std::process::exit(0)
}

/// Tries to read and to change the claim of another user's program.
pub(super) fn intruder(socket: &Path, pid: i32) -> Result<()> {
    let mut succeeded = 0;
    for folder in ["fd", "map_files"] {
        let listed = std::fs::read_dir(format!("/proc/{pid}/{folder}"));
        succeeded += u32::from(listed.is_ok_and(|files| files.count() > 0));
    }
    let join = ToManager::Join(Join {
        pid,
        ..join_as("intruder", 1, 1)
    });
    let set = ToManager::Override {
        pid,
        threads: 1,
        cpus: vec![0],
    };
    for message in [join, set, ToManager::Stop] {
        // Not let in at all is as good as refused.
        let Ok(channel) = Channel::connect(socket) else {
            continue;
        };
        if channel.send(&message, &[]).is_err() {
            continue;
        }
        let answer = channel.receive_within::<ToProgram>(Duration::from_secs(1));
        succeeded += u32::from(answer.is_ok_and(|received| {
            matches!(
                received.message,
                ToProgram::Welcome { .. } | ToProgram::Done
            )
        }));
    }
    println!("{succeeded}");
    Ok(())
}
