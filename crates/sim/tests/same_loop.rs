//! Linux and the simulated machine go through the same driver loop: nothing else asks the decisions, and a
//! simulated journal replays as a real one does.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;

use common::{experiments, mixed, run};
use corewise_decide::global::GlobalManager;
use corewise_decide::policy::NAMES;
use corewise_decide::world::{Entry, Input, World};
use corewise_sim::world::SimWorld;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's sources that are no tests: their paths below `crates`, and their texts up to the unit
/// tests.
fn sources() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned();
    let mut folders: Vec<PathBuf> = fs::read_dir(&crates)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    folders.retain(|folder| folder.join("src").is_dir());
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| folder.join("src")).collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs")
                && name != "tests.rs"
                && !path.to_str().unwrap().contains("/tests/")
            {
                let text = fs::read_to_string(&path).unwrap();
                let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
                let below = path
                    .strip_prefix(&crates)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                sources.push((below, text[..end].to_owned()));
            }
        }
    }
    sources.sort();
    assert!(sources.len() > 100, "the workspace's sources are found");
    sources
}

/// What `.on(` is called on in a text.
fn receivers(text: &str) -> Vec<String> {
    let calls = text.match_indices(".on(");
    let receiver = |(at, _): (usize, &str)| {
        let before = text[..at].trim_end();
        let name = before
            .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
            .next();
        name.unwrap_or_default().to_owned()
    };
    calls.map(receiver).collect()
}

#[test]
fn the_driver_loop_is_the_only_one_who_asks_the_global_manager() {
    let mut found = BTreeSet::new();
    for (path, text) in sources()
        .iter()
        .filter(|(_, text)| text.contains("GlobalManager"))
    {
        assert!(
            !text.contains("GlobalManager::on"),
            "{path} calls it by its full name"
        );
        found.extend(receivers(text).into_iter().map(|name| (path.clone(), name)));
    }
    let driver = ("decide/src/world.rs".to_owned(), "manager".to_owned());
    assert!(
        found.remove(&driver),
        "the driver loop is where it was: {found:?}"
    );
    // Policies are asked by the manager's own code, and by policies that stand before others.
    found.retain(|(path, name)| !(path.starts_with("decide/") && name == "policy"));
    let known = [
        // `corewise policy check` plays a recorded history to a script: there is no world.
        ("decide/src/policy/script/rehearsal.rs", "manager"),
        // Modelled programs are handed the kernel's events.
        ("sim/src/world.rs", "programs"),
    ];
    found.retain(|(path, name)| !known.contains(&(path.as_str(), name.as_str())));
    assert!(
        found.is_empty(),
        "who calls `on` here, beside the driver loop? {found:?}"
    );
}

#[test]
fn both_worlds_are_worlds_and_are_driven_by_the_same_loop() {
    fn is_a_world<W: World>() {}
    is_a_world::<SimWorld<'static>>();
    let sources = sources();
    let worlds: Vec<&str> = sources
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter(|line| line.starts_with("impl") && line.contains("World for "))
        .collect();
    assert_eq!(worlds.len(), 2, "{worlds:?}");
    assert!(
        worlds
            .iter()
            .any(|line| line.contains("World for LinuxWorld")),
        "{worlds:?}"
    );
    assert!(
        worlds
            .iter()
            .any(|line| line.contains("World for SimWorld")),
        "{worlds:?}"
    );
    for (path, text) in &sources {
        let makes_one = text.contains("GlobalManager::new(");
        let in_a_world = path.starts_with("manager/") || path.starts_with("sim/");
        let drives = text.contains("drive(&mut world, &mut manager)")
            && text.contains("use corewise_decide::world::")
            && !text.contains("fn drive");
        assert!(
            !makes_one || !in_a_world || drives || path == "manager/src/journal.rs",
            "{path}"
        );
    }
}

#[test]
fn no_world_asks_a_policy_behind_the_managers_back() {
    let own = |path: &str| path.starts_with("decide/");
    for (path, text) in sources().iter().filter(|(path, _)| !own(path)) {
        // In comments the word means what it says.
        let mut code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        assert!(
            !code.any(|line| line.contains("Orders")),
            "{path} gives a policy a list of orders to fill"
        );
    }
}

/// Feeds a journal to a new manager, which must say what the first one said.
fn replay(manager: &mut GlobalManager, entries: &[Entry]) {
    for entry in entries {
        let outputs = manager.on(entry.time_ns, &entry.input);
        assert_eq!(outputs, entry.outputs, "{:?}", entry.input);
    }
}

#[test]
fn a_simulated_journal_replays_to_the_same_decisions_with_every_policy() {
    let script = experiments("policies").join("automax.rhai");
    let mut policies: Vec<String> = NAMES.map(str::to_owned).into();
    policies.push(script.to_str().unwrap().to_owned());
    for policy in policies {
        let scenario = mixed(&policy);
        let (outcome, entries) = run(&scenario);
        assert!(outcome.report.is_done(), "{policy}: {:?}", outcome.report);
        assert!(matches!(entries[0].input, Input::Machine(_)), "{policy}");
        assert!(outcome.report.grants >= 2, "{policy}");
        assert_eq!(outcome.report.journal_entries, entries.len() as u64);
        // As from a file.
        let lines: Vec<String> = entries
            .iter()
            .map(|e| serde_json::to_string(e).unwrap())
            .collect();
        let read: Vec<Entry> = lines
            .iter()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let policy = scenario.policy.as_ref().unwrap();
        let mut manager = GlobalManager::new(policy.make().unwrap());
        replay(&mut manager, &read);
        assert!(manager.status().programs.is_empty(), "everybody has left");
        assert!(
            entries
                .windows(2)
                .all(|pair| pair[0].time_ns <= pair[1].time_ns)
        );
    }
}
