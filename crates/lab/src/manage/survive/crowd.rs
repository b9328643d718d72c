//! Many programs that join and leave, and another user.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use corewise_abi::message::Join;

use crate::actor;
use crate::experiment::{Bar, Context, Report};
use crate::manage::stage::{Manager, Player, join_as};

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    resident_kib: u64,
    files: usize,
}

impl Held {
    fn by(manager: &Manager) -> Result<Held> {
        let pid = manager.pid();
        let count = |path: String| -> Result<usize> { Ok(std::fs::read_dir(path)?.count()) };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident_kib = resident
            .and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok())
            .context("the manager's memory cannot be read")?;
        Ok(Held {
            descriptors: count(format!("/proc/{pid}/fd"))?,
            resident_kib,
            files: count(manager.folder().to_string_lossy().into_owned())?,
        })
    }
}

/// A thousand programs join and leave, some at a time, some one after the other.
pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let manager = Manager::start(context, "balanced")?;
    let folder = corewise_wire::Folder::at(manager.folder())?;
    let total = if context.quick { 100 } else { 1_000 };
    let wave = |count: usize| -> Result<()> {
        let mut joined = Vec::new();
        for index in 0..count {
            joined.push(corewise_wire::join(&folder, member(index))?);
            if joined.len() == 40 {
                joined.clear();
            }
        }
        Ok(())
    };
    // What a manager allocates once is no leak.
    wave(total / 5)?;
    settle(&manager)?;
    let before = Held::by(&manager)?;
    wave(total)?;
    settle(&manager)?;
    let after = Held::by(&manager)?;
    report.figure("crowd_programs", total as f64);
    report.figure("crowd_memory_before_kib", before.resident_kib as f64);
    report.figure("crowd_memory_after_kib", after.resident_kib as f64);
    report.bars.push(Bar::at_most(
        "after many programs: descriptors more than before",
        after.descriptors as f64 - before.descriptors as f64,
        0.0,
    ));
    report.bars.push(Bar::at_most(
        "after many programs: files more than before",
        after.files as f64 - before.files as f64,
        0.0,
    ));
    report.bars.push(Bar::at_most(
        "after many programs: memory more than before, KiB",
        after.resident_kib as f64 - before.resident_kib as f64,
        // The journal's buffer and the allocator's slack; a leak of a page a program would be 4,000.
        512.0,
    ));
    Ok(())
}

fn member(index: usize) -> Join {
    let most = 1 + u32::try_from(index % 8).unwrap_or(0);
    join_as(format!("member {index}"), 1, most)
}

/// Waits until the manager has no programs.
fn settle(manager: &Manager) -> Result<()> {
    for _ in 0..1_000 {
        if manager.status()?["programs"]
            .as_array()
            .is_some_and(Vec::is_empty)
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("the manager still lists programs that have left")
}

/// Another user's process can neither read nor change a program's claim, whether or not it reaches the
/// socket (root's manager lets everyone in).
pub(super) fn another_user(context: &Context, report: &mut Report) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        report.note("another user: not tried, it needs root");
        return Ok(());
    }
    let manager = Manager::start(context, "balanced")?;
    let mut member = Player::start(&["member"], Some(&manager))?;
    member.line().context("the program did not join")?;
    let before = manager.status()?["programs"].clone();
    let own = std::env::current_exe().context("the lab cannot find itself")?;
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(own)
        .args([actor::ARGUMENT, "intruder"])
        .arg(manager.folder().join("manager.sock"))
        .arg(member.pid().to_string())
        .output()
        .context("could not start setpriv (package util-linux)")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let succeeded: f64 = said
        .trim()
        .parse()
        .context("the other user's program failed: can it execute the lab?")?;
    let after = manager.status()?["programs"].clone();
    let claims = |programs: &serde_json::Value| {
        let all = programs.as_array().cloned().unwrap_or_default();
        all.iter().map(|p| p["claim"].clone()).collect::<Vec<_>>()
    };
    report.bars.push(Bar::at_most(
        "another user: ways to read or change a claim",
        succeeded,
        0.0,
    ));
    report.bars.push(Bar::at_most(
        "another user: claims changed",
        f64::from(u8::from(claims(&before) != claims(&after))),
        0.0,
    ));
    Ok(())
}
