//! Programs that are gangs run by turns, and what that is good for.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;

use common::{run, scenario};
use corewise_decide::gang::Turn;
use corewise_decide::world::{Entry, Input, Output};
use corewise_sim::report::Ended;
use std::path::Path;

/// Programs whose threads spin for each other at barriers.
fn spinners(
    machine: &str,
    policy: &str,
    count: u32,
    threads: u32,
    keys: &str,
    region: &str,
) -> String {
    format!(
        "machine = \"{machine}\"\npolicy = \"{policy}\"\nswitch_us = 50\n[[program]]\nname = \"spinner\"\n\
         count = {count}\nthreads = {threads}\n{keys}\n[program.spec]\nname = \"spinner\"\nwait = \"spin\"\n\
         [[program.spec.phase]]\nrepeat = 1000\nregion = {{ work_ms = 4, imbalance = 0.1, {region} }}\n"
    )
}

fn seconds(text: &str) -> (f64, Vec<Entry>) {
    let (outcome, entries) = run(&scenario(text));
    assert_eq!(outcome.report.ended, Ended::Done);
    assert_eq!(outcome.report.failures, 0);
    (outcome.report.wall_seconds, entries)
}

fn turns(entries: &[Entry]) -> Vec<Option<Turn>> {
    let outputs = entries.iter().flat_map(|entry| &entry.outputs);
    let turns = outputs.filter_map(|output| match output {
        Output::Turn { turn, .. } => Some(turn.clone()),
        _ => None,
    });
    turns.collect()
}

#[test]
fn spinning_gangs_take_little_longer_than_one_after_the_other() {
    let alone = seconds(&spinners("flat:2", "none", 1, 2, "", "")).0;
    let plain = seconds(&spinners("flat:2", "none", 4, 2, "", "")).0;
    let (gangs, entries) = seconds(&spinners("flat:2", "observe", 4, 2, "gang = true", ""));
    assert!(plain > 1.5 * 4.0 * alone, "{plain} {alone}");
    assert!(gangs < 1.03 * 4.0 * alone, "{gangs} {alone}");
    assert!(turns(&entries).iter().flatten().count() >= 4);
}

#[test]
fn gangs_with_half_of_their_threads_busy_run_side_by_side() {
    let alone = seconds(&spinners("flat:4", "none", 1, 4, "", "threads = 2")).0;
    let keys = "gang = true";
    let (gangs, entries) = seconds(&spinners("flat:4", "observe", 8, 4, keys, "threads = 2"));
    assert!(gangs < 4.0 * alone / 0.9, "{gangs} {alone}");
    let quarter = |turn: &Turn| turn.runs_ns() * 4 == turn.period_ns;
    assert!(turns(&entries).iter().flatten().any(quarter));
    // Where all keep their idle CPUs, nobody runs beside another.
    let keys = "gang = true\nkeeps_idle = true";
    let apart = seconds(&spinners("flat:4", "observe", 8, 4, keys, "threads = 2")).0;
    assert!(apart > 7.9 * alone, "{apart} {alone}");
}

#[test]
fn a_gang_of_twice_the_weight_runs_twice_as_long() {
    let light = spinners("flat:2", "observe", 1, 2, "gang = true", "");
    let heavy =
        spinners("flat:2", "", 1, 2, "gang = true\nweight = 200", "").replace("spinner", "heavy");
    let heavy = &heavy[heavy.find("[[program]]").unwrap()..];
    let (_, entries) = seconds(&(light + heavy));
    let told = turns(&entries);
    let third = |turn: &Turn| (3 * turn.runs_ns() + turn.period_ns / 2) / turn.period_ns;
    let shares = told.iter().flatten().map(third);
    let mut shares: Vec<u64> = shares.take(2).collect();
    shares.sort_unstable();
    assert_eq!(shares, [1, 2]);
}

#[test]
fn a_gang_says_so_when_it_joins_and_runs_always_once_it_is_alone() {
    let text = spinners("flat:2", "observe", 2, 2, "gang = true", "");
    let (_, entries) = seconds(&text);
    let said = entries
        .iter()
        .filter(|e| matches!(e.input, Input::Gang { .. }));
    assert_eq!(said.count(), 2);
    assert_eq!(turns(&entries).last(), Some(&None));
    let (_, entries) = seconds(&text.replace("gang = true", "gang = \"both\""));
    assert_eq!(turns(&entries), []);
}

#[test]
fn on_a_large_machine_gangs_are_kept_at_their_places_while_they_take_turns() {
    let text = spinners("flat:80", "observe", 4, 40, "gang = true", "").replace("1000", "500");
    let (_, entries) = seconds(&text);
    let outputs = entries.iter().flat_map(|entry| &entry.outputs);
    let grants = outputs.filter_map(|output| match output {
        Output::Grant { program, cpus, .. } => Some((*program, cpus.to_string())),
        _ => None,
    });
    let mut granted: std::collections::BTreeMap<_, Vec<String>> = Default::default();
    for (program, cpus) in grants {
        granted.entry(program).or_default().push(cpus);
    }
    let count = |place: &str| {
        let at = granted
            .values()
            .filter(|all| all.iter().any(|cpus| cpus == place));
        at.count()
    };
    assert_eq!((count("0-39"), count("40-79")), (2, 2));
    // Whoever ends last has no turns, and may run anywhere.
    assert!(granted.values().any(|all| all.last().unwrap() == "0-79"));
}

#[test]
fn the_same_seed_gives_the_same_turns() {
    let text = spinners("flat:4", "balanced", 3, 4, "gang = true", "threads = 3");
    assert_eq!(seconds(&text), seconds(&text));
}

#[test]
fn what_is_wrong_about_a_gang_is_said_with_its_line() {
    let wrong = |keys: &str, why: &str| {
        let text = spinners("flat:2", "observe", 1, 2, keys, "");
        let none = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let error = corewise_sim::scenario::Scenario::from_toml(&text, Path::new("x.toml"), &none);
        let said = error.unwrap_err().to_string();
        assert!(said.contains(why) && said.contains("x.toml:8"), "{said}");
    };
    wrong("weight = 5", "only a gang");
    wrong("keeps_idle = true", "only a gang");
    wrong("gang = true\nmanaged = false", "who is not managed");
    wrong("gang = 7", "true, false or a name");
    wrong("weight = 0\ngang = true", "1 to 10,000");
}

/// Two spinning programs of two threads, in a session each, that begin with `serial_ms` of one thread; on two CPUs.
fn in_sessions(policy: &str, keys: &str, serial_ms: u32) -> String {
    let one = |session: &str| {
        format!(
            "[[program]]\nname = \"{session}\"\nthreads = 2\nsession = \"{session}\"\n{keys}\n\
             [program.spec]\nname = \"spinner\"\nwait = \"spin\"\n[[program.spec.phase]]\n\
             serial = {{ work_ms = {serial_ms} }}\n[[program.spec.phase]]\nrepeat = 1500\n\
             region = {{ work_ms = 4, imbalance = 0.1 }}\n"
        )
    };
    let head = format!("machine = \"flat:2\"\npolicy = \"{policy}\"\nswitch_us = 50\n");
    [head, one("first"), one("second")].concat()
}

#[test]
fn gangs_that_begin_with_one_thread_do_not_run_side_by_side_once_they_have_two() {
    let plain = seconds(&in_sessions("none", "", 2_000)).0;
    let gangs = seconds(&in_sessions("balanced", "gang = true", 2_000)).0;
    // Two seconds side by side, then three each, by turns.
    assert!(gangs < 1.15 * 8.0, "{gangs}");
    assert!(gangs < plain, "{gangs} {plain}");
}

#[test]
fn a_busy_neighbour_does_not_make_gangs_run_side_by_side() {
    let hog = "[[program]]\nname = \"hog\"\ncount = 2\nthreads = 1\nsession = \"hogs\"\nmanaged = false\n\
               background = true\n[program.spec]\nname = \"hog\"\n[[program.spec.phase]]\nrepeat = \"forever\"\n\
               serial = { work_ms = 10 }\n";
    let gangs = in_sessions("balanced", "gang = true", 1) + hog;
    let (_, entries) = seconds(&gangs);
    let told = turns(&entries);
    // Each is told its turn once, and that it has none when the other has ended.
    assert_eq!(told.iter().flatten().count(), 2, "{told:?}");
}

#[test]
fn a_gang_whose_threads_sleep_while_they_wait_is_left_to_the_scheduler() {
    let text = spinners("flat:2", "observe", 2, 2, "gang = true", "");
    let asleep = text.replace("wait = \"spin\"", "wait = \"block\"");
    let (_, entries) = seconds(&asleep.replace("imbalance = 0.1", "imbalance = 0.8"));
    assert_eq!(turns(&entries), []);
    let said = entries.iter().filter_map(|entry| match &entry.input {
        Input::Waits { waits, .. } => Some(waits.awake),
        _ => None,
    });
    assert!(said.clone().count() >= 2 && said.clone().all(|awake| awake < 2));
    // Beside one that needs its turns it has turns, too.
    let one = |text: &str, name: &str| {
        let text = text
            .replace("count = 2", "count = 1")
            .replace("spinner", name);
        text[text.find("[[program]]").unwrap()..].to_owned()
    };
    let head = &text[..text.find("[[program]]").unwrap()];
    let (_, entries) = seconds(&[head, &one(&text, "spinner"), &one(&asleep, "sleeper")].concat());
    assert!(turns(&entries).iter().flatten().count() >= 2);
}

#[test]
fn gangs_at_a_standstill_are_seen_to_be() {
    let text = "machine = \"flat:2\"\npolicy = \"observe\"\n[[program]]\nname = \"stuck\"\ncount = 2\nthreads = 2\n\
                gang = true\nfile = \"../../../experiments/programs/deadlock.toml\"\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gangs.toml");
    let read = |path: &Path| std::fs::read_to_string(path);
    let scenario = corewise_sim::scenario::Scenario::from_toml(text, &path, &read).unwrap();
    assert_eq!(run(&scenario).0.report.ended, Ended::Deadlock);
}
