//! `corewise completions`: made from the same definitions as the help.

use anyhow::{Context as _, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `corewise completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell; "man" for manual pages
    #[arg(value_enum, value_name = "SHELL")]
    what: What,

    /// The folder for manual pages, one for each subcommand
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = ".",
        hide_default_value = true
    )]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    Bash,
    Fish,
    Zsh,
    Man,
}

/// Runs the subcommand on `command`, the definition of the whole.
pub(crate) fn run(args: &CompletionsArgs, mut command: Command) -> Result<ExitCode> {
    let shell = match args.what {
        What::Bash => Shell::Bash,
        What::Fish => Shell::Fish,
        What::Zsh => Shell::Zsh,
        What::Man => {
            clap_mangen::generate_to(command, &args.out).with_context(|| {
                format!("manual pages cannot be written to {}", args.out.display())
            })?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "corewise", &mut text);
    crate::output::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}
