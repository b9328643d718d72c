//! The command `corewise`: one file a subcommand, over the libraries that do the work.

mod account;
mod adapters;
mod blocked;
mod building;
mod claim;
mod completions;
mod deferred;
mod history;
mod joining;
mod machine;
mod manage;
mod options;
mod output;
mod oversubscription;
mod policy;
mod profile;
mod race;
mod report;
mod run;
mod simulate;
mod status;
mod tune;

use clap::{CommandFactory, Parser, Subcommand};
use corewise_launch::command::LookupError;
use corewise_launch::template::TemplateError;
use corewise_local::advise::AdviseError;
use std::process::ExitCode;

/// Decides how programs use the cores of this machine.
#[derive(Parser, Debug)]
#[command(name = "corewise", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand, Debug)]
enum Subcommands {
    /// Run a program with the number of threads and the way of waiting that suit it now
    Run(run::RunArgs),
    /// Search for a program's number of threads, and show how it was found
    Tune(tune::TuneArgs),
    /// Show the programs under management, and what each may use
    Status(status::StatusArgs),
    /// Show one program's claim, set it by hand, or give it back to the policy
    Claim(claim::ClaimArgs),
    /// Manage this user's programs, in the foreground
    Manage(manage::ManageArgs),
    /// Try a policy that is a script
    Policy(policy::PolicyArgs),
    /// Run a program that was compiled for it, and show who called whom and who allocated
    Profile(profile::ProfileArgs),
    /// Run a program that was compiled with -fsanitize=thread, and report its data races
    Race(race::RaceArgs),
    /// Run a scenario on a simulated machine: a policy, programs as data, virtual time
    Simulate(simulate::SimulateArgs),
    /// Say what would be loaded into a program so that it can follow its claim, and why
    Adapters(adapters::AdaptersArgs),
    /// Show the machine: CPUs, what limits them, what can be sensed and set
    Machine(machine::MachineArgs),
    /// Show or forget past results
    History(history::HistoryArgs),
    /// Print the completions for a shell, or the manual pages
    Completions(completions::CompletionsArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let is_run = matches!(
        cli.command,
        Subcommands::Run(_) | Subcommands::Profile(_) | Subcommands::Race(_)
    );
    let result = match cli.command {
        Subcommands::Run(args) => run::run(args),
        Subcommands::Tune(args) => tune::run(args),
        Subcommands::Status(args) => status::run(args),
        Subcommands::Claim(args) => claim::run(args),
        Subcommands::Manage(args) => manage::run(args),
        Subcommands::Policy(args) => policy::run(args),
        Subcommands::Profile(args) => profile::run(args),
        Subcommands::Race(args) => race::run(args),
        Subcommands::Simulate(args) => simulate::run(args),
        Subcommands::Adapters(args) => adapters::run(args),
        Subcommands::Machine(args) => machine::run(args),
        Subcommands::History(args) => history::run(args),
        Subcommands::Completions(args) => completions::run(&args, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::say(&format!("corewise: {}", told(&error)));
            ExitCode::from(exit_code(&error, is_run))
        }
    }
}

/// The error and its causes. The libraries' errors mostly name their cause themselves: it is not said
/// twice.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// As env and timeout have it for `run`: 127 not found, 126 not executable, 125 our own failure.
/// Elsewhere 2 for what was typed, 1 otherwise.
fn exit_code(error: &anyhow::Error, is_run: bool) -> u8 {
    let lookup = error.chain().find_map(|cause| {
        let advise = match cause.downcast_ref::<AdviseError>() {
            Some(AdviseError::Lookup(lookup)) => Some(lookup),
            Some(AdviseError::Template(TemplateError::Lookup(lookup))) => Some(lookup),
            _ => None,
        };
        advise.or_else(|| cause.downcast_ref::<LookupError>())
    });
    let code = match lookup {
        Some(lookup) => lookup.exit_code(),
        None if is_run => 125,
        None => {
            let typed = error.chain().any(|cause| {
                cause.is::<TemplateError>()
                    || matches!(
                        cause.downcast_ref::<corewise_manager::Error>(),
                        Some(corewise_manager::Error::Policy { .. })
                    )
                    || matches!(
                        cause.downcast_ref::<AdviseError>(),
                        Some(AdviseError::Template(_) | AdviseError::Space(_))
                    )
            });
            if typed { 2 } else { 1 }
        }
    };
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_an_error_names_itself_is_not_said_twice() {
        let cause = std::io::Error::other("no such file");
        let named = anyhow::Error::new(cause).context("cannot read /x: no such file; mount /proc");
        assert_eq!(told(&named), "cannot read /x: no such file; mount /proc");
        let unnamed = anyhow::anyhow!("not a number").context("--threads-per-arg");
        assert_eq!(told(&unnamed), "--threads-per-arg: not a number");
    }

    #[test]
    fn every_option_is_defined_without_conflict() {
        Cli::command().debug_assert();
    }
}
