//! Programs that nobody changed, under a manager: who starts it, what it grants, and what is left when
//! one of them is killed.
mod adapters;
mod builds;
mod frame;
mod gangs;
mod locks;
mod nested;
mod several;

use crate::common::{Place, gate, json, stderr};
use frame::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;

#[test]
fn two_programs_have_claims_from_one_manager_which_leaves_with_the_last() {
    let place = Place::new();
    // Rigid ones: malleable programs would share the CPUs.
    let first = Running::start(&place, "first", &[], &["--no-adapters"]);
    let second = Running::start(&place, "second", &[], &["--no-adapters"]);
    let both = programs(&place, 2);
    for program in &both {
        assert_eq!(
            program["name"],
            gate().file_name().unwrap().to_str().unwrap()
        );
        assert_eq!(program["claim"]["threads"], 2);
        assert!(!program["claim"]["cpus"].as_array().unwrap().is_empty());
    }
    // Two threads, and that of the child.
    until("the threads to be told", || {
        let all = status(&place)["programs"].as_array().unwrap().clone();
        all.iter().all(|p| p["threads"] == 3).then_some(())
    });
    let manager_pid = manager(&place).unwrap();
    first.ends_well();
    assert_eq!(summary(&place)["managed"]["why_not"], Value::Null);
    assert!(summary(&place)["managed"]["claims"].as_u64().unwrap() >= 1);
    assert!(summary(&place)["managed"]["policy"].is_string());
    programs(&place, 1);
    second.ends_well();
    until("the manager's end", || {
        manager(&place).is_none().then_some(())
    });
    until("the manager's process to be gone", || {
        (!PathBuf::from(format!("/proc/{manager_pid}")).exists()).then_some(())
    });
}

#[test]
fn a_claim_set_by_hand_confines_the_whole_tree_until_it_is_released() {
    let Some((first, last, all)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    let running = Running::start(&place, "program", &[], &[]);
    let pid = pid_of(&programs(&place, 1)[0]);
    // Alone on the machine: nobody is confined.
    all_on(pid, &all);
    for cpu in [first, last] {
        confine(&place, pid, cpu);
        all_on(pid, &cpu.to_string());
        let shown = place.corewise(&["claim", &pid.to_string(), "--json"]);
        assert_eq!(json(&shown)["claim"]["cpus"], serde_json::json!([cpu]));
    }
    let released = place.corewise(&["claim", &pid.to_string(), "--release"]);
    assert!(released.status.success(), "{}", stderr(&released));
    all_on(pid, &all);
    running.ends_well();
}

#[test]
fn when_the_manager_is_killed_programs_go_on_where_they_could_run_before() {
    let Some((first, _, all)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    let one = Running::start(&place, "one", &[], &[]);
    let pid = pid_of(&programs(&place, 1)[0]);
    confine(&place, pid, first);
    all_on(pid, &first.to_string());
    let killed = manager(&place).unwrap();
    kill(killed);
    // The next manager knows nothing of what a person set.
    all_on(pid, &all);
    let next = until("another manager", || {
        manager(&place).filter(|m| *m != killed)
    });
    assert_eq!(pid_of(&programs(&place, 1)[0]), pid);
    let two = Running::start(&place, "two", &[], &[]);
    programs(&place, 2);
    kill(next);
    one.ends_well();
    two.ends_well();
}

#[test]
fn when_corewise_run_is_killed_its_program_goes_on_where_it_could_run_before() {
    let Some((first, _, all)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    // Keeps the manager.
    let other = Running::start(&place, "other", &[], &[]);
    programs(&place, 1);
    let mut killed = Running::start(&place, "killed", &[], &[]);
    let parent = i64::from(killed.child.id());
    let both = programs(&place, 2);
    let of_killed = |p: &&Value| parent_of(pid_of(p)) == Some(parent);
    let pid = pid_of(both.iter().find(of_killed).unwrap());
    confine(&place, pid, first);
    all_on(pid, &first.to_string());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    all_on(pid, &all);
    programs(&place, 1);
    killed.open();
    until("the program's output", || {
        (killed.printed() == "3\n").then_some(())
    });
    other.ends_well();
}

#[test]
fn when_both_are_killed_the_next_manager_puts_things_back() {
    let Some((first, _, all)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    let mut killed = Running::start(&place, "killed", &[], &[]);
    let pid = pid_of(&programs(&place, 1)[0]);
    confine(&place, pid, first);
    all_on(pid, &first.to_string());
    let manager_pid = manager(&place).unwrap();
    // Stopped first: else it would put the mask back before it is killed itself.
    kill_process(Pid::from_raw(manager_pid).unwrap(), Signal::STOP).unwrap();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    kill(manager_pid);
    let next = Running::start(&place, "next", &[], &[]);
    programs(&place, 1);
    all_on(pid, &all);
    killed.open();
    until("the program's output", || {
        (killed.printed() == "3\n").then_some(())
    });
    next.ends_well();
}

#[test]
fn a_program_stays_on_the_cpus_that_its_user_gave_it() {
    let Some((first, last, _)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    // Its manager has every CPU.
    let other = Running::start(&place, "other", &[], &[]);
    programs(&place, 1);
    let last = last.to_string();
    let pinned = Running::start(&place, "pinned", &["taskset", "-c", &last], &[]);
    let parent = i64::from(pinned.child.id());
    let both = programs(&place, 2);
    let of_pinned = |p: &&Value| parent_of(pid_of(p)) == Some(parent);
    let pid = pid_of(both.iter().find(of_pinned).unwrap());
    confine(&place, pid, first);
    // Its local manager has seen the claim once this is no longer the old one.
    until("the claim to be followed", || {
        let all = status(&place)["programs"].as_array().unwrap().clone();
        let program = all.iter().find(|p| pid_of(p) == pid)?.clone();
        (program["claim"]["cpus"] == serde_json::json!([first])).then_some(())
    });
    all_on(pid, &last);
    pinned.ends_well();
    other.ends_well();
}

#[test]
fn a_manager_started_by_a_confined_run_manages_the_whole_machine() {
    let Some((_, last, all)) = two_cpus_or_skip() else {
        return;
    };
    let place = Place::new();
    let last = last.to_string();
    let pinned = Running::start(&place, "pinned", &["taskset", "-c", &last], &[]);
    programs(&place, 1);
    let allowed = corewise_machine::cpu_list::parse(&all).unwrap();
    let status = status(&place);
    for cpu in allowed {
        let managed = status["machine"]["allowed"].as_array().unwrap();
        assert!(managed.contains(&Value::from(cpu)), "{status}");
    }
    pinned.ends_well();
}

#[test]
fn a_signal_for_corewise_alone_reaches_the_managed_program() {
    let place = Place::new();
    let mut running = Running::start(&place, "program", &[], &[]);
    let pid = pid_of(&programs(&place, 1)[0]);
    let corewise = i32::try_from(running.child.id()).unwrap();
    kill_process(Pid::from_raw(corewise).unwrap(), Signal::TERM).unwrap();
    let status = until("its end", || running.child.try_wait().unwrap());
    assert_eq!(status.signal(), Some(15), "{status}");
    assert!(parent_of(pid).is_none());
}

#[test]
fn people_see_a_row_for_each_program_again_and_again_while_they_read() {
    let place = Place::new();
    let running = Running::start(&place, "program", &[], &[]);
    let pid = pid_of(&programs(&place, 1)[0]).to_string();
    let mut watching = place
        .command(&["status", "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let row = lines.find(|line| line.as_ref().unwrap().trim().starts_with(&pid));
        let row = row.unwrap().unwrap();
        let name = gate().file_name().unwrap().to_str().unwrap();
        assert!(row.contains(name), "{row}");
    }
    drop(lines);
    let status = until("its end", || watching.try_wait().unwrap());
    assert!(status.success(), "{status}");
    running.ends_well();
}

#[test]
fn alone_no_manager_is_asked_or_started() {
    let place = Place::new();
    let running = Running::start(&place, "program", &[], &["--alone"]);
    running.ends_well();
    assert!(!place.runtime().exists());
    let why = summary(&place)["managed"]["why_not"].clone();
    assert!(why.as_str().unwrap().contains("--alone"), "{why}");
}

#[test]
fn a_runtime_folder_that_cannot_be_used_does_not_stop_the_program() {
    let place = Place::new();
    std::fs::write(place.runtime(), "not a folder").unwrap();
    let running = Running::start(&place, "program", &[], &[]);
    running.ends_well();
    let why = summary(&place)["managed"]["why_not"].clone();
    assert!(why.as_str().unwrap().contains("runtime"), "{why}");
}

#[test]
fn a_run_within_a_managed_program_is_part_of_it() {
    let place = Place::new();
    let gate_file = place.path().join("inner.gate");
    std::fs::write(&gate_file, "").unwrap();
    let program = gate().to_str().unwrap();
    let corewise = env!("CARGO_BIN_EXE_corewise");
    let mut args = vec!["run", "--", program, "exec", corewise];
    args.extend(["run", "--summary", "inner.json", "--", program]);
    args.push(gate_file.to_str().unwrap());
    let mut command = place.command(&args);
    let output = command.env("OMP_NUM_THREADS", "2").output().unwrap();
    assert_eq!(output.stdout, b"3\n", "{}", stderr(&output));
    let text = std::fs::read_to_string(place.path().join("inner.json")).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    let why = summary["managed"]["why_not"].as_str().unwrap_or_default();
    assert!(why.contains("part of what process"), "{text}");
}

#[test]
fn where_nobody_manages_status_says_so_and_claim_fails() {
    let place = Place::new();
    let status = place.corewise(&["status"]);
    assert!(status.status.success(), "{}", stderr(&status));
    assert!(String::from_utf8_lossy(&status.stdout).contains("no manager runs"));
    let object = json(&place.corewise(&["status", "--json"]));
    assert_eq!(object, serde_json::json!({"policy": null, "programs": []}));
    let claim = place.corewise(&["claim", "1"]);
    assert_eq!(claim.status.code(), Some(1));
    assert!(
        stderr(&claim).contains("corewise manage"),
        "{}",
        stderr(&claim)
    );
}

#[test]
fn a_manager_in_the_foreground_is_shown_and_ends_when_it_is_told_to() {
    let place = Place::new();
    let mut child = place
        .command(&["manage", "--policy", "fcfs"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("a manager", || manager(&place));
    assert_eq!(status(&place)["policy"], "fcfs");
    let another = place.corewise(&["manage"]);
    assert_eq!(another.status.code(), Some(1));
    let said = stderr(&another);
    assert!(
        said.contains("runs already") && !said.contains("managing"),
        "{said}"
    );
    let stopped = place.corewise(&["manage", "--stop"]);
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    let ended = until("its end", || child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(
        said.starts_with("corewise: managing with the policy fcfs"),
        "{said}"
    );
    assert_eq!(status(&place)["policy"], Value::Null);
}

#[test]
fn a_policy_that_does_not_exist_is_bad_usage() {
    let place = Place::new();
    let output = place.corewise(&["manage", "--policy", "no-such-policy"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("no-such-policy"));
}
