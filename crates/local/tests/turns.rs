//! A gang's turns are kept, and nothing stays stopped.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::listen;
use corewise_abi::VERSION;
use corewise_abi::message::{LocalRule, ToManager, ToProgram, features};
use corewise_abi::turn::{Turn, Window};
use corewise_launch::{Command as Program, RunOptions};
use corewise_local::outside::{self, Coscheduling, Gang, Outside};
use corewise_machine::control::turns::Seizing;
use corewise_machine::program::process_cpu_ns;
use corewise_wire::{Channel, ClaimWriter, Folder, ProgressReader};
use rustix::net::SocketFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far longer than anything here takes: a limit against hanging, not a measurement.
const LONG: Duration = Duration::from_secs(60);
const SECOND_NS: u64 = 1_000_000_000;

/// Plays a part in another process; as a test of its own it does nothing.
#[test]
fn helper() {
    match std::env::var("TEST_ROLE").as_deref() {
        Ok("spin") => spin(),
        Ok("host") => host(),
        _ => {}
    }
}

/// Three threads that spin.
fn spin() {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        println!("ready");
    });
}

/// Runs a program that is a gang, as `corewise run` does, and says its number.
fn host() {
    let folder = Folder::at(std::env::var("TEST_FOLDER").unwrap()).unwrap();
    let program = Program::new(std::env::current_exe().unwrap().to_str().unwrap())
        .unwrap()
        .args(["--exact", "helper", "--nocapture"])
        .env("TEST_ROLE", "spin");
    let running = corewise_launch::run::start(&program, &RunOptions::default()).unwrap();
    let outside = manage(running.pid(), folder);
    println!("pid {}", running.pid());
    let outcome = running.wait().unwrap();
    outside.finish();
    // As the program ended.
    outcome.exit_like_program();
}

fn manage(pid: i32, folder: Folder) -> Outside {
    let program = outside::Program {
        gang: Coscheduling::Asked(Gang {
            name: "one".to_owned(),
            keeps_idle: false,
            weight: 100,
        }),
        ..outside::Program::rigid(pid, "spinner".to_owned(), 3)
    };
    let nobody_else = Box::new(|_: &Folder| Err("there is one".to_owned()));
    Outside::start(program, folder, nobody_else, None).unwrap()
}

/// A manager of one program, played by the test.
struct Manager {
    channel: Channel,
    claim: ClaimWriter,
    _progress: ProgressReader,
}

impl Manager {
    /// Welcomes a program, which says that it is a gang.
    fn of(socket: &OwnedFd) -> Manager {
        let accepted = rustix::net::accept_with(socket, SocketFlags::CLOEXEC).unwrap();
        let channel = Channel::from(accepted);
        let ToManager::Join(join) = channel.receive_within(LONG).unwrap().message else {
            panic!("it begins with something else");
        };
        assert_eq!(join.features & features::GANGS, features::GANGS);
        let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
        let (progress, progress_page) = ProgressReader::create().unwrap();
        claim.grant(3, [0]);
        let welcome = ToProgram::Welcome {
            version: VERSION,
            features: features::GANGS,
            program: 1,
            rule: LocalRule::Leave,
        };
        let pages = [claim_page.as_fd(), progress_page.as_fd()];
        channel.send(&welcome, &pages).unwrap();
        let said = loop {
            let message = channel.receive_within::<ToManager>(LONG).unwrap().message;
            if let ToManager::Gang(gang) = message {
                break gang;
            }
        };
        assert_eq!(said.unwrap().name, "one");
        Manager {
            channel,
            claim,
            _progress: progress,
        }
    }

    fn tell(&mut self, turn: Option<Turn>) {
        self.claim.set_turn(turn.as_ref());
        self.claim.grant(3, [0]);
    }
}

/// A turn whose window is over, for a long time.
fn not_yours() -> Option<Turn> {
    let time = clock_gettime(ClockId::Monotonic);
    let window = Window {
        begin_ns: 0,
        end_ns: 1,
    };
    Some(Turn {
        epoch_ns: u64::try_from(time.tv_sec).unwrap() * SECOND_NS - SECOND_NS,
        period_ns: 1_000_000 * SECOND_NS,
        windows: vec![window],
    })
}

/// A turn of half the time, in short slices.
fn half() -> Option<Turn> {
    let window = Window {
        begin_ns: 0,
        end_ns: 5_000_000,
    };
    Some(Turn {
        epoch_ns: 1,
        period_ns: 10_000_000,
        windows: vec![window],
    })
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn stands_still(pid: i32) -> bool {
    let before = process_cpu_ns(pid);
    std::thread::sleep(Duration::from_millis(30));
    process_cpu_ns(pid) == before
}

fn runs(pid: i32) {
    let before = process_cpu_ns(pid).unwrap();
    until("it runs", || {
        process_cpu_ns(pid).unwrap() > before + 5_000_000
    });
}

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn state(pid: i32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = text.rsplit_once(") ").unwrap();
    rest.chars().next().unwrap()
}

/// The test program once more, in a role; killed when dropped.
struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(role: &str, folder: &std::path::Path) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper", "--nocapture"])
            .env("TEST_ROLE", role)
            .env("TEST_FOLDER", folder)
            .stdout(Stdio::piped())
            // A job of its own, as a shell makes it.
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn line_with(&mut self, what: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let line = lines.find_map(|line| Some(line.split_once(what)?.1.to_owned()));
        line.unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ =
            rustix::process::kill_process_group(Pid::from_raw(self.pid()).unwrap(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A host with a program that is a gang, and its manager.
struct Scene {
    host: Other,
    program: i32,
    manager: Manager,
    _runtime: tempfile::TempDir,
}

/// `None` where programs cannot be stopped.
fn scene() -> Option<Scene> {
    if !may_stop() {
        return None;
    }
    let runtime = tempfile::tempdir().unwrap();
    let folder = Folder::at(runtime.path()).unwrap();
    let socket = listen(&folder);
    let mut host = Other::start("host", runtime.path());
    let manager = Manager::of(&socket);
    let program = host.line_with("pid ").trim().parse().unwrap();
    runs(program);
    Some(Scene {
        host,
        program,
        manager,
        _runtime: runtime,
    })
}

fn may_stop() -> bool {
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let means = Seizing::of(i32::try_from(sleeper.id()).unwrap());
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    if let Err(refused) = &means {
        eprintln!("skipped: {refused}");
    }
    means.is_ok()
}

impl Scene {
    fn out_of_turn(&mut self) {
        self.manager.tell(not_yours());
        until("it stands still", || stands_still(self.program));
    }
}

#[test]
fn a_program_runs_in_its_turns_only_and_says_what_came_of_them() {
    if !may_stop() {
        return;
    }
    let runtime = tempfile::tempdir().unwrap();
    let folder = Folder::at(runtime.path()).unwrap();
    let socket = listen(&folder);
    let mut spinner = Other::start("spin", runtime.path());
    spinner.line_with("ready");
    let outside = manage(spinner.pid(), folder);
    let mut manager = Manager::of(&socket);
    manager.tell(not_yours());
    until("it stands still", || stands_still(spinner.pid()));
    manager.tell(half());
    runs(spinner.pid());
    until("it was stopped many times", || {
        outside.managed().gang.unwrap().switches > 50
    });
    manager.tell(None);
    runs(spinner.pid());
    manager.tell(not_yours());
    until("it stands still", || stands_still(spinner.pid()));
    let managed = outside.finish();
    runs(spinner.pid());
    let turns = managed.gang.unwrap();
    assert_eq!((turns.name.as_str(), turns.means), ("one", Some("ptrace")));
    assert!(turns.late_ns_median > 0 && turns.late_ns_worst >= turns.late_ns_median);
    assert_eq!((turns.refused, turns.why_not), (0, None));
}

#[test]
fn a_program_runs_when_its_manager_is_gone() {
    let Some(mut scene) = scene() else { return };
    scene.out_of_turn();
    let Manager { channel, claim, .. } = scene.manager;
    drop((channel, claim));
    runs(scene.program);
}

#[test]
fn a_program_runs_when_its_host_is_killed() {
    let Some(mut scene) = scene() else { return };
    scene.out_of_turn();
    kill(scene.host.pid(), Signal::KILL);
    runs(scene.program);
}

#[test]
fn job_control_stops_and_continues_both_in_turn_and_out_of_it() {
    let Some(mut scene) = scene() else { return };
    let (host, program) = (scene.host.pid(), scene.program);
    let job = Pid::from_raw(host).unwrap();
    for out_of_turn in [false, true, true] {
        match out_of_turn {
            true => scene.out_of_turn(),
            false => runs(program),
        }
        // As the terminal does.
        rustix::process::kill_process_group(job, Signal::TSTP).unwrap();
        until("both are stopped", || {
            (state(host), state(program)) == ('T', 'T')
        });
        rustix::process::kill_process_group(job, Signal::CONT).unwrap();
        until("the host goes on", || state(host) != 'T');
        if out_of_turn {
            until("it stands still", || {
                state(program) != 'T' && stands_still(program)
            });
            scene.manager.tell(None);
        }
        runs(program);
    }
}

#[test]
fn a_program_runs_while_its_host_alone_is_stopped_by_job_control() {
    let Some(mut scene) = scene() else { return };
    let (host, program) = (scene.host.pid(), scene.program);
    scene.out_of_turn();
    kill(host, Signal::TSTP);
    until("the host is stopped", || state(host) == 'T');
    runs(program);
    kill(host, Signal::CONT);
    until("it stands still", || stands_still(program));
}

#[test]
fn a_program_that_stops_itself_stops_its_host_as_without_turns() {
    let Some(mut scene) = scene() else { return };
    let (host, program) = (scene.host.pid(), scene.program);
    scene.manager.tell(half());
    for _ in 0..20 {
        kill(program, Signal::TSTP);
        until("both are stopped", || {
            (state(host), state(program)) == ('T', 'T')
        });
        kill(host, Signal::CONT);
        runs(program);
    }
}

#[test]
fn the_program_ends_by_a_signal_that_came_out_of_turn_and_so_does_its_host() {
    for signal in [Signal::TERM, Signal::KILL] {
        let Some(mut scene) = scene() else { return };
        scene.out_of_turn();
        match signal {
            // Its host passes it on.
            Signal::TERM => kill(scene.host.pid(), signal),
            _ => kill(scene.program, signal),
        }
        if signal == Signal::TERM {
            std::thread::sleep(Duration::from_millis(20));
            scene.manager.tell(None);
        }
        let mut status = None;
        until("its host has ended", || {
            status = scene.host.child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().signal(), Some(signal.as_raw()));
    }
}
