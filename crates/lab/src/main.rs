//! The experiments: each a named program that measures, prints its figures (`--json`: one object on
//! standard output) and says which of its bars hold.
//!
//!     cargo run --release -p corewise-lab -- list | NAME [--json] [--quick] [--out DIR]
//!
//! Exit code 0: every bar holds; 1: one does not, or the experiment failed; 2: bad usage.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use corewise_lab::EXPERIMENTS;
use corewise_lab::experiment::Context;

/// Runs one of corewise's experiments and prints what it found.
#[derive(Parser)]
#[command(name = "corewise-lab")]
struct Arguments {
    /// `list`, or the name of an experiment
    name: String,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A few minutes at most: fewer programs, conditions and rounds
    #[arg(long)]
    quick: bool,
    /// Put the report (NAME.json) and further files into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How often each cell is measured [default: the experiment's own number]
    #[arg(long)]
    rounds: Option<u32>,
    /// Only these programs or conditions of the experiment (may be repeated, or separated by commas)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// The command to measure, instead of building target/release/corewise
    #[arg(long, value_name = "FILE")]
    corewise: Option<PathBuf>,
}

fn main() -> ExitCode {
    // The experiment `readings` starts the lab again as the program that it reads.
    if let Some(code) = corewise_lab::made::run_if_asked() {
        return code;
    }
    // Those about managing start it again as the programs that are managed.
    if let Some(code) = corewise_lab::actor::run_if_asked() {
        return code;
    }
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("corewise-lab: {error:#}");
            ExitCode::from(1)
        }
    }
}

/// Runs what was asked for; true when every bar holds.
fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.name == "list" {
        list(arguments.json)?;
        return Ok(true);
    }
    let Some(experiment) = EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == arguments.name)
    else {
        bail!(
            "there is no experiment `{}`: `corewise-lab list` shows them",
            arguments.name
        );
    };
    let context = context(arguments)?;
    let report = (experiment.run)(&context)
        .with_context(|| format!("experiment {} failed", experiment.name))?;
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(out) = &context.out {
        let file = out.join(format!("{}.json", experiment.name));
        std::fs::write(&file, format!("{json}\n"))
            .with_context(|| format!("could not write {}", file.display()))?;
    }
    if arguments.json {
        println!("{json}");
    } else {
        print!("{}", report.text());
    }
    Ok(report.holds())
}

fn list(json: bool) -> Result<()> {
    if json {
        let list = EXPERIMENTS
            .iter()
            .map(|experiment| {
                serde_json::json!({"name": experiment.name, "about": experiment.about})
            })
            .collect::<Vec<_>>();
        println!("{}", serde_json::json!({ "experiments": list }));
        return Ok(());
    }
    let width = EXPERIMENTS
        .iter()
        .map(|experiment| experiment.name.len())
        .max()
        .unwrap_or(0);
    for experiment in EXPERIMENTS {
        println!("{:<width$}  {}", experiment.name, experiment.about);
    }
    Ok(())
}

fn context(arguments: &Arguments) -> Result<Context> {
    let root = repository_root()?;
    let inputs = root.join(".inputs");
    for folder in arguments.out.iter().chain([&inputs]) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("could not make the folder {}", folder.display()))?;
    }
    Ok(Context {
        quick: arguments.quick,
        json: arguments.json,
        rounds: arguments.rounds,
        only: arguments.only.clone(),
        root,
        inputs,
        out: arguments.out.clone(),
        corewise_override: arguments.corewise.clone(),
    })
}

/// The lab reads experiments/ and builds corewise, so it runs from a checkout: the one it was built
/// in, else one that holds the current folder.
fn repository_root() -> Result<PathBuf> {
    let is_root = |folder: &&Path| folder.join("crates/lab/Cargo.toml").exists();
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .filter(is_root);
    if let Some(root) = built_in {
        return Ok(root.to_owned());
    }
    let current = std::env::current_dir().context("the current folder cannot be read")?;
    match current.ancestors().find(is_root) {
        Some(root) => Ok(root.to_owned()),
        None => bail!("run the lab inside a checkout of corewise (it reads experiments/)"),
    }
}
