//! `corewise profile`: run a program that was compiled for it, and show who called whom.

use crate::output;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use comfy_table::{CellAlignment, Table};
use corewise_analyses::blueprint::{Metric, blueprint};
use corewise_analyses::graph::Graph;
use corewise_analyses::names::Names;
use corewise_analyses::read::{Found, read};
use corewise_analyses::region::{Manner, Region, Wanted};
use corewise_analyses::{callgrind, dot, flame};
use corewise_launch::Outcome;
use corewise_launch::adapters::{find_library, harm, preload};
use corewise_launch::command::Command;
use corewise_launch::run::RunOptions;
use corewise_launch::runtimes::{Surroundings, detect_in};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The library that is loaded into the program.
const HOOKS: &str = "libcorewise_hooks.so";
/// Functions in a picture.
const SHOWN: usize = 120;

/// Arguments of `corewise profile`.
#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// Show so many functions in the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Write what was found as one JSON object
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,

    /// Write a profiling blueprint: each function a box, each side a metric
    #[arg(long, value_name = "FILE.svg")]
    blueprint: Option<PathBuf>,

    /// What the width of a box shows
    #[arg(long, value_name = "METRIC", default_value = "calls",
          value_parser = PossibleValuesParser::new(Metric::ALL.map(|(name, _)| name)))]
    width: String,

    /// What the height of a box shows
    #[arg(long, value_name = "METRIC", default_value = "bytes",
          value_parser = PossibleValuesParser::new(Metric::ALL.map(|(name, _)| name)))]
    height: String,

    /// Write a flame graph of calls
    #[arg(long, value_name = "FILE.svg")]
    flame: Option<PathBuf>,

    /// Write stacks of calls, one a line, as tools that draw flame graphs read them
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,

    /// Write the graph of calls for Graphviz
    #[arg(long, value_name = "FILE.dot")]
    dot: Option<PathBuf>,

    /// Write it in callgrind's format, for kcachegrind
    #[arg(long, value_name = "FILE")]
    callgrind: Option<PathBuf>,

    /// Who processes what the program's threads have recorded
    #[arg(long, value_name = "STRATEGY", default_value = "adaptive",
          value_parser = PossibleValuesParser::new(Manner::ALL.map(|(name, _)| name)))]
    strategy: String,

    /// Calls in a buffer [default: found while the program runs]
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    capacity: Option<u32>,

    /// Buffers that may wait [default: 16]
    #[arg(long, value_name = "BUFFERS", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    queue: Option<u32>,

    /// Threads of a pool [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pool_threads: Option<u32>,

    /// Functions that there is room for
    #[arg(long, value_name = "N", default_value_t = 32_768,
          value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    functions: u32,

    /// Say nothing at the end
    #[arg(short, long)]
    quiet: bool,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

pub(crate) fn run(args: ProfileArgs) -> Result<ExitCode> {
    let (name, arguments) = args.program.split_first().context("no program")?;
    let command = Command::new(name)?.args(arguments);
    let environment = Surroundings::of_this_process(Vec::new()).environment;
    let program = command.program.clone();
    if let Some(why) = harm(&detect_in(&program, &environment)) {
        bail!("{} cannot be profiled: {why}", program.display());
    }
    let this = std::env::current_exe().context("the command's own place is not known")?;
    let hooks = find_library(HOOKS, &environment, &this).map_err(anyhow::Error::msg)?;
    let region = Region::create(args.wanted()).context("no memory for the profile")?;
    let (variable, value) = region.variable()?;
    let title = output::shell_line(&command);
    let command = preload(command, &environment, &hooks).env(variable, value);
    let outcome = corewise_launch::run::start(&command, &RunOptions::default())?.wait()?;
    let found = read(&region);
    let graph = Graph::new(&found, &mut Names::default());
    let failed = args.write(&graph, &found, &title, &outcome);
    if !args.quiet {
        args.tell(&graph, &found, &program);
    }
    let failed: Vec<String> = failed.iter().map(|error| format!("{error:#}")).collect();
    output::warn(&failed);
    // What the program says counts more.
    if !failed.is_empty() && outcome.status.success() {
        return Ok(ExitCode::from(125));
    }
    outcome.exit_like_program()
}

impl ProfileArgs {
    fn wanted(&self) -> Wanted {
        Wanted {
            manner: output::known(&Manner::ALL, &self.strategy, Manner::Adaptive),
            capacity: self.capacity.unwrap_or(0),
            queue: self.queue.unwrap_or(0),
            threads: self.pool_threads.unwrap_or(0),
            functions: self.functions,
            ..Wanted::default()
        }
    }

    /// Writes every view that is wanted, and says which could not be written.
    fn write(
        &self,
        graph: &Graph,
        found: &[Found],
        title: &str,
        outcome: &Outcome,
    ) -> Vec<anyhow::Error> {
        let width = output::known(&Metric::ALL, &self.width, Metric::Calls);
        let height = output::known(&Metric::ALL, &self.height, Metric::Bytes);
        let views: [(&Option<PathBuf>, &dyn Fn() -> String); 6] = [
            (&self.summary, &|| summary(graph, found, outcome)),
            (&self.callgrind, &|| callgrind::callgrind(graph, title)),
            (&self.dot, &|| dot::dot(graph, SHOWN)),
            (&self.folded, &|| flame::folded(graph)),
            (&self.flame, &|| flame::flame(graph, title)),
            (&self.blueprint, &|| {
                blueprint(graph, title, width, height, SHOWN)
            }),
        ];
        let wanted = views
            .iter()
            .filter_map(|(file, text)| Some((file.as_ref()?, text)));
        wanted
            .filter_map(|(path, text)| written(path, &text()).err())
            .collect()
    }

    fn tell(&self, graph: &Graph, found: &[Found], program: &Path) {
        if graph.nodes.is_empty() {
            eprintln!("corewise: {}", nothing(found, program));
            return;
        }
        for line in table(graph, self.top).lines() {
            eprintln!("{}", line.trim_end());
        }
        let left: u64 = found.iter().map(|image| image.left).sum();
        eprintln!(
            "{} calls of {} functions in {} process image{}.",
            graph.calls(),
            graph.nodes.len(),
            found.len(),
            if found.len() == 1 { "" } else { "s" }
        );
        output::warn(&losses(graph, left, program));
    }
}

fn written(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Why there is nothing to show.
fn nothing(found: &[Found], program: &Path) -> String {
    if found.is_empty() {
        return format!(
            "{} did not load {HOOKS}: it, or what started it, took LD_PRELOAD out of the environment, or ended \
             before its libraries were loaded",
            program.display()
        );
    }
    format!(
        "{} called no function that tells of itself: compile it (gcc or clang, C or C++) with \
         -finstrument-functions, also where it is linked",
        program.display()
    )
}

fn losses(graph: &Graph, left: u64, program: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |number: u64, what: &str| {
        if number > 0 {
            lines.push(format!("{number} {what}"));
        }
    };
    say(
        left,
        "calls were stored and not yet processed when a process ended: they are counted",
    );
    say(
        graph.losses.no_room,
        "calls and allocations are not counted: no room; give more with --functions",
    );
    say(
        graph.losses.interrupted,
        "calls are not counted: they came in signal handlers, while another call was being recorded",
    );
    say(
        graph.losses.unreadable,
        "records are not counted: the program wrote over them",
    );
    say(
        graph.losses.in_doubt,
        "calls may or may not be counted: a process died while they were added",
    );
    say(
        graph.confused,
        "libraries were loaded where others had been: functions of theirs may have each other's names",
    );
    if Names::is_stripped(program) {
        lines.push(format!(
            "{} is stripped: functions that it does not export have no names",
            program.display()
        ));
    }
    lines
}

fn table(graph: &Graph, top: usize) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header([
        "calls",
        "callers",
        "callees",
        "allocations",
        "bytes",
        "function",
    ]);
    let degrees = graph.degrees();
    for (node, (callees, callers)) in graph.nodes.iter().zip(degrees).take(top) {
        let numbers = [
            node.calls,
            callers as u64,
            callees as u64,
            node.allocations,
            node.bytes,
        ];
        table.add_row(
            numbers
                .map(|n| n.to_string())
                .into_iter()
                .chain([clipped(&node.name)]),
        );
    }
    for column in table.column_iter_mut().take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// C++ names can be longer than any line.
fn clipped(name: &str) -> String {
    match name.chars().count() <= 90 {
        true => name.to_owned(),
        false => name.chars().take(89).chain(['…']).collect(),
    }
}

fn summary(graph: &Graph, found: &[Found], outcome: &Outcome) -> String {
    let functions = graph.nodes.iter().map(|node| {
        json!({
            "name": node.name,
            "file": node.file,
            "calls": node.calls,
            "allocations": node.allocations,
            "bytes": node.bytes,
        })
    });
    let calls = graph.edges.iter().map(|edge| {
        json!({
            "caller": edge.caller,
            "callee": edge.callee,
            "calls": edge.calls,
        })
    });
    let images = found.iter().map(|image| {
        json!({
            "pid": image.pid,
            "left": image.left,
            "by_producers": image.account.by_producers,
            "by_consumers": image.account.by_consumers,
            "by_waiters": image.account.by_waiters,
            "helping_seconds": image.account.helping_ns as f64 / 1e9,
            "waiting_seconds": image.account.waiting_ns as f64 / 1e9,
            "buffer_bytes": image.account.most_bytes,
        })
    });
    let told = json!({
        "functions": functions.collect::<Vec<_>>(),
        "calls": calls.collect::<Vec<_>>(),
        "images": images.collect::<Vec<_>>(),
        "not_counted": {
            "no_room": graph.losses.no_room,
            "interrupted": graph.losses.interrupted,
            "unreadable": graph.losses.unreadable,
            "in_doubt": graph.losses.in_doubt,
        },
        "wall_seconds": outcome.wall_ns as f64 / 1e9,
        "exit_code": outcome.status.shell_code(),
    });
    format!("{told}\n")
}
