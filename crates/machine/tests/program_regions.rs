//! A program's parallel regions, counted from outside.

// A panic is the failure that a test is for.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use corewise_machine::program::{Detail, MonitorOptions, ProgramMonitor, mapped_libraries};

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn regions_are_counted_and_the_program_can_still_make_threads() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("regions");
    let built = Command::new("cc")
        .args(["-O1", "-fopenmp", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/regions.c"))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler with OpenMP");
        return;
    }
    let mut child = Ends(
        Command::new(&program)
            .arg("500")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let pid = i32::try_from(child.0.id()).unwrap();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    let libraries = mapped_libraries(pid).unwrap();
    assert!(libraries.contains(&program), "{libraries:?}");
    let is_gomp = |path: &&std::path::PathBuf| path.to_string_lossy().contains("libgomp");
    if libraries.iter().filter(is_gomp).count() == 0 {
        eprintln!("skipped: OpenMP is not libgomp here: {libraries:?}");
        return;
    }
    let mut monitor = ProgramMonitor::attach(pid, MonitorOptions::default()).unwrap();
    monitor.scan_libraries();
    let before = monitor.sample(Detail::Full).unwrap();
    let sensing = monitor.regions_method();
    if sensing.method.is_none() {
        assert_eq!(before.regions, None);
        assert!(!sensing.why.is_empty());
        eprintln!("skipped: {}", sensing.why);
        return;
    }
    assert_eq!(before.regions, Some(0));
    child.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(
        lines.next().unwrap().unwrap(),
        "2",
        "threads that took part"
    );
    let after = monitor.sample(Detail::Full).unwrap();
    assert_eq!(after.regions, Some(500));
    drop(child);
    let end = monitor.sample(Detail::Full).unwrap();
    assert_eq!(end.regions, Some(500), "what ended threads entered is kept");
}
