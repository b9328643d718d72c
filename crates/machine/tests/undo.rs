//! The undo log: what is put back, what is left alone, and logs that others left behind.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

#[path = "common/live.rs"]
mod live;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use corewise_machine::control::{Done, Thread};
use corewise_machine::undo::{Change, Setting, UndoLog, restore_abandoned};
use live::{Running, affinity, cpus, files_in, logs};
use tempfile::TempDir;

/// A made group with one file.
fn group_file(folder: &TempDir, text: &str) -> (PathBuf, Setting) {
    let group = folder.path().canonicalize().unwrap().join("corewise-made");
    fs::create_dir_all(&group).unwrap();
    let path = group.join("cpu.weight");
    fs::write(&path, text).unwrap();
    (path.clone(), Setting::CgroupFile { path })
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Lets a log's writer vanish as by `kill -9`: the file stays, unlocked.
fn abandon(log: UndoLog) -> Vec<u8> {
    let path = log.path();
    let text = fs::read(&path).unwrap();
    // Closing puts everything back, so keep the file's content and write it anew.
    drop(log);
    text
}

#[test]
fn the_first_original_is_put_back_after_many_changes() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "100\n");
    let log = UndoLog::create(&logs, "test").unwrap();
    for value in ["200", "300", "50"] {
        assert_eq!(log.set(&setting, value).unwrap(), Done::Set);
    }
    assert_eq!(log.set(&setting, "50").unwrap(), Done::AlreadySo);
    assert_eq!(read(&path), "50");
    let report = log.restore(|_| true);
    assert_eq!((report.restored, report.is_clean()), (1, true));
    assert_eq!(read(&path), "100");
    assert!(log.is_empty());
    let file = log.path();
    assert!(file.exists());
    log.close();
    assert!(!file.exists());
}

#[test]
fn what_somebody_else_changed_is_left_alone_from_then_on() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "100\n");
    let log = UndoLog::create(&logs, "test").unwrap();
    log.set(&setting, "200").unwrap();
    fs::write(&path, "777\n").unwrap();
    let left = Done::LeftAlone {
        present: "777".into(),
    };
    assert_eq!(log.set(&setting, "300").unwrap(), left);
    // Even if it comes to have our value by chance.
    fs::write(&path, "200\n").unwrap();
    assert!(matches!(
        log.set(&setting, "300").unwrap(),
        Done::LeftAlone { .. }
    ));
    let report = log.close();
    assert_eq!((report.left_alone, report.restored), (1, 0));
    assert_eq!(read(&path), "200");
}

#[test]
fn only_what_the_filter_chooses_is_put_back() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "1\n");
    let other_path = path.with_file_name("cpu.idle");
    fs::write(&other_path, "0\n").unwrap();
    let other = Setting::CgroupFile {
        path: other_path.clone(),
    };
    let log = UndoLog::create(&logs, "test").unwrap();
    log.set(&setting, "2").unwrap();
    log.set(&other, "1").unwrap();
    log.restore(|what| *what == other);
    assert_eq!(
        (read(&path).as_str(), read(&other_path).as_str()),
        ("2", "0")
    );
    assert_eq!(log.len(), 1);
    drop(log);
    assert_eq!(read(&path), "1");
    assert_eq!(files_in(&logs), 0);
}

#[test]
fn nothing_is_set_when_the_log_cannot_be_written() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "100\n");
    let log = UndoLog::create(&logs, "test").unwrap();
    assert!(
        log.set(
            &Setting::CgroupFile {
                path: "/etc/passwd".into()
            },
            "x"
        )
        .is_err()
    );
    // A value that cannot be set: the file is a folder.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(log.set(&setting, "1").is_err());
    assert!(log.is_empty());
}

#[test]
fn a_living_writers_log_is_not_touched() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "100\n");
    let log = UndoLog::create(&logs, "test").unwrap();
    log.set(&setting, "200").unwrap();
    let report = restore_abandoned(&logs);
    assert_eq!((report.restored, report.logs_removed), (0, 0));
    assert_eq!(read(&path), "200");
    assert!(log.path().exists());
    let mode = fs::metadata(log.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A second log of the same process has a name of its own.
    let second = UndoLog::create(&logs, "test").unwrap();
    assert_ne!(second.path(), log.path());
}

/// An abandoned log as it was when its writer was killed with `value` in place.
fn abandoned(folder: &TempDir, logs: &Path, value: &str) -> (PathBuf, PathBuf) {
    let (path, setting) = group_file(folder, "100\n");
    let log = UndoLog::create(logs, "test").unwrap();
    log.set(&setting, "200").unwrap();
    log.set(&setting, value).unwrap();
    let name = log.path();
    let text = abandon(log);
    write_private(&name, &text);
    fs::write(&path, format!("{value}\n")).unwrap();
    (path, name)
}

fn write_private(path: &Path, text: &[u8]) {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .open(path)
        .unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .unwrap();
    file.write_all(text).unwrap();
}

#[test]
fn an_abandoned_log_is_settled_and_removed() {
    let (folder, logs) = logs();
    let (path, log) = abandoned(&folder, &logs, "300");
    let report = restore_abandoned(&logs);
    assert_eq!((report.restored, report.logs_removed), (1, 1));
    assert_eq!(read(&path), "100");
    assert!(!log.exists());
    assert_eq!(restore_abandoned(&logs), Default::default());
}

#[test]
fn a_writer_killed_between_line_and_change_leaves_the_value_before() {
    let (folder, logs) = logs();
    let (path, _) = abandoned(&folder, &logs, "300");
    fs::write(&path, "200\n").unwrap();
    assert_eq!(restore_abandoned(&logs).restored, 1);
    assert_eq!(read(&path), "100");
    // And before the first change, the original.
    let (path, _) = abandoned(&folder, &logs, "300");
    fs::write(&path, "100\n").unwrap();
    let report = restore_abandoned(&logs);
    assert_eq!((report.unchanged, report.logs_removed), (1, 1));
    assert_eq!(read(&path), "100");
}

#[test]
fn others_changes_survive_an_abandoned_log() {
    let (folder, logs) = logs();
    let (path, _) = abandoned(&folder, &logs, "300");
    fs::write(&path, "42\n").unwrap();
    let report = restore_abandoned(&logs);
    assert_eq!((report.left_alone, report.logs_removed), (1, 1));
    assert_eq!(read(&path), "42");
}

#[test]
fn another_boots_log_is_forgotten() {
    let (folder, logs) = logs();
    let (path, log) = abandoned(&folder, &logs, "300");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains(boot.trim()));
    write_private(&log, text.replace(boot.trim(), "another-boot").as_bytes());
    let report = restore_abandoned(&logs);
    assert_eq!(
        (report.gone, report.restored, report.logs_removed),
        (1, 0, 1)
    );
    assert_eq!(read(&path), "300");
}

#[test]
fn a_log_of_a_later_version_or_another_namespace_stays() {
    let (folder, logs) = logs();
    for (from, to) in [("\"version\":2", "\"version\":99"), ("pid:[", "pid:[1")] {
        let (path, log) = abandoned(&folder, &logs, "300");
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.contains(from), "{text}");
        write_private(&log, text.replacen(from, to, 1).as_bytes());
        let report = restore_abandoned(&logs);
        assert_eq!((report.logs_kept, report.restored), (1, 0));
        assert!(!report.is_clean());
        assert_eq!(read(&path), "300");
        fs::remove_file(&log).unwrap();
    }
}

#[test]
fn torn_and_damaged_lines_are_passed_over() {
    let (folder, logs) = logs();
    let (path, log) = abandoned(&folder, &logs, "300");
    let text = fs::read(&log).unwrap();
    // Torn at each byte: never a panic, and what is put back is one of the values that were.
    for end in 0..text.len() {
        write_private(&log, &text[..end]);
        fs::write(&path, "200\n").unwrap();
        let report = restore_abandoned(&logs);
        assert_eq!(report.logs_removed, 1, "torn at {end}");
        assert!(["100", "200"].contains(&read(&path).as_str()));
    }
    // A torn line, and rubbish between the lines.
    let whole = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let damaged = format!(
        "{}\n{{\"set\":{{\"what\"\n\u{0}\u{1}\n[[[[\n{}\n{}\n\"",
        lines[0], lines[1], lines[2]
    );
    write_private(&log, damaged.as_bytes());
    fs::write(&path, "300\n").unwrap();
    let report = restore_abandoned(&logs);
    assert_eq!((report.restored, report.damaged_lines), (1, 4));
    assert_eq!(read(&path), "100");
}

#[test]
fn random_bytes_never_panic_and_change_nothing() {
    let (folder, logs) = logs();
    let (path, log) = abandoned(&folder, &logs, "300");
    let text = fs::read(&log).unwrap();
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..300 {
        let mut bytes = text.clone();
        for _ in 0..20 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random as usize % bytes.len();
            bytes[at] = (random >> 32) as u8;
        }
        write_private(&log, &bytes);
        let _ = restore_abandoned(&logs);
        let _ = fs::remove_file(&log);
    }
    // Files outside of groups made here are never written, whatever a log says.
    let victim = folder.path().join("victim");
    fs::write(&victim, "mine\n").unwrap();
    let aimed = String::from_utf8(text)
        .unwrap()
        .replace(path.to_str().unwrap(), victim.to_str().unwrap());
    fs::write(&victim, "300\n").unwrap();
    write_private(&log, aimed.as_bytes());
    let report = restore_abandoned(&logs);
    assert_eq!((report.restored, report.damaged_lines), (0, 2));
    assert_eq!(read(&victim), "300");
}

#[test]
fn links_others_files_and_open_folders_are_not_believed() {
    let (folder, logs) = logs();
    let (path, log) = abandoned(&folder, &logs, "300");
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&log, &elsewhere).unwrap();
    symlink(&elsewhere, &log).unwrap();
    assert_eq!(restore_abandoned(&logs).restored, 0);
    assert!(elsewhere.exists() && log.is_symlink());
    fs::remove_file(&log).unwrap();
    // A log that others can write into.
    fs::rename(&elsewhere, &log).unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(restore_abandoned(&logs).restored, 0);
    fs::set_permissions(&log, fs::Permissions::from_mode(0o600)).unwrap();
    // A folder that others can write into.
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o777)).unwrap();
    let report = restore_abandoned(&logs);
    assert_eq!((report.restored, report.failed.len()), (0, 1));
    assert!(UndoLog::create(&logs, "test").is_err());
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(read(&path), "300");
    // A link in the folder's place.
    let link = folder.path().join("link");
    symlink(&logs, &link).unwrap();
    assert!(UndoLog::create(&link, "test").is_err());
    assert_eq!(restore_abandoned(&logs).restored, 1);
}

#[test]
fn a_folder_that_is_not_there_has_no_logs() {
    let (_folder, logs) = logs();
    assert_eq!(restore_abandoned(&logs), Default::default());
}

#[test]
fn a_long_log_is_written_anew_and_says_the_same() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "original\n");
    let log = UndoLog::create(&logs, "test").unwrap();
    let mut longest = 0;
    for n in 0..12_000 {
        log.set(&setting, &format!("value {n}")).unwrap();
        if n % 100 == 0 {
            longest = longest.max(fs::metadata(log.path()).unwrap().len());
        }
    }
    assert!(longest > 500_000 && longest < 1_200_000, "{longest}");
    assert!(fs::metadata(log.path()).unwrap().len() < longest);
    assert_eq!(files_in(&logs), 1);
    // Still locked after it was replaced.
    let left = restore_abandoned(&logs);
    assert_eq!((left.restored, left.logs_in_use), (0, 1));
    let name = log.path();
    let text = abandon(log);
    write_private(&name, &text);
    fs::write(&path, "value 11999\n").unwrap();
    assert_eq!(restore_abandoned(&logs).restored, 1);
    assert_eq!(read(&path), "original");
}

#[test]
fn threads_that_ended_are_forgotten() {
    let (list, cpus) = cpus();
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let first = cpus[0].to_string();
    let ended = Running::sleeper();
    let thread = ended.first_thread();
    let change = Change {
        what: Setting::Affinity(thread),
        original: list.clone(),
        ours: first,
    };
    log.before(&change).unwrap();
    // Its number in another thread's hands: never set.
    let other = Running::sleeper();
    let imposter = Change {
        what: Setting::Affinity(Thread {
            start_time: other.first_thread().start_time + 1,
            ..other.first_thread()
        }),
        original: "63".into(),
        ours: list.clone(),
    };
    log.before(&imposter).unwrap();
    drop(ended);
    let report = log.restore(|_| true);
    assert_eq!((report.gone, report.failed.len()), (2, 0));
    assert_eq!(affinity(other.pid(), other.pid()), list);
    log.before(&imposter).unwrap();
    log.forget_gone();
    assert!(log.is_empty());
}

#[test]
fn a_change_that_failed_is_taken_back() {
    let (folder, logs) = logs();
    let (path, setting) = group_file(&folder, "1\n");
    let log = UndoLog::create(&logs, "test").unwrap();
    log.set(&setting, "2").unwrap();
    for ours in ["3", "4", "5"] {
        let change = Change {
            what: setting.clone(),
            original: "2".into(),
            ours: ours.into(),
        };
        log.before(&change).unwrap();
        log.failed(&setting).unwrap();
    }
    log.close();
    assert_eq!(read(&path), "1");
}
