//! Watching real processes.

// A panic is the failure that a test is for.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use corewise_decide::reading::ProgramReading;
use corewise_machine::program::{Detail, Error, MonitorOptions, ProgramMonitor};

/// A process that is ended when the test is over, however it is over.
struct Ends(Child);

impl Ends {
    fn shell(script: &str) -> Self {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn attach(&self) -> ProgramMonitor {
        ProgramMonitor::attach(self.pid(), MonitorOptions::default()).unwrap()
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples until `enough`, for at most 20 seconds.
fn sample_until(
    monitor: &mut ProgramMonitor,
    detail: Detail,
    mut enough: impl FnMut(&ProgramReading) -> bool,
) -> ProgramReading {
    let start = Instant::now();
    loop {
        let reading = monitor.sample(detail).unwrap();
        if enough(&reading) {
            return reading;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{reading:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn run_ns(reading: &ProgramReading) -> u64 {
    reading.ended.run_ns + reading.threads.iter().map(|t| t.run_ns).sum::<u64>()
}

#[test]
fn a_missing_process_is_a_typed_error() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    child.wait().unwrap();
    let error = ProgramMonitor::attach(pid, MonitorOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NoSuchProcess { .. }), "{error}");
}

#[test]
fn a_missing_proc_is_a_typed_error() {
    let empty = tempfile::tempdir().unwrap();
    let options = MonitorOptions {
        root: corewise_machine::Root::at(empty.path()),
        ..MonitorOptions::default()
    };
    let error = ProgramMonitor::attach(1, options).unwrap_err();
    assert!(matches!(error, Error::Proc { .. }), "{error}");
}

#[test]
fn children_and_grandchildren_belong_to_the_program() {
    let child = Ends::shell("(sleep 60 & sleep 60 & wait) & read line");
    let mut monitor = child.attach();
    sample_until(&mut monitor, Detail::Full, |r| r.threads.len() == 4);
    assert_eq!(monitor.processes().len(), 4);
    assert!(monitor.processes().contains(&child.pid()));
    for pid in monitor.processes() {
        if pid != child.pid() {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
    }
}

#[test]
fn what_ended_children_used_is_not_lost() {
    // Each child runs for a good while, then the parent waits for a line.
    let child = Ends::shell(
        "for i in 1 2; do sh -c 'j=0; while [ $j -lt 300000 ]; do j=$((j+1)); done'; done; read line",
    );
    let mut monitor = child.attach();
    let mut most = 0;
    let reading = sample_until(&mut monitor, Detail::Light, |r| {
        let total = run_ns(r);
        assert!(total >= most, "counters went back");
        most = total;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
        // Field 16 (cutime) shows that children have been waited for; the shell then sleeps.
        let cutime: u64 = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split(' ')
            .nth(14)
            .unwrap()
            .parse()
            .unwrap();
        cutime > 0 && r.threads.len() == 1 && stat.contains(") S ")
    });
    assert!(
        reading.ended.run_ns > reading.threads[0].run_ns,
        "{reading:?}"
    );
}

#[test]
fn the_whole_programs_cpu_time_covers_its_threads_and_outlives_its_processes() {
    let mut child = Ends::shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read line");
    let mut monitor = child.attach();
    let full = sample_until(&mut monitor, Detail::Full, |r| r.threads[0].run_ns > 0);
    let total = monitor.cpu_time_ns();
    assert!(total >= run_ns(&full), "{total} {full:?}");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    monitor.sample(Detail::Full).unwrap();
    assert!(monitor.cpu_time_ns() >= total);
}

#[test]
fn light_samples_leave_out_what_they_do_not_read() {
    let child = Ends::shell("read line");
    let mut monitor = child.attach();
    let light = monitor.sample(Detail::Light).unwrap();
    assert_eq!(light.threads[0].voluntary_switches, None);
    let full = monitor.sample(Detail::Full).unwrap();
    assert!(full.threads[0].user_ns.is_some());
    assert!(full.threads[0].voluntary_switches.is_some());
    assert!(full.time_ns >= light.time_ns);
}

#[test]
fn a_tree_that_has_ended_gives_a_reading_without_threads() {
    let mut child = Ends::shell("read line");
    let mut monitor = child.attach();
    let before = monitor.sample(Detail::Full).unwrap();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let after = monitor.sample(Detail::Full).unwrap();
    assert!(after.threads.is_empty());
    assert!(run_ns(&after) >= run_ns(&before));
}
