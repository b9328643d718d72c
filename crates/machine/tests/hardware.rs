//! How the hardware is set and put back, on made trees.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

mod common;
#[path = "common/live.rs"]
mod live;

use common::{REGISTERS, Tree, desktop, with_resctrl};
use corewise_machine::control::{
    DutyCycleControl, Error, FrequencyControl, PrefetchControl, Process, ProgramShare, Resctrl,
};
use corewise_machine::undo::{UndoLog, restore_abandoned};
use live::{Running, files_in, logs};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

fn file(tree: &Tree, path: &str) -> String {
    tree.root.read(path).unwrap().trim().to_owned()
}

fn most_khz(tree: &Tree, cpu: u32) -> String {
    let path = format!("sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq");
    file(tree, &path)
}

fn register(tree: &Tree, cpu: u32, number: u64) -> u32 {
    let device = std::fs::File::open(tree.root.path(format!("dev/cpu/{cpu}/msr"))).unwrap();
    let mut bytes = [0; 4];
    device.read_exact_at(&mut bytes, number).unwrap();
    u32::from_le_bytes(bytes)
}

/// All that this tree's controls can change.
fn everything(tree: &Tree) -> Vec<String> {
    let mut all: Vec<String> = (0..8).map(|cpu| most_khz(tree, cpu)).collect();
    for cpu in 0..8 {
        all.push(format!(
            "{:x?}",
            std::fs::read(tree.root.path(format!("dev/cpu/{cpu}/msr")))
        ));
    }
    all.push(file(
        tree,
        "sys/devices/virtual/thermal/cooling_device1/cur_state",
    ));
    all
}

/// Plays a part in another process; as a test of its own it does nothing.
#[test]
fn helper() {
    let Ok(folder) = std::env::var("TEST_FOLDER") else {
        return;
    };
    let root = corewise_machine::Root::at(Path::new(&folder).canonicalize().unwrap());
    let log = UndoLog::create(&root.path("undo"), "killed").unwrap();
    FrequencyControl::new(&log, &root)
        .limit(&[1, 2], 2_000_000_000)
        .unwrap();
    PrefetchControl::new(&log, &root)
        .unwrap()
        .switch(&[0, 3], false)
        .unwrap();
    DutyCycleControl::new(&log, &root)
        .unwrap()
        .set(&[1], 50)
        .unwrap();
    let pid = i32::try_from(std::process::id()).unwrap();
    let share = ProgramShare::create(&log, &root, Process::of(pid).unwrap()).unwrap();
    share.set_cache(0, 50).unwrap();
    println!("ready");
    loop {
        std::thread::park();
    }
}

#[test]
fn frequencies_are_limited_within_what_the_hardware_can_and_put_back() {
    let tree = desktop();
    let before = everything(&tree);
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = FrequencyControl::new(&log, &tree.root);
    control.limit(&[1, 2], 2_400_000_000).unwrap();
    control.limit(&[2], 1).unwrap();
    let now: Vec<String> = (0..4).map(|cpu| most_khz(&tree, cpu)).collect();
    assert_eq!(now, ["3800000", "2400000", "1600000", "3800000"]);
    assert_eq!(control.release(&[2]).restored, 1);
    assert_eq!(
        (most_khz(&tree, 1).as_str(), most_khz(&tree, 2).as_str()),
        ("2400000", "3800000")
    );
    drop(log);
    assert_eq!(everything(&tree), before);
}

#[test]
fn cpus_that_change_together_are_limited_together_or_not_at_all() {
    let tree = desktop();
    let shared = "sys/devices/system/cpu/cpufreq/policy0";
    tree.write(&format!("{shared}/affected_cpus"), "0 1\n");
    tree.write("sys/devices/system/cpu/cpufreq/policy1/affected_cpus", "\n");
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = FrequencyControl::new(&log, &tree.root);
    let refused = control.limit(&[0], 2_000_000_000).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("CPUs 0-1 change theirs together"),
        "{refused}"
    );
    control.limit(&[0, 1], 2_000_000_000).unwrap();
    assert_eq!(most_khz(&tree, 0), "2000000");
    let missing = control.limit(&[9], 2_000_000_000).unwrap_err();
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
}

#[test]
fn what_somebody_else_limits_afterwards_stays() {
    let tree = desktop();
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = FrequencyControl::new(&log, &tree.root);
    control.limit(&[0], 2_000_000_000).unwrap();
    tree.write(
        "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq",
        "3000000\n",
    );
    control.limit(&[0], 1_800_000_000).unwrap();
    drop(log);
    assert_eq!(most_khz(&tree, 0), "3000000");
}

#[test]
fn prefetchers_are_switched_and_those_that_were_off_at_first_stay_off() {
    let tree = desktop();
    let device = tree.root.path("dev/cpu/3/msr");
    let mut bytes = vec![0; REGISTERS];
    bytes[0x1a4] = 0xa2; // one is off; bits that are not ours are set
    std::fs::write(&device, &bytes).unwrap();
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = PrefetchControl::new(&log, &tree.root).unwrap();
    control.switch(&[3, 0], false).unwrap();
    assert_eq!(
        (register(&tree, 3, 0x1a4), register(&tree, 0, 0x1a4)),
        (0xaf, 0xf)
    );
    assert_eq!(register(&tree, 1, 0x1a4), 0);
    control.switch(&[3, 0], true).unwrap();
    assert_eq!(
        (register(&tree, 3, 0x1a4), register(&tree, 0, 0x1a4)),
        (0xa2, 0)
    );
    control.switch(&[3], false).unwrap();
    drop(log);
    assert_eq!(std::fs::read(&device).unwrap(), bytes);
}

#[test]
fn core_2_has_its_prefetchers_elsewhere_and_others_are_not_guessed() {
    let tree = desktop();
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let info = |vendor: &str, model: u32| {
        let text = format!("vendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\n");
        tree.write("proc/cpuinfo", &text);
    };
    info("GenuineIntel", 0x17);
    let control = PrefetchControl::new(&log, &tree.root).unwrap();
    control.switch(&[0], false).unwrap();
    assert_eq!(register(&tree, 0, 0x1a0), 1 << 9 | 1 << 19);
    assert_eq!(control.release(&[0]).restored, 1);
    assert_eq!(register(&tree, 0, 0x1a0), 0);
    for (vendor, model) in [
        ("GenuineIntel", 0x1c),
        ("GenuineIntel", 0x0e),
        ("AuthenticAMD", 0x2a),
    ] {
        info(vendor, model);
        let error = PrefetchControl::new(&log, &tree.root).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }
}

#[test]
fn a_duty_cycle_is_set_by_the_clock_of_single_cpus() {
    let tree = desktop();
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = DutyCycleControl::new(&log, &tree.root).unwrap();
    control.set(&[2, 6], 50).unwrap();
    assert_eq!(
        (register(&tree, 2, 0x19a), register(&tree, 6, 0x19a)),
        (0x18, 0x18)
    );
    control.set(&[2], 100).unwrap();
    assert_eq!(
        (register(&tree, 2, 0x19a), register(&tree, 6, 0x19a)),
        (0, 0x18)
    );
    drop(log);
    assert_eq!(register(&tree, 6, 0x19a), 0);
}

#[test]
fn without_registers_the_whole_machine_is_slowed_down_or_nobody() {
    let tree = Tree::named("sandy-bridge");
    let state = || {
        file(
            &tree,
            "sys/devices/virtual/thermal/cooling_device1/cur_state",
        )
    };
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = DutyCycleControl::new(&log, &tree.root).unwrap();
    let refused = control.set(&[0, 1], 70).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let all: Vec<u32> = (0..8).collect();
    control.set(&all, 70).unwrap();
    assert_eq!(state(), "30");
    // Older kernels say what is reached, which is nobody else's doing.
    tree.write(
        "sys/devices/virtual/thermal/cooling_device1/cur_state",
        "27\n",
    );
    control.set(&all, 10).unwrap();
    assert_eq!(state(), "50", "as much as it can");
    tree.write(
        "sys/devices/virtual/thermal/cooling_device1/cur_state",
        "44\n",
    );
    drop(log);
    assert_eq!(state(), "-1");
}

#[test]
fn a_program_has_its_part_of_cache_and_bandwidth_until_it_leaves() {
    let tree = desktop();
    let resctrl = with_resctrl(&tree);
    let program = Running::sleeper();
    tree.write("sys/fs/resctrl/tasks", &format!("1\n{}\n", program.pid()));
    assert_eq!(Resctrl::find(&tree.root).unwrap().ways(), Some(11));
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let share = ProgramShare::create(&log, &tree.root, program.process()).unwrap();
    share.set_cache(0, 50).unwrap();
    let name = format!(
        "corewise-{}-{}",
        program.pid(),
        program.process().start_time
    );
    let group = resctrl.join(name);
    let read = |file: &str| std::fs::read_to_string(group.join(file)).unwrap();
    assert_eq!(read("schemata"), "L3:0=3f\n");
    share.set_bandwidth(41).unwrap();
    assert_eq!(read("schemata"), "MB:0=50\n");
    assert_eq!(share.move_in().unwrap(), 1);
    assert_eq!(read("tasks"), format!("{}\n", program.pid()));
    assert!(share.leave().is_clean());
    assert!(!group.exists() && log.is_empty());
}

#[test]
fn threads_in_somebody_elses_group_are_left_there() {
    let tree = desktop();
    with_resctrl(&tree);
    let program = Running::sleeper();
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let share = ProgramShare::create(&log, &tree.root, program.process()).unwrap();
    assert_eq!(share.move_in().unwrap(), 0);
}

#[test]
fn bandwidth_that_is_not_counted_in_percent_is_not_shared_out() {
    // AMD's unit is an eighth of a gigabyte a second; with the mount option mba_MBps it is a megabyte.
    for all in ["MB:0=2048;1=2048\n", "MB:0=4294967295\n"] {
        let tree = desktop();
        with_resctrl(&tree);
        tree.write("sys/fs/resctrl/schemata", &format!("L3:0=7ff\n{all}"));
        let found = Resctrl::find(&tree.root).unwrap();
        assert!(found.bandwidth().unwrap_err().contains("percent"));
        assert_eq!(found.ways(), Some(11), "caches can still be");
    }
}

#[test]
fn a_half_present_tree_sets_what_is_there_and_says_what_is_not() {
    let tree = desktop();
    std::fs::remove_file(tree.root.path("dev/cpu/3/msr")).unwrap();
    tree.write("sys/fs/resctrl/schemata", "L3CODE:0=7ff\nL3DATA:0=7ff\n");
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = PrefetchControl::new(&log, &tree.root).unwrap();
    let gone = control.switch(&[2, 3], false).unwrap_err();
    assert!(gone.is_gone(), "{gone}");
    assert_eq!(register(&tree, 2, 0x1a4), 0xf);
    let why = Resctrl::find(&tree.root).unwrap_err();
    assert!(why.contains("CDP"), "{why}");
    tree.write("sys/fs/resctrl/schemata", "MB:0=100;1=100\n");
    tree.write("sys/fs/resctrl/tasks", "");
    let program = Running::sleeper();
    let share = ProgramShare::create(&log, &tree.root, program.process()).unwrap();
    assert!(matches!(
        share.set_cache(0, 50),
        Err(Error::Unavailable { .. })
    ));
    share.set_bandwidth(10).unwrap();
    std::fs::remove_file(
        tree.root
            .path("sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq"),
    )
    .unwrap();
    let error = FrequencyControl::new(&log, &tree.root)
        .limit(&[1], 1)
        .unwrap_err();
    assert!(error.is_gone(), "{error}");
}

#[test]
fn what_may_not_be_written_stays_and_the_error_says_what_would_help() {
    let tree = desktop();
    let before = everything(&tree);
    let (_keep, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    // An ordinary user may look into the tree, and write nothing in it.
    std::fs::set_permissions(tree.root.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = tree.root.clone();
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                // Of this thread alone.
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            } else {
                make_readonly(&root);
            }
            let most = FrequencyControl::new(&log, &root).limit(&[1], 2_000_000_000);
            let off = PrefetchControl::new(&log, &root)
                .unwrap()
                .switch(&[1], false);
            (most.unwrap_err(), off.unwrap_err())
        });
        let (most, off) = tried.join().unwrap();
        for error in [most, off] {
            assert!(error.to_string().contains("needs root"), "{error}");
        }
    });
    assert!(log.is_empty(), "what did not happen is not to be undone");
    drop(log);
    assert_eq!(everything(&tree), before);
}

fn make_readonly(root: &corewise_machine::Root) {
    for file in [
        "sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq",
        "dev/cpu/1/msr",
    ] {
        std::fs::set_permissions(root.path(file), std::fs::Permissions::from_mode(0o444)).unwrap();
    }
}

#[test]
fn who_is_killed_leaves_the_hardware_to_the_next_one_who_puts_it_back() {
    let tree = desktop();
    let resctrl = with_resctrl(&tree);
    let before = everything(&tree);
    let mut killed = Running::helper("sets", tree.root.folder(), 0);
    assert_ne!(everything(&tree), before);
    assert_eq!(most_khz(&tree, 1), "2000000");
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let report = restore_abandoned(&tree.root.path("undo"));
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.restored, 6, "{report:?}");
    assert_eq!(everything(&tree), before);
    let groups = std::fs::read_dir(resctrl).unwrap().filter_map(Result::ok);
    let mut names = groups.map(|g| g.file_name().into_string().unwrap());
    assert!(!names.any(|name| name.starts_with("corewise-")));
    assert_eq!(files_in(&tree.root.path("undo")), 0);
}

#[test]
fn a_damaged_log_sets_nothing_that_is_no_hardware() {
    let tree = desktop();
    let undo = tree.root.path("undo");
    let log = UndoLog::create(&undo, "test").unwrap();
    let control = FrequencyControl::new(&log, &tree.root);
    control.limit(&[1], 2_000_000_000).unwrap();
    let text = std::fs::read_to_string(log.path()).unwrap();
    let name = log.path();
    drop(log);
    tree.write("etc/passwd", "2000000\n");
    let damaged = text.replace(
        "sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq",
        "etc/passwd",
    );
    assert_ne!(damaged, text);
    std::fs::write(&name, damaged).unwrap();
    std::fs::set_permissions(&name, std::fs::Permissions::from_mode(0o600)).unwrap();
    let report = restore_abandoned(&undo);
    assert_eq!((report.damaged_lines, report.restored), (1, 0));
    assert_eq!(file(&tree, "etc/passwd"), "2000000");
}
