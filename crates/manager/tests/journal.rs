//! The journal says what was decided and why, and replays to the same decisions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Place, join, until, wants};
use corewise_abi::message::ToManager;
use corewise_decide::global::GlobalManager;
use corewise_decide::policy::source::Source;
use corewise_decide::world::{Input, Output};
use corewise_machine::program::process_cpu_ns;
use corewise_manager::{Recorded, override_claim, recorded};
use std::time::Duration;

#[test]
fn helper() {
    common::helper_main();
}

/// Feeds a journal to a new manager, which must say what the first one said.
fn replay(recorded: &Recorded) -> GlobalManager {
    let mut manager = recorded.manager().unwrap();
    for entry in &recorded.entries {
        let outputs = manager.on(entry.time_ns, &entry.input);
        assert_eq!(outputs, entry.outputs, "{:?}", entry.input);
    }
    manager
}

/// Some life with every policy.
fn live(place: &Place, policy: &str) {
    let period = Duration::from_millis(10);
    let options = place.options(policy).period(period);
    let manager = Manager::start(place, options);
    let first = join(place, "first");
    let second = join(place, "second");
    first
        .channel
        .send(&ToManager::Ask(wants(1, 2)), &[])
        .unwrap();
    second.channel.send(&ToManager::Threads(2), &[]).unwrap();
    until("readings", || place.programs()[0]["uses"].is_number());
    override_claim(&place.folder, common::own_pid(), 1, vec![0]).unwrap();
    drop(first);
    place.until_programs(1);
    manager.stop().unwrap();
}

#[test]
fn a_journal_replays_to_the_same_decisions_and_status() {
    for policy in corewise_decide::policy::NAMES {
        let place = Place::new();
        live(&place, policy);
        let recorded = recorded(&place.folder.journal()).unwrap();
        assert_eq!(recorded.header.policy.name, policy);
        assert_eq!(recorded.header.part, 0);
        assert!(!recorded.header.boot.is_empty());
        assert!(matches!(recorded.entries[0].input, Input::Machine(_)));
        let outputs = recorded.entries.iter().flat_map(|e| &e.outputs);
        let grants = outputs.filter(|o| matches!(o, Output::Grant { .. }));
        assert!(grants.count() >= 3, "{policy}");
        let manager = replay(&recorded);
        assert_eq!(manager.status().programs.len(), 1, "{policy}");
    }
}

#[test]
fn a_policy_in_a_file_is_read_again_when_it_changes_and_a_bad_one_is_not_used() {
    let place = Place::new();
    let file = place.folder.path().join("mine.rhai");
    let script = |threads: u32| {
        let grant = format!("grant(p, machine.cpus, {threads}, \"because\");");
        format!(
            "fn on_joined(p) {{ {grant} }}\nfn on_machine() {{ for p in programs {{ {grant} }} }}\n"
        )
    };
    std::fs::write(&file, script(1)).unwrap();
    let options = place.options(file.to_str().unwrap());
    let manager = Manager::start(&place, options);
    let joined = join(&place, "scripted");
    until("the first script's claim", || {
        joined.claim.granted().threads == 1
    });
    std::fs::write(&file, "fn on_joined(p) {\n this is wrong").unwrap();
    until("an error", || place.status()["policy_error"].is_string());
    let said = place.status()["policy_error"].to_string();
    assert!(said.contains(":2:"), "{said}");
    assert_eq!(joined.claim.granted().threads, 1);
    std::fs::write(&file, script(3)).unwrap();
    until("the third script's claim", || {
        joined.claim.granted().threads == 3
    });
    assert!(place.status()["policy_error"].is_null());
    manager.stop().unwrap();
    let recorded = recorded(&place.folder.journal()).unwrap();
    let changes = recorded
        .entries
        .iter()
        .filter(|e| matches!(e.input, Input::Policy(_)));
    assert_eq!(changes.count(), 1);
    replay(&recorded);
}

#[test]
fn each_part_of_a_journal_replays_however_many_were_put_aside() {
    for policy in corewise_decide::policy::NAMES {
        let place = Place::new();
        let period = Duration::from_millis(10);
        let options = place.options(policy).journal_bytes(20_000);
        let manager = Manager::start(&place, options.period(period));
        let stays = join(&place, "stays");
        override_claim(&place.folder, common::own_pid(), 1, vec![0]).unwrap();
        let mut threads = 1;
        until("a third part", || {
            let joined = join(&place, "guest");
            for _ in 0..50 {
                threads = 1 + threads % 9;
                let ask = ToManager::Ask(wants(1, threads));
                joined.channel.send(&ask, &[]).unwrap();
            }
            place.status();
            let part = recorded(&place.folder.journal()).map(|r| r.header.part);
            part.is_ok_and(|part| part >= 3)
        });
        let status = place.status();
        drop(stays);
        place.until_programs(0);
        manager.stop().unwrap();
        let path = place.folder.path().join("journal.old.jsonl");
        let old = recorded(&path).unwrap();
        let rest = recorded(&place.folder.journal()).unwrap();
        assert_eq!(old.header.part + 1, rest.header.part);
        assert!(old.header.part >= 2 && !old.entries.is_empty(), "{policy}");
        // What was known at the beginning of a part is what the part before led to.
        let known = replay(&old).known();
        assert_eq!(rest.header.known.as_deref(), Some(&known), "{policy}");
        let end = replay(&rest);
        assert_eq!(end.status().programs.len(), 0, "{policy}");
        assert!(status["programs"].as_array().is_some_and(|p| !p.is_empty()));
        // For another policy: who was there, as if they had just come.
        let mut other = GlobalManager::new(Source::built_in("observe").make().unwrap());
        for entry in known.history() {
            other.on(entry.time_ns, &entry.input);
        }
        let ids = |manager: &GlobalManager| {
            let programs = &manager.status().programs;
            let kept = programs.iter().map(|(id, p)| (*id, p.wants, p.overridden));
            kept.collect::<Vec<_>>()
        };
        let first = rest.manager().unwrap();
        assert_eq!(ids(&other), ids(&first), "{policy}");
        // A part is as long as it may be, one batch of inputs, and its first line.
        let first_line = serde_json::to_vec(&old.header).unwrap().len() as u64;
        let written = std::fs::metadata(&path).unwrap().len();
        assert!(written < first_line + 20_000 + 200_000, "{written}");
    }
}

#[test]
fn the_time_of_a_process_that_joins_twice_is_counted_once() {
    let place = Place::new();
    let options = place.options("balanced").period(Duration::from_millis(10));
    let manager = Manager::start(&place, options);
    let first = join(&place, "first");
    let second = join(&place, "second");
    until("readings of both", || {
        let programs = place.programs();
        programs.len() == 2 && programs.iter().all(|p| p["uses"].is_number())
    });
    drop((first, second));
    manager.stop().unwrap();
    let used = process_cpu_ns(common::own_pid()).unwrap();
    let recorded = recorded(&place.folder.journal()).unwrap();
    let mut both = 0;
    for entry in &recorded.entries {
        let Input::Readings(readings) = &entry.input else {
            continue;
        };
        let sum: u64 = readings.programs.iter().map(|p| p.run_ns).sum();
        assert!(sum <= used, "{sum} of {used}");
        both += usize::from(readings.programs.len() == 2);
    }
    assert!(both >= 2);
}

#[test]
fn a_journal_that_cannot_be_written_is_counted_and_stops_nobody() {
    let place = Place::new();
    // In its place, what cannot be put aside (nor overwritten).
    let journal = place.folder.journal();
    std::fs::create_dir(&journal).unwrap();
    std::fs::create_dir(place.folder.path().join("journal.old.jsonl")).unwrap();
    std::fs::write(place.folder.path().join("journal.old.jsonl/file"), "").unwrap();
    let _manager = Manager::observing(&place);
    let joined = join(&place, "guest");
    assert_eq!(joined.claim.granted().threads, 4);
    let status = place.status();
    assert!(
        status["journal"]["failures"].as_u64().unwrap() > 0,
        "{status}"
    );
    assert!(status["journal"]["last_failure"].is_string(), "{status}");
}

#[test]
fn a_torn_last_line_is_left_out_and_a_wrong_one_is_named() {
    let place = Place::new();
    live(&place, "observe");
    let path = place.folder.journal();
    let whole = recorded(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 5]).unwrap();
    assert_eq!(
        recorded(&path).unwrap().entries.len(),
        whole.entries.len() - 1
    );
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&path, format!("{}\nnonsense\n{}\n", lines[0], lines[1])).unwrap();
    let error = recorded(&path).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}
