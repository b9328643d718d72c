//! Programs join, are granted, and leave: by themselves, or killed.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Manager, Place, Player, is_closed, join, join_as, own_pid, until, wants};
use corewise_abi::claim::State;
use corewise_abi::message::{ToManager, ToProgram, features};
use corewise_manager::override_claim;
use corewise_wire::{Error as WireError, connect};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

#[test]
fn helper() {
    common::helper_main();
}

#[test]
fn a_program_that_joins_is_welcomed_with_its_first_claim() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let joined = join(&place, "first");
    assert_eq!(joined.program, 1);
    assert_eq!(joined.claim.state(), State::Managed);
    assert_eq!(joined.claim.granted().threads, 4);
    let mut cpus = [0; 64];
    assert!(joined.claim.cpus(&mut cpus).is_some());
    assert!(cpus.iter().any(|word| *word != 0));
    let programs = place.programs();
    assert_eq!(programs[0]["pid"], own_pid());
    assert_eq!(programs[0]["name"], "first");
    assert_eq!(programs[0]["claim"]["threads"], 4);
    assert_eq!(programs[0]["overridden"], false);
}

#[test]
fn of_two_programs_one_leaves() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let first = join(&place, "first");
    let second = join(&place, "second");
    assert_eq!(place.programs().len(), 2);
    drop(first);
    place.until_programs(1);
    assert_eq!(place.programs()[0]["name"], "second");
    assert!(!is_closed(&second));
}

#[test]
fn a_program_that_is_killed_has_left() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let mut player = Player::start("program", &place);
    player.says("joined");
    assert_eq!(place.programs()[0]["pid"], player.pid());
    player.kill();
    place.until_programs(0);
}

#[test]
fn a_process_that_was_joined_for_has_left_when_it_ends_though_its_connection_stays() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let mut cat = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = i32::try_from(cat.id()).unwrap();
    let joined = corewise_wire::join(&place.folder, join_as(pid, "cat", wants(1, 1))).unwrap();
    assert_eq!(place.programs()[0]["pid"], pid);
    drop(cat.stdin.take());
    place.until_programs(0);
    until("its connection is closed", || is_closed(&joined));
    cat.wait().unwrap();
}

#[test]
fn nobody_joins_for_a_process_that_is_not_theirs() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    for pid in [1, i32::MAX, 0, -5] {
        let refused = corewise_wire::join(&place.folder, join_as(pid, "x", wants(1, 1)));
        assert!(
            matches!(refused, Err(WireError::Refused(_))),
            "{pid}: {refused:?}"
        );
    }
    assert!(place.programs().is_empty());
}

#[test]
fn who_stands_beside_a_program_gives_way_when_it_joins_itself() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let mut player = Player::start("program", &place);
    player.says("joined");
    // Already joined itself: nobody speaks for it.
    let late = corewise_wire::join(&place.folder, join_as(player.pid(), "beside", wants(1, 1)));
    assert!(matches!(late, Err(WireError::Refused(_))), "{late:?}");
    player.kill();

    // Joined for first: the process's own connection takes over. The process is this one's child, and
    // reached by its number; a second manager sees them in that order.
    let place = Place::new();
    let mut player = Player::start("program late", &place);
    let _manager = Manager::observing(&place);
    let join = join_as(player.pid(), "beside", wants(1, 1));
    let beside = corewise_wire::join(&place.folder, join).unwrap();
    player.go();
    player.says("joined");
    until("the one beside is refused", || {
        matches!(
            beside.channel.receive::<ToProgram>(),
            Ok(received) if matches!(received.message, ToProgram::Refused(_))
        )
    });
    until("its connection is closed", || is_closed(&beside));
    let programs = place.programs();
    assert_eq!(programs.len(), 1);
    assert_eq!(programs[0]["name"], "player");
}

#[test]
fn what_a_program_says_of_itself_is_in_the_status() {
    let place = Place::new();
    let period = std::time::Duration::from_millis(10);
    let _manager = Manager::start(&place, place.options("observe").period(period));
    let joined = join(&place, "sayer");
    joined.channel.send(&ToManager::Threads(3), &[]).unwrap();
    until("its threads", || place.programs()[0]["threads"] == 3);
    joined.progress.could_use.store(2, Ordering::Relaxed);
    joined.progress.blocked.store(1, Ordering::Relaxed);
    until("what it could use", || {
        let program = &place.programs()[0];
        program["could_use"] == 2 && program["blocked"] == 1 && program["uses"].is_number()
    });
    assert!(place.status()["load"]["busy"].is_number());
}

#[test]
fn what_follows_in_a_program_is_in_the_status_once_it_has_said_so() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let joined = join(&place, "sayer");
    assert_ne!(joined.features & features::FOLLOWS, 0);
    let before = &place.programs()[0];
    assert_eq!(
        (&before["follows"], &before["stay"]),
        (&Value::Null, &Value::Null)
    );
    let says = |runtimes: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let message = ToManager::Follows {
            runtimes: names(runtimes),
            stay: names(&["rayon"]),
        };
        joined.channel.send(&message, &[]).unwrap();
        until("what it has said", || {
            let program = &place.programs()[0];
            program["follows"] == json!(runtimes) && program["stay"] == json!(["rayon"])
        });
    };
    says(&["libgomp"]);
    says(&["libgomp", "OpenBLAS"]);
    // From nobody in particular it is unwelcome.
    let stranger = connect(&place.folder).unwrap();
    let message = ToManager::Follows {
        runtimes: vec![],
        stay: vec![],
    };
    stranger.send(&message, &[]).unwrap();
    let answer = stranger.receive_within::<ToProgram>(LONG);
    assert!(matches!(answer, Err(WireError::Closed)), "{answer:?}");
    assert_eq!(place.programs().len(), 1);
}

#[test]
fn asking_for_something_else_changes_the_claim_and_wakes_the_sleeper() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let joined = join(&place, "asker");
    let seen = joined.claim.granted().generation;
    joined
        .channel
        .send(&ToManager::Ask(wants(1, 7)), &[])
        .unwrap();
    assert!(joined.claim.wait(seen, Some(LONG)));
    assert_eq!(joined.claim.granted().threads, 7);
}

#[test]
fn a_person_sets_a_claim_and_gives_it_back() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let joined = join(&place, "set");
    override_claim(&place.folder, own_pid(), 2, vec![]).unwrap();
    assert_eq!(joined.claim.granted().threads, 2);
    assert_eq!(place.programs()[0]["overridden"], true);
    override_claim(&place.folder, own_pid(), 0, vec![]).unwrap();
    assert_eq!(joined.claim.granted().threads, 4);
    assert_eq!(place.programs()[0]["overridden"], false);
    let nobody = override_claim(&place.folder, 1, 2, vec![]).unwrap_err();
    assert!(nobody.to_string().contains("not managed"), "{nobody}");
}

#[test]
fn the_status_of_many_programs_comes_whole() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let joined: Vec<_> = (0..150)
        .map(|n| join(&place, &format!("program {n}")))
        .collect();
    let programs = place.programs();
    assert_eq!(programs.len(), joined.len());
    assert_eq!(programs[149]["name"], "program 149");
}

#[test]
fn many_who_join_and_leave_take_nothing_with_them() {
    let place = Place::new();
    // In a process of its own, whose descriptors can be counted.
    let mut manager = Player::start("manager", &place);
    until("it listens", || place.listens());
    let count = || {
        let listing = std::fs::read_dir(format!("/proc/{}/fd", manager.pid()));
        listing.unwrap().count()
    };
    let mappings = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", manager.pid())).unwrap();
        maps.matches("corewise-").count()
    };
    drop(join(&place, "first"));
    place.until_programs(0);
    until("few descriptors", || count() < 20);
    let before = count();
    for _ in 0..100 {
        drop(join(&place, "guest"));
    }
    place.until_programs(0);
    until("as many descriptors as before", || count() <= before);
    assert_eq!(mappings(), 0);
    manager.kill();
}
