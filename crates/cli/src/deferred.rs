//! What `profile` and `race` share: how deferred calls are processed, and a program that runs under a library
//! which defers them.

use crate::output;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use corewise_analyses::region::{Manner, Region, Wanted};
use corewise_launch::adapters::{find_library, preload};
use corewise_launch::command::Command;
use corewise_launch::run::{RunOptions, Running};
use corewise_launch::runtimes::{Detected, Surroundings, detect_in};
use std::ffi::OsString;
use std::path::PathBuf;

/// Who processes deferred calls, in what pieces; and the program.
#[derive(Args, Debug)]
pub(crate) struct DeferredArgs {
    /// Who processes what the program's threads have recorded
    #[arg(long, value_name = "STRATEGY", default_value = "adaptive",
          value_parser = PossibleValuesParser::new(Manner::ALL.map(|(name, _)| name)))]
    strategy: String,

    /// Records in a buffer [default: 4096 for races; for profiles what is found while the program runs]
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    capacity: Option<u32>,

    /// Buffers that may wait [default: 16]
    #[arg(long, value_name = "BUFFERS", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    queue: Option<u32>,

    /// Threads of a pool [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pool_threads: Option<u32>,

    /// Say nothing at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// A library that is loaded into a program and defers calls there.
pub(crate) struct Library {
    /// Its file.
    pub(crate) name: &'static str,
    /// Why it cannot be loaded into a program.
    pub(crate) harm: fn(&Detected) -> Option<String>,
    /// What cannot be done then to a program, behind its name.
    pub(crate) cannot: &'static str,
}

/// A program that runs under a library.
pub(crate) struct Recorded {
    /// The program's file.
    pub(crate) program: PathBuf,
    /// The command as a person would type it.
    pub(crate) line: String,
    /// What the library shares with this process.
    pub(crate) region: Region,
    /// The program.
    pub(crate) running: Running,
}

impl DeferredArgs {
    /// What these options ask of a library.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted {
            manner: output::known(&Manner::ALL, &self.strategy, Manner::Adaptive),
            capacity: self.capacity.unwrap_or(0),
            queue: self.queue.unwrap_or(0),
            threads: self.pool_threads.unwrap_or(0),
            ..Wanted::default()
        }
    }

    /// Starts the program under a library.
    pub(crate) fn start(&self, library: &Library, wanted: Wanted) -> Result<Recorded> {
        let (name, arguments) = self.program.split_first().context("no program")?;
        let command = Command::new(name)?.args(arguments);
        let environment = Surroundings::of_this_process(Vec::new()).environment;
        let program = command.program.clone();
        if let Some(why) = (library.harm)(&detect_in(&program, &environment)) {
            bail!("{} {}: {why}", program.display(), library.cannot);
        }
        let this = std::env::current_exe().context("the command's own place is not known")?;
        let file = find_library(library.name, &environment, &this).map_err(anyhow::Error::msg)?;
        let region = Region::create(wanted)?;
        let (variable, value) = region.variable()?;
        let line = output::shell_line(&command);
        let command = preload(command, &environment, &file).env(variable, value);
        let running = corewise_launch::run::start(&command, &RunOptions::default())?;
        Ok(Recorded {
            program,
            line,
            region,
            running,
        })
    }
}

/// What is said of processes that could not record anything.
pub(crate) const UNSEEN: &str = "processes were not seen: there were more than there is room for, or a limit on \
                                 their address space forbade it (ulimit -v)";

/// A line for each number of things that were lost; those that were not are not mentioned.
pub(crate) fn losses<'a>(all: impl IntoIterator<Item = (u64, &'a str)>) -> Vec<String> {
    let lost = all.into_iter().filter(|(number, _)| *number > 0);
    lost.map(|(number, what)| format!("{number} {what}"))
        .collect()
}
