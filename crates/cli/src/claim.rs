//! `corewise claim`: look at one program's claim, set it by hand, or give it back to the policy.

use crate::output;
use crate::status::{self, cpu_list};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use corewise_wire::Folder;
use serde_json::Value;
use std::process::ExitCode;

/// Show what one program may use; with --threads or --cpus set it, whatever the policy says.
#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// The program's process number, as `corewise status` shows it
    #[arg(value_name = "PID")]
    pid: i32,

    /// Let it run so many threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,

    /// Let it run on these CPUs only, for instance 0-3,8
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<Cpus>,

    /// Give the claim back to the policy
    #[arg(long, conflicts_with_all = ["threads", "cpus"])]
    release: bool,

    /// Print the program as one JSON object
    #[arg(long)]
    json: bool,
}

/// CPUs as they were typed.
#[derive(Clone, Debug)]
struct Cpus(Vec<u32>);

fn cpus(text: &str) -> Result<Cpus, String> {
    match corewise_machine::cpu_list::parse(text.trim()) {
        Some(cpus) if !cpus.is_empty() => Ok(Cpus(cpus)),
        _ => Err("a list of CPUs, for instance 0-3,8".to_owned()),
    }
}

pub(crate) fn run(args: ClaimArgs) -> Result<ExitCode> {
    let folder = status::serving(&Folder::of_user()?);
    let before = program(&folder, args.pid)?;
    if args.release {
        corewise_manager::override_claim(&folder, args.pid, 0, Vec::new())?;
    } else if args.threads.is_some() || args.cpus.is_some() {
        let granted = before["claim"]["threads"].as_u64();
        let threads = match args.threads {
            Some(threads) => threads,
            // Only where it runs is to be changed.
            None => granted.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        };
        let cpus = match args.cpus {
            Some(Cpus(cpus)) => allowed(&folder, cpus)?,
            None => Vec::new(),
        };
        corewise_manager::override_claim(&folder, args.pid, threads.max(1), cpus)?;
    }
    let now = program(&folder, args.pid)?;
    let text = match args.json {
        true => format!("{now}\n"),
        false => format!("{}\n", status::table(std::slice::from_ref(&now))),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The program `pid`, as the manager knows it.
fn program(folder: &Folder, pid: i32) -> Result<Value> {
    let status = known(folder)?;
    let programs = status["programs"].as_array();
    let found = programs.and_then(|all| all.iter().find(|p| p["pid"] == pid));
    found.cloned().ok_or_else(|| {
        anyhow!("process {pid} is not managed; `corewise status` shows the programs that are")
    })
}

/// CPUs that the manager may grant: nothing else would have an effect.
fn allowed(folder: &Folder, cpus: Vec<u32>) -> Result<Vec<u32>> {
    let status = known(folder)?;
    let Some(allowed) = status["machine"]["allowed"].as_array() else {
        return Ok(cpus);
    };
    match cpus.iter().find(|cpu| !allowed.iter().any(|a| *a == **cpu)) {
        Some(cpu) => bail!(
            "--cpus: CPU {cpu} is not the manager's to grant; it may grant {}",
            cpu_list(&status["machine"]["allowed"]).unwrap_or_default()
        ),
        None => Ok(cpus),
    }
}

fn known(folder: &Folder) -> Result<Value> {
    status::status(folder)?.with_context(|| {
        format!(
            "no manager runs in {}; start one with `corewise manage`",
            folder.path().display()
        )
    })
}
