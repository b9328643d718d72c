//! `corewise tune` on a program made for it.
use crate::common::{Place, compile, json, made, openmp, sandbox_or_skip, stderr};

fn made_path() -> &'static str {
    made().to_str().unwrap()
}

fn openmp_path() -> &'static str {
    openmp().to_str().unwrap()
}

#[test]
fn a_program_that_shares_its_work_out_is_given_threads_and_the_object_has_the_promised_keys() {
    if !sandbox_or_skip() {
        return;
    }
    let output = Place::new().corewise(&["tune", "--json", "--", made_path(), "work", "{threads}"]);
    let object = json(&output);
    for key in [
        "chosen",
        "algorithm",
        "stop_reason",
        "search_seconds",
        "probes",
    ] {
        assert!(object.get(key).is_some(), "{key} is missing in {object:#}");
    }
    let probe = &object["probes"][0];
    for key in [
        "threads",
        "seconds",
        "cpu_util",
        "lock",
        "vcx_rate",
        "migration_rate",
    ] {
        assert!(probe.get(key).is_some(), "{key} is missing in {probe:#}");
    }
    assert!(object["chosen"].as_u64().unwrap() >= 1);
}

#[test]
fn the_search_that_is_asked_for_is_used() {
    if !sandbox_or_skip() {
        return;
    }
    let output = Place::new().corewise(&[
        "tune",
        "--json",
        "--algorithm",
        "thread-reinforcer",
        "--max-threads",
        "3",
        "--",
        made_path(),
        "work",
        "{threads}",
    ]);
    let object = json(&output);
    assert_eq!(object["algorithm"], "thread-reinforcer");
    assert!(object["chosen"].as_u64().unwrap() <= 3);
}

#[test]
fn a_program_that_never_is_parallel_is_told_so_and_gets_one_thread() {
    if !sandbox_or_skip() {
        return;
    }
    // It ignores the number that it is given.
    let output = Place::new().corewise(&[
        "tune",
        "--json",
        "--startup-limit",
        "1",
        "--",
        made_path(),
        "serial",
        "{threads}",
    ]);
    let object = json(&output);
    assert_eq!(object["chosen"], 1, "{object:#}");
    // On one effective CPU the only probe has one thread anyway.
    if object["effective_cpus"].as_f64().unwrap() > 1.0 {
        assert_eq!(object["stop_reason"], "never-parallel", "{object:#}");
    }
}

#[test]
fn probes_change_no_file() {
    if !sandbox_or_skip() {
        return;
    }
    let place = Place::new();
    for name in ["overwritten", "appended", "renamed", "deleted"] {
        std::fs::write(place.path().join(name), name).unwrap();
    }
    let output = place.corewise(&["tune", "--", made_path(), "write", "{threads}"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["overwritten", "appended", "renamed", "deleted"] {
        let text = std::fs::read_to_string(place.path().join(name)).unwrap();
        assert_eq!(text, name);
    }
    assert!(!place.path().join("created").exists());
    assert!(!place.path().join("renamed.new").exists());
}

#[test]
fn a_program_that_fails_in_its_probe_is_quoted() {
    if !sandbox_or_skip() {
        return;
    }
    let output = Place::new().corewise(&["tune", "--", made_path(), "fail", "{threads}"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("made: this always fails"), "{text}");
    assert!(text.contains("exit code 3"), "{text}");
}

#[test]
fn without_a_placeholder_or_a_runtime_the_error_says_what_to_write() {
    let output = Place::new().corewise(&["tune", "--", made_path(), "serial"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("{threads}"), "{}", stderr(&output));
}

#[test]
fn an_empty_range_is_bad_usage() {
    let output = Place::new().corewise(&[
        "tune",
        "--min-threads",
        "4",
        "--max-threads",
        "2",
        "--",
        made_path(),
        "work",
        "{threads}",
    ]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--min-threads"));
}

#[test]
fn the_number_that_the_user_fixed_is_the_users() {
    if !sandbox_or_skip() {
        return;
    }
    let python = ["python3", "/usr/bin/python3"]
        .iter()
        .find(|p| std::process::Command::new(p).arg("-V").output().is_ok());
    let Some(python) = python else {
        eprintln!("skipped: no python3");
        return;
    };
    let place = Place::new();
    let mut command = place.command(&[
        "run",
        "--",
        python,
        "-c",
        "import os; print(os.environ.get('OMP_NUM_THREADS'))",
    ]);
    let output = command.env("OMP_NUM_THREADS", "3").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "3", "{output:?}");
}

#[test]
fn an_interpreter_that_turns_out_to_load_no_runtime_runs_as_it_is() {
    if !sandbox_or_skip() {
        return;
    }
    if std::process::Command::new("/usr/bin/python3")
        .arg("-V")
        .output()
        .is_err()
    {
        eprintln!("skipped: no python3");
        return;
    }
    // Two processes at work: parallel, and nothing of it can be told a number of threads.
    let script = "import os, time\nchild = os.fork()\nbegan = time.time()\n\
                  while time.time() - began < 1.5: pass\n\
                  if child: os.wait(); print('done')";
    let output = Place::new().corewise(&["run", "--", "/usr/bin/python3", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "done", "{output:?}");
    assert!(stderr(&output).contains("not tuned"), "{output:?}");
}

#[test]
fn share_uses_only_cpus_that_are_idle() {
    if !sandbox_or_skip() {
        return;
    }
    let output = Place::new().corewise(&[
        "tune",
        "--objective",
        "share",
        "--",
        made_path(),
        "work",
        "{threads}",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("By hand: taskset -c "), "{text}");
}

#[test]
fn an_openmp_program_needs_no_placeholder_and_its_users_variable_is_respected() {
    if !sandbox_or_skip() {
        return;
    }
    let place = Place::new();
    let tuned = place.corewise(&["tune", "--json", "--", openmp_path()]);
    let env = json(&tuned)["command"]["env"].to_string();
    assert!(env.contains("OMP_NUM_THREADS="), "{env}");

    let mut command = place.command(&["run", "--summary", "s.json", "--", openmp_path()]);
    let ran = command.env("OMP_NUM_THREADS", "3").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "3");
    assert!(
        stderr(&ran).contains("fixed by OMP_NUM_THREADS=3"),
        "{}",
        stderr(&ran)
    );
    let summary = std::fs::read_to_string(place.path().join("s.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["threads"], 3);
}

#[test]
fn a_report_is_one_page_with_nothing_from_outside() {
    if !sandbox_or_skip() {
        return;
    }
    let place = Place::new();
    let output = place.corewise(&[
        "tune",
        "--report",
        "report.html",
        "--",
        made_path(),
        "work",
        "{threads}",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = std::fs::read_to_string(place.path().join("report.html")).unwrap();
    assert!(page.contains("<svg"), "{page}");
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "{page}"
    );
}

#[test]
fn without_a_sandbox_tune_refuses_and_run_goes_by_rule() {
    // A user namespace in which no further one can be made, and no right to mount.
    let place = Place::new();
    let in_a_container = |args: &[&str]| {
        let script = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv \
                      --bounding-set=-all --inh-caps=-all --no-new-privs \"$@\"";
        std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", script, "sh"])
            .arg(env!("CARGO_BIN_EXE_corewise"))
            .args(args)
            .env("COREWISE_HISTORY", place.history())
            .env("COREWISE_RUNTIME_DIR", place.runtime())
            .current_dir(place.path())
            .output()
            .unwrap()
    };
    if !in_a_container(&["--version"]).status.success() {
        eprintln!("skipped: no user namespaces here");
        return;
    }
    let tuned = in_a_container(&["tune", "--", made_path(), "work", "{threads}"]);
    assert_eq!(tuned.status.code(), Some(1), "{}", stderr(&tuned));
    assert!(
        stderr(&tuned).contains("--unsafe-probes"),
        "{}",
        stderr(&tuned)
    );

    let waived = in_a_container(&[
        "tune",
        "--unsafe-probes",
        "--json",
        "--",
        made_path(),
        "work",
        "{threads}",
    ]);
    assert!(json(&waived)["chosen"].as_u64().unwrap() >= 1);

    let ran = in_a_container(&["run", "--", made_path(), "work", "{threads}"]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
}

#[test]
fn a_calibration_says_whether_others_are_at_work_and_from_which_times() {
    if !sandbox_or_skip() {
        return;
    }
    // Its regions cannot be counted, so that it is run to its end.
    let program = compile("made", &["-pthread", "-DROUNDS=300000000L"]);
    let program = program.to_str().unwrap();
    let place = Place::new();
    let words = [
        "tune",
        "--detect-oversubscription",
        "--json",
        "--",
        program,
        "work",
        "{threads}",
    ];
    let found = place.corewise(&words);
    let object = json(&found);
    assert_eq!(object["algorithm"], "oversubscription");
    let said = &object["oversubscription"];
    // What it finds depends on what else runs here; not that it took a time with each number.
    let cpus = object["effective_cpus"].as_f64().unwrap().ceil() as usize;
    let seconds = said["seconds"].as_array().unwrap();
    assert_eq!(seconds.len(), cpus + 2, "{said:#}");
    assert!(
        seconds.iter().all(|s| s.as_f64().unwrap() > 0.0),
        "{said:#}"
    );
    // Other tests come and go: then it says so, and nothing else.
    match said["disturbed"].as_bool().unwrap() {
        true => assert!(
            said["threads"].is_null() && said["others"].is_null(),
            "{said:#}"
        ),
        false => assert_eq!(said["threads"], object["chosen"]),
    }
    assert_eq!(
        (&said["by"], &said["openmp"]),
        (&"whole-runs".into(), &false.into())
    );
    assert_eq!(said["dealt_out_while_running"], serde_json::json!([]));
    // It is no advice for running the program, and none is remembered.
    let history = place.corewise(&["history", "--json"]);
    assert!(!String::from_utf8_lossy(&history.stdout).contains("oversubscription"));
}

#[test]
fn a_calibration_is_no_search_and_takes_none_of_its_options() {
    let both = [
        "tune",
        "--detect-oversubscription",
        "--algorithm",
        "sweep",
        "--",
        "true",
    ];
    let output = Place::new().corewise(&both);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("--algorithm"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn where_a_calibration_finds_nothing_it_says_why() {
    if !sandbox_or_skip() {
        return;
    }
    let words = [
        "tune",
        "--detect-oversubscription",
        "--",
        made_path(),
        "serial",
        "{threads}",
    ];
    let output = Place::new().corewise(&words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("never has two threads at work"), "{text}");
}
