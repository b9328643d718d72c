//! An OpenMP program that nobody changed, compiled by the system's compiler, with the adapters preloaded.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Built, Program, build};
use corewise_wire::Link;
use std::sync::atomic::Ordering;

fn program() -> Built {
    build("regions.cpp", &[])
}

#[test]
fn a_region_has_the_claims_threads_and_never_more_than_its_own() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    assert_eq!(program.ask("region"), "4", "no claim binds");
    for (claim, expected) in [(1, "1"), (3, "3"), (2, "2"), (16, "4"), (4, "4")] {
        link.grant(claim, []);
        assert_eq!(program.ask("region"), expected, "a claim of {claim}");
    }
    link.grant(1, []);
    link.release();
    assert_eq!(program.ask("region"), "4", "the claim has ended");
    assert_eq!(program.ask("max"), "4", "the program is not told");
}

#[test]
fn a_loop_gives_the_same_result_with_every_claim() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    for claim in 1..=5 {
        link.grant(claim, []);
        let expected = format!("{} {}", claim.min(4), 1000 * 999 / 2);
        assert_eq!(program.ask("loop 1000"), expected);
    }
}

#[test]
fn a_number_that_the_program_demands_is_left_alone() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    link.grant(1, []);
    assert_eq!(program.ask("clause 3"), "3");
    let report = link.reports().taken().next().unwrap();
    assert_eq!(report.demanded.load(Ordering::Relaxed), 1);
    assert_eq!(program.ask("clause 1"), "1");
}

#[test]
fn the_user_may_have_demanded_numbers_changed() {
    let link = Link::create().unwrap();
    let built = program();
    let variables = [("COREWISE_OVERRIDE_CLAUSES", "1")];
    let mut program = Program::start_with(&built, &link, 4, &variables);
    link.grant(2, []);
    assert_eq!(program.ask("clause 3"), "2");
}

#[test]
fn a_library_on_the_list_follows_also_where_it_demands() {
    let link = Link::create().unwrap();
    let built = program();
    let listed = common::library("lib_lightgbm.so");
    let other = common::library("libother.so");
    let mut program = Program::start(&built, &link, 4);
    for claim in [1, 2] {
        link.grant(claim, []);
        let listed = program.ask(&format!("library {} 3", listed.file.display()));
        assert_eq!(listed, format!("{claim} {claim}"));
        // Loaded where the first one was.
        let other = program.ask(&format!("library {} 3", other.file.display()));
        assert_eq!(other, format!("{claim} 3"));
    }
}

#[test]
fn libraries_that_come_and_go_are_followed() {
    let link = Link::create().unwrap();
    let built = program();
    let library = common::library("libother.so");
    let mut program = Program::start(&built, &link, 4);
    link.grant(2, []);
    for _ in 0..600 {
        let answer = program.ask(&format!("library {} 1", library.file.display()));
        assert_eq!(answer, "2 1");
    }
}

#[test]
fn a_library_with_a_copy_of_its_own_uses_what_the_loader_has_bound_it_to() {
    let link = Link::create().unwrap();
    let (wheel, _copy) = common::library_with_own_libgomp();
    let team = format!("team {}", wheel.file.display());
    let open = format!("open {}", wheel.file.display());
    link.grant(2, []);
    // A program with a runtime: everybody uses that.
    let built = build("copies.cpp", &["-Wl,--no-as-needed", "-lgomp"]);
    let mut program = Program::start(&built, &link, 4);
    assert_eq!(program.ask(&open), "loaded");
    assert_eq!(program.ask(&team), "2 2");
    // One without, to which another copy comes later, for everybody: the first one stays in use.
    let built = build("copies.cpp", &["-fno-openmp"]);
    let mut program = Program::start(&built, &link, 4);
    assert_eq!(program.ask(&open), "loaded");
    assert_eq!(program.ask(&team), "2 2");
    assert_eq!(program.ask("share libgomp.so.1"), "loaded");
    let other = common::library("libother.so");
    let load = format!("open {}", other.file.display());
    assert_eq!(program.ask(&load), "loaded");
    assert_eq!(program.ask("close"), "0");
    assert_eq!(program.ask(&team), "2 2");
}

#[test]
fn a_library_that_does_not_say_what_it_needs_is_followed() {
    let link = Link::create().unwrap();
    let silent = common::library_that_needs_nothing("libsilent.so");
    let loader = common::library_with(&[&silent.file]);
    link.grant(2, []);
    let built = build("copies.cpp", &["-fno-openmp"]);
    let mut program = Program::start(&built, &link, 4);
    let open = format!("open {}", loader.file.display());
    assert_eq!(program.ask(&open), "loaded");
    let team = format!("team {}", silent.file.display());
    assert_eq!(program.ask(&team), "2 2");
}

#[test]
fn a_program_that_keeps_data_in_its_threads_is_left_alone() {
    let link = Link::create().unwrap();
    let built = build("regions.cpp", &["-DKEEPS_THREAD_DATA"]);
    let mut program = Program::start(&built, &link, 4);
    link.grant(2, []);
    assert_eq!(program.ask("region"), "4");
}

#[test]
fn regions_within_regions_share_the_claim() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    link.grant(4, []);
    assert_eq!(program.ask("nested"), "4 1");
    link.grant(1, []);
    assert_eq!(program.ask("nested"), "1 1");
}

#[test]
fn a_dynamic_loop_becomes_smaller_within_its_region() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    link.grant(4, []);
    program.say("dynamic 200");
    assert_eq!(program.heard(), "started");
    link.grant(1, []);
    let answer = program.ask("go");
    let numbers: Vec<i64> = answer.split(' ').map(|n| n.parse().unwrap()).collect();
    assert_eq!(numbers[..2], [4, 200 * 199 / 2], "{answer}");
    // Each of the three others may have been at a piece when the claim became smaller.
    assert!(numbers[2] <= 3, "{answer}");
}

#[test]
fn exceptions_ends_and_cancellation_pass_through() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    for claim in [1, 3] {
        link.grant(claim, []);
        assert_eq!(program.ask("throw 6"), "caught 7");
        assert_eq!(program.ask("exit"), "joined");
        assert_eq!(program.ask("cancel"), "joined");
        assert_eq!(program.ask("region"), claim.to_string());
    }
}

#[test]
fn a_forked_child_follows_too() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    link.grant(2, []);
    assert_eq!(program.ask("fork"), "2");
    assert_eq!(program.ask("region"), "2");
}

#[test]
fn what_regions_asked_for_is_told() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    program.ask("region");
    link.grant(3, []);
    program.ask("region");
    let report = link.reports().taken().next().unwrap();
    assert_eq!(report.pid.load(Ordering::Relaxed), program.pid());
    assert_eq!(report.asked.load(Ordering::Relaxed), 4);
    assert_eq!(report.given.load(Ordering::Relaxed), 3);
    assert_eq!(report.occasions.load(Ordering::Relaxed), 2);
    assert_eq!(report.shrunk.load(Ordering::Relaxed), 1);
}

#[test]
fn pages_that_are_not_there_change_nothing() {
    let link = Link::create().unwrap();
    let built = program();
    let (_, value) = link.variable().unwrap();
    let mut others = vec![String::new(), "1:2:3".into(), "x".repeat(5000)];
    // Another file than the one that was meant; a descriptor that is none; a process that is none.
    let fields: Vec<&str> = value.split(':').collect();
    others.push(format!("{}:{}:1:{}:1", fields[0], fields[1], fields[3]));
    others.push(format!(
        "{}:9999:{}:9999:{}",
        fields[0], fields[2], fields[4]
    ));
    others.push(format!("0:{}", fields[1..].join(":")));
    link.grant(1, []);
    for other in others {
        let mut program = Program::start_with(&built, &link, 4, &[("COREWISE_LINK", &other)]);
        assert_eq!(program.ask("region"), "4", "{other:.40}");
    }
}

#[test]
fn regions_are_timed_and_have_the_number_that_they_are_given() {
    let link = Link::create().unwrap();
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    assert_eq!(program.ask("region"), "4");
    assert_eq!(link.regions().timed().count(), 0, "nobody asked for it");
    link.regions().time(true);
    for _ in 0..5 {
        assert_eq!(program.ask("region"), "4");
    }
    let (region, timed) = link.regions().timed().next().unwrap();
    assert_eq!((timed.asked, timed.first.runs), (4, 5));
    assert!(timed.first.time_ns > 0);
    region.compare([4, 1], 1);
    let had: Vec<String> = (0..8).map(|_| program.ask("region")).collect();
    assert_eq!(had, ["4", "4", "1", "1", "4", "4", "1", "1"]);
    let (_, timed) = link.regions().timed().next().unwrap();
    assert_eq!(
        (timed.first.runs, timed.second.runs),
        (2, 2),
        "the second of each turn"
    );
    region.give(3);
    assert_eq!(program.ask("region"), "3");
    link.grant(2, []);
    assert_eq!(program.ask("region"), "2", "the claim bounds it");
    assert_eq!(program.ask("loop 1000"), "2 499500", "another region");
    assert_eq!(link.regions().timed().count(), 2);
    link.regions().time(false);
    link.release();
    assert_eq!(program.ask("region"), "4");
}

#[test]
fn exceptions_ends_and_cancellation_pass_through_where_regions_are_timed() {
    let link = Link::create().unwrap();
    link.regions().time(true);
    let built = program();
    let mut program = Program::start(&built, &link, 4);
    link.grant(3, []);
    assert_eq!(program.ask("throw 6"), "caught 7");
    assert_eq!(program.ask("exit"), "joined");
    assert_eq!(program.ask("cancel"), "joined");
    // Before a team: a child would wait for its threads, with libgomp itself.
    assert_eq!(program.ask("fork"), "3");
    assert_eq!(program.ask("nested"), "3 1");
}

#[test]
fn valgrind_finds_nothing() {
    let valgrind = std::process::Command::new("valgrind")
        .arg("--version")
        .output();
    if valgrind.is_err() {
        eprintln!("skipped: no valgrind here");
        return;
    }
    let link = Link::create().unwrap();
    link.grant(2, []);
    link.regions().time(true);
    let (name, value) = link.variable().unwrap();
    let built = program();
    let library = common::library("libother.so");
    let said = built.file.with_file_name("commands");
    let commands = format!(
        "region\nlibrary {0} 3\nexit\nlibrary {0} 1\nloop 100\nnested\n",
        library.file.display()
    );
    std::fs::write(&said, commands).unwrap();
    // Valgrind exits with 9 for an error that it finds.
    let output = std::process::Command::new("valgrind")
        .args(["-q", "--error-exitcode=9"])
        .arg(&built.file)
        .env("OMP_NUM_THREADS", "3")
        .env("LD_PRELOAD", common::shim())
        .env(name, value)
        .stdin(std::fs::File::open(&said).unwrap())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(printed, "2\n2 3\njoined\n2 1\n2 4950\n2 1\n", "{errors}");
}
