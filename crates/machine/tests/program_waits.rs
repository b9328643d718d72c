//! Programs that wait in known ways, watched.

// A panic is the failure that a test is for.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corewise_decide::reading::{Method, ProgramReading, ThreadReading};
use corewise_machine::program::{Detail, LockOption, MonitorOptions, ProgramMonitor};

/// Compiles `waits.c` into `folder`; `None` where there is no C compiler.
fn build(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/waits.c");
    let program = folder.join("waits");
    let status = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(&program)
        .arg(&source)
        .status();
    match status {
        Ok(status) => {
            assert!(status.success());
            Some(program)
        }
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            None
        }
    }
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program said of itself, and what was read of it.
struct Outcome {
    said_ns: u64,
    total: ThreadReading,
    monitor: ProgramMonitor,
}

fn watch(what: &str, options: MonitorOptions, detail: Detail) -> Option<Outcome> {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path())?;
    let mut child = Ends(
        Command::new(program)
            .arg(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let pid = i32::try_from(child.0.id()).unwrap();
    let mut monitor = ProgramMonitor::attach(pid, options).unwrap();
    monitor.sample(Detail::Full).unwrap();
    child.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let reader = std::thread::spawn(move || lines.next().unwrap().unwrap());
    while !reader.is_finished() {
        monitor.sample(detail).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let said_ns = reader.join().unwrap().parse().unwrap();
    let reading = monitor.sample(Detail::Full).unwrap();
    Some(Outcome {
        said_ns,
        total: without_main(&reading, pid),
        monitor,
    })
}

/// The sum over all threads but the first, which only sleeps.
fn without_main(reading: &ProgramReading, pid: i32) -> ThreadReading {
    let mut sum = reading.ended.clone();
    for thread in reading.threads.iter().filter(|t| t.tid != pid) {
        sum.run_ns += thread.run_ns;
        sum.lock_ns = Some(sum.lock_ns.unwrap_or(0) + thread.lock_ns.unwrap_or(0));
        sum.spin_ns = Some(sum.spin_ns.unwrap_or(0) + thread.spin_ns.unwrap_or(0));
    }
    sum
}

fn ratio(outcome: &Outcome, read: Option<u64>) -> f64 {
    read.unwrap() as f64 / outcome.said_ns as f64
}

#[test]
fn exact_lock_time_is_what_the_program_measured() {
    let Some(outcome) = watch("lock", MonitorOptions::default(), Detail::Light) else {
        return;
    };
    let sensing = outcome.monitor.lock_method();
    if sensing.method != Some(Method::Exact) {
        eprintln!("skipped: {}", sensing.why);
        return;
    }
    assert_eq!(sensing.why, "");
    let ratio = ratio(&outcome, outcome.total.lock_ns);
    assert!((0.9..1.02).contains(&ratio), "{ratio} {:?}", outcome.total);
}

#[test]
fn sampled_lock_time_is_near_what_the_program_measured() {
    let options = MonitorOptions {
        lock: LockOption::Sampled,
        ..MonitorOptions::default()
    };
    let Some(outcome) = watch("lock", options, Detail::Light) else {
        return;
    };
    let sensing = outcome.monitor.lock_method();
    assert_eq!(sensing.method, Some(Method::Sampled), "{sensing:?}");
    assert!(!sensing.why.is_empty());
    let ratio = ratio(&outcome, outcome.total.lock_ns);
    assert!((0.6..1.1).contains(&ratio), "{ratio} {:?}", outcome.total);
}

/// Part of its run time in which the program was seen to wait on a CPU.
fn spin_share(what: &str) -> Option<f64> {
    let outcome = watch(what, MonitorOptions::default(), Detail::Full)?;
    let sensing = outcome.monitor.spin_method();
    if sensing.method.is_none() {
        eprintln!("skipped: {}", sensing.why);
        return None;
    }
    Some(ratio(&outcome, outcome.total.spin_ns))
}

#[test]
fn a_loop_with_the_processors_hint_is_spinning() {
    if let Some(share) = spin_share("hint") {
        assert!(share > 0.8, "{share}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_loop_that_watches_memory_is_spinning() {
    if let Some(share) = spin_share("watch") {
        assert!(share > 0.8, "{share}");
    }
}

#[test]
fn yielding_is_spinning() {
    let outcome = watch("yield", MonitorOptions::default(), Detail::Full);
    let Some(outcome) = outcome else { return };
    let sensing = outcome.monitor.spin_method();
    if sensing.method.is_none() || !sensing.why.is_empty() {
        eprintln!("skipped: {}", sensing.why);
        return;
    }
    let share = ratio(&outcome, outcome.total.spin_ns);
    assert!(share > 0.6, "{share}");
}

#[test]
fn work_is_not_spinning() {
    if let Some(share) = spin_share("work") {
        assert!(share < 0.05, "{share}");
    }
}
