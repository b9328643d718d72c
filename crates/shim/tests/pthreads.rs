//! Threads and locks of the C library: what is counted, and that everything is as without the adapters.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_arch = "x86_64")]

mod common;

use common::{Built, build, shared, shim};
use corewise_abi::locks::{Called, Kind};
use corewise_wire::Link;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The program as it is; linked with condition variables of before; with ThreadSanitizer.
#[derive(Clone, Copy)]
enum Program {
    Plain,
    Old,
    Sanitized,
}

fn program(which: Program) -> &'static Built {
    static MADE: [OnceLock<Built>; 3] = [const { OnceLock::new() }; 3];
    let flags: &[&str] = match which {
        Program::Plain => &[],
        Program::Old => &["-DOLD"],
        Program::Sanitized => &["-fsanitize=thread"],
    };
    MADE[which as usize].get_or_init(|| build("locks.cpp", flags))
}

/// A library whose calls name no version.
fn library() -> &'static Built {
    static MADE: OnceLock<Built> = OnceLock::new();
    MADE.get_or_init(|| shared("conditions.cpp", "libconditions.so", &["-nostdlib"]))
}

/// What it prints, as it is or with the adapters.
fn printed(which: Program, what: &str, link: Option<&Link>) -> String {
    let mut command = Command::new(&program(which).file);
    command.arg(what).env("LIBRARY", &library().file);
    if let Some(link) = link {
        let (name, value) = link.variable().unwrap();
        command.env("LD_PRELOAD", shim()).env(name, value);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{what}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Compares what it prints with what it prints while it is counted, and gives the pages.
fn same_of(which: Program, what: &str) -> Link {
    let link = Link::create().unwrap();
    let expected = printed(which, what, None);
    assert_eq!(printed(which, what, Some(&link)), expected, "not counted");
    assert_eq!(waits(&link), 0, "nobody wanted it");
    link.locks().count(true);
    assert_eq!(printed(which, what, Some(&link)), expected, "counted");
    link
}

fn same(what: &str) -> Link {
    same_of(Program::Plain, what)
}

fn waits(link: &Link) -> u64 {
    let total = |kind: &Kind| link.locks().total(*kind).waits;
    Kind::ALL.iter().map(total).sum()
}

/// The callers of a kind.
fn callers(link: &Link, kind: Kind) -> Vec<Called> {
    let called = link.locks().callers();
    called.filter(|called| called.kind == kind).collect()
}

#[test]
fn who_waits_is_counted_under_its_caller() {
    let link = same("contended");
    for kind in Kind::ALL {
        let total = link.locks().total(kind);
        assert!(total.waits > 0 && total.ns > 0, "{kind:?}: {total:?}");
        for called in callers(&link, kind) {
            let (path, length) = link.locks().path(called.object).unwrap();
            assert!(path[..length].ends_with(b"/program"), "{called:?}");
        }
    }
    // A reader and a writer: two places that wait.
    assert_eq!(callers(&link, Kind::Rwlock).len(), 2);
    assert_eq!(callers(&link, Kind::Semaphore).len(), 1);
    assert_eq!(link.locks().others().waits, 0);
}

#[test]
fn who_does_not_wait_is_not_counted() {
    assert_eq!(waits(&same("uncontended")), 0);
}

#[test]
fn mutexes_of_every_kind_answer_as_they_do_without() {
    same("kinds");
}

#[test]
fn a_thread_that_is_cancelled_waits_no_longer() {
    let link = same("cancelled");
    for report in link.reports().taken() {
        assert_eq!(report.blocked.load(Ordering::Relaxed), 0);
    }
    assert_eq!(link.locks().total(Kind::Condition).waits, 1);
    assert!(link.locks().total(Kind::Semaphore).waits >= 1);
}

#[test]
fn exceptions_and_the_end_of_a_thread_pass_through() {
    let link = same("exceptions");
    let report = link.reports().taken().last().unwrap();
    assert_eq!(report.created.load(Ordering::Relaxed), 2);
    assert_eq!(report.ended.load(Ordering::Relaxed), 2);
}

#[test]
fn threads_and_their_names_are_counted() {
    let link = same("named");
    let report = link.reports().taken().last().unwrap();
    assert_eq!(report.created.load(Ordering::Relaxed), 5);
    assert_eq!(report.ended.load(Ordering::Relaxed), 5);
    let names: Vec<_> = link.locks().names().collect();
    assert_eq!(names, [*b"pool-#\0\0\0\0\0\0\0\0\0\0"]);
    assert_eq!(link.locks().named(), 3);
}

#[test]
fn a_forked_child_goes_on_and_the_same_place_is_one_caller() {
    let link = same("forked");
    assert_eq!(callers(&link, Kind::Semaphore).len(), 1);
    assert!(link.locks().total(Kind::Semaphore).waits >= 2);
}

#[test]
fn a_wait_can_be_left_by_a_jump() {
    same("left");
}

#[test]
fn condition_variables_of_both_versions_are_themselves() {
    same("unversioned");
    let link = same_of(Program::Old, "old");
    assert!(link.locks().total(Kind::Condition).waits >= 2);
}

#[test]
fn nothing_is_counted_when_whoever_wanted_it_has_died() {
    let keeper = std::thread::spawn(|| {
        let link = Link::create().unwrap();
        link.locks().count(true);
        link
    });
    // The pages stay, their keeper has gone.
    let link = keeper.join().unwrap();
    let printed = |link| printed(Program::Plain, "contended", link);
    assert_eq!(printed(Some(&link)), printed(None));
    assert_eq!(waits(&link), 0);
}

#[test]
fn others_who_stand_for_the_same_functions_are_called_all_the_same() {
    let plain = Command::new(&program(Program::Sanitized).file)
        .arg("uncontended")
        .output()
        .unwrap();
    if !plain.status.success() {
        eprintln!("skipped: ThreadSanitizer does not work here: {plain:?}");
        return;
    }
    // It would not see who waits for a condition, and believe that they still have the mutex.
    same_of(Program::Sanitized, "contended");
}
