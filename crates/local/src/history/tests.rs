use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use super::*;

fn key(shape: &str, size_class: u32, load_class: u32) -> Key {
    Key {
        program: ProgramKey {
            path: "/usr/bin/pbzip2".into(),
            size: 5,
            mtime_ns: 7,
            script: None,
        },
        shape: shape.into(),
        size_class,
        machine: MachineKey::new("A CPU", 4, 4.0),
        load_class,
        objective: "speed".into(),
    }
}

fn record(threads: u32) -> Record {
    Record {
        created_unix_s: 1_000,
        chosen_threads: threads,
        wait_policy: Wait::Passive,
        algorithm: "sweep".into(),
        confidence: 0.9,
        stop_reason: "every number was tried".into(),
        points: vec![
            Point {
                threads: 1,
                speed: 1.0,
                spin: Some(0.25),
                ..Point::default()
            },
            Point {
                threads: 2,
                speed: 1.5,
                ..Point::default()
            },
        ],
        spins: true,
        search_seconds: 1.5,
        ..Record::default()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Runs one of this file's `child_…` tests in a process of its own.
fn child(test: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("history::tests::{test}"), "--nocapture"])
        .env("HISTORY_OF_CHILD", path)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

fn path_of_child() -> Option<PathBuf> {
    std::env::var_os("HISTORY_OF_CHILD").map(PathBuf::from)
}

#[test]
fn the_place_follows_the_variables_in_order() {
    let place = |set: &[(&str, &str)]| {
        path_from(|name| {
            set.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| OsString::from(v))
        })
        .map(|p| p.display().to_string())
    };
    let all = [
        ("COREWISE_HISTORY", "h"),
        ("XDG_STATE_HOME", "/s"),
        ("HOME", "/u"),
    ];
    assert_eq!(place(&all).unwrap(), "h");
    assert_eq!(place(&all[1..]).unwrap(), "/s/corewise/history.sqlite");
    assert_eq!(
        place(&all[2..]).unwrap(),
        "/u/.local/state/corewise/history.sqlite"
    );
    assert_eq!(
        place(&[("XDG_STATE_HOME", "relative"), ("HOME", "/u")]).unwrap(),
        "/u/.local/state/corewise/history.sqlite"
    );
    assert!(matches!(
        place(&[("COREWISE_HISTORY", "")]),
        Err(HistoryError::NoPlace)
    ));
}

#[test]
fn what_is_remembered_is_recalled_by_another_opening_and_by_no_other_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/corewise/history.sqlite");
    let id = History::open(&path)
        .unwrap()
        .remember(&key("x", 3, 0), &record(2))
        .unwrap();
    let mut history = History::open(&path).unwrap();
    assert_eq!(history.recall(&key("x", 3, 0)).unwrap(), Some(record(2)));
    for other in [key("y", 3, 0), key("x", 4, 0), key("x", 3, 1)] {
        assert_eq!(history.recall(&other).unwrap(), None);
    }
    assert_eq!(history.show(id).unwrap().unwrap().key, key("x", 3, 0));
    assert_eq!(
        history.remember(&key("x", 3, 0), &record(4)).unwrap(),
        id,
        "replaced, not doubled"
    );
    assert_eq!(
        history
            .recall(&key("x", 3, 0))
            .unwrap()
            .unwrap()
            .chosen_threads,
        4
    );
}

#[test]
fn file_and_folder_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("corewise/history.sqlite");
    let mut history = History::open(&path).unwrap();
    history.remember(&key("x", 0, 0), &record(1)).unwrap();
    assert_eq!(mode(&dir.path().join("corewise")), 0o700);
    for file in fs::read_dir(dir.path().join("corewise")).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn similar_results_come_nearest_first_and_never_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    let mut history = History::open(&dir.path().join("h")).unwrap();
    for (size, load) in [(10, 0), (10, 2), (12, 0), (11, 0)] {
        history
            .remember(&key("x", size, load), &record(size + load))
            .unwrap();
    }
    history.remember(&key("other", 10, 1), &record(99)).unwrap();
    let near: Vec<_> = history
        .similar(&key("x", 10, 0))
        .unwrap()
        .iter()
        .map(|e| e.record.chosen_threads)
        .collect();
    assert_eq!(near, [11, 12, 12]);
}

#[test]
fn a_use_is_counted_with_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut history = History::open(&dir.path().join("h")).unwrap();
    assert!(!history.used(&key("x", 0, 0), 1.0).unwrap());
    history.remember(&key("x", 0, 0), &record(2)).unwrap();
    assert!(
        history.used(&key("x", 0, 0), 1.0).unwrap() && history.used(&key("x", 0, 0), 2.5).unwrap()
    );
    let expected = Record {
        uses: 2,
        last_wall_seconds: Some(2.5),
        ..record(2)
    };
    assert_eq!(history.recall(&key("x", 0, 0)).unwrap(), Some(expected));
}

#[test]
fn results_are_forgotten_by_number_by_program_or_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut history = History::open(&dir.path().join("h")).unwrap();
    let first = history.remember(&key("a", 0, 0), &record(1)).unwrap();
    let mut python = key("b", 0, 0);
    python.program.path = "/usr/bin/python3.11".into();
    python.program.script = Some(Box::new(ProgramKey {
        path: "/home/u/train.py".into(),
        size: 1,
        mtime_ns: 1,
        script: None,
    }));
    for key in [key("b", 0, 0), key("c", 0, 0), python] {
        history.remember(&key, &record(1)).unwrap();
    }
    assert_eq!(history.forget(&Forget::Id(first)).unwrap(), 1);
    assert_eq!(history.forget(&Forget::Id(first)).unwrap(), 0);
    assert_eq!(
        history.forget(&Forget::Program("train.py".into())).unwrap(),
        1
    );
    assert_eq!(
        history
            .forget(&Forget::Program("/usr/bin/other".into()))
            .unwrap(),
        0
    );
    assert_eq!(history.list().unwrap().entries.len(), 2);
    assert_eq!(history.forget(&Forget::All).unwrap(), 2);
}

#[test]
fn a_damaged_file_is_moved_aside_and_a_new_one_begun() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    fs::write(
        &path,
        "this is no database, and long enough to be taken for one. ".repeat(100),
    )
    .unwrap();
    let mut history = History::open(&path).unwrap();
    let Some(HistoryError::Corrupt {
        moved_to: Some(aside),
        ..
    }) = history.notice()
    else {
        panic!("{:?}", history.notice());
    };
    assert!(
        fs::read_to_string(aside)
            .unwrap()
            .starts_with("this is no database")
    );
    history.remember(&key("x", 0, 0), &record(2)).unwrap();
    assert!(History::open(&path).unwrap().notice().is_none());
}

#[test]
fn damage_found_while_reading_is_said_and_the_next_opening_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut history = History::open(&path).unwrap();
    for n in 0..50 {
        history
            .remember(&key(&"x".repeat(200), n, 0), &record(n))
            .unwrap();
    }
    drop(history);
    let mut bytes = fs::read(&path).unwrap();
    assert!(bytes.len() > 3 * 4096);
    // The header's page stays whole: opening sees nothing.
    bytes[4096..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let history = History::open(&path).unwrap();
    let error = history.recall(&key(&"x".repeat(200), 3, 0)).unwrap_err();
    assert!(
        matches!(&error, HistoryError::Corrupt { moved_to: Some(to), .. } if to.is_file()),
        "{error}"
    );
    drop(history);
    let mut history = History::open(&path).unwrap();
    history.remember(&key("x", 0, 0), &record(2)).unwrap();
    assert_eq!(history.list().unwrap().entries.len(), 1);
}

#[test]
fn an_unreadable_result_is_said_and_replaced_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut history = History::open(&path).unwrap();
    let id = history.remember(&key("x", 0, 0), &record(2)).unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute(
        "UPDATE result SET record = '{\"chosen_threads\": \"many\"}'",
        [],
    )
    .unwrap();
    assert!(
        matches!(history.recall(&key("x", 0, 0)), Err(HistoryError::Record { id: bad, .. }) if bad == id)
    );
    assert_eq!(history.list().unwrap().unreadable, [id]);
    history.remember(&key("x", 0, 0), &record(3)).unwrap();
    assert_eq!(history.recall(&key("x", 0, 0)).unwrap(), Some(record(3)));
}

#[test]
fn a_newer_layout_and_another_programs_database_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let newer = dir.path().join("newer");
    drop(History::open(&newer).unwrap());
    let raw = rusqlite::Connection::open(&newer).unwrap();
    raw.pragma_update(None, "user_version", 99).unwrap();
    drop(raw);
    let before = fs::read(&newer).unwrap();
    assert!(matches!(
        History::open(&newer),
        Err(HistoryError::Newer { theirs: 99, .. })
    ));
    assert_eq!(fs::read(&newer).unwrap(), before);

    let foreign = dir.path().join("foreign");
    let raw = rusqlite::Connection::open(&foreign).unwrap();
    raw.execute_batch("CREATE TABLE mail (subject TEXT); INSERT INTO mail VALUES ('hello')")
        .unwrap();
    assert!(matches!(
        History::open(&foreign),
        Err(HistoryError::Open { .. })
    ));
    let tables: i64 = raw
        .query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))
        .unwrap();
    assert_eq!(tables, 1);
}

#[test]
fn places_that_cannot_hold_a_file_are_errors() {
    for place in [
        "/dev/null",
        "/dev/full",
        "/proc/nowhere/h",
        "/dev/null/h",
        "/",
    ] {
        let error = History::open(Path::new(place)).unwrap_err();
        assert!(
            matches!(error, HistoryError::Open { .. }),
            "{place}: {error:?}"
        );
    }
}

#[test]
fn a_disk_that_is_full_is_said_and_what_was_there_stays() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=256k") else {
        return;
    };
    let path = mount.0.join("h");
    let mut history = History::open(&path).unwrap();
    history.remember(&key("x", 0, 0), &record(2)).unwrap();
    let mut stopped = None;
    for n in 0..2000 {
        if let Err(error) = history.remember(&key(&"long ".repeat(300), n, 0), &record(n)) {
            stopped = Some(error);
            break;
        }
    }
    assert!(
        matches!(stopped, Some(HistoryError::Full { .. })),
        "{stopped:?}"
    );
    assert_eq!(history.recall(&key("x", 0, 0)).unwrap(), Some(record(2)));
    drop(history);
    // A new process finds the same, or an honest error; never a crash.
    let _ = fs::write(mount.0.join("filler"), vec![0_u8; 1 << 20]);
    match History::open(&path).and_then(|h| h.recall(&key("x", 0, 0))) {
        Ok(found) => assert_eq!(found, Some(record(2))),
        Err(error) => assert!(matches!(error, HistoryError::Full { .. }), "{error:?}"),
    }
    let fresh = History::open(&mount.0.join("fresh")).map(|_| ());
    assert!(matches!(fresh, Err(HistoryError::Full { .. })), "{fresh:?}");
}

#[test]
fn a_file_system_that_is_read_only_can_be_recalled_from() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), "size=1m") else {
        return;
    };
    let path = mount.0.join("h %1?#");
    History::open(&path)
        .unwrap()
        .remember(&key("x", 0, 0), &record(2))
        .unwrap();
    if !mount.remount("ro") {
        return;
    }
    let mut history = History::open(&path).unwrap();
    assert_eq!(history.recall(&key("x", 0, 0)).unwrap(), Some(record(2)));
    let refused = history.remember(&key("x", 0, 0), &record(3));
    assert!(
        matches!(refused, Err(HistoryError::ReadOnly { .. })),
        "{refused:?}"
    );
    assert!(matches!(
        History::open(&mount.0.join("new")),
        Err(HistoryError::Open { .. })
    ));
}

#[test]
fn a_folder_without_write_permission_can_be_recalled_from() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write everywhere");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("f");
    let path = folder.join("h");
    History::open(&path)
        .unwrap()
        .remember(&key("x", 0, 0), &record(2))
        .unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    let mut history = History::open(&path).unwrap();
    assert_eq!(history.recall(&key("x", 0, 0)).unwrap(), Some(record(2)));
    assert!(matches!(
        history.remember(&key("x", 0, 0), &record(3)),
        Err(HistoryError::ReadOnly { .. })
    ));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn eight_processes_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/h");
    let children: Vec<Child> = (0..8)
        .map(|_| child("child_remembers_ten", &path))
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let history = History::open(&path).unwrap();
    assert!(history.notice().is_none());
    assert_eq!(history.list().unwrap().entries.len(), 80);
}

#[test]
fn child_remembers_ten() {
    let Some(path) = path_of_child() else { return };
    let mut history = History::open(&path).unwrap();
    for n in 0..10 {
        history
            .remember(&key(&std::process::id().to_string(), n, 0), &record(n))
            .unwrap();
    }
}

#[test]
fn killed_while_writing_it_keeps_what_was_committed_and_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    for round in 0..8_u64 {
        let mut child = child("child_writes_until_killed", &path);
        // The child is past its start when its first result of this round is there.
        let before = History::open(&path).unwrap().list().unwrap().entries.len();
        for _ in 0..2000 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            if History::open(&path).unwrap().list().unwrap().entries.len() > before {
                break;
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(300 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut history = History::open(&path).unwrap();
        assert!(history.notice().is_none());
        assert!(
            history.list().unwrap().entries.len() > before,
            "round {round}"
        );
        history.remember(&key("after", 0, 0), &record(2)).unwrap();
    }
    let raw = rusqlite::Connection::open(&path).unwrap();
    let whole: String = raw
        .query_row("PRAGMA integrity_check", [], |r| r.get(0))
        .unwrap();
    assert_eq!(whole, "ok");
}

#[test]
fn child_writes_until_killed() {
    let Some(path) = path_of_child() else { return };
    let mut history = History::open(&path).unwrap();
    for n in 0..100_000 {
        history
            .remember(&key(&std::process::id().to_string(), n % 50, n), &record(n))
            .unwrap();
    }
}

/// A small file system of its own, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path, options: &str) -> Option<Self> {
        let run = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(at)
            .output();
        if run.as_ref().is_ok_and(|o| o.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("skipped: no tmpfs can be mounted here (needs root): {run:?}");
        None
    }

    fn remount(&self, how: &str) -> bool {
        let run = Command::new("mount")
            .args(["-o", &format!("remount,{how}")])
            .arg(&self.0)
            .status();
        let done = run.as_ref().is_ok_and(|s| s.success());
        if !done {
            eprintln!("skipped: cannot remount: {run:?}");
        }
        done
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
