//! `corewise simulate`: a scenario on a simulated machine.

use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use corewise_decide::policy::source::Source;
use corewise_decide::world::Entry;
use corewise_manager::Header;
use corewise_sim::page::page;
use corewise_sim::report::rows::rows;
use corewise_sim::report::{Ended, Report, Seconds, listed};
use corewise_sim::scenario::{self, Scenario, ScenarioError};
use corewise_sim::world::{JournalSink, Options, simulate};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a scenario on a simulated machine: the same policies, programs as data, virtual time.
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// The scenario: a machine, programs, a policy
    scenario: PathBuf,

    /// Another policy: a built-in one, a script's file, a file (.toml) that names several, or `none` for
    /// plain Linux
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,

    /// Another seed for everything that is random
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Write a page that shows who ran where, claims, waiting and the reasons
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the manager's journal, a line for each decision
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

/// Runs `corewise simulate`.
pub(crate) fn run(args: SimulateArgs) -> Result<ExitCode> {
    let mut scenario = match Scenario::load(&args.scenario) {
        Ok(scenario) => scenario,
        Err(error) => {
            eprintln!("corewise: {error}");
            // What was named on the command line and is not there is bad usage; what is wrong in it is
            // not.
            let missing = matches!(error, ScenarioError::File { .. });
            return Ok(ExitCode::from(if missing { 2 } else { 1 }));
        }
    };
    if let Some(seed) = args.seed {
        scenario.seed = seed;
        if let Some(policy) = &mut scenario.policy {
            policy.seed = seed;
        }
    }
    if let Some(name) = &args.policy {
        match scenario::policy(name, Path::new(""), scenario.seed, &scenario::read) {
            Ok(policy) => scenario.policy = policy,
            Err(why) => {
                eprintln!("corewise: --policy: {why}");
                return Ok(ExitCode::from(2));
            }
        }
    }
    let mut journal = match &args.journal {
        Some(path) => Some(Journal::create(path, &scenario)?),
        None => None,
    };
    let outcome = simulate(
        &scenario,
        Options {
            journal: journal
                .as_mut()
                .map(|journal| Box::new(|entry: &Entry| journal.keep(entry)) as JournalSink<'_>),
            timeline: args.html.is_some(),
        },
    )?;
    if let Some(journal) = journal {
        journal.end()?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, page(&outcome))
            .with_context(|| format!("the page cannot be written to {}", path.display()))?;
    }
    let report = &outcome.report;
    let text = match args.json {
        true => report.json()?,
        false => people_text(report),
    };
    crate::output::print(&text)?;
    Ok(ExitCode::from(u8::from(!report.is_done())))
}

/// The journal as the manager writes it.
struct Journal {
    path: PathBuf,
    file: BufWriter<File>,
    /// The first failure.
    failed: Option<io::Error>,
}

impl Journal {
    fn create(path: &Path, scenario: &Scenario) -> Result<Journal> {
        let cannot = || format!("the journal cannot be written to {}", path.display());
        let file = File::create(path).with_context(cannot)?;
        let mut journal = Journal {
            path: path.to_owned(),
            file: BufWriter::new(file),
            failed: None,
        };
        let none = || Source::built_in("none");
        journal.line(&Header {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot: String::new(),
            pid: 0,
            policy: scenario.policy.clone().unwrap_or_else(none),
            part: 0,
            known: None,
        });
        Ok(journal)
    }

    fn keep(&mut self, entry: &Entry) {
        self.line(entry);
    }

    fn line<T: serde::Serialize>(&mut self, line: &T) {
        if self.failed.is_some() {
            return;
        }
        let written = serde_json::to_writer(&mut self.file, line).map_err(io::Error::from);
        let written = written.and_then(|()| self.file.write_all(b"\n"));
        self.failed = written.err();
    }

    fn end(mut self) -> Result<()> {
        let ended = match self.failed {
            Some(error) => Err(error),
            None => self.file.flush(),
        };
        ended.with_context(|| format!("the journal cannot be written to {}", self.path.display()))
    }
}

fn people_text(report: &Report) -> String {
    let mut text = String::new();
    let policy = match report.policy.as_str() {
        "none" => "plain Linux".to_owned(),
        name => format!("policy {name}"),
    };
    text.push_str(&crate::output::bold(&report.scenario));
    text.push_str(&format!(
        ": {policy}, {} ({} CPUs, {:.1} busy), {} of virtual time, {} grants.\n\n",
        report.machine.name,
        report.machine.cpus,
        report.machine.busy_cpus,
        Seconds(report.wall_seconds),
        report.grants,
    ));
    text.push_str(&format!("{}\n", table(report)));
    if report.ended == Ended::Limit {
        text.push_str(
            "\nThe time was over before all programs had ended (limit_ms says how long).\n",
        );
    }
    if !report.deadlock.is_empty() {
        text.push_str("\nDeadlock: nothing can happen any more.\n");
        for line in &report.deadlock {
            text.push_str(&format!("  {line}\n"));
        }
    }
    if !report.unfinished.is_empty() {
        text.push_str(&format!("Not ended: {}.\n", listed(&report.unfinished)));
    }
    text
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "program", "session", "took", "CPU time", "spinning", "waited", "blocked", "switches",
        "claim",
    ]);
    for row in rows(report) {
        let claim = row
            .mean_claim()
            .map_or("–".to_owned(), |n| format!("{n:.1}"));
        table.add_row([
            row.name.clone(),
            row.share.clone(),
            row.took(),
            Seconds(row.run_seconds).to_string(),
            Seconds(row.spin_seconds).to_string(),
            Seconds(row.wait_seconds).to_string(),
            Seconds(row.blocked_seconds()).to_string(),
            row.switches.to_string(),
            claim,
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
