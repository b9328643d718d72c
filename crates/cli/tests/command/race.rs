//! `corewise race`: the program's own output, the exit code, and every view of what was found.

use crate::common::{Place, compile, stderr};
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;

/// The program with a race, compiled once.
fn raced() -> &'static Path {
    static MADE: OnceLock<std::path::PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("raced", &["-g", "-pthread", "-fsanitize=thread"]))
}

fn race(place: &Place, options: &[&str], arguments: &[&str]) -> Output {
    let mut words = vec!["race", "--memory", "64"];
    words.extend(options);
    words.extend(["--", raced().to_str().unwrap()]);
    words.extend(arguments);
    place.command(&words).output().unwrap()
}

#[test]
fn a_race_is_told_in_text_json_and_sarif_and_by_the_exit_code() {
    let place = Place::new();
    let files = ["summary", "sarif"].map(|name| place.path().join(name));
    let options = [
        format!("--summary={}", files[0].display()),
        format!("--sarif={}", files[1].display()),
    ];
    let output = race(&place, &[&options[0], &options[1]], &[]);
    let told = stderr(&output);
    assert_eq!(output.stdout, b"done\n", "{told}");
    assert_eq!(output.status.code(), Some(66), "{told}");
    assert!(told.contains("data race on counter"), "{told}");
    assert!(told.contains("raced.c:9"), "{told}");
    let [summary, sarif] =
        files.map(|file| serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap());
    let races = summary["races"].as_array().unwrap();
    assert!(!races.is_empty());
    assert_eq!(races[0]["memory"]["variable"], "counter");
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), races.len());
    let place = &results[0]["locations"][0]["physicalLocation"];
    assert_eq!(place["region"]["startLine"], 9);
    let file = place["artifactLocation"]["uri"].as_str().unwrap();
    assert!(
        file.starts_with("file:///") && file.ends_with("raced.c"),
        "{file}"
    );
}

#[test]
fn a_suppressed_race_is_not_told_and_the_exit_code_is_the_programs() {
    let place = Place::new();
    let file = place.path().join("suppressions");
    std::fs::write(&file, "race:counter\n").unwrap();
    let option = format!("--suppressions={}", file.display());
    let output = race(&place, &[&option], &[]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(!told.contains("data race on"), "{told}");
}

#[test]
fn progress_is_told_on_standard_error_alone_and_only_where_it_is_wanted() {
    let place = Place::new();
    let output = race(&place, &["--progress"], &["8"]);
    let told = stderr(&output);
    assert_eq!(output.stdout, b"done\n", "{told}");
    assert!(
        told.contains("accesses seen") && told.contains("waiting"),
        "{told}"
    );
    let told = stderr(&race(&place, &[], &[]));
    assert!(!told.contains("waiting"), "{told}");
}

#[test]
fn the_exit_code_is_as_ever_where_nobody_reads_what_is_told() {
    let place = Place::new();
    for closed in [false, true] {
        let mut command = place.command(&["race", "--memory", "64", "--"]);
        command.arg(raced());
        let full = std::fs::File::options().write(true).open("/dev/full");
        match closed {
            false => command.stderr(full.unwrap()),
            true => {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                command.stderr(writer)
            }
        };
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(66), "{output:?}");
        assert_eq!(output.stdout, b"done\n");
    }
}
