//! `corewise policy check`.

use crate::common::{Place, json, stderr};
use std::path::Path;

const AUTOMAX: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../experiments/policies/automax.rhai"
);

fn written(place: &Place, name: &str, text: &str) -> String {
    let path = place.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_right_script_is_shown_with_what_it_would_have_ordered() {
    let place = Place::new();
    let output = place.corewise(&["policy", "check", AUTOMAX]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("program 1 is asked to expand"), "{text}");
    assert!(text.contains("the load is out of bounds"), "{text}");
    assert!(text.contains("no errors"), "{text}");
    let output = place.corewise(&["policy", "check", AUTOMAX, "--json"]);
    let value = json(&output);
    assert_eq!(value["policy"], "automax");
    assert_eq!(value["right"], true);
    let most = value["most_operations"].as_u64().unwrap();
    assert!((1..value["operations_limit"].as_u64().unwrap()).contains(&most));
    assert!(value["entries"].as_array().unwrap().len() > 10);
}

#[test]
fn a_wrong_script_is_shown_with_its_line_and_ends_with_1() {
    let place = Place::new();
    let file = written(&place, "wrong.rhai", "fn on_joined(p) {\n  let x = ;\n}\n");
    let output = place.corewise(&["policy", "check", &file]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("wrong.rhai:2:"), "{text}");
}

#[test]
fn a_script_that_fails_while_it_runs_is_wrong_too() {
    let place = Place::new();
    let text = "fn on_joined(p) {\n  grant(p, machine.cpus, p.max, \"all\");\n}\nfn on_readings() {\n  let n = 0;\n  loop { n += 1; }\n}\n";
    let file = written(&place, "slow.rhai", text);
    let output = place.corewise(&["policy", "check", &file, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let value = json(&output);
    assert_eq!(value["errors"][0]["line"], 6);
    assert_eq!(value["errors"][0]["kind"], "limit");
    assert_eq!(value["errors"][0]["function"], "on_readings");
}

#[test]
fn a_journal_can_be_named_and_a_wrong_line_of_it_is_bad_usage() {
    let place = Place::new();
    let line = r#"{"time_ns":5,"input":{"left":{"program":1}},"outputs":[]}"#;
    let first = r#"{"version":"1","boot":"","pid":1,"policy":{"name":"observe"},"part":0}"#;
    let cut = &line[..20];
    let journal = written(
        &place,
        "journal.jsonl",
        &format!("{first}\n{line}\n{line}\n{cut}"),
    );
    let output = place.corewise(&["policy", "check", AUTOMAX, "--readings", &journal, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json(&output)["entries"].as_array().unwrap().len(), 2);
    let journal = written(&place, "journal.jsonl", &format!("{line}\nnonsense\n"));
    let output = place.corewise(&["policy", "check", AUTOMAX, "--readings", &journal]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("journal.jsonl:2:"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_script_that_is_not_there_is_bad_usage() {
    let place = Place::new();
    let missing = place.path().join("none.rhai").display().to_string();
    assert!(!Path::new(&missing).exists());
    let output = place.corewise(&["policy", "check", &missing]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("none.rhai"));
}
