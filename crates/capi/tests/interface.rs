//! Every function of corewise.h from C, and corewise.hpp without OpenMP; also under the compilers'
//! sanitizers, linked statically, and with what the library shows to the linker.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::manager::Manager;
use common::{Build, Link, Program, allowed_cpus, finish, library_folder, list, run, said, values};
use corewise_wire::abi::message::Request;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The C compiler's address, leak and undefined-behaviour sanitizers.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn build(compiler: &str, source: &str, flags: &[&str], link: Link) -> Program {
    Build {
        compiler,
        source,
        flags,
        link,
    }
    .build()
}

/// Whether the compilers here have what the flags need.
fn can_build(flags: &[&str]) -> bool {
    let trial = Build {
        compiler: "cc",
        source: "empty.c",
        flags,
        link: Link::Library,
    };
    trial.try_build().is_ok()
}

#[test]
fn every_function_does_as_its_header_says_without_a_manager() {
    said(&build("cc", "interface.c", &["-std=c11"], Link::Library).run_alone());
}

#[test]
fn the_static_library_does_the_same() {
    said(&build("cc", "interface.c", &["-std=c11"], Link::Static).run_alone());
}

#[test]
fn the_headers_suit_strict_c_and_cpp() {
    for standard in ["-std=c11", "-std=c17", "-std=gnu11"] {
        build(
            "cc",
            "empty.c",
            &[standard, "-Wstrict-prototypes"],
            Link::Library,
        );
    }
    for standard in ["-std=c++17", "-std=c++20"] {
        build("c++", "plain.cpp", &[standard, "-Wshadow"], Link::Library);
    }
}

#[test]
fn cpp_needs_no_openmp_and_gets_exceptions_back() {
    said(&build("c++", "plain.cpp", &["-std=c++17"], Link::Library).run_alone());
}

#[test]
fn the_sanitizers_find_nothing() {
    if !can_build(&SANITIZERS) {
        eprintln!("skipped: no sanitizers here");
        return;
    }
    let flags = |standard| [&[standard], &SANITIZERS[..]].concat();
    said(&build("cc", "interface.c", &flags("-std=c11"), Link::Library).run_alone());
    said(&build("c++", "plain.cpp", &flags("-std=c++17"), Link::Library).run_alone());
}

#[test]
fn valgrind_finds_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: no valgrind here");
        return;
    }
    let program = build("cc", "interface.c", &["-std=c11"], Link::Library);
    let runtime = tempfile::tempdir().unwrap();
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=no",
    ];
    said(&run(&mut program.command_under(&valgrind, runtime.path())));
}

/// `nm`'s names of a library's dynamic symbols of its own.
fn exported() -> Vec<String> {
    let library = library_folder().join("libcorewise.so");
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library)
        .output()
        .unwrap();
    let text = said(&output);
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// The functions that the headers declare and do not define.
fn declared() -> Vec<String> {
    let headers = [
        concat!(env!("CARGO_MANIFEST_DIR"), "/include/corewise.h"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/include/corewise_defer.h"),
    ];
    let output = Command::new("cc")
        .args(["-E", "-P"])
        .args(headers)
        .output()
        .unwrap();
    let text = said(&output);
    let declarations = text.split(';').filter(|part| !part.contains('{'));
    let mut names: Vec<String> = declarations
        .filter_map(|part| {
            let (before, _) = part.split_once('(')?;
            let name = before.rsplit([' ', '*']).next()?;
            name.starts_with("corewise_").then(|| name.to_owned())
        })
        .collect();
    names.sort();
    // The header's own functions call some of them.
    names.dedup();
    names
}

#[test]
fn the_library_shows_what_the_header_declares_and_nothing_else() {
    let mut exported = exported();
    exported.sort();
    let declared = declared();
    assert!(declared.len() > 15, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn programs_record_the_number_of_the_interface() {
    let library = library_folder().join("libcorewise.so");
    let output = Command::new("readelf")
        .arg("-d")
        .arg(library)
        .output()
        .unwrap();
    assert!(said(&output).contains("[libcorewise.so.1]"));
}

#[test]
fn under_a_manager_c_reads_asks_answers_and_hears_of_changes() {
    let all = allowed_cpus();
    let program = build("cc", "managed.c", &["-std=c11"], Link::Library);
    let manager = Manager::new();
    let mut command = program.command(manager.runtime());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut managed = manager.welcome(&all[..1]);
    assert_eq!(managed.join.name, "caf\u{e9}");
    let mut next = |order: &str| {
        writeln!(orders, "{order}").unwrap();
        let until_end = lines
            .by_ref()
            .map(Result::unwrap)
            .take_while(|l| l != "end");
        until_end.collect::<Vec<String>>().join("\n")
    };

    let text = next("look");
    assert_eq!(values(&text, "managed"), ["1"]);
    assert_eq!(values(&text, "threads"), ["1 1"]);
    assert_eq!(values(&text, "cpus"), [list(&all[..1])]);

    // The claim of a child is its own: the effective CPUs, whatever its parent's is.
    managed.grant(7, &all);
    let text = next("fork");
    let effective = std::thread::available_parallelism().unwrap();
    assert_eq!(values(&text, "child managed"), ["0"]);
    assert_eq!(
        values(&text, "child threads"),
        [format!("{effective} {effective}")]
    );

    // A change makes the descriptor readable and is called back; work runs on as many workers.
    managed.grant(3, &all);
    let text = next("event");
    assert_eq!(values(&text, "threads"), ["3 3"]);
    assert_eq!(values(&text, "called"), ["yes"]);
    let text = next("work");
    assert_eq!(values(&text, "workers"), ["3"]);
    assert!(managed.progress.read().progress >= 3);

    assert!(managed.request(Request::Shrink));
    assert!(!managed.request(Request::Expand));
    // A child that joins is a program of its own.
    let again = std::thread::scope(|scope| {
        let welcomed = scope.spawn(|| manager.welcome(&all[..1]));
        next("join");
        welcomed.join().unwrap()
    });
    assert_ne!(again.join.pid, managed.join.pid);
    assert_eq!(again.join.name, "child");

    drop(orders);
    said(&finish(child));
    assert!(managed.asked().is_none());
}
