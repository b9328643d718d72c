//! The listing under the manager that users run.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Build, Link, allowed_cpus, list, run, said, values};
use corewise_manager::{Options, PolicyChoice, override_claim, serve, status_json, stop};
use corewise_wire::Folder;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A manager on a thread of this test; it ends with this value.
struct Served {
    folder: Folder,
    thread: Option<JoinHandle<()>>,
    _runtime: TempDir,
}

impl Served {
    fn new(policy: &str) -> Served {
        let runtime = tempfile::tempdir().unwrap();
        let folder = Folder::at(runtime.path().join("corewise")).unwrap();
        let policy = PolicyChoice::BuiltIn(policy.to_owned());
        let options = Options::new(folder.clone(), policy).activated(false);
        let thread = std::thread::spawn(move || serve(options).unwrap());
        let served = Served {
            folder,
            thread: Some(thread),
            _runtime: runtime,
        };
        until(|| status_json(&served.folder).is_ok_and(|status| status.is_some()));
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = stop(&self.folder);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

fn until(mut what: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < deadline, "it never comes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn openmp(source: &str) -> common::Program {
    openmp_with(source, Link::Library)
}

fn openmp_with(source: &str, link: Link) -> common::Program {
    let (compiler, standard) = match source.ends_with(".c") {
        true => ("cc", "-std=gnu11"),
        false => ("c++", "-std=c++17"),
    };
    Build {
        compiler,
        source,
        flags: &[standard, "-fopenmp"],
        link,
    }
    .build()
}

/// A program that is told to begin regions, and says what they had.
struct Told {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it said first.
    first: String,
}

impl Told {
    /// With so many threads of OpenMP's own.
    fn start(program: &common::Program, runtime: &Path, threads: u32) -> Told {
        let mut command = program.command(runtime);
        command.env("OMP_NUM_THREADS", threads.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let orders = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = Told {
            child,
            orders,
            lines,
            first: String::new(),
        };
        told.first = told.until_end();
        told
    }

    fn until_end(&mut self) -> String {
        let lines = self.lines.by_ref().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| line != "end").collect();
        lines.join("\n")
    }

    /// The number of threads of its next region on the main thread, of one on another thread, and what
    /// OpenMP says of its own number.
    fn regions(&mut self) -> [String; 3] {
        let orders = self.orders.as_mut().unwrap();
        orders.write_all(b"\n").unwrap();
        let text = self.until_end();
        ["main", "other", "max"].map(|key| values(&text, key)[0].to_owned())
    }

    fn ends_well(mut self) {
        drop(self.orders.take());
        said(&common::finish(self.child));
    }
}

#[test]
fn the_listing_has_what_the_policy_grants() {
    // This policy grants everyone everything.
    let manager = Served::new("observe");
    let program = openmp("listing_1_1.cpp");
    let text = said(&run(&mut program.command(manager.folder.path())));
    let all = list(&allowed_cpus());
    assert_eq!(values(&text, "managed"), ["1"]);
    assert_eq!(values(&text, "start threads"), ["1"]);
    assert_eq!(values(&text, "invaded threads"), ["8"]);
    assert_eq!(values(&text, "invaded cpus"), [all.as_str(); 8]);
    assert_eq!(values(&text, "retreated threads"), ["1"]);
    assert_eq!(values(&text, "retreated cpus"), [all.as_str()]);
}

#[test]
fn under_the_default_policy_a_region_has_the_claims_cpus() {
    let manager = Served::new("balanced");
    let program = openmp("listing_1_1.cpp");
    let text = said(&run(&mut program.command(manager.folder.path())));
    assert_eq!(values(&text, "managed"), ["1"]);
    assert_eq!(values(&text, "start threads"), ["1"]);
    // How many depends on what else the machine is doing.
    let threads: usize = values(&text, "invaded threads")[0].parse().unwrap();
    assert!((1..=allowed_cpus().len()).contains(&threads));
    let cpus = values(&text, "invaded cpus");
    assert!(
        cpus.iter().all(|one| *one == cpus[0]),
        "all on the claim: {cpus:?}"
    );
    assert_eq!(values(&text, "retreated threads"), ["1"]);
    assert_eq!(values(&text, "retreated cpus"), [list(&allowed_cpus())]);
}

#[test]
fn a_person_shrinks_a_running_programs_claim_and_its_next_region_follows() {
    let manager = Served::new("observe");
    let program = openmp("follow.cpp");
    let mut command = program.command(manager.folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    let last = &allowed_cpus()[allowed_cpus().len() - 1..];
    let pid = i32::try_from(child.id()).unwrap();
    override_claim(&manager.folder, pid, 1, last.to_vec()).unwrap();
    orders.write_all(b"\n").unwrap();
    let until_end = lines
        .by_ref()
        .map(Result::unwrap)
        .take_while(|l| l != "end");
    let text = until_end.collect::<Vec<String>>().join("\n");
    assert_eq!(values(&text, "clause"), ["1"], "{text}");
    assert_eq!(values(&text, "set"), [list(last)]);
    assert_eq!(values(&text, "region cpus"), [list(last)]);
    drop(orders);
    said(&common::finish(child));
}

#[test]
fn regions_follow_the_claim_that_their_program_holds_when_the_adapters_are_linked_first() {
    for source in ["follow_openmp.c", "follow_openmp.cpp"] {
        let manager = Served::new("observe");
        let program = openmp_with(source, Link::Adapters);
        let mut told = Told::start(&program, manager.folder.path(), 4);
        assert_eq!(values(&told.first, "follows"), ["1"], "{source}");
        assert_eq!(told.regions(), ["4", "4", "4"], "{source}: never more");
        let pid = i32::try_from(told.child.id()).unwrap();
        for threads in [1, 3, 2] {
            override_claim(&manager.folder, pid, threads, Vec::new()).unwrap();
            let expected = threads.to_string();
            let [main, other, max] = told.regions();
            assert_eq!((&main, &other), (&expected, &expected), "{source}");
            assert_eq!(max, "4", "{source}: OpenMP's own number is left alone");
        }
        override_claim(&manager.folder, pid, 0, Vec::new()).unwrap();
        assert_eq!(told.regions()[0], "4", "{source}");
        override_claim(&manager.folder, pid, 1, Vec::new()).unwrap();
        assert_eq!(told.regions()[0], "1", "{source}");
        drop(manager);
        // It is noticed a moment later.
        until(|| told.regions()[..2] == ["4", "4"]);
        told.ends_well();
    }
}

#[test]
fn without_a_manager_regions_have_what_openmp_gives_them() {
    let nobody = tempfile::tempdir().unwrap();
    let program = openmp_with("follow_openmp.c", Link::Adapters);
    let mut told = Told::start(&program, nobody.path(), 5);
    assert_eq!(values(&told.first, "follows"), ["1"]);
    assert_eq!(told.regions(), ["5", "5", "5"]);
    told.ends_well();
}

#[test]
fn without_the_adapters_or_with_the_runtime_before_them_it_says_that_nothing_follows() {
    for link in [Link::Library, Link::AdaptersLast] {
        let manager = Served::new("observe");
        let program = openmp_with("follow_openmp.c", link);
        let mut told = Told::start(&program, manager.folder.path(), 4);
        assert_eq!(values(&told.first, "follows"), ["0"], "{link:?}");
        let pid = i32::try_from(told.child.id()).unwrap();
        override_claim(&manager.folder, pid, 1, Vec::new()).unwrap();
        assert_eq!(told.regions(), ["4", "4", "4"], "{link:?}");
        told.ends_well();
    }
}

#[test]
fn gangs_that_want_the_same_cpus_take_turns() {
    let cpus = allowed_cpus().len();
    let manager = Served::new("observe");
    let program = openmp("gang.c");
    let start = || {
        let mut command = program.command(manager.folder.path());
        command.arg(cpus.to_string()).stdin(Stdio::piped());
        command.spawn().unwrap()
    };
    let gangs = [start(), start()];
    // With one CPU there is one thread each, which needs nobody at the same time.
    let turns = if cpus < 2 { 0 } else { 2 };
    let parts = || {
        let status = status_json(&manager.folder).unwrap().unwrap();
        let programs = status["programs"].as_array().unwrap().clone();
        let part = |turn: &serde_json::Value| {
            Some(100 * turn["runs_ns"].as_u64()? / turn["period_ns"].as_u64()?)
        };
        let parts = programs.iter().filter_map(|p| part(&p["turn"]));
        parts.collect::<Vec<u64>>()
    };
    until(|| parts() == vec![50; turns]);
    for mut gang in gangs {
        drop(gang.stdin.take());
        said(&common::finish(gang));
    }
}
