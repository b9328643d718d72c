//! What those left who were killed is put back.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Place, Player, until};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn helper() {
    common::helper_main();
}

fn affinity(pid: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list:"));
    line.unwrap().to_owned()
}

fn end(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Whether confining can be seen here at all.
fn one_cpu() -> bool {
    let own = affinity(common::own_pid());
    if own.contains([',', '-']) {
        return false;
    }
    eprintln!("skipped: there is one CPU only");
    true
}

#[test]
fn a_manager_that_starts_puts_back_what_the_killed_left() {
    if one_cpu() {
        return;
    }
    let place = Place::new();
    let mut player = Player::start("confines", &place);
    let pid = player.says("confined").parse().unwrap();
    player.kill();
    assert_ne!(affinity(pid), affinity(common::own_pid()));
    let _manager = Manager::observing(&place);
    assert_eq!(affinity(pid), affinity(common::own_pid()));
    assert_eq!(place.status()["undo"]["found"]["restored"], 1);
    end(pid);
}

#[test]
fn a_manager_that_runs_puts_back_what_a_killed_local_manager_left() {
    if one_cpu() {
        return;
    }
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let mut player = Player::start("confines", &place);
    let pid = player.says("confined").parse().unwrap();
    assert_eq!(place.programs()[0]["pid"], pid);
    player.kill();
    place.until_programs(0);
    until("its affinity is put back", || {
        affinity(pid) == affinity(common::own_pid())
    });
    end(pid);
}

/// Where the machine lacks what is to be set, the policy is told so and the journal says it.
#[test]
fn what_a_policy_sets_is_done_or_said_to_have_failed_and_is_undone_at_the_end() {
    let place = Place::new();
    let file = place.folder.path().join("sets.rhai");
    let script = r#"fn on_joined(p) {
        grant(p, machine.cpus, 1, "as a start");
        set_weight(p, 50, "it can wait");
        set_slice_us(p, 3000, "it may run longer");
        set_frozen(p, true, "nobody would thaw it");
    }"#;
    std::fs::write(&file, script).unwrap();
    let manager = Manager::start(&place, place.options(file.to_str().unwrap()));
    let mut player = Player::start("program", &place);
    player.says("joined");
    let set = place.status()["undo"]["to_be_put_back"].as_u64().unwrap();
    manager.stop().unwrap();
    let text = std::fs::read_to_string(place.folder.journal()).unwrap();
    let failed = text.matches("\"failed\"").count();
    assert!(text.contains("freezing is not done"), "{text}");
    assert!(failed <= 3, "{text}");
    assert!(set > 0 || failed == 3, "{set} settings, {text}");
    let logs = std::fs::read_dir(place.folder.undo()).map_or(0, Iterator::count);
    assert_eq!(logs, 0, "everything is put back");
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", player.pid())).unwrap();
    assert!(!groups.contains("corewise-"), "{groups}");
}
