//! Programs that come last out of their turn, where nobody may stop them.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

#[path = "common/live.rs"]
mod live;

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use corewise_machine::control::Thread;
use corewise_machine::control::turns::{Means, Seizing, Yielding, means_for};
use corewise_machine::program::process_cpu_ns;
use corewise_machine::undo::{LogOnDemand, restore_abandoned};
use live::{Running, logs, skip, until};
use rustix::process::{Pid, Signal, kill_process};

/// Plays a part in another process; as a test of its own it does nothing.
#[test]
fn helper() {
    let Ok(role) = std::env::var("TEST_ROLE") else {
        return;
    };
    let pid = std::env::var("TEST_SEED").unwrap().parse().unwrap();
    let folder = std::env::var("TEST_FOLDER").unwrap();
    match role.as_str() {
        "spin" => spin(),
        "keep" => keep(pid, Path::new(&folder)),
        "trace" => trace(pid),
        role => panic!("{role}"),
    }
}

fn spin() {
    std::thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    println!("ready");
    wait();
}

/// Has a program come last until it is killed.
fn keep(pid: i32, folder: &Path) {
    let log = LogOnDemand::new(folder.to_owned(), "test");
    let mut means = Yielding::of(pid, &log).unwrap();
    means.stop().unwrap();
    println!("ready");
    wait();
}

/// Traces what runs of a program, as a debugger does.
fn trace(pid: i32) {
    let mut means = Seizing::of(pid).unwrap();
    means.stop().unwrap();
    println!("ready");
    wait();
}

fn wait() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn groups(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

/// Whether programs can come last here.
fn can_yield() -> bool {
    let sleeper = Running::sleeper();
    let (_folder, logs) = logs();
    let log = LogOnDemand::new(logs, "test");
    let refused = Yielding::of(sleeper.pid(), &log).err();
    refused.map(skip).is_none()
}

fn runs(pid: i32) {
    let cpu_ns = || process_cpu_ns(pid).unwrap();
    let before = cpu_ns();
    until("it runs", || cpu_ns() > before + 2_000_000);
}

#[test]
fn it_runs_on_while_it_comes_last_and_is_in_no_group_when_there_are_no_turns() {
    if !can_yield() {
        return;
    }
    let (_folder, logs) = logs();
    let log = LogOnDemand::new(logs, "test");
    let program = Running::helper("spin", Path::new("/"), 0);
    let before = groups(program.pid());
    let mut means = Yielding::of(program.pid(), &log).unwrap();
    assert!(!means.stops());
    assert_eq!(groups(program.pid()), before, "no turns yet");
    for _ in 0..3 {
        assert_eq!(means.stop().unwrap().threads, 1);
        assert!(groups(program.pid()).contains("corewise-"));
        runs(program.pid());
        // It comes last already: nothing was switched.
        assert_eq!(means.stop().unwrap().threads, 0);
        let gone = means.go();
        assert_eq!((gone.threads, gone.awaited), (1, 0));
    }
    means.rest();
    assert_eq!(groups(program.pid()), before);
    means.stop().unwrap();
    drop(means);
    assert_eq!(groups(program.pid()), before);
    assert!(log.made().unwrap().is_empty());
}

#[test]
fn what_a_killed_keeper_leaves_is_put_back() {
    if !can_yield() {
        return;
    }
    let (_folder, logs) = logs();
    let program = Running::helper("spin", Path::new("/"), 0);
    let before = groups(program.pid());
    let keeper = Running::helper("keep", &logs, u64::from(program.0.id()));
    assert_ne!(groups(program.pid()), before);
    kill_process(Pid::from_raw(keeper.pid()).unwrap(), Signal::KILL).unwrap();
    drop(keeper);
    runs(program.pid());
    let report = restore_abandoned(&logs);
    assert!(report.is_clean() && report.restored > 0, "{report:?}");
    assert_eq!(groups(program.pid()), before);
}

#[test]
fn it_is_chosen_where_somebody_traces_the_program_and_each_refusal_is_said_where_there_is_none() {
    let sleeper = Running::sleeper();
    if let Err(refused) = Seizing::of(sleeper.pid()) {
        return skip(refused);
    }
    let program = Running::helper("spin", Path::new("/"), 0);
    let _tracer = Running::helper("trace", Path::new("/"), u64::from(program.0.id()));
    // Of its two threads the first sleeps: the other one is traced.
    let traced = corewise_machine::control::process::threads(program.pid())
        .into_iter()
        .find(|tid| Seizing::of(*tid).is_err())
        .unwrap();
    assert!(Thread::of(program.pid(), traced).is_some());
    let nowhere = LogOnDemand::new("/nowhere/undo".into(), "test");
    let refused = means_for(traced, &nowhere).err().unwrap();
    assert!(refused.why.contains("traced by process"), "{refused}");
    assert!(refused.why.contains("/nowhere/undo"), "{refused}");
    if can_yield() {
        let (_folder, logs) = logs();
        let log = LogOnDemand::new(logs, "test");
        assert_eq!(means_for(traced, &log).unwrap().name(), "cpu.idle");
    }
}

#[test]
fn that_somebody_traces_a_process_below_is_known_before_anything_is_stopped() {
    let loops = "(while :; do :; done) & echo ready; wait";
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", loops]).stdout(Stdio::piped()).spawn();
    let mut shell = Running(shell.unwrap());
    let mut ready = [0; 6];
    shell
        .0
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    let mut means = match Seizing::of(shell.pid()) {
        Ok(means) => means,
        Err(refused) => return skip(refused),
    };
    means.begin().unwrap();
    let _tracer = Running::helper("trace", Path::new("/"), u64::from(shell.0.id()));
    let refused = means.begin().err().unwrap();
    assert!(refused.why.contains("traced by process"), "{refused}");
}
