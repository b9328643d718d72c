//! Programs of all kinds are profiled: what they print and how they end is as without, and every call is
//! counted, however they end.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_arch = "x86_64")]

use corewise_analyses::graph::Graph;
use corewise_analyses::names::Names;
use corewise_analyses::read::{Found, Losses, read};
use corewise_analyses::region::{Manner, Region, Wanted};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Compiles with the hooks.
fn compile(compiler: &str, source: &str, name: &str, flags: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let compiled = Command::new(compiler)
        .args([
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-finstrument-functions",
        ])
        // What the standard library's headers define is not the program's.
        .arg("-finstrument-functions-exclude-file-list=/usr/")
        .args(flags)
        .arg("-o")
        .arg(&file)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .output()
        .expect("a compiler is needed (scripts/setup)");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    (folder, file)
}

fn program() -> &'static Path {
    static MADE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &MADE
        .get_or_init(|| compile("g++", "calls.cpp", "calls", &[]))
        .1
}

fn library() -> &'static Path {
    static MADE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &MADE
        .get_or_init(|| compile("gcc", "library.c", "libcomes.so", &["-shared", "-fPIC"]))
        .1
}

/// The library that is preloaded. Cargo does not build it with its tests: `make test` does so before.
fn hooks() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [
        folder.join("libcorewise_hooks.so"),
        folder.join("../libcorewise_hooks.so"),
    ];
    let newest = places
        .iter()
        .filter(|file| file.is_file())
        .max_by_key(|file| file.metadata().and_then(|m| m.modified()).unwrap());
    newest
        .expect("the library is missing: cargo build -p corewise-hooks")
        .clone()
}

struct Profiled {
    graph: Graph,
    found: Vec<Found>,
}

impl Profiled {
    fn calls(&self, name: &str) -> u64 {
        let named = self.graph.nodes.iter().filter(|node| node.name == name);
        named.map(|node| node.calls).sum()
    }

    /// Nothing is lost and nothing counted twice. What a process was adding to the tables when it died is in
    /// doubt, and said to be.
    fn assert_calls(&self, name: &str, expected: u64, when: &str) {
        let Losses { in_doubt, .. } = self.graph.losses;
        let calls = self.calls(name);
        assert!(calls <= expected, "{when}: {calls} of {expected}");
        assert!(
            expected - calls <= in_doubt,
            "{when}: {calls} of {expected}, {in_doubt} in doubt"
        );
        let others = Losses {
            in_doubt: 0,
            ..self.graph.losses
        };
        assert_eq!(others, Losses::default(), "{when}");
    }

    /// The callers of a function, with counts; outside is `-`.
    fn callers(&self, name: &str) -> Vec<(String, u64)> {
        let nodes = &self.graph.nodes;
        let edges = self.graph.edges.iter();
        let mut callers: Vec<_> = edges
            .filter(|edge| nodes[edge.callee].name == name)
            .map(|edge| {
                let caller = edge
                    .caller
                    .map_or("-", |caller| nodes[caller].name.as_str());
                (caller.to_owned(), edge.calls)
            })
            .collect();
        callers.sort();
        callers
    }
}

fn output(arguments: &[&str], with: impl Fn(&mut Command) -> &mut Command) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env("LIBRARY", library());
    with(&mut command).output().unwrap()
}

/// Runs it as it is, and profiled in this manner: the same has to come out.
fn profiled(arguments: &[&str], wanted: Wanted) -> Profiled {
    let expected = output(arguments, |command| command);
    let region = Region::create(wanted).unwrap();
    let (name, value) = region.variable().unwrap();
    let output = output(arguments, |command| {
        command.env(name, &value).env("LD_PRELOAD", hooks())
    });
    assert_eq!(output, expected, "{arguments:?}");
    let found = read(&region);
    Profiled {
        graph: Graph::new(&found, &mut Names::default()),
        found,
    }
}

fn with(manner: Manner, capacity: u32) -> Wanted {
    Wanted {
        manner,
        capacity,
        ..Wanted::default()
    }
}

/// What is known of a program's run without arguments.
fn graph_of(file: &Path, wanted: Wanted) -> Graph {
    let region = Region::create(wanted).unwrap();
    let (name, value) = region.variable().unwrap();
    let status = Command::new(file)
        .env(name, value)
        .env("LD_PRELOAD", hooks())
        .status();
    assert!(status.unwrap().success());
    Graph::new(&read(&region), &mut Names::default())
}

#[test]
fn every_manner_counts_the_same() {
    for (name, manner) in Manner::ALL {
        for capacity in [0, 1, 100] {
            let profiled = profiled(&["plain", "3000"], with(manner, capacity));
            if manner == Manner::Nothing {
                assert_eq!(profiled.graph.calls(), 0);
                continue;
            }
            assert_eq!(profiled.graph.calls(), 3002, "{name}, {capacity}");
            assert_eq!(
                profiled.callers("shapes::area(int)"),
                [("shapes::sum(int)".to_owned(), 3000)]
            );
            assert_eq!(
                profiled.callers("shapes::sum(int)"),
                [("main".to_owned(), 1)]
            );
            assert_eq!(profiled.callers("main"), [("-".to_owned(), 1)]);
        }
    }
}

#[test]
fn nothing_is_lost_however_a_program_ends() {
    for mode in ["exit", "_exit", "abort", "segv", "kill"] {
        for manner in [Manner::Adaptive, Manner::Synchronous, Manner::Pool] {
            let profiled = profiled(&[mode, "20000"], with(manner, 1000));
            profiled.assert_calls("shapes::area(int)", 20_000, mode);
        }
    }
}

#[test]
fn threads_and_those_that_are_cancelled_are_counted() {
    let threads = profiled(&["threads"], with(Manner::Adaptive, 64));
    assert_eq!(threads.calls("shapes::area(int)"), 4000);
    assert_eq!(threads.callers("calls(void*)"), [("-".to_owned(), 4)]);
    let cancelled = profiled(&["cancel"], Wanted::default());
    assert_eq!(cancelled.calls("shapes::area(int)"), 10);
}

#[test]
fn forked_children_and_executed_programs_are_counted_once() {
    for capacity in [7, 0] {
        let forks = profiled(&["fork", "1000"], with(Manner::Adaptive, capacity));
        forks.assert_calls("shapes::area(int)", 3020, "three end with _exit");
        forks.assert_calls("shapes::sum(int)", 5, "three end with _exit");
        let callers = forks.callers("shapes::sum(int)");
        let callers: Vec<_> = callers.iter().map(|(caller, _)| caller).collect();
        assert_eq!(
            callers,
            ["main"],
            "children go on with their parent's stack"
        );
        let executes = profiled(&["exec"], with(Manner::Adaptive, capacity));
        executes.assert_calls("shapes::area(int)", 30, "one executes another program");
        assert_eq!(executes.found.len(), 2, "a process image each");
    }
}

#[test]
fn functions_that_are_left_without_their_hook_are_nobodys_callers() {
    for mode in ["longjmp", "throw"] {
        let profiled = profiled(&[mode], Wanted::default());
        assert_eq!(
            profiled.callers("after()"),
            [("main".to_owned(), 3)],
            "{mode}"
        );
    }
}

#[test]
fn allocations_belong_to_the_innermost_function() {
    let profiled = profiled(&["allocate"], Wanted::default());
    let node = |name: &str| profiled.graph.nodes.iter().find(|n| n.name == name);
    let allocates = node("allocates()").unwrap();
    assert_eq!((allocates.allocations, allocates.bytes), (30, 4500));
}

#[test]
fn recursion_deeper_than_the_stack_of_calls_is_counted() {
    let profiled = profiled(&["deep"], Wanted::default());
    assert_eq!(profiled.calls("fall(int)"), 100_001);
}

#[test]
fn calls_in_signal_handlers_are_counted_or_said_to_be_lost() {
    let profiled = profiled(&["signal", "2000000"], with(Manner::Adaptive, 100));
    let in_handlers = profiled.calls("handled(int)");
    let area = profiled.calls("shapes::area(int)");
    assert!(area >= 2_000_000 && area <= 2_000_000 + in_handlers + 1);
    assert_eq!(
        profiled.graph.losses.unreadable + profiled.graph.losses.no_room,
        0
    );
}

#[test]
fn functions_of_libraries_that_come_and_go_have_names() {
    // With small buffers it is loaded when one is handed over, with large ones it is gone by then.
    for capacity in [2, 0] {
        let profiled = profiled(&["load"], with(Manner::Adaptive, capacity));
        assert_eq!(profiled.calls("in_library"), 3, "{capacity}");
        assert_eq!(
            profiled.callers("hidden"),
            [("in_library".to_owned(), 6)],
            "{capacity}"
        );
    }
}

#[test]
fn what_has_no_room_is_counted_as_lost() {
    let wanted = Wanted {
        functions: 64,
        ..Wanted::default()
    };
    // A row of functions of its own, more than there is room for.
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("many.c");
    let functions = (0..300).map(|n| format!("void f{n}(void) {{ __asm__ volatile(\"\"); }}\n"));
    let calls = (0..300).map(|n| format!("f{n}();"));
    let text = functions.collect::<String>()
        + "int main(void) {"
        + &calls.collect::<String>()
        + "return 0; }";
    std::fs::write(&source, text).unwrap();
    let file = folder.path().join("many");
    let compiled = Command::new("gcc")
        .args(["-finstrument-functions", "-o"])
        .args([&file, &source])
        .status();
    assert!(compiled.unwrap().success());
    let graph = graph_of(&file, wanted);
    assert!(graph.losses.no_room > 0);
    assert_eq!(graph.calls() + graph.losses.no_room, 301);
}

#[test]
fn a_program_runs_as_ever_when_the_region_is_gone_or_the_variable_is_nonsense() {
    let expected = output(&["plain", "100"], |command| command);
    for value in ["", "1", "1:2:3", "x:y:z", "999999999:1:1"] {
        let output = output(&["plain", "100"], |command| {
            command
                .env("COREWISE_PROFILE", value)
                .env("LD_PRELOAD", hooks())
        });
        assert_eq!(output, expected, "{value:?}");
    }
}

#[test]
fn programs_call_the_small_c_interface_with_and_without_the_library() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let flag = format!("-I{}", include.display());
    let (_folder, file) = compile("gcc", "interface.c", "interface", &[&flag]);
    assert!(Command::new(&file).status().unwrap().success());
    let graph = graph_of(&file, Wanted::default());
    let node = graph
        .nodes
        .iter()
        .find(|node| node.name == "interpreted")
        .unwrap();
    assert_eq!((node.calls, node.allocations, node.bytes), (5, 5, 200));
}
