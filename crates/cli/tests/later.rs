//! Later runs of a program that is known: one tries another number of threads, after a probe, and the next ones go by
//! what came of it. A test binary of its own: beside other tests nothing would be tried.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "command/common.rs"]
mod common;

use common::{Place, made, sandbox_or_skip, stderr};
use corewise_decide::search::runs::{Number, Runs};
use corewise_local::history::{History, Point, Record, WholeRuns, whole};
use std::ffi::OsString;

/// Runs of `corewise run` until one starts on an idle machine.
const PATIENCE: u32 = 4;

/// What the program takes with one thread for each CPU, as the made history has it, in seconds.
const SLOW: f64 = 100.0;

fn summary(place: &Place) -> serde_json::Value {
    let text = std::fs::read_to_string(place.path().join("summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The made program's arguments; in the mode `few` it fails with more threads than CPUs.
fn args(mode: &str) -> [String; 3] {
    let cpus = std::thread::available_parallelism().unwrap();
    [mode.to_owned(), "{threads}".to_owned(), cpus.to_string()]
}

/// A place whose history knows many runs of the made program, each with a thread for each CPU, which were slow and left
/// CPUs idle; and the number of CPUs.
fn known(mode: &str) -> (Place, u32) {
    let place = Place::new();
    let args = args(mode);
    let mut words = vec!["run", "--", made().to_str().unwrap()];
    words.extend(args.iter().map(String::as_str));
    let output = place.corewise(&words);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut history = History::open(&place.history()).unwrap();
    let mut entry = history.list().unwrap().entries.remove(0);
    let cpus = entry.key.machine.effective_cpus;
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let work = whole::work(&args, &[], 0);
    let runs = Runs {
        numbers: vec![Number {
            threads: cpus,
            runs: 5,
            seconds: vec![SLOW; 5],
            cpu_util: 0.8 * f64::from(cpus),
            ..Number::default()
        }],
        seconds: 1e5,
        since_trial: 5,
        ..Runs::default()
    };
    let record = Record {
        chosen_threads: cpus,
        points: vec![Point {
            threads: cpus,
            cpu_util: Some(f64::from(cpus)),
            ..Point::default()
        }],
        spins: false,
        whole_runs: Some(WholeRuns {
            work: work.clone(),
            last_work: work,
            runs,
        }),
        ..entry.record
    };
    entry.key.load_class = 0;
    history.remember(&entry.key, &record).unwrap();
    (place, cpus)
}

/// Runs it until the machine is idle when it starts, and says how it ran; `None` if it never is.
fn run(place: &Place, options: &[&str], mode: &str) -> Option<serde_json::Value> {
    let mut words = vec!["run", "--summary", "summary.json"];
    words.extend(options);
    let args = args(mode);
    words.extend(["--", made().to_str().unwrap()]);
    words.extend(args.iter().map(String::as_str));
    for _ in 0..PATIENCE {
        let output = place.corewise(&words);
        assert!(output.status.success(), "{}", stderr(&output));
        let said = summary(place);
        if said["source"] == "recalled" && said["others"].as_f64().is_some_and(|o| o < 0.2) {
            return Some(said);
        }
    }
    eprintln!("skipped: others are at work here");
    None
}

fn runs(place: &Place) -> Runs {
    let entries = History::open(&place.history()).unwrap().list().unwrap();
    let mut entries = entries.entries.into_iter();
    let whole = entries.find_map(|entry| entry.record.whole_runs.filter(|w| w.runs.seconds > 1e4));
    whole.unwrap().runs
}

#[test]
fn a_later_run_tries_another_number_after_a_probe_and_the_next_one_goes_by_its_time() {
    if !sandbox_or_skip() {
        return;
    }
    let (place, cpus) = known("work");
    if cpus > 30 {
        eprintln!("skipped: the made program has at most 64 threads");
        return;
    }
    let Some(said) = run(&place, &[], "work") else {
        return;
    };
    if said["trial"] != true {
        eprintln!("skipped: others came to work before it could be tried");
        return;
    }
    let known = runs(&place);
    if known.trials != 1 {
        eprintln!("skipped: one run was not seen to try it, and another one has tried more");
        return;
    }
    assert_eq!(said["threads"], 2 * cpus);
    let number = known.numbers.iter().find(|n| n.threads == 2 * cpus);
    let number = number.unwrap();
    assert!(number.probed && !number.ruled_out, "{known:?}");
    if said["undisturbed"] != true {
        assert!(number.seconds.is_empty(), "{known:?}");
        eprintln!("skipped: others came to work");
        return;
    }
    assert_eq!(number.seconds.len(), 1);
    // Whatever it takes here, it is faster than what is said of the other number; runs go by it now, or try a third.
    let Some(said) = run(&place, &[], "work") else {
        return;
    };
    if said["trial"] == false {
        assert_eq!(said["threads"], 2 * cpus);
    }
}

#[test]
fn a_number_with_which_the_program_fails_is_probed_and_never_run() {
    if !sandbox_or_skip() {
        return;
    }
    // `run` asserts that no run fails.
    let (place, cpus) = known("few");
    for _ in 0..3 {
        let Some(said) = run(&place, &[], "few") else {
            return;
        };
        assert_eq!(
            (&said["trial"], &said["threads"]),
            (&false.into(), &cpus.into())
        );
    }
    let known = runs(&place);
    let other = known.numbers.iter().find(|n| n.threads != cpus);
    assert!(
        other.is_some_and(|n| n.ruled_out && n.runs == 0),
        "{known:?}"
    );
    assert_eq!(known.trials, 0);
}
