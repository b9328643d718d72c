//! Programs whose threads need each other, as gangs: asked for, and found.
use super::frame::*;
use crate::common::{Place, compile, json};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::OnceLock;

/// Longer than two gangs take until each has been stopped.
const TURN: std::time::Duration = std::time::Duration::from_secs(1);

/// A program whose threads meet at a spinning barrier until it is told to end.
fn spin() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("spin", &["-pthread"]))
}

/// Some of them, with as many threads each as there are CPUs.
struct Gangs {
    place: Place,
    children: Vec<Child>,
}

impl Drop for Gangs {
    fn drop(&mut self) {
        // The programs end by themselves, wherever they are by now.
        self.open();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Gangs {
    /// Each with such options.
    fn start<const N: usize>(all: &[[&str; N]]) -> Gangs {
        let place = Place::new();
        let gate = place.path().join("gate");
        let cpus = own_cpus().0.len().to_string();
        let mut children = Vec::new();
        for (number, options) in all.iter().enumerate() {
            let summary = number.to_string();
            let mut args = vec!["run", "--as-is", "--no-adapters", "--summary", &summary];
            args.extend(options);
            let program = [spin().to_str().unwrap(), gate.to_str().unwrap(), &cpus];
            args.extend(["--"].into_iter().chain(program));
            children.push(place.command(&args).spawn().unwrap());
        }
        Gangs { place, children }
    }

    fn open(&self) {
        let _ = std::fs::write(self.place.path().join("gate"), "");
    }

    /// All, once each has a turn.
    fn by_turns(&self) -> Vec<Value> {
        until("turns", || {
            let all = status(&self.place)["programs"].as_array().unwrap().clone();
            let turns = all.iter().filter(|program| program["turn"].is_object());
            (turns.count() == self.children.len()).then_some(all)
        })
    }

    /// What came of each.
    fn end(mut self) -> Vec<Value> {
        self.open();
        for child in &mut self.children {
            let status = until("the end of corewise run", || child.try_wait().unwrap());
            assert!(status.success(), "{status}");
        }
        let read = |number: usize| {
            let text = std::fs::read(self.place.path().join(number.to_string())).unwrap();
            serde_json::from_slice(&text).unwrap()
        };
        (0..self.children.len()).map(read).collect()
    }
}

/// Why nothing can be stopped, or nothing be seen to spin, here.
fn cannot(what: &str, place: &Place) -> Option<String> {
    if own_cpus().0.len() < 2 {
        return Some("there is one CPU".to_owned());
    }
    let machine = json(&place.corewise(&["machine", "--json"]));
    let sensors = machine["sensors"].as_array().unwrap();
    let sensor = sensors.iter().find(|sensor| sensor["name"] == what);
    let missing = sensor.filter(|sensor| sensor["available"] != true)?;
    Some(missing["why"].to_string())
}

#[test]
fn two_gangs_take_turns_and_are_stopped_by_ptrace() {
    let two = Gangs::start(&[["--gang"]; 2]);
    if let Some(why) = cannot("", &two.place) {
        return eprintln!("skipped: {why}");
    }
    for program in two.by_turns() {
        assert_eq!(program["gang"]["name"], "");
        let turn = |key: &str| program["turn"][key].as_u64().unwrap();
        assert_eq!(2 * turn("runs_ns"), turn("period_ns"), "{program}");
        assert!(turn("runs_ns") <= 50_000_000);
    }
    // Each has had one turn, at least.
    std::thread::sleep(TURN);
    for summary in two.end() {
        let gang = &summary["gang"];
        assert_eq!(gang["means"], "ptrace", "{gang}");
        assert_eq!(gang["found"], false);
        assert!(gang["switches"].as_u64().unwrap() > 0, "{gang}");
    }
}

#[test]
fn gangs_within_a_gang_share_out_its_turns() {
    let gangs = Gangs::start(&[["--gang=job/left"], ["--gang=job/right"], ["--gang=other"]]);
    if let Some(why) = cannot("", &gangs.place) {
        return eprintln!("skipped: {why}");
    }
    until("a half for one, and a quarter for each of two", || {
        let percent = |program: &Value| {
            let turn = |key: &str| program["turn"][key].as_u64().unwrap();
            let name = program["gang"]["name"].as_str().unwrap();
            let percent = 100 * turn("runs_ns") / turn("period_ns");
            (name.starts_with("job of user "), percent)
        };
        let mut found: Vec<_> = gangs.by_turns().iter().map(percent).collect();
        found.sort();
        let expected = [(false, 50), (true, 25), (true, 25)];
        (found == expected).then_some(())
    });
    for summary in gangs.end() {
        assert_eq!(summary["gang"]["means"], "ptrace", "{summary}");
    }
}

#[test]
fn programs_that_wait_in_loops_are_found_to_be_gangs_and_the_journal_says_why() {
    let two = Gangs::start(&[[]; 2]);
    if let Some(why) = cannot("spin", &two.place) {
        return eprintln!("skipped: {why}");
    }
    for program in two.by_turns() {
        let waits = &program["waits"];
        assert!(waits["spinning"].as_u64() >= Some(200), "{program}");
    }
    // It is written a moment after what it tells.
    until("the reason in the journal", || {
        let journal = two.place.runtime().join("journal.jsonl");
        let journal = std::fs::read_to_string(journal).unwrap();
        let why = "of their time in loops that wait";
        journal.contains(why).then_some(())
    });
    // Each has had one turn, at least.
    std::thread::sleep(TURN);
    for summary in two.end() {
        assert_eq!(summary["gang"]["found"], true, "{summary}");
    }
}

#[test]
fn who_is_to_be_no_gang_is_not_found_to_be_one() {
    let two = Gangs::start(&[["--no-gang"]; 2]);
    programs(&two.place, 2);
    // As long as finding out takes.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    for program in programs(&two.place, 2) {
        assert_eq!(program["turn"], Value::Null);
    }
    for summary in two.end() {
        assert_eq!(summary["gang"], Value::Null);
    }
}
