//! A library that plays oneTBB, in a program that nobody changed, with the adapters preloaded: it looks for
//! the permit manager as oneTBB does, and is given workers by the claim.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::shim;
use corewise_wire::Link;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use tempfile::TempDir;

/// What the interface answers when it declines.
const UNKNOWN: &str = "2147483646";

/// A program that plays.
struct Player {
    _folder: TempDir,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Player {
    /// Starts the library under that name, with the link's variable, if any.
    fn start(name: &str, link: Option<&Link>) -> Player {
        let folder = tempfile::tempdir().unwrap();
        let library = compile(folder.path(), name, &["-shared", "-fPIC"]);
        let host = compile(folder.path(), "host", &["-DHOST"]);
        let mut command = Command::new(host);
        command.arg(library).env("LD_PRELOAD", shim());
        command.env_remove("COREWISE_LINK");
        if let Some(link) = link {
            let (name, value) = link.variable().unwrap();
            command.env(name, value);
        }
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        Player {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
            _folder: folder,
        }
    }

    /// Starts it as oneTBB, and connects.
    fn tbb(link: &Link) -> Player {
        let mut player = Player::start("libtbb.so.12", Some(link));
        assert_eq!(player.ask("connect"), "0");
        player
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Asks, and expects an answer.
    #[track_caller]
    fn expect(&mut self, line: &str, answer: &str) {
        assert_eq!(self.ask(line), answer, "to: {line}");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compile(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let file = folder.join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/arenas.c");
    let compiled = Command::new("gcc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .args(["-o", file.to_str().unwrap(), source, "-ldl"])
        .output()
        .expect("a C compiler is needed (scripts/setup)");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    file
}

#[test]
fn workers_join_and_leave_as_the_claim_changes() {
    let link = Link::create().unwrap();
    link.grant(4, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("new 0", "0");
    tbb.expect("get 0", "0 1");
    // The thread that asks is the claim's fourth.
    tbb.expect("want 0 0 7", "0 3 4");
    for (claim, workers) in [(2, 1), (1, 0), (6, 5), (3, 2), (100, 7)] {
        link.grant(claim, []);
        tbb.expect(&format!("until 0 {workers}"), "yes");
        tbb.expect("get 0", &format!("{workers} 4"));
    }
    link.grant(1, []);
    tbb.expect("until 0 0", "yes");
    link.release();
    tbb.expect("until 0 7", "yes");
    tbb.expect("off 0", "0");
    tbb.expect("release 0", "0 0");
    tbb.expect("bye", "0");
}

#[test]
fn without_a_claim_to_follow_the_connection_is_declined() {
    Player::start("libtbb.so.12", None).expect("connect", UNKNOWN);
    // A claim is kept by a thread, and ends with it.
    let link = std::thread::spawn(|| Link::create().unwrap());
    let link = link.join().unwrap();
    link.grant(2, []);
    Player::start("libtbb.so.12", Some(&link)).expect("connect", UNKNOWN);
}

#[test]
fn a_claim_whose_keeper_dies_binds_no_more() {
    let (end, until) = std::sync::mpsc::channel::<()>();
    let (made, link) = std::sync::mpsc::channel();
    let keeper = std::thread::spawn(move || {
        let link = Link::create().unwrap();
        link.grant(2, []);
        made.send(link).unwrap();
        let _ = until.recv();
    });
    let link = link.recv().unwrap();
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 7", "0 1 4");
    drop(end);
    keeper.join().unwrap();
    tbb.expect("until 0 7", "yes");
}

#[test]
fn a_runtime_that_has_an_adapter_of_its_own_is_declined() {
    let link = Link::create().unwrap();
    link.grant(2, []);
    Player::start("libiomp5.so", Some(&link)).expect("connect", UNKNOWN);
}

#[test]
fn a_claim_that_comes_later_is_followed() {
    let link = Link::create().unwrap();
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 5", "0 5 4");
    link.grant(3, []);
    tbb.expect("until 0 2", "yes");
}

#[test]
fn a_worker_that_tasks_wait_for_is_always_given() {
    let link = Link::create().unwrap();
    link.grant(1, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 3", "0 0 4");
    tbb.expect("want 1 1 1", "0 1 4");
    tbb.expect("want 2 1 3", "0 1 4");
}

#[test]
fn arenas_share_the_claim_and_hand_on_what_they_do_not_need() {
    let link = Link::create().unwrap();
    link.grant(9, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 8", "0 8 4");
    tbb.expect("want 1 0 8", "0 4 4");
    tbb.expect("until 0 4", "yes");
    tbb.expect("want 1 0 2", "0 2 4");
    tbb.expect("until 0 6", "yes");
    tbb.expect("off 1", "0");
    tbb.expect("until 0 8", "yes");
    // Another thread beside whom workers work is another one of the claim's.
    tbb.expect("want2 2 0 8", "0 3 4");
    tbb.expect("until 0 4", "yes");
    tbb.expect("release 2", "0 0");
    tbb.expect("until 0 8", "yes");
}

#[test]
fn a_nested_arena_of_a_thread_at_work_takes_its_workers_from_the_same_claim() {
    let link = Link::create().unwrap();
    link.grant(5, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 8", "0 4 4");
    tbb.expect("on 0", "0");
    tbb.expect("want 1 0 8", "0 2 4");
    tbb.expect("get 0", "2 4");
    tbb.expect("release 1", "0 0");
    tbb.expect("leave", "0");
    tbb.expect("get 0", "4 4");
}

#[test]
fn releasing_waits_for_a_callback_that_has_begun_and_none_begins_after_it() {
    let link = Link::create().unwrap();
    link.grant(4, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 7", "0 3 4");
    tbb.expect("slow 0", "yes");
    link.grant(2, []);
    tbb.expect("entered 0", "yes");
    tbb.expect("release 0", "0 0");
    link.grant(4, []);
    tbb.expect("want 1 0 7", "0 3 4");
    link.grant(3, []);
    tbb.expect("until 1 2", "yes");
    tbb.expect("until 0 1", "yes");
}

#[test]
fn a_permit_can_be_released_from_its_own_callback() {
    let link = Link::create().unwrap();
    link.grant(4, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 7", "0 3 4");
    tbb.expect("quit 0", "yes");
    link.grant(2, []);
    tbb.expect("until 0 1", "yes");
    tbb.expect("want 1 0 7", "0 1 4");
    tbb.expect("get 0", "99 -1");
}

#[test]
fn a_forked_child_begins_anew() {
    let link = Link::create().unwrap();
    link.grant(4, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("want 0 0 7", "0 3 4");
    tbb.expect("fork 1 0 7", "0 3 4");
    tbb.expect("get 0", "3 4");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let link = Link::create().unwrap();
    link.grant(4, []);
    let mut tbb = Player::tbb(&link);
    tbb.expect("wrong", "1 1 1 1 1 1 1 1 1 1");
    tbb.expect("want 0 0 7", "0 3 4");
    assert!(tbb.ask("version").starts_with("0 TCM: corewise"));
}

#[test]
fn other_clients_count_the_calling_thread_in() {
    let link = Link::create().unwrap();
    link.grant(4, []);
    let mut other = Player::start("libother.so", Some(&link));
    other.expect("connect", "0");
    other.expect("want 0 1 8", "0 4 4");
    // It waits, in the state "pending", until its minimum is there.
    other.expect("want 1 4 4", "0 0 2");
    other.expect("release 0", "0 0");
    other.expect("get 1", "4 4");
    // A permit within it has the thread already that asks.
    other.expect("on 1", "0");
    other.expect("want 2 1 4", "0 1 4");
}

#[test]
fn what_arenas_asked_for_is_told() {
    use corewise_abi::reports::adapters::ONETBB;
    let link = Link::create().unwrap();
    link.grant(3, []);
    let mut tbb = Player::tbb(&link);
    let report = || link.reports().taken().next().unwrap();
    tbb.expect("new 0", "0");
    assert_eq!(report().adapters.load(Ordering::Relaxed), 0);
    tbb.expect("want 0 0 7", "0 2 4");
    assert_eq!(report().adapters.load(Ordering::Relaxed), ONETBB);
    assert_eq!(report().asked.load(Ordering::Relaxed), 8);
    assert_eq!(report().given.load(Ordering::Relaxed), 3);
    tbb.expect("want 0 0 1", "0 1 4");
    assert_eq!(report().asked.load(Ordering::Relaxed), 8);
    assert_eq!(report().given.load(Ordering::Relaxed), 2);
}
