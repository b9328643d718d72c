//! Another policy may place threads otherwise: programs that have joined are told so.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Manager, Place, join_as, own_pid, until, wants};
use corewise_abi::message::{LocalRule, ToProgram, features};
use corewise_wire::{Error, Joined};
use std::path::PathBuf;

#[test]
fn helper() {
    common::helper_main();
}

/// A policy whose local rule is this.
fn write_policy(place: &Place, rule: &str) -> PathBuf {
    let file = place.folder.path().join("mine.rhai");
    let text = format!(
        "fn local_rule() {{ \"{rule}\" }}\n\
         fn on_joined(p) {{ grant(p, machine.cpus, 1, \"because\"); }}\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn join(place: &Place, features: u64) -> Joined {
    let mut join = join_as(own_pid(), "told", wants(1, 4));
    join.features = features;
    corewise_wire::join(&place.folder, join).unwrap()
}

fn next(joined: &Joined) -> ToProgram {
    joined.channel.receive_within(LONG).unwrap().message
}

#[test]
fn who_understands_it_is_told_that_the_rule_has_changed_and_others_hear_nothing() {
    let place = Place::new();
    let file = write_policy(&place, "one-each");
    let _manager = Manager::start(&place, place.options(file.to_str().unwrap()));
    let knows = join(&place, features::RULE | 1 << 60);
    let older = join(&place, !features::RULE);
    assert_eq!(knows.rule, LocalRule::OneEach);
    assert_eq!(older.rule, LocalRule::OneEach);

    write_policy(&place, "leave");
    assert_eq!(next(&knows), ToProgram::Rule(LocalRule::Leave));
    // Who joins from here on has it in the welcome, and is told no more.
    let late = join(&place, features::RULE);
    assert_eq!(late.rule, LocalRule::Leave);
    write_policy(&place, "whole");
    assert_eq!(next(&knows), ToProgram::Rule(LocalRule::Whole));
    assert_eq!(next(&late), ToProgram::Rule(LocalRule::Whole));
    for joined in [&knows, &older, &late] {
        let quiet = joined.channel.receive::<ToProgram>();
        assert!(matches!(quiet, Err(Error::WouldBlock)), "{quiet:?}");
    }
}

#[test]
fn another_text_with_the_same_rule_is_no_message() {
    let place = Place::new();
    let file = write_policy(&place, "one-each");
    let _manager = Manager::start(&place, place.options(file.to_str().unwrap()));
    let joined = join(&place, features::RULE);
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("fn name() { \"another\" }\n");
    std::fs::write(&file, text).unwrap();
    until("the other policy", || place.status()["policy"] == "another");
    let quiet = joined.channel.receive::<ToProgram>();
    assert!(matches!(quiet, Err(Error::WouldBlock)), "{quiet:?}");
}
