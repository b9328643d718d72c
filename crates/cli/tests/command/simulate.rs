//! `corewise simulate`.

use crate::common::{Place, json, stderr};
use std::path::Path;

const SCENARIO: &str = "name = \"two jobs\"\nmachine = \"flat:2\"\npolicy = \"fcfs\"\nseed = 3\n\
    [[program]]\nname = \"job\"\ncount = 2\nthreads = 1\n[program.spec]\nname = \"job\"\n\
    [[program.spec.phase]]\nserial = { work_ms = 40 }\n";

fn written(place: &Place, name: &str, text: &str) -> String {
    let path = place.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_scenario_runs_and_is_told_as_a_table_and_as_json() {
    let place = Place::new();
    let file = written(&place, "two.toml", SCENARIO);
    let output = place.corewise(&["simulate", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("two jobs: policy fcfs") && text.contains("job-2"),
        "{text}"
    );
    let first = place.corewise(&["simulate", &file, "--json"]);
    let value = json(&first);
    assert_eq!(value["ended"], "done");
    assert_eq!(value["policy"], "fcfs");
    assert_eq!(value["seed"], 3);
    assert_eq!(value["programs"].as_array().unwrap().len(), 2);
    assert_eq!(value["programs"][0]["mean_claim_threads"], 1.0);
    let again = place.corewise(&["simulate", &file, "--json"]);
    assert!(
        first.stdout == again.stdout,
        "the same seed gives the same bytes"
    );
}

#[test]
fn policy_and_seed_can_be_others_than_the_scenarios() {
    let place = Place::new();
    let file = written(&place, "two.toml", SCENARIO);
    let output = place.corewise(&[
        "simulate", &file, "--policy", "none", "--seed", "9", "--json",
    ]);
    let value = json(&output);
    assert_eq!(
        (&value["policy"], &value["seed"]),
        (&"none".into(), &9.into())
    );
    assert_eq!(value["journal_entries"], 0);
    let script = "fn on_joined(p) {\n  grant(p, machine.cpus, p.max, \"everything\");\n}\n";
    let script = written(&place, "mine.rhai", script);
    let output = place.corewise(&["simulate", &file, "--policy", &script, "--json"]);
    assert_eq!(json(&output)["policy"], "mine", "{}", stderr(&output));
    assert_eq!(json(&output)["grants"], 2);
    let output = place.corewise(&["simulate", &file, "--policy", "best"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("balanced"), "{}", stderr(&output));
}

#[test]
fn the_page_and_the_journal_are_written() {
    let place = Place::new();
    let file = written(&place, "two.toml", SCENARIO);
    let (page, journal) = (place.path().join("page.html"), place.path().join("j.jsonl"));
    let output = place.corewise(&[
        "simulate",
        &file,
        "--html",
        page.to_str().unwrap(),
        "--journal",
        journal.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("two jobs"));
    let recorded = corewise_manager::recorded(&journal).unwrap();
    assert_eq!(recorded.header.policy.name, "fcfs");
    assert!(recorded.entries.len() >= 5);
    // It can be played to a script, as a manager's can.
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../experiments/policies/automax.rhai"
    );
    let journal = journal.to_str().unwrap();
    let output = place.corewise(&["policy", "check", script, "--readings", journal]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn what_is_wrong_is_said_with_file_and_line() {
    let place = Place::new();
    let missing = place.path().join("none.toml").display().to_string();
    let output = place.corewise(&["simulate", &missing]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("none.toml"));
    let file = written(
        &place,
        "wrong.toml",
        &SCENARIO.replace("count = 2", "cuont = 2"),
    );
    let output = place.corewise(&["simulate", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("wrong.toml:7:"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn deadlocks_and_runs_without_end_are_named_and_end_with_1() {
    let place = Place::new();
    let programs = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../experiments/programs"
    ));
    let text = |name: &str, program: &str| {
        format!(
            "machine = \"flat:2\"\nlimit_ms = 2000\n[[program]]\nname = \"{name}\"\nfile = \"{}\"\n",
            programs.join(program).display()
        )
    };
    let file = written(&place, "dead.toml", &text("bank", "deadlock.toml"));
    let output = place.corewise(&["simulate", &file]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("Deadlock") && said.contains("accounts"),
        "{said}"
    );
    let file = written(&place, "endless.toml", &text("endless", "hog.toml"));
    let output = place.corewise(&["simulate", &file]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Not ended: endless"), "{said}");
}
