//! A manager that grants what a test says, and what all tests need.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use corewise_program::Folder;
use corewise_wire::abi::VERSION;
use corewise_wire::abi::message::{
    Gang, LocalRule, Request, ToManager, ToProgram, Wants, features,
};
use corewise_wire::abi::progress::Progress;
use corewise_wire::abi::turn::Turn;
use corewise_wire::{Channel, ClaimWriter, Error, ProgressReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A runtime folder of the test's own.
pub fn runtime() -> (tempfile::TempDir, Folder) {
    let runtime = tempfile::tempdir().unwrap();
    let folder = Folder::at(runtime.path()).unwrap();
    (runtime, folder)
}

/// How a manager of a test behaves.
#[derive(Clone, Copy)]
pub struct Ways {
    pub rule: LocalRule,
    /// The most threads that it grants to who asks.
    pub most: u32,
    /// Whether it says that it has decided.
    pub says_done: bool,
}

impl Default for Ways {
    fn default() -> Ways {
        Ways {
            rule: LocalRule::Leave,
            most: u32::MAX,
            says_done: true,
        }
    }
}

/// One program, as the manager knows it.
pub struct Program {
    channel: Channel,
    claim: ClaimWriter,
    progress: ProgressReader,
    pub name: String,
    /// At joining, and then at each asking.
    pub wants: Vec<Wants>,
    pub answers: Vec<(u32, bool)>,
    pub threads: Vec<u32>,
    pub gangs: Vec<Option<Gang>>,
    pub left: bool,
}

/// A manager in a thread. Dropping it is its sudden death: nothing is written to pages any more.
pub struct Manager {
    programs: Arc<Mutex<Vec<Program>>>,
    dying: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    folder: Folder,
}

impl Manager {
    pub fn start(folder: &Folder, ways: Ways) -> Manager {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(folder.socket()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        let programs = Arc::new(Mutex::new(Vec::new()));
        let dying = Arc::new(AtomicBool::new(false));
        let thread = {
            let (programs, dying) = (Arc::clone(&programs), Arc::clone(&dying));
            std::thread::spawn(move || {
                while !dying.load(Ordering::Relaxed) {
                    attend(&socket, &mut programs.lock().unwrap(), ways);
                    let time = Timespec::try_from(Duration::from_millis(1)).unwrap();
                    let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&time));
                }
            })
        };
        Manager {
            programs,
            dying,
            thread: Some(thread),
            folder: folder.clone(),
        }
    }

    /// Looks at the `index`th program that joined.
    pub fn with<T>(&self, index: usize, look: impl FnOnce(&mut Program) -> T) -> T {
        look(&mut self.programs.lock().unwrap()[index])
    }

    pub fn joined(&self) -> usize {
        self.programs.lock().unwrap().len()
    }

    /// Grants something to the first program.
    pub fn grant(&self, threads: u32, cpus: &[u32]) {
        self.with(0, |p| p.claim.grant(threads, cpus.iter().copied()));
    }

    /// Says when the first program runs.
    pub fn turn(&self, turn: Option<&Turn>) {
        self.with(0, |p| p.claim.set_turn(turn));
    }

    /// Says that it has ended, as a manager that is stopped does, without closing the connection.
    pub fn end(&self) {
        self.with(0, |p| p.claim.end());
    }

    pub fn request(&self, request: u32, what: Request) {
        let message = ToProgram::Request { request, what };
        self.with(0, |p| p.channel.send(&message, &[]).unwrap());
    }

    /// Says that another rule holds from now on.
    pub fn rule(&self, rule: LocalRule) {
        let message = ToProgram::Rule(rule);
        self.with(0, |p| p.channel.send(&message, &[]).unwrap());
    }

    /// Sends bytes that are no message.
    pub fn nonsense(&self) {
        let bytes = [0xff; 100];
        let flags = rustix::net::SendFlags::NOSIGNAL;
        self.with(0, |p| rustix::net::send(&p.channel, &bytes, flags).unwrap());
    }

    /// What the first program's progress page says.
    pub fn progress(&self) -> Progress {
        self.with(0, |p| p.progress.read())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.dying.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        std::fs::remove_file(self.folder.socket()).unwrap();
    }
}

fn attend(socket: &OwnedFd, programs: &mut Vec<Program>, ways: Ways) {
    if let Ok(program) = rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
        programs.push(welcome(Channel::from(program), ways));
    }
    for program in programs.iter_mut().filter(|p| !p.left) {
        loop {
            match program.channel.receive::<ToManager>() {
                Ok(received) => hear(program, received.message, ways),
                Err(Error::WouldBlock) => break,
                Err(_) => {
                    program.left = true;
                    break;
                }
            }
        }
    }
}

fn welcome(channel: Channel, ways: Ways) -> Program {
    let first = channel.receive_within(PATIENCE).unwrap().message;
    let ToManager::Join(join) = first else {
        panic!("not a join: {first:?}");
    };
    // Or a manager would not tell it that the rule has changed.
    assert_eq!(join.features & features::RULE, features::RULE);
    let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
    let (progress, progress_page) = ProgressReader::create().unwrap();
    claim.grant(join.wants.max_threads.min(ways.most), [0]);
    let welcome = ToProgram::Welcome {
        version: VERSION,
        features: features::GANGS,
        program: 1,
        rule: ways.rule,
    };
    channel
        .send(&welcome, &[claim_page.as_fd(), progress_page.as_fd()])
        .unwrap();
    Program {
        channel,
        claim,
        progress,
        name: join.name,
        wants: vec![join.wants],
        answers: Vec::new(),
        threads: Vec::new(),
        gangs: Vec::new(),
        left: false,
    }
}

fn hear(program: &mut Program, message: ToManager, ways: Ways) {
    match message {
        ToManager::Ask(wants) => {
            program.wants.push(wants);
            let threads = wants.max_threads.min(ways.most).max(wants.min_threads);
            if threads != program.claim.page().granted().threads {
                program.claim.grant(threads, 0..threads);
            }
            if ways.says_done {
                let _ = program.channel.send(&ToProgram::Done, &[]);
            }
        }
        ToManager::Answer { request, yes } => program.answers.push((request, yes)),
        ToManager::Threads(threads) => program.threads.push(threads),
        ToManager::Gang(gang) => program.gangs.push(gang),
        other => panic!("a program does not say {other:?}"),
    }
}
