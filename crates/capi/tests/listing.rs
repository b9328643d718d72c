//! The paper's listing under OpenMP: with a manager, without one, and while its claim changes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::manager::Manager;
use common::{Build, Link, Program, allowed_cpus, finish, list, run, said, values};
use corewise_wire::abi::message::Placement;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

const OPENMP: [&str; 2] = ["-std=c++17", "-fopenmp"];

fn build(source: &str) -> Program {
    Build {
        compiler: "c++",
        source,
        flags: &OPENMP,
        link: Link::Library,
    }
    .build()
}

/// CPUs that a process may use at the same time, as the library sees them: a quota counts.
fn effective() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn without_a_manager_the_listing_has_the_effective_cpus_and_nothing_is_pinned() {
    let text = said(&build("listing_1_1.cpp").run_alone());
    let all = list(&allowed_cpus());
    let threads = effective().min(8);
    assert_eq!(values(&text, "managed"), ["0"]);
    // Before it invades OpenMP is left as it is: it counts the CPUs of its affinity.
    let untouched = allowed_cpus().len().to_string();
    assert_eq!(values(&text, "start threads"), [untouched.as_str()]);
    assert_eq!(values(&text, "invaded threads"), [threads.to_string()]);
    assert_eq!(values(&text, "invaded cpus"), vec![all.as_str(); threads]);
    assert_eq!(values(&text, "retreated threads"), ["1"]);
    assert_eq!(values(&text, "retreated cpus"), [all.as_str()]);
}

#[test]
fn without_a_manager_the_users_number_of_threads_holds() {
    let runtime = tempfile::tempdir().unwrap();
    let program = build("listing_1_1.cpp");
    let output = run(program.command(runtime.path()).env("OMP_NUM_THREADS", "1"));
    let text = said(&output);
    for when in ["start threads", "invaded threads", "retreated threads"] {
        assert_eq!(values(&text, when), ["1"]);
    }
}

#[test]
fn nothing_is_set_before_something_is_asked_for_and_then_for_the_asking_thread() {
    let text = said(&build("untouched.cpp").run_alone());
    assert_eq!(values(&text, "sync"), [effective().to_string()]);
    assert_eq!(values(&text, "untouched"), ["7"]);
    assert_eq!(values(&text, "asked"), ["3"]);
    assert_eq!(values(&text, "other"), ["5"]);
    assert_eq!(values(&text, "synced"), ["3"]);
    // One claim, two handles: the end of one takes nothing from the other.
    assert_eq!(values(&text, "another"), ["3"]);
    assert_eq!(values(&text, "kept"), ["3"]);
}

#[test]
fn under_a_manager_a_region_has_the_claims_threads_pinned_until_it_retreats() {
    has_the_claims_threads_pinned_until_it_retreats(&build("listing_1_1.cpp"));
}

#[test]
fn under_a_manager_the_sanitizers_find_nothing() {
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let listing = Build {
        compiler: "c++",
        source: "listing_1_1.cpp",
        flags: &[&OPENMP[..], &sanitizers].concat(),
        link: Link::Library,
    };
    match listing.try_build() {
        Ok(program) => has_the_claims_threads_pinned_until_it_retreats(&program),
        Err(said) if said.contains("san") => eprintln!("skipped: no sanitizers here"),
        Err(said) => panic!("{said}"),
    }
}

#[test]
fn where_the_user_has_openmp_bind_its_threads_they_stay_bound() {
    let all = allowed_cpus();
    let program = build("listing_1_1.cpp");
    let manager = Manager::new();
    let mut command = program.command(manager.runtime());
    command
        .env("OMP_PROC_BIND", "true")
        .env("OMP_PLACES", "threads");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut managed = manager.welcome(&all[..1]);
    managed.asked().unwrap();
    managed.grant(u32::try_from(all.len()).unwrap(), &all);
    managed.asked().unwrap();
    managed.grant(1, &all[..1]);
    let text = said(&finish(child));
    let each: Vec<String> = all.iter().map(u32::to_string).collect();
    let mut bound = values(&text, "invaded cpus");
    bound.sort_by_key(|cpu| cpu.parse::<u32>().unwrap());
    assert_eq!(bound, each);
}

fn has_the_claims_threads_pinned_until_it_retreats(program: &Program) {
    let all = allowed_cpus();
    // Another set than all of them, so that it shows.
    let last = &all[all.len() - 1..];
    let manager = Manager::new();
    let mut command = program.command(manager.runtime());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();

    let mut program = manager.welcome(&all[..1]);
    assert_eq!(program.join.pid, child.id() as i32);
    let first = program.join.wants;
    assert_eq!((first.min_threads, first.max_threads), (1, 1));
    let asked = program.asked().unwrap();
    assert_eq!((asked.min_threads, asked.max_threads), (1, 8));
    assert_eq!(asked.placement, Placement::Scatter);
    program.grant(3, last);
    let asked = program.asked().unwrap();
    assert_eq!((asked.min_threads, asked.max_threads), (1, 1));
    program.grant(1, &all[..1]);

    let text = said(&finish(child));
    let (all, last) = (list(&all), list(last));
    assert_eq!(values(&text, "managed"), ["1"]);
    assert_eq!(values(&text, "start threads"), ["1"]);
    assert_eq!(values(&text, "start cpus"), [all.as_str()]);
    assert_eq!(values(&text, "invaded threads"), ["3"]);
    assert_eq!(values(&text, "invaded cpus"), [last.as_str(); 3]);
    assert_eq!(values(&text, "retreated threads"), ["1"]);
    assert_eq!(values(&text, "retreated cpus"), [all.as_str()]);
    assert!(
        program.asked().is_none(),
        "the end of the program is the end of the claim"
    );
}

#[test]
fn regions_follow_a_claim_that_changes_while_the_program_runs() {
    let all = allowed_cpus();
    let (first, last) = (&all[..1], &all[all.len() - 1..]);
    let program = build("follow.cpp");
    let manager = Manager::new();
    let mut command = program.command(manager.runtime());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();

    let mut managed = manager.welcome(first);
    assert_eq!(managed.join.name, "follow");
    assert_eq!(managed.asked().unwrap().max_threads, 8);
    managed.grant(4, &all);
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut next = || {
        orders.write_all(b"\n").unwrap();
        let until_end = lines
            .by_ref()
            .map(Result::unwrap)
            .take_while(|l| l != "end");
        until_end.collect::<Vec<String>>().join("\n")
    };

    // Each line waits for the next generation before it looks.
    for (threads, cpus) in [(2, last), (1, last), (5, first), (3, &all[..])] {
        managed.grant(threads, cpus);
        let text = next();
        let number = threads.to_string();
        assert!(!text.contains("nothing has changed"), "{text}");
        for key in ["claim", "clause", "icv", "region threads"] {
            assert_eq!(values(&text, key), [number.as_str()], "{key} in:\n{text}");
        }
        assert_eq!(values(&text, "set"), [list(cpus)]);
        assert_eq!(values(&text, "managed"), ["1"]);
        assert_eq!(
            values(&text, "region cpus"),
            vec![list(cpus); threads as usize]
        );
    }

    // The manager dies: the claim binds no longer.
    drop(managed);
    drop(manager);
    let text = next();
    let number = effective().min(8).to_string();
    assert_eq!(values(&text, "managed"), ["0"]);
    for key in ["claim", "clause", "icv", "region threads"] {
        assert_eq!(values(&text, key), [number.as_str()], "{key} in:\n{text}");
    }
    assert!(
        values(&text, "region cpus")
            .iter()
            .all(|cpus| *cpus == list(&all))
    );
    drop(orders);
    said(&finish(child));
}
