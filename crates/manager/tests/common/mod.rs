//! What the tests with living managers share. Each test program contains a test `helper`, which does
//! nothing unless the environment gives it a part to play: a test starts its own program anew to have
//! a process that it can kill.
#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

use corewise_abi::VERSION;
use corewise_abi::message::{Join, Placement, Wants};
use corewise_machine::Root;
use corewise_machine::control::{AffinityControl, Process};
use corewise_machine::undo::UndoLog;
use corewise_manager::{Error, Options, PolicyChoice, override_claim, serve, status_json, stop};
use corewise_wire::{Folder, Joined, System};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Far longer than anything here takes: a limit against hanging, not a measurement.
pub const LONG: Duration = Duration::from_secs(60);

const PART: &str = "COREWISE_TEST_PART";

/// The policy of a manager that is a player; `observe` without it.
pub const POLICY: &str = "COREWISE_TEST_POLICY";

/// The folder that is `/` for the hardware of a manager that is a player.
pub const HARDWARE: &str = "COREWISE_TEST_HARDWARE";

/// The process on which a stranger tries its hand.
pub const VICTIM: &str = "COREWISE_TEST_VICTIM";

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A runtime folder of a test's own.
pub struct Place {
    _keep: Option<tempfile::TempDir>,
    pub folder: Folder,
}

impl Place {
    pub fn new() -> Place {
        let keep = tempfile::tempdir().unwrap();
        let folder = Folder::at(keep.path().join("run")).unwrap();
        Place {
            _keep: Some(keep),
            folder,
        }
    }

    /// One that somebody else keeps.
    pub fn with(folder: Folder) -> Place {
        Place {
            _keep: None,
            folder,
        }
    }

    pub fn listens(&self) -> bool {
        corewise_wire::connect(&self.folder).is_ok()
    }

    /// The manager's status; there must be a manager.
    pub fn status(&self) -> Value {
        status_json(&self.folder).unwrap().unwrap()
    }

    pub fn programs(&self) -> Vec<Value> {
        self.status()["programs"].as_array().unwrap().clone()
    }

    pub fn until_programs(&self, count: usize) {
        until(&format!("{count} programs"), || {
            self.programs().len() == count
        });
    }

    pub fn options(&self, policy: &str) -> Options {
        // Whatever else runs on this machine.
        Options::new(self.folder.clone(), policy.parse().unwrap()).system(None)
    }
}

/// A manager in a thread of the test.
pub struct Manager<'a> {
    place: &'a Place,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl<'a> Manager<'a> {
    pub fn start(place: &'a Place, options: Options) -> Manager<'a> {
        let thread = Some(std::thread::spawn(|| serve(options)));
        until("a manager that listens", || place.listens());
        Manager { place, thread }
    }

    pub fn observing(place: &'a Place) -> Manager<'a> {
        Manager::start(place, place.options("observe"))
    }

    /// Stops it, and gives what it ended with.
    pub fn stop(mut self) -> Result<(), Error> {
        stop(&self.place.folder).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits until it has ended by itself.
    pub fn ended(mut self) -> Result<(), Error> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = stop(&self.place.folder);
            let _ = thread.join();
        }
    }
}

pub fn wants(min_threads: u32, max_threads: u32) -> Wants {
    Wants {
        min_threads,
        max_threads,
        placement: Placement::Any,
        malleable: true,
    }
}

pub fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

pub fn join_as(pid: i32, name: &str, wants: Wants) -> Join {
    Join {
        version: VERSION,
        features: 0,
        pid,
        name: name.to_owned(),
        wants,
    }
}

/// Joins as this process.
pub fn join(place: &Place, name: &str) -> Joined {
    corewise_wire::join(&place.folder, join_as(own_pid(), name, wants(1, 4))).unwrap()
}

/// The end of a connection.
pub fn is_closed(joined: &Joined) -> bool {
    use corewise_abi::message::ToProgram;
    matches!(
        joined.channel.receive::<ToProgram>(),
        Err(corewise_wire::Error::Closed)
    )
}

/// A process that plays a part; killed when dropped.
pub struct Player {
    pub child: Child,
}

impl Player {
    /// Starts this test program anew.
    pub fn start(part: &str, place: &Place) -> Player {
        let mut command = Player::command(&[], part);
        command.env("COREWISE_RUNTIME_DIR", place.folder.path());
        Player::spawn(command)
    }

    /// What starts this test program anew, after the words of a launcher.
    pub fn command(launcher: &[&str], part: &str) -> Command {
        // The test framework has a thread beside ours, in which the signals must be blocked, too.
        let words = ["env", "--block-signal=TERM", "--block-signal=INT"];
        let words = [launcher, &words].concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "helper", "--nocapture"])
            .env(PART, part)
            .env("COREWISE_SYSTEM_DIR", "/nonexistent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        command
    }

    pub fn spawn(mut command: Command) -> Player {
        let child = command.spawn().unwrap();
        Player { child }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// What it says after `word`, as soon as it does.
    pub fn says(&mut self, word: &str) -> String {
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        loop {
            let line = lines.next().expect("it ended").unwrap();
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// What it says after `word`, each time, until it ends by itself.
    pub fn says_to_the_end(&mut self) -> impl Fn(&str) -> Vec<String> {
        let mut text = String::new();
        let stdout = self.child.stdout.as_mut().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{text}");
        move |word| {
            let after = text.lines().filter_map(|line| line.split_once(word));
            after.map(|(_, rest)| rest.trim().to_owned()).collect()
        }
    }

    /// Lets it go on.
    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the part that the environment gives to this process, if any.
pub fn helper_main() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    // Joins whoever serves it, as a program that links the library does.
    if part == "linked" {
        let claim = corewise_program::Claim::current();
        println!("linked {}", claim.is_managed());
        until_stdin_ends();
        std::process::exit(0);
    }
    let folder = Folder::of_user().unwrap();
    match part.as_str() {
        "program" | "program late" => {
            if part == "program late" {
                let _ = std::io::stdin().read(&mut [0; 1]);
            }
            let joined =
                corewise_wire::join(&folder, join_as(own_pid(), "player", wants(1, 4))).unwrap();
            println!("joined {}", joined.program);
            until_stdin_ends();
        }
        // Confines a child to one CPU, as a local manager does; joins for it, if somebody listens.
        "confines" => {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let pid = i32::try_from(child.id()).unwrap();
            let join = join_as(pid, "confined", wants(1, 1));
            let joined = corewise_wire::join(&folder, join).ok();
            let log = UndoLog::create(&folder.undo(), "test").unwrap();
            let process = Process::of(pid).unwrap();
            let cpu = corewise_machine::effective_cpus(&Root::system(), None)
                .unwrap()
                .cpus[0];
            let control = AffinityControl::new(&log);
            control.confine_process(process, &[cpu]).unwrap();
            println!("confined {pid}");
            until_stdin_ends();
            drop(joined);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // Stands for `COMMAND manage`.
        // Joins, and works.
        "busy" => {
            let joined =
                corewise_wire::join(&folder, join_as(own_pid(), "busy", wants(1, 1))).unwrap();
            println!("joined {}", joined.program);
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
            until_stdin_ends();
        }
        // Tries what only others may, at the system's manager; says what it answers.
        "stranger" => stranger(),
        "manager" | "manager on demand" | "manager with few files" => {
            if part == "manager with few files" {
                let few = Some(128);
                let limit = rustix::process::Rlimit {
                    current: few,
                    maximum: few,
                };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            }
            let policy = std::env::var(POLICY).unwrap_or("observe".to_owned());
            let policy: PolicyChoice = policy.parse().unwrap();
            let options = Options::new(folder, policy).on_demand(part == "manager on demand");
            let options = match std::env::var_os(HARDWARE) {
                Some(folder) => options.hardware(Root::at(folder)),
                None => options,
            };
            match serve(options) {
                Ok(()) => println!("served"),
                Err(Error::AlreadyRuns { pid, .. }) => println!("already {}", pid.unwrap_or(0)),
                Err(error) => println!("failed {error}"),
            }
        }
        other => panic!("unknown part {other}"),
    }
    std::process::exit(0);
}

fn stranger() {
    use corewise_abi::message::{ToManager, ToProgram};
    let folder = System::of_environment().folder().unwrap();
    let own = corewise_wire::join(&folder, join_as(own_pid(), "stranger", wants(1, 4))).unwrap();
    let victim = std::env::var(VICTIM).unwrap().parse().unwrap();
    let status = status_json(&folder).unwrap().unwrap();
    println!("sees {status}");
    for pid in [own_pid(), victim] {
        let error = override_claim(&folder, pid, 9, vec![]).unwrap_err();
        println!("told {error}");
    }
    println!("told {}", stop(&folder).unwrap_err());
    // For somebody else's process.
    let channel = corewise_wire::connect(&folder).unwrap();
    let join = ToManager::Join(join_as(victim, "stranger", wants(1, 4)));
    channel.send(&join, &[]).unwrap();
    match channel.receive_within::<ToProgram>(LONG).unwrap().message {
        ToProgram::Refused(why) => println!("told {why}"),
        other => panic!("{other:?}"),
    }
    for file in ["manager.lock", "journal.jsonl", "undo"] {
        let path = folder.path().join(file);
        let opened = std::fs::File::open(&path);
        assert!(opened.is_err(), "{}", path.display());
    }
    assert!(
        std::fs::read_dir(folder.path()).is_err(),
        "it can be listed"
    );
    println!("claim {}", own.claim.granted().threads);
}

fn until_stdin_ends() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
