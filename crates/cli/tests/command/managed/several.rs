//! Several policies at once, in one file.
use super::frame::*;
use crate::common::{Place, json, stderr};
use serde_json::json;
use std::process::{Child, Stdio};

/// A process of the test's that is killed with it, and what it has started ends with it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(place: &Place, args: &[&str]) -> Ended {
    let mut command = place.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    Ended(command.stderr(Stdio::null()).spawn().unwrap())
}

/// `cat` on the first CPU it names, `tee` on the second.
fn policies(cat: u32, tee: u32) -> String {
    format!(
        "[[policy]]\nuse = \"fcfs\"\nprograms = [\"cat\"]\ncpus = \"{cat}\"\n\
         [[policy]]\nuse = \"mine.rhai\"\nprograms = [\"te*\"]\ncpus = \"{tee}\"\n"
    )
}

fn claims(place: &Place) -> Vec<(String, serde_json::Value)> {
    let all = status(place)["programs"].as_array().unwrap().clone();
    let claim = |p: &serde_json::Value| {
        (
            p["name"].as_str().unwrap().to_owned(),
            p["claim"]["cpus"].clone(),
        )
    };
    let mut claims: Vec<_> = all.iter().map(claim).collect();
    claims.sort_by(|a, b| a.0.cmp(&b.0));
    claims
}

#[test]
fn each_policy_of_a_file_has_its_own_programs_and_cpus_also_when_the_file_changes() {
    let Some((first, last, _)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    let file = place.path().join("day.toml");
    let script = "fn on_joined(p) { grant(p, machine.cpus, 1, \"all I see\"); }\n\
                  fn on_machine() { for p in programs { on_joined(p); } }\n";
    std::fs::write(place.path().join("mine.rhai"), script).unwrap();
    std::fs::write(&file, policies(first, last)).unwrap();
    let _manager = started(&place, &["manage", "--policy", "day.toml"]);
    until("the manager", || manager(&place));
    let _cat = started(&place, &["run", "--as-is", "--", "cat"]);
    programs(&place, 1);
    let _tee = started(&place, &["run", "--as-is", "--", "tee"]);
    programs(&place, 2);
    let wanted = |cat: u32, tee: u32| {
        vec![
            ("cat".to_owned(), json!([cat])),
            ("tee".to_owned(), json!([tee])),
        ]
    };
    assert_eq!(claims(&place), wanted(first, last));
    assert_eq!(status(&place)["policy"], "day.toml");
    let pid = pid_of(&programs(&place, 2)[0]);
    all_on(pid, &first.to_string());
    // Two that cannot decide together are not taken over, and it is said why.
    std::fs::write(&file, policies(first, last).replace("te*", "*")).unwrap();
    let why = until("the reason", || {
        status(&place)["policy_error"].as_str().map(str::to_owned)
    });
    assert!(why.contains("called both \"cat\" and \"*\""), "{why}");
    assert_eq!(claims(&place), wanted(first, last));
    std::fs::write(&file, policies(last, first)).unwrap();
    until("the other way round", || {
        (claims(&place) == wanted(last, first)).then_some(())
    });
    all_on(pid, &last.to_string());
    let says = |what: &str| {
        let journal = std::fs::read_to_string(place.runtime().join("journal.jsonl")).unwrap();
        journal.contains(what).then_some(())
    };
    until("the reason in the journal", || says("mine: all I see"));
    // A script that the file names is read again, too.
    let new = format!("{script}fn on_event(what) {{ }}\n")
        .replace("fn on_machine() {", "fn on_machine() { note(\"I am new\");");
    std::fs::write(place.path().join("mine.rhai"), new).unwrap();
    until("the new script", || says("mine: I am new"));
}

#[test]
fn policies_that_cannot_decide_together_are_refused_with_the_reason() {
    let place = Place::new();
    let file = place.path().join("day.toml");
    std::fs::write(
        &file,
        "[[policy]]\nuse = \"fcfs\"\n[[policy]]\nuse = \"balanced\"\n",
    )
    .unwrap();
    let refused = place.corewise(&["manage", "--policy", "day.toml"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(
        said.contains(
            "\"fcfs\" and the policy \"balanced\" cannot decide together: both would grant claims"
        ),
        "{said}"
    );
    let checked = place.corewise(&["policy", "check", "day.toml", "--json"]);
    assert_eq!(
        (checked.status.code(), &json(&checked)["right"]),
        (Some(1), &json!(false))
    );
}

#[test]
fn a_file_of_policies_is_rehearsed_and_simulated_as_it_would_be_used() {
    let place = Place::new();
    std::fs::write(
        place.path().join("day.toml"),
        "[[policy]]\nuse = \"fcfs\"\nprograms = [\"job\"]\ncpus = \"0\"\n\
         [[policy]]\nuse = \"observe\"\ncpus = \"1\"\n",
    )
    .unwrap();
    let checked = place.corewise(&["policy", "check", "day.toml", "--json"]);
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
    assert!(json(&checked)["entries"].as_array().unwrap().len() > 10);
    let scenario = "name = \"two\"\nmachine = \"flat:2\"\npolicy = \"day.toml\"\n\
        [[program]]\nname = \"job\"\nthreads = 1\n[program.spec]\nname = \"job\"\n\
        [[program.spec.phase]]\nserial = { work_ms = 40 }\n";
    std::fs::write(place.path().join("two.toml"), scenario).unwrap();
    let simulated = place.corewise(&["simulate", "two.toml", "--json"]);
    assert_eq!(simulated.status.code(), Some(0), "{}", stderr(&simulated));
    assert_eq!(json(&simulated)["policy"], "day.toml");
}
