//! What the end-to-end tests share: running a shell script as a probe, and helper processes.
#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::time::Duration;

use corewise_launch::{Availability, Command, Probe, ProbeEnd, Sandbox, Spool};

/// Far longer than anything here takes: a limit against hanging, not a measurement.
pub const LONG: Duration = Duration::from_secs(60);

pub fn shell(script: &str) -> Command {
    Command::new("sh").unwrap().args(["-c", script])
}

pub struct Ran {
    pub end: ProbeEnd,
    pub stderr: String,
}

pub fn run_in(sandbox: &Sandbox, command: &Command, stdin: &Spool) -> Ran {
    let mut probe = Probe::start(sandbox, command, stdin).unwrap();
    probe.release().unwrap();
    let end = probe.wait_timeout(LONG).unwrap().expect("the program ends");
    let stderr = String::from_utf8_lossy(&probe.stderr_tail()).into_owned();
    Ran { end, stderr }
}

/// Runs a script as a probe in the current folder and returns how it ended and its standard error.
pub fn probe(script: &str) -> Ran {
    run_in(&Sandbox::prepare().unwrap(), &shell(script), &Spool::none())
}

/// Whether sandboxes can be had; says so when a test is skipped for it.
pub fn sandbox_available() -> bool {
    match Sandbox::availability() {
        Availability::Full { .. } => true,
        Availability::Unavailable { why } => {
            eprintln!("skipped: {why}");
            false
        }
    }
}
