//! Where the threads of programs that nobody changed are blocked.
use super::frame::*;
use crate::common::{Place, compile, json, stderr};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A program of which one thread waits once.
fn locks() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("locks", &["-pthread"]))
}

/// What the summary of a run says of its locks, and what people are told.
fn counted(options: &[&str], program: &[&str]) -> (Value, String) {
    let place = Place::new();
    let mut args = vec!["run", "--as-is", "--summary", "summary.json"];
    args.extend(options);
    args.push("--");
    args.extend(program);
    let output = place.corewise(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, b"done\n");
    let followed = &summary(&place)["managed"]["followed"];
    (followed["locks"].clone(), stderr(&output))
}

#[test]
fn who_waited_is_named_with_or_without_a_manager() {
    for options in [&["--locks"][..], &["--locks", "--alone"]] {
        let (locks, said) = counted(options, &[locks().to_str().unwrap()]);
        assert_eq!(locks["waits"], 1, "{locks}");
        assert!(locks["seconds"].as_f64().unwrap() > 0.0, "{locks}");
        assert_eq!(locks["kinds"]["mutex"]["waits"], 1, "{locks}");
        let caller = &locks["callers"][0];
        let name = caller["caller"].as_str().unwrap();
        assert!(name.starts_with("waits_its_turn in locks"), "{locks}");
        assert_eq!(caller["kind"], "mutex");
        let threads = &locks["threads"];
        assert_eq!(
            (&threads["created"], &threads["ended"]),
            (&1.into(), &1.into())
        );
        assert_eq!(threads["names"], serde_json::json!(["patient-#"]));
        assert!(said.contains("longest in waits_its_turn"), "{said}");
    }
}

#[test]
fn processes_that_the_program_starts_are_counted_too() {
    let script = format!("{} >/dev/null; {}", locks().display(), locks().display());
    let (locks, _) = counted(&["--locks"], &["sh", "-c", &script]);
    // One place, whichever process it was in.
    assert_eq!(locks["waits"], 2, "{locks}");
    assert_eq!(locks["callers"].as_array().unwrap().len(), 1, "{locks}");
    assert_eq!(locks["threads"]["created"], 2, "{locks}");
}

#[test]
fn status_says_how_blocked_time_is_known() {
    let place = Place::new();
    for (options, by_adapter) in [(&["--locks"][..], true), (&[], false)] {
        let running = Running::start(&place, "one", &[], options);
        let blocked = programs(&place, 1)[0]["blocked_time"].clone();
        assert_eq!(blocked["by"] == "adapter", by_adapter, "{blocked}");
        assert_eq!(blocked["waits"].is_u64(), by_adapter, "{blocked}");
        running.ends_well();
        std::fs::remove_file(place.path().join("one.gate")).unwrap();
    }
}

#[test]
fn nothing_is_counted_unasked() {
    let (locks, said) = counted(&[], &[locks().to_str().unwrap()]);
    assert_eq!(locks, Value::Null);
    assert!(!said.contains("Blocked"), "{said}");
}

#[test]
fn where_nothing_can_be_loaded_it_is_said() {
    let place = Place::new();
    let program = compile("locks", &["-pthread", "-static"]);
    let (locks_of, said) = counted(&["--locks"], &[program.to_str().unwrap()]);
    assert_eq!(locks_of, Value::Null);
    assert!(
        said.contains("its locks are not counted: it is linked statically"),
        "{said}"
    );
    for (program, adapter) in [(locks(), Value::from("pthreads")), (&program, Value::Null)] {
        let output = place.corewise(&["adapters", "--json", program.to_str().unwrap()]);
        assert_eq!(json(&output)["locks"]["adapter"], adapter);
    }
}
