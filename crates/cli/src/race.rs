//! `corewise race`: run a program that was compiled for it, and report its data races.

mod progress;
mod sarif;

use self::progress::Progress;
use self::sarif::{Ran, sarif};
use crate::deferred::{self, DeferredArgs, Library, Recorded};
use crate::output;
use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use corewise_analyses::race::Order;
use corewise_analyses::race::lines::{Lines, Place};
use corewise_analyses::race::report::{Findings, Memory, Report, Seen, Side, Thread, read};
use corewise_analyses::race::suppress::Suppressions;
use corewise_analyses::race::text;
use corewise_analyses::region::Wanted;
use corewise_launch::adapters::harm_as_thread_sanitizer;
use corewise_launch::{Outcome, Status};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The library that the program runs on.
const RUNTIME: Library = Library {
    name: "libcorewise_race.so",
    harm: harm_as_thread_sanitizer,
    cannot: "cannot be searched for races",
};

/// Records in a buffer, where nobody says a number. Those that would be found while the program runs hold up to
/// eight times as many, and save no time: comparing a buffer takes far longer than handing it over.
const CAPACITY: u32 = 4096;

/// Arguments of `corewise race`.
#[derive(Args, Debug)]
pub(crate) struct RaceArgs {
    /// How accesses that race are told from those that are ordered
    #[arg(long, value_name = "ORDER", default_value = "happens-before",
          value_parser = PossibleValuesParser::new(Order::ALL.map(|(name, _)| name)))]
    order: String,

    /// Memory for what is remembered of accesses, for each process, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(16..=16_384))]
    memory: u32,

    /// Races not to report: a file in ThreadSanitizer's format
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,

    /// Exit so where there are races and the program itself exits in order; 0: as the program does
    #[arg(long, value_name = "CODE", default_value_t = 66)]
    exit_code: u8,

    /// Write what was found as one JSON object
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,

    /// Write the races in SARIF, for editors and code hosts
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,

    /// Say how far the search is while the program runs, also where standard error is no terminal
    #[arg(long, conflicts_with = "quiet")]
    progress: bool,

    #[command(flatten)]
    deferred: DeferredArgs,
}

pub(crate) fn run(args: RaceArgs) -> Result<ExitCode> {
    let suppressions = args.suppressions()?;
    let Recorded {
        program,
        line,
        region,
        running,
    } = args.deferred.start(&RUNTIME, args.wanted())?;
    let region = Arc::new(region);
    let progress = match args.deferred.quiet {
        true => None,
        false => Progress::begin(&region, args.progress)?,
    };
    let outcome = running.wait();
    if let Some(progress) = progress {
        progress.end();
    }
    let outcome = outcome?;
    let mut findings = read(&region, &mut Lines::default());
    let found = findings.races.len();
    findings.races.retain(|race| !suppressions.cover(race));
    let suppressed = found - findings.races.len();
    let losses = losses(&findings);
    let ran = Ran {
        line: &line,
        code: outcome.status.shell_code(),
        losses: &losses,
    };
    let views: [(&Option<PathBuf>, &dyn Fn() -> String); 2] = [
        (&args.summary, &|| summary(&findings, suppressed, &outcome)),
        (&args.sarif, &|| sarif(&findings.races, &ran)),
    ];
    let mut failed = Vec::new();
    for (path, text) in views {
        if let Some(path) = path
            && let Err(error) = std::fs::write(path, text())
        {
            failed.push(format!("cannot write {}: {error}", path.display()));
        }
    }
    if !args.deferred.quiet {
        tell(&findings, suppressed, &losses, &program);
    }
    output::warn(&failed);
    let in_order = matches!(outcome.status, Status::Exited(_));
    if in_order && !findings.races.is_empty() && args.exit_code != 0 {
        return Ok(ExitCode::from(args.exit_code));
    }
    // What the program says counts more.
    if !failed.is_empty() && outcome.status.success() {
        return Ok(ExitCode::from(125));
    }
    outcome.exit_like_program()
}

impl RaceArgs {
    fn wanted(&self) -> Wanted {
        let order = output::known(&Order::ALL, &self.order, Order::HappensBefore);
        let deferred = self.deferred.wanted();
        Wanted {
            race_mib: self.memory,
            order: order as u32,
            capacity: match deferred.capacity {
                0 => CAPACITY,
                said => said,
            },
            ..deferred
        }
    }

    fn suppressions(&self) -> Result<Suppressions> {
        let Some(path) = &self.suppressions else {
            return Ok(Suppressions::default());
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Suppressions::parse(&text).with_context(|| path.display().to_string())
    }
}

fn tell(findings: &Findings, suppressed: usize, losses: &[String], program: &Path) {
    for race in &findings.races {
        output::say(text::text(race).trim_end_matches('\n'));
    }
    let threads: u64 = findings.processes.iter().map(|seen| seen.threads).sum();
    let compared: u64 = findings.processes.iter().map(|seen| seen.compared).sum();
    if findings.processes.is_empty() {
        if findings.unseen_processes == 0 {
            output::say(&format!(
                "corewise: {} did not load {}: it, or what started it, took LD_PRELOAD out of the environment, or \
                 ended before its libraries were loaded",
                program.display(),
                RUNTIME.name
            ));
        }
        output::warn(losses);
        return;
    }
    let hidden = match suppressed {
        0 => String::new(),
        number => format!(" ({number} more suppressed)"),
    };
    output::say(&format!(
        "corewise: {} data race{}{hidden}; {compared} accesses of {threads} thread{} in {} process{} compared.",
        findings.races.len(),
        plural(findings.races.len() as u64),
        plural(threads),
        findings.processes.len(),
        if findings.processes.len() == 1 {
            ""
        } else {
            "es"
        },
    ));
    if compared == 0 && threads > 1 {
        output::say(&format!(
            "corewise: {} told of no access: compile it with -fsanitize=thread (gcc, or clang linked against \
             {}; a program with its own copy of ThreadSanitizer's runtime cannot be run on ours)",
            program.display(),
            RUNTIME.name
        ));
    }
    if !findings.unseen.is_empty() {
        output::say(&format!(
            "corewise: not compiled with -fsanitize=thread, so that accesses by their code are not seen: {}",
            findings
                .unseen
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    output::warn(losses);
}

fn plural(number: u64) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// What was given up.
fn losses(findings: &Findings) -> Vec<String> {
    let all = |number: fn(&Seen) -> u64| findings.processes.iter().map(number).sum::<u64>();
    deferred::losses([
        (u64::from(findings.unseen_processes), deferred::UNSEEN),
        (
            all(|seen| seen.no_room),
            "accesses were not compared: no room; give more with --memory",
        ),
        (
            all(|seen| seen.forgotten),
            "pairs of accesses were not judged: when they were is forgotten",
        ),
        (
            all(|seen| seen.no_names),
            "stacks and places were not kept: no room; reports may lack them",
        ),
        (
            all(|seen| seen.races_lost),
            "races are not reported: no room",
        ),
        (
            all(|seen| seen.threads_lost),
            "threads were not seen: there were more than 1,024 at a time",
        ),
        (
            all(|seen| seen.interrupted),
            "accesses were not seen: they came in signal handlers, while another was being recorded",
        ),
    ])
}

fn places(stack: &[Place]) -> Value {
    let places = stack.iter().map(|place| {
        json!({
            "function": place.function,
            "file": place.file,
            "line": place.line,
            "module": place.module,
            "offset": place.offset,
        })
    });
    places.collect()
}

fn thread(thread: &Thread) -> Value {
    json!({
        "index": thread.index,
        "tid": thread.tid,
        "name": thread.name,
        "parent": thread.parent,
        "created": places(&thread.created),
    })
}

fn side(side: &Side) -> Value {
    json!({
        "what": side.what,
        "bytes": side.bytes,
        "thread": thread(&side.thread),
        "stack": places(&side.stack),
        "locks": side.locks,
    })
}

fn memory(memory: &Memory) -> Value {
    match memory {
        Memory::Variable {
            name,
            module,
            offset,
        } => json!({ "variable": name, "module": module, "offset": offset }),
        Memory::Block {
            bytes,
            offset,
            allocated,
            thread: by,
            again,
        } => json!({
            "block_bytes": bytes,
            "offset": offset,
            "allocated": places(allocated),
            "thread": thread(by),
            "given_to_another_since": again,
        }),
        Memory::Descriptor(number) => json!({ "file_descriptor": number }),
        Memory::Unknown => json!({}),
    }
}

fn race(race: &Report) -> Value {
    json!({
        "summary": text::summary(race),
        "pid": race.pid,
        "address": race.address,
        "accesses": race.sides.iter().map(side).collect::<Vec<_>>(),
        "memory": memory(&race.memory),
        "seen": race.seen,
    })
}

fn summary(findings: &Findings, suppressed: usize, outcome: &Outcome) -> String {
    let processes = findings.processes.iter().map(|seen| {
        json!({
            "pid": seen.pid,
            "threads": seen.threads,
            "recorded": seen.recorded,
            "compared": seen.compared,
            "left": seen.left,
            "memory_bytes": seen.bytes,
            "given_up": {
                "no_room": seen.no_room,
                "shortened": seen.shortened,
                "forgotten": seen.forgotten,
                "no_names": seen.no_names,
                "races_lost": seen.races_lost,
                "threads_lost": seen.threads_lost,
                "interrupted": seen.interrupted,
            },
        })
    });
    let told = json!({
        "races": findings.races.iter().map(race).collect::<Vec<_>>(),
        "suppressed": suppressed,
        "not_compiled_for_it": findings.unseen,
        "processes_not_seen": findings.unseen_processes,
        "processes": processes.collect::<Vec<_>>(),
        "wall_seconds": outcome.wall_ns as f64 / 1e9,
        "exit_code": outcome.status.shell_code(),
    });
    format!("{told}\n")
}
