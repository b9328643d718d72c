//! Options that `tune` and `run` share, each defined once.

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use corewise_decide::search::Objective;
use corewise_launch::template::{Template, parse_convert};
use corewise_local::request::{Algorithm, Request};
use corewise_local::tune::Limits;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How many threads to look for, and how.
#[derive(Args, Debug)]
pub(crate) struct SearchArgs {
    /// How to search for the number of threads
    #[arg(long, value_enum, default_value_t = AlgorithmArg::Default, value_name = "NAME")]
    algorithm: AlgorithmArg,

    /// What to aim at
    #[arg(long, value_enum, default_value_t = ObjectiveArg::Speed, value_name = "NAME")]
    objective: ObjectiveArg,

    /// Smallest number of threads to consider
    #[arg(long, value_name = "N")]
    min_threads: Option<u32>,

    /// Largest number of threads to consider [default: twice the effective CPUs]
    #[arg(long, value_name = "N")]
    max_threads: Option<u32>,

    /// Set a variable for the program; {threads} in VALUE is replaced by the number
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// How many threads the program makes of its number n, as C+Kn (ferret: 3+4n); for
    /// thread-reinforcer, which counts all threads
    #[arg(long, value_name = "C+Kn", default_value = "n")]
    threads_per_arg: String,

    /// Probe without a sandbox where none can be had: the program is started several times and killed
    #[arg(long)]
    unsafe_probes: bool,

    /// How long a probe waits for the program's parallel phase
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    startup_limit: f64,

    /// How long a sweep lets one run take
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    run_limit: f64,

    /// Time to spend in searching, besides the program's own start-ups
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    search_seconds: f64,

    /// Where past results are kept [default: $XDG_STATE_HOME/corewise/history.sqlite]
    #[arg(long, value_name = "FILE", env = "COREWISE_HISTORY")]
    history: Option<PathBuf>,

    /// How much of a piped standard input is kept to be replayed, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    stdin_limit: u64,

    /// The program and its arguments; {threads} in an argument is replaced by the number
    #[arg(last = true, required = true, value_name = "PROGRAM [ARG...]")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AlgorithmArg {
    /// Tries only settings that could still be the fastest
    #[value(alias = "bounds")]
    Default,
    /// Thread Reinforcer's FindN (Pusukuri, Gupta, Bhuyan 2011)
    ThreadReinforcer,
    /// Every setting, to the end, three times
    Sweep,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ObjectiveArg {
    /// As fast as possible without taking from others
    Speed,
    /// Use only CPUs that are idle now
    Share,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s < 1e6 => Ok(s),
        _ => Err("a number of seconds above 0, for instance 1.5".to_owned()),
    }
}

impl SearchArgs {
    pub(crate) fn request(self) -> anyhow::Result<Request> {
        let convert = parse_convert(&self.threads_per_arg).context("--threads-per-arg")?;
        Ok(Request {
            template: Template::parse(self.command, self.env)?,
            convert,
            algorithm: match self.algorithm {
                AlgorithmArg::Default => Algorithm::Bounds,
                AlgorithmArg::ThreadReinforcer => Algorithm::ThreadReinforcer,
                AlgorithmArg::Sweep => Algorithm::Sweep,
            },
            objective: match self.objective {
                ObjectiveArg::Speed => Objective::Speed,
                ObjectiveArg::Share => Objective::Share,
            },
            min_threads: self.min_threads,
            max_threads: self.max_threads,
            unsafe_probes: self.unsafe_probes,
            limits: Limits {
                startup: Duration::from_secs_f64(self.startup_limit),
                whole_run: Duration::from_secs_f64(self.run_limit),
            },
            budget: Duration::from_secs_f64(self.search_seconds),
            history: self.history,
            stdin_limit: self.stdin_limit << 20,
            untuned: false,
        })
    }
}
