//! The journal says what was decided and why, and replays to the same decisions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Place, join, until, wants};
use corewise_abi::message::ToManager;
use corewise_decide::global::GlobalManager;
use corewise_decide::world::{Input, Output};
use corewise_manager::{Recorded, override_claim, recorded};
use std::time::Duration;

#[test]
fn helper() {
    common::helper_main();
}

/// Feeds a journal to a new manager, which must say what the first one said.
fn replay(recorded: &Recorded) -> GlobalManager {
    let mut manager = GlobalManager::new(recorded.header.policy.make().unwrap());
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
fn a_full_journal_is_put_aside_and_both_parts_replay() {
    let place = Place::new();
    let options = place.options("observe").journal_bytes(20_000);
    let manager = Manager::start(&place, options);
    let old = place.folder.path().join("journal.old.jsonl");
    let mut threads = 1;
    until("a second part", || {
        let joined = join(&place, "guest");
        for _ in 0..50 {
            threads = 1 + threads % 9;
            let ask = ToManager::Ask(wants(1, threads));
            joined.channel.send(&ask, &[]).unwrap();
        }
        place.status();
        old.exists()
    });
    manager.stop().unwrap();
    let mut whole = recorded(&old).unwrap();
    let rest = recorded(&place.folder.journal()).unwrap();
    if rest.header.part == 1 {
        assert_eq!(whole.header.part, 0);
        whole.entries.extend(rest.entries);
        replay(&whole);
    }
    let written = std::fs::metadata(&old).unwrap().len();
    // A part is as long as it may be, and one buffer more.
    assert!(written < 20_000 + 200_000, "{written}");
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
