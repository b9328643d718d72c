//! Living processes and threads to set things of.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use corewise_machine::control::process::{processes_below, threads};
use corewise_machine::control::{Process, Thread};
use corewise_machine::undo::Setting;
use tempfile::TempDir;

/// A process that is killed when the test ends, with those that it has started.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        for pid in processes_below(self.pid()).into_iter().rev() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.0.wait();
    }
}

impl Running {
    /// One that does nothing for long.
    pub(crate) fn sleeper() -> Self {
        Self(
            Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    /// This test program once more, in a role that the helper test `helper` plays. It is ready when
    /// it has printed `ready`.
    pub(crate) fn helper(role: &str, folder: &Path, seed: u64) -> Self {
        let mut running = Self::unready_helper(role, folder, seed);
        let out = running.0.stdout.take().unwrap();
        let ready = BufReader::new(out)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.ends_with("ready"));
        assert!(ready, "the helper ended before it was ready");
        running
    }

    /// The same, which may not have come to its role yet.
    pub(crate) fn unready_helper(role: &str, folder: &Path, seed: u64) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper", "--nocapture", "--test-threads=1"])
            .env("TEST_ROLE", role)
            .env("TEST_FOLDER", folder)
            .env("TEST_SEED", seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub(crate) fn process(&self) -> Process {
        Process::of(self.pid()).unwrap()
    }

    pub(crate) fn first_thread(&self) -> Thread {
        Thread::of(self.pid(), self.pid()).unwrap()
    }
}

/// A folder for logs that nobody else knows.
pub(crate) fn logs() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("undo");
    (folder, logs)
}

/// How many files are in a folder; none where there is no folder.
pub(crate) fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// The CPUs of a thread as the kernel lists them.
pub(crate) fn affinity(pid: i32, tid: i32) -> String {
    let thread = Thread::of(pid, tid).unwrap();
    Setting::Affinity(thread).present().unwrap().unwrap()
}

/// The CPUs of all threads of a process.
pub(crate) fn affinities(pid: i32) -> Vec<String> {
    threads(pid)
        .into_iter()
        .filter_map(|tid| Setting::Affinity(Thread::of(pid, tid)?).present().ok()?)
        .collect()
}

/// The CPUs that this process may use, and the first of them; the list is shorter than two where
/// nothing can be told apart.
pub(crate) fn cpus() -> (String, Vec<u32>) {
    let here = i32::try_from(std::process::id()).unwrap();
    let list = affinity(here, here);
    let cpus = corewise_machine::cpu_list::parse(&list).unwrap();
    (list, cpus)
}

/// Polls until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the test can do without what is missing: prints why it is passed over.
pub(crate) fn skip(why: impl std::fmt::Display) {
    eprintln!("skipped: {why}");
}
