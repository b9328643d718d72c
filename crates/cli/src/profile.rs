//! `corewise profile`: run a program that was compiled for it, and show who called whom.

use crate::deferred::{self, DeferredArgs, Library, Recorded};
use crate::output;
use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use comfy_table::{CellAlignment, Table};
use corewise_analyses::blueprint::{Metric, blueprint};
use corewise_analyses::graph::Graph;
use corewise_analyses::names::Names;
use corewise_analyses::read::{Found, read};
use corewise_analyses::region::Wanted;
use corewise_analyses::{callgrind, dot, flame};
use corewise_launch::Outcome;
use corewise_launch::adapters::harm;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The library that is loaded into the program.
const HOOKS: Library = Library {
    name: "libcorewise_hooks.so",
    harm,
    cannot: "cannot be profiled",
};
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

    /// Functions that there is room for
    #[arg(long, value_name = "N", default_value_t = 32_768,
          value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    functions: u32,

    #[command(flatten)]
    deferred: DeferredArgs,
}

pub(crate) fn run(args: ProfileArgs) -> Result<ExitCode> {
    let wanted = Wanted {
        functions: args.functions,
        ..args.deferred.wanted()
    };
    let Recorded {
        program,
        line: title,
        region,
        running,
    } = args.deferred.start(&HOOKS, wanted)?;
    let outcome = running.wait()?;
    let found = read(&region);
    let graph = Graph::new(&found, &mut Names::default());
    let failed = args.write(&graph, &found, &title, &outcome);
    if !args.deferred.quiet {
        args.tell(&graph, &found, region.unseen(), &program);
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

    fn tell(&self, graph: &Graph, found: &[Found], unseen: u32, program: &Path) {
        if graph.nodes.is_empty() {
            if unseen == 0 {
                output::say(&format!("corewise: {}", nothing(found, program)));
            }
            output::warn(&deferred::losses([(u64::from(unseen), deferred::UNSEEN)]));
            return;
        }
        for line in table(graph, self.top).lines() {
            output::say(line.trim_end());
        }
        let left: u64 = found.iter().map(|image| image.left).sum();
        output::say(&format!(
            "{} calls of {} functions in {} process image{}.",
            graph.calls(),
            graph.nodes.len(),
            found.len(),
            if found.len() == 1 { "" } else { "s" }
        ));
        output::warn(&losses(graph, left, unseen, program));
    }
}

fn written(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Why there is nothing to show.
fn nothing(found: &[Found], program: &Path) -> String {
    if found.is_empty() {
        return format!(
            "{} did not load {}: it, or what started it, took LD_PRELOAD out of the environment, or ended \
             before its libraries were loaded",
            program.display(),
            HOOKS.name
        );
    }
    format!(
        "{} called no function that tells of itself: compile it (gcc or clang, C or C++) with \
         -finstrument-functions, also where it is linked",
        program.display()
    )
}

fn losses(graph: &Graph, left: u64, unseen: u32, program: &Path) -> Vec<String> {
    let mut lines = deferred::losses([
        (u64::from(unseen), deferred::UNSEEN),
        (
            left,
            "calls were stored and not yet processed when a process ended: they are counted",
        ),
        (
            graph.losses.no_room,
            "calls and allocations are not counted: no room; give more with --functions",
        ),
        (
            graph.losses.interrupted,
            "calls are not counted: they came in signal handlers, while another call was being recorded",
        ),
        (
            graph.losses.unreadable,
            "records are not counted: the program wrote over them",
        ),
        (
            graph.losses.in_doubt,
            "calls may or may not be counted: a process died while they were added",
        ),
        (
            graph.confused,
            "libraries were loaded where others had been: functions of theirs may have each other's names",
        ),
    ]);
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
