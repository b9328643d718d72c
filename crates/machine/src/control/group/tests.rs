//! Groups on made trees and on the living v2.

use std::fs;
use std::io;

use super::*;

/// A machine with v2, whose group `delegated` is ours. Its files are plain ones: what the
/// kernel makes of them is tested on living machines.
fn v2(subtree_control: &str) -> (tempfile::TempDir, Root, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    let group = top.join("sys/fs/cgroup/delegated");
    fs::create_dir_all(&group).unwrap();
    fs::write(group.join("cgroup.subtree_control"), subtree_control).unwrap();
    fs::create_dir_all(top.join("proc/self")).unwrap();
    fs::create_dir_all(top.join("proc/42")).unwrap();
    let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    fs::write(top.join("proc/self/mountinfo"), mounts).unwrap();
    fs::write(top.join("proc/42/cgroup"), "0::/delegated\n").unwrap();
    (folder, Root::at(top), group)
}

const PROGRAM: Process = Process {
    pid: 42,
    start_time: 7,
};

fn log() -> (tempfile::TempDir, UndoLog) {
    let folder = tempfile::tempdir().unwrap();
    let log = UndoLog::create(&folder.path().join("undo"), "test").unwrap();
    (folder, log)
}

#[test]
fn on_v2_one_group_serves_all_controllers_and_takes_its_values() {
    let (_keep, root, parent) = v2("cpuset cpu\n");
    let (_folder, log) = log();
    let wanted = [Controller::Cpu, Controller::Cpuset, Controller::Freezer];
    let made = ProgramCgroup::create_in(&root, &log, PROGRAM, &wanted, None).unwrap();
    let folders: Vec<PathBuf> = made.folders().map(Path::to_owned).collect();
    assert_eq!(folders.len(), 1);
    assert_eq!(folders[0].parent(), Some(&*parent));
    let file = |name: &str| folders[0].join(name);
    let files = ["cpuset.cpus", "cpu.weight", "cpu.idle", "cgroup.freeze"];
    for (name, text) in files.iter().zip(["\n", "100\n", "0\n", "0\n"]) {
        fs::write(file(name), text).unwrap();
    }
    assert_eq!(made.set_cpus(&[3, 1, 2, 2]).unwrap(), Done::Set);
    assert_eq!(made.set_weight(350).unwrap(), Done::Set);
    assert_eq!(made.set_idle(true).unwrap(), Done::Set);
    let ok = FreezeOk { kept_by: "nobody" };
    assert_eq!(made.freeze(ok).unwrap(), Done::Set);
    let texts = || files.map(|name| fs::read_to_string(file(name)).unwrap());
    assert_eq!(texts(), ["1-3\n", "350\n", "1\n", "1\n"]);
    log.restore(|what| matches!(what, Setting::CgroupFile { .. }));
    assert_eq!(texts(), ["\n", "100\n", "0\n", "0\n"]);
    // The kernel's files go with their group; plain ones must go first.
    for name in files {
        fs::remove_file(file(name)).unwrap();
    }
    assert!(made.leave().is_clean());
    assert!(!folders[0].exists());
}

#[test]
fn on_v2_a_controller_that_is_not_given_on_is_an_error_that_says_what_to_do() {
    let (_keep, root, parent) = v2("cpu\n");
    let (_folder, log) = log();
    let wanted = [Controller::Cpu, Controller::Cpuset];
    let error = ProgramCgroup::create_in(&root, &log, PROGRAM, &wanted, None).unwrap_err();
    assert!(error.to_string().contains("+cpuset"), "{error}");
    // The group that was made for the first controller is gone again.
    assert_eq!(fs::read_dir(parent).unwrap().count(), 1);
    assert!(log.is_empty());
    let freezer = [Controller::Freezer];
    ProgramCgroup::create_in(&root, &log, PROGRAM, &freezer, None).unwrap();
}

#[test]
fn a_program_may_not_escape_its_groups_limits() {
    let (_keep, root, parent) = v2("cpu\n");
    let (_folder, log) = log();
    let beside = parent.with_file_name("beside");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("cgroup.subtree_control"), "cpu\n").unwrap();
    let wanted = [Controller::Cpu];
    let create = |below: &Path| {
        ProgramCgroup::create_in(&root, &log, PROGRAM, &wanted, Some(below)).map(|_| ())
    };
    assert!(matches!(create(&beside), Err(Error::Refused { .. })));
    create(&parent).unwrap();
}

#[test]
fn a_second_group_of_the_same_log_for_the_same_program_is_refused() {
    let (_keep, root, _parent) = v2("cpu\n");
    let (_folder, log) = log();
    let wanted = [Controller::Cpu];
    let first = ProgramCgroup::create_in(&root, &log, PROGRAM, &wanted, None).unwrap();
    let second = ProgramCgroup::create_in(&root, &log, PROGRAM, &wanted, None);
    assert!(matches!(second, Err(Error::Refused { .. })));
    assert!(first.folders().all(Path::exists));
}

/// The folder where v2 is mounted here, if groups can be made there.
fn living_v2() -> Option<PathBuf> {
    let place = group_place::of_process(&Root::system(), std::process::id() as i32, "").ok()?;
    let probe = place
        .folder
        .join(format!("corewise-probe-{}", std::process::id()));
    fs::create_dir(&probe).ok()?;
    fs::remove_dir(&probe).ok()?;
    Some(place.folder)
}

#[test]
fn below_a_group_of_threads_the_living_v2_gets_a_threaded_one_and_lets_it_go() {
    let Some(top) = living_v2() else {
        eprintln!("skipped: no v2 group of this process can be written to");
        return;
    };
    let parent = top.join(format!("corewise-test-{}", std::process::id()));
    let (threads, ours) = (
        parent.join("corewise-threads"),
        parent.join("corewise-ours"),
    );
    for folder in [&parent, &threads, &ours] {
        group_files::make(folder).unwrap();
    }
    let mut program = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let pid = program.id() as i32;
    let done = (|| {
        // Makes the parent one whose children must be threaded too.
        group_files::write(&threads.join("cgroup.type"), "threaded")?;
        begin(Version::V2, &ours, &parent)?;
        let kind = group_files::read(&ours.join("cgroup.type"))?;
        group_files::move_process(pid, &parent)?;
        group_files::move_process(pid, &ours)?;
        let members = group_files::members(&ours)?;
        let freeze = ours.join("cgroup.freeze");
        group_files::write(&freeze, "1")?;
        let frozen = group_files::read(&freeze)?;
        group_files::remove(&ours, &parent)?;
        group_files::remove(&threads, &parent)?;
        group_files::remove(&parent, &top)?;
        Ok::<_, io::Error>((kind, members, frozen))
    })();
    let _ = program.kill();
    let _ = program.wait();
    for folder in [&ours, &threads, &parent] {
        let _ = group_files::remove(folder, &top);
    }
    let (kind, members, frozen) = done.unwrap();
    assert_eq!((kind.as_str(), frozen.as_str()), ("threaded", "1"));
    assert_eq!(members, [pid]);
    assert!(!parent.exists());
}
