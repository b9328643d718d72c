//! The listing under the manager that users run.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Build, allowed_cpus, list, run, said, values};
use corewise_manager::{Options, PolicyChoice, override_claim, serve, status_json, stop};
use corewise_wire::Folder;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A manager on a thread of this test; it ends with this value.
struct Served {
    folder: Folder,
    thread: Option<JoinHandle<()>>,
    _runtime: TempDir,
}

impl Served {
    fn new(policy: &str) -> Served {
        let runtime = tempfile::tempdir().unwrap();
        let folder = Folder::at(runtime.path().join("corewise")).unwrap();
        let policy = PolicyChoice::BuiltIn(policy.to_owned());
        let options = Options::new(folder.clone(), policy).activated(false);
        let thread = std::thread::spawn(move || serve(options).unwrap());
        let served = Served {
            folder,
            thread: Some(thread),
            _runtime: runtime,
        };
        until(|| status_json(&served.folder).is_ok_and(|status| status.is_some()));
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = stop(&self.folder);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

fn until(mut what: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < deadline, "it never comes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn openmp(source: &str) -> common::Program {
    Build {
        compiler: "c++",
        source,
        flags: &["-std=c++17", "-fopenmp"],
        is_static: false,
    }
    .build()
}

#[test]
fn the_listing_has_what_the_policy_grants() {
    // This policy grants everyone everything.
    let manager = Served::new("observe");
    let program = openmp("listing_1_1.cpp");
    let text = said(&run(&mut program.command(manager.folder.path())));
    let all = list(&allowed_cpus());
    assert_eq!(values(&text, "managed"), ["1"]);
    assert_eq!(values(&text, "start threads"), ["1"]);
    assert_eq!(values(&text, "invaded threads"), ["8"]);
    assert_eq!(values(&text, "invaded cpus"), [all.as_str(); 8]);
    assert_eq!(values(&text, "retreated threads"), ["1"]);
    assert_eq!(values(&text, "retreated cpus"), [all.as_str()]);
}

#[test]
fn under_the_default_policy_a_region_has_the_claims_cpus() {
    let manager = Served::new("balanced");
    let program = openmp("listing_1_1.cpp");
    let text = said(&run(&mut program.command(manager.folder.path())));
    assert_eq!(values(&text, "managed"), ["1"]);
    assert_eq!(values(&text, "start threads"), ["1"]);
    // How many depends on what else the machine is doing.
    let threads: usize = values(&text, "invaded threads")[0].parse().unwrap();
    assert!((1..=allowed_cpus().len()).contains(&threads));
    let cpus = values(&text, "invaded cpus");
    assert!(
        cpus.iter().all(|one| *one == cpus[0]),
        "all on the claim: {cpus:?}"
    );
    assert_eq!(values(&text, "retreated threads"), ["1"]);
    assert_eq!(values(&text, "retreated cpus"), [list(&allowed_cpus())]);
}

#[test]
fn a_person_shrinks_a_running_programs_claim_and_its_next_region_follows() {
    let manager = Served::new("observe");
    let program = openmp("follow.cpp");
    let mut command = program.command(manager.folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    let last = &allowed_cpus()[allowed_cpus().len() - 1..];
    let pid = i32::try_from(child.id()).unwrap();
    override_claim(&manager.folder, pid, 1, last.to_vec()).unwrap();
    orders.write_all(b"\n").unwrap();
    let until_end = lines
        .by_ref()
        .map(Result::unwrap)
        .take_while(|l| l != "end");
    let text = until_end.collect::<Vec<String>>().join("\n");
    assert_eq!(values(&text, "clause"), ["1"], "{text}");
    assert_eq!(values(&text, "set"), [list(last)]);
    assert_eq!(values(&text, "region cpus"), [list(last)]);
    drop(orders);
    said(&common::finish(child));
}
