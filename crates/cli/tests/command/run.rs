//! `corewise run`: the program's own codes, signals and streams; recalling; and what goes wrong.
use crate::common::{Place, json, made, sandbox_or_skip, stderr};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

fn made_path() -> &'static str {
    made().to_str().unwrap()
}

fn summary(place: &Place) -> serde_json::Value {
    let text = std::fs::read_to_string(place.path().join("summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_second_run_recalls_what_the_first_found() {
    if !sandbox_or_skip() {
        return;
    }
    let place = Place::new();
    let args = [
        "run",
        "--summary",
        "summary.json",
        "--",
        made_path(),
        "work",
        "{threads}",
    ];
    let first = place.corewise(&args);
    assert!(first.status.success(), "{}", stderr(&first));
    assert_eq!(summary(&place)["source"], "tuned");
    for key in [
        "threads",
        "wall_seconds",
        "user_seconds",
        "system_seconds",
        "exit_code",
    ] {
        assert!(summary(&place).get(key).is_some(), "{key}");
    }
    // Other tests come and go as neighbours: only a like load is recalled.
    let recalled = (0..10).any(|_| {
        assert!(place.corewise(&args).status.success());
        summary(&place)["source"] == "recalled"
    });
    assert!(recalled);
}

#[test]
fn the_programs_exit_code_is_passed_on() {
    let place = Place::new();
    let output = place.corewise(&["run", "--", made_path(), "fail", "{threads}"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn the_programs_signal_is_raised_again() {
    let place = Place::new();
    let output = place.corewise(&["run", "--", made_path(), "signal", "{threads}"]);
    assert_eq!(output.status.signal(), Some(10), "{output:?}");
}

#[test]
fn a_program_that_is_not_there_gives_127_and_one_that_cannot_be_executed_126() {
    let place = Place::new();
    let missing = place.corewise(&["run", "--", "no-such-program", "{threads}"]);
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    assert!(stderr(&missing).contains("no-such-program"));

    let file = place.path().join("text");
    std::fs::write(&file, "no program").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = place.corewise(&["run", "--", "./text", "{threads}"]);
    assert_eq!(refused.status.code(), Some(126), "{}", stderr(&refused));
}

#[test]
fn standard_input_reaches_the_run_whole_although_probes_read_it_too() {
    let place = Place::new();
    let mut child = place
        .command(&["run", "--quiet", "--", made_path(), "input", "{threads}"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = vec![b'x'; 3_000_000];
    stdin.write_all(&bytes).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3000000");
}

#[test]
fn standard_output_is_the_programs_alone() {
    let place = Place::new();
    let output = place.corewise(&["run", "--", made_path(), "work", "{threads}"]);
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(
        stderr(&output).contains("corewise: ran with"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_history_that_cannot_be_written_does_not_stop_the_program() {
    let place = Place::new();
    let mut command = place.command(&["run", "--", made_path(), "work", "{threads}"]);
    let output = command
        .env("COREWISE_HISTORY", "/proc/no/history.sqlite")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("no past results"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_without_any_knob_is_refused_with_what_to_write() {
    let place = Place::new();
    let output = place.corewise(&["run", "--", made_path(), "serial"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("{threads}"), "{}", stderr(&output));
}

#[test]
fn a_program_that_turns_out_to_take_no_number_is_probed_once() {
    if !sandbox_or_skip() {
        return;
    }
    let place = Place::new();
    // The shell is an interpreter: only a probe shows that nothing of it takes a number.
    let script = place.path().join("script");
    std::fs::write(
        &script,
        "for i in 1 2 3 4 5; do sleep 0.1; done\necho ran\n",
    )
    .unwrap();
    let args = ["run", "--", "bash", script.to_str().unwrap()];
    let first = place.corewise(&args);
    assert!(first.status.success(), "{}", stderr(&first));
    let told = stderr(&first);
    if !told.contains("has a variable for it") {
        eprintln!("skipped: the probe has not seen what the shell loads: {told}");
        return;
    }
    let listed = json(&place.corewise(&["history", "--json"]));
    assert_eq!(
        listed["results"][0]["key"]["objective"], "no-knob",
        "{listed}"
    );
    let before = listed["results"][0]["record"]["created_unix_s"].clone();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let second = place.corewise(&args);
    assert_eq!(second.stdout, b"ran\n");
    assert!(stderr(&second).contains("not tuned"), "{}", stderr(&second));
    let listed = json(&place.corewise(&["history", "--json"]));
    assert_eq!(
        listed["results"][0]["record"]["created_unix_s"], before,
        "it was probed again"
    );
}
