//! `corewise profile`: the program's own result, every view, and what is said where nothing can be seen.

use crate::common::{Place, compile};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

fn profile(place: &Place, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
    let mut words = vec!["profile"];
    words.extend(options);
    words.extend(["--", program.to_str().unwrap()]);
    words.extend(arguments);
    place.command(&words).output().unwrap()
}

/// The program that tells of its functions, compiled once.
fn instrumented() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("profiled", &["-finstrument-functions"]))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_programs_output_and_code_are_its_own_and_every_view_has_its_functions() {
    let place = Place::new();
    let program = instrumented();
    let views = [
        "blueprint",
        "flame",
        "folded",
        "dot",
        "callgrind",
        "summary",
    ];
    let files = views.map(|view| place.path().join(view));
    let options: Vec<String> = views
        .iter()
        .zip(&files)
        .map(|(view, file)| format!("--{view}={}", file.display()))
        .collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let output = profile(&place, &options, program, &["7"]);
    let told = said(&output);
    assert_eq!(output.stdout, b"165\n", "{told}");
    assert_eq!(output.status.code(), Some(7), "{told}");
    assert!(
        told.contains("leaf") && told.contains("34 calls of 3 functions"),
        "{told}"
    );
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(
            text.contains("leaf") && text.contains("branch"),
            "{}",
            file.display()
        );
    }
    let text = std::fs::read_to_string(&files[5]).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(summary["functions"][0]["name"], "leaf");
    assert_eq!(summary["functions"][0]["calls"], 30);
    assert_eq!(summary["functions"][1]["bytes"], 3000);
    assert_eq!(
        summary["calls"][0],
        serde_json::json!({"caller": 1, "callee": 0, "calls": 30})
    );
    assert_eq!(summary["exit_code"], 7);
}

#[test]
fn a_program_without_instrumentation_runs_and_it_is_said_how_to_compile_it() {
    let place = Place::new();
    let program = compile("profiled", &[]);
    let output = profile(&place, &[], &program, &["5"]);
    assert_eq!(output.stdout, b"165\n");
    assert_eq!(output.status.code(), Some(5));
    assert!(
        said(&output).contains("-finstrument-functions"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_stripped_program_shows_places_and_says_why() {
    let place = Place::new();
    let program = compile("profiled", &["-finstrument-functions", "-s"]);
    let output = profile(&place, &[], &program, &[]);
    let told = said(&output);
    assert!(
        told.contains("+0x") && told.contains("is stripped"),
        "{told}"
    );
}

#[test]
fn what_cannot_be_loaded_into_is_refused_with_the_reason() {
    let place = Place::new();
    let program = compile("profiled", &["-static", "-finstrument-functions"]);
    let output = profile(&place, &[], &program, &[]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        said(&output).contains("linked statically"),
        "{}",
        said(&output)
    );
    let output = profile(&place, &[], Path::new("/nowhere/to/be/found"), &[]);
    assert_eq!(output.status.code(), Some(127));
}

#[test]
fn a_view_that_cannot_be_written_is_said_and_the_programs_own_code_wins() {
    let place = Place::new();
    let program = instrumented();
    // A device that is always full.
    let options = ["--dot", "/dev/full"];
    let failed = profile(&place, &options, program, &["3"]);
    assert_eq!(failed.status.code(), Some(3));
    assert!(said(&failed).contains("/dev/full"), "{}", said(&failed));
    let succeeded = profile(&place, &options, program, &[]);
    assert_eq!(succeeded.status.code(), Some(125));
}
