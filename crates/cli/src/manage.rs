//! `corewise manage`: be the manager of this user's programs, in the foreground; or end the one that
//! runs.

use anyhow::Result;
use clap::Args;
use corewise_manager::{Options, PolicyChoice};
use corewise_wire::{Folder, System};
use std::process::ExitCode;
use std::time::Duration;

/// Manage this user's programs in the foreground, until stopped: decide which CPUs and how many
/// threads each may use. `corewise run` starts a manager by itself where none runs. Root's manager is the
/// system's: every user's programs may join it, and users' managers manage within what it grants them.
#[derive(Args, Debug)]
pub(crate) struct ManageArgs {
    /// The policy: a built-in one by its name, a script's file, or a file (.toml) that names several, each
    /// for its own programs or CPUs
    #[arg(long, value_name = "NAME|FILE", default_value = "balanced")]
    policy: String,

    /// Read machine and programs every so many milliseconds (10 at least), instead of when the policy
    /// wants it
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..))]
    period: Option<u64>,

    /// End when the last program has left
    #[arg(long)]
    on_demand: bool,

    /// End the manager that runs, and put back what it set
    #[arg(long, conflicts_with_all = ["policy", "period", "on_demand"])]
    stop: bool,
}

pub(crate) fn run(args: ManageArgs) -> Result<ExitCode> {
    let folder = Folder::of_user()?;
    if args.stop {
        return stop(&folder);
    }
    let policy: PolicyChoice = args.policy.parse()?;
    // Where one runs already, that is the error. A socket that was passed by the service manager
    // answers only once we do.
    let passed = std::env::var_os("LISTEN_FDS").is_some();
    if passed || crate::status::status(&folder)?.is_none() {
        let system = System::of_environment();
        // It is root's, and ours: so we are root.
        let everyone = system.folder().is_some() && system.is_at(&folder);
        eprintln!(
            "corewise: managing {}with the policy {}, in {}",
            if everyone { "for every user " } else { "" },
            args.policy,
            folder.path().display()
        );
    }
    let options = Options::new(folder, policy).on_demand(args.on_demand);
    corewise_manager::serve(match args.period {
        Some(ms) => options.period(Duration::from_millis(ms)),
        None => options,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn stop(folder: &Folder) -> Result<ExitCode> {
    match corewise_manager::stop(folder)? {
        true => eprintln!("corewise: the manager has ended"),
        false => eprintln!("corewise: no manager runs in {}", folder.path().display()),
    }
    Ok(ExitCode::SUCCESS)
}
