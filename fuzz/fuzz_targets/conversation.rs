//! Conversations with a living manager: connections that say anything, in any order, beside a program
//! that behaves. The manager goes on (or ends, if it is told to), answers, and takes nothing away from
//! the one that behaves.
#![no_main]

use corewise_abi::VERSION;
use corewise_abi::message::{Join, Placement, ToManager, ToProgram, Wants, encode};
use corewise_manager::{Options, PolicyChoice, serve, status_json};
use corewise_wire::{Channel, Folder, Joined, connect, join};
use libfuzzer_sys::fuzz_target;
use rustix::net::SendFlags;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The program that behaves cannot do without so many threads.
const MIN_THREADS: u32 = 2;

/// Connections of one input.
const MOST: usize = 6;

/// Steps of one input.
const MOST_STEPS: usize = 64;

/// Reads an input byte by byte; zeroes follow on its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            None => 0,
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
        }
    }

    /// Mostly small.
    fn number(&mut self) -> u32 {
        let byte = self.byte();
        match byte >> 6 {
            0 | 1 => u32::from(byte % 8),
            2 => u32::from(self.byte()),
            _ if byte & 1 == 1 => u32::MAX,
            _ => u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
        }
    }

    /// Mostly our own.
    fn process(&mut self) -> i32 {
        match self.byte() % 8 {
            5 => i32::try_from(std::os::unix::process::parent_id()).unwrap(),
            6 => 1,
            7 => self.number().cast_signed(),
            _ => own_pid(),
        }
    }

    fn wants(&mut self) -> Wants {
        let how = self.byte();
        Wants {
            min_threads: self.number(),
            max_threads: self.number(),
            placement: match how % 3 {
                0 => Placement::Any,
                1 => Placement::Compact,
                _ => Placement::Scatter,
            },
            malleable: how < 128,
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte());
        (0..length).map(|_| self.byte()).collect()
    }

    fn message(&mut self) -> ToManager {
        match self.byte() % 12 {
            0..=3 => ToManager::Join(Join {
                version: u16::from(self.byte().wrapping_add(1)),
                features: u64::from(self.byte()),
                pid: self.process(),
                name: String::from_utf8_lossy(&self.bytes()).into_owned(),
                wants: self.wants(),
            }),
            4 | 5 => ToManager::Ask(self.wants()),
            6 => ToManager::Threads(self.number()),
            7 => ToManager::Answer {
                request: self.number(),
                yes: self.byte() < 128,
            },
            8 => ToManager::Status,
            9 | 10 => ToManager::Override {
                pid: self.process(),
                threads: self.number(),
                cpus: (0..self.byte() % 16).map(|_| self.number()).collect(),
            },
            // Rare: another manager takes its time to start.
            _ if self.byte() == 7 => ToManager::Stop,
            _ if self.byte() % 2 == 0 => ToManager::Follows {
                runtimes: (0..self.byte() % 20).map(|_| self.number().to_string()).collect(),
                stay: Vec::new(),
            },
            _ => ToManager::Members((0..self.byte() % 16).map(|_| self.process()).collect()),
        }
    }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

struct Stage {
    folder: Folder,
    honest: Option<Joined>,
}

static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

fn stage() -> Stage {
    let kept = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = Folder::at(kept.unwrap().keep()).unwrap();
    Stage {
        folder,
        honest: None,
    }
}

impl Stage {
    /// Sees to it that there is a manager, and a program that behaves.
    fn set(&mut self) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.honest.is_none() {
            assert!(Instant::now() < end, "no manager");
            if connect(&self.folder).is_err() {
                let policy = PolicyChoice::BuiltIn("balanced".to_owned());
                let options = Options::new(self.folder.clone(), policy)
                    .activated(false)
                    .journal_bytes(1 << 20);
                std::thread::spawn(|| {
                    // One that is ending still holds the lock.
                    if let Err(error) = serve(options) {
                        eprintln!("{error}");
                    }
                });
                std::thread::sleep(Duration::from_millis(2));
            }
            let honest = Join {
                version: VERSION,
                features: 0,
                pid: own_pid(),
                name: "honest".to_owned(),
                wants: Wants {
                    min_threads: MIN_THREADS,
                    max_threads: 4,
                    placement: Placement::Any,
                    malleable: true,
                },
            };
            self.honest = join(&self.folder, honest).ok();
        }
    }

    /// Whether the manager is there, once it has heard everything.
    fn is_managed(&self) -> bool {
        match status_json(&self.folder) {
            Ok(Some(status)) => {
                for program in status["programs"].as_array().unwrap() {
                    let claim = &program["claim"];
                    let least = program["wants"]["min_threads"].as_u64().unwrap();
                    assert!(
                        claim["threads"].as_u64().unwrap() >= least.max(1),
                        "{program}"
                    );
                    assert!(!claim["cpus"].as_array().unwrap().is_empty(), "{program}");
                }
                true
            }
            // It was told to end.
            _ => false,
        }
    }
}

/// The connections of one input; made when they are used.
struct Crowd<'a> {
    folder: &'a Folder,
    connections: [Option<Channel>; MOST],
}

impl Crowd<'_> {
    fn at(&mut self, who: u8) -> Option<&Channel> {
        let place = &mut self.connections[usize::from(who) % MOST];
        if place.is_none() {
            *place = connect(self.folder).ok();
        }
        place.as_ref()
    }

    fn send(&mut self, who: u8, bytes: &[u8]) {
        if let Some(channel) = self.at(who) {
            let _ = rustix::net::send(channel, bytes, SendFlags::NOSIGNAL);
        }
    }
}

fn play(stage: &Stage, mut script: Script<'_>) {
    let mut crowd = Crowd {
        folder: &stage.folder,
        connections: Default::default(),
    };
    for _ in 0..MOST_STEPS {
        if script.0.is_empty() {
            break;
        }
        let (what, who) = (script.byte() % 16, script.byte());
        match what {
            0..=9 => {
                let bytes = encode(&script.message()).unwrap_or_default();
                crowd.send(who, &bytes);
            }
            10 => {
                let mut bytes = encode(&script.message()).unwrap_or_default();
                let at = usize::from(script.byte()).checked_rem(bytes.len());
                if let Some(at) = at {
                    bytes[at] = script.byte();
                }
                crowd.send(who, &bytes);
            }
            11 => {
                let bytes = script.bytes();
                crowd.send(who, &bytes);
            }
            12 => {
                if let Some(channel) = crowd.at(who) {
                    while channel.receive::<ToProgram>().is_ok() {}
                }
            }
            13 => crowd.connections[usize::from(who) % MOST] = None,
            14 => {
                // On the progress page of the one that behaves: it may count wrongly.
                if let Some(honest) = &stage.honest {
                    honest.progress.team.store(script.number(), Relaxed);
                    honest.progress.could_use.store(script.number(), Relaxed);
                    honest.progress.blocked.store(script.number(), Relaxed);
                }
            }
            _ => {
                stage.is_managed();
            }
        }
    }
    // Before they hang up.
    stage.is_managed();
}

fuzz_target!(|bytes: &[u8]| {
    let mut stage_of_all = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let stage = stage_of_all.get_or_insert_with(stage);
    stage.set();
    play(stage, Script(bytes));
    if !stage.is_managed() {
        stage.honest = None;
        return;
    }
    let honest = stage.honest.as_ref().unwrap();
    // A manager that ended meanwhile, and another one: its page says so.
    if honest.claim.state() == corewise_abi::claim::State::Managed {
        assert!(honest.claim.granted().threads >= MIN_THREADS);
        let open = honest.channel.receive::<ToProgram>();
        assert!(!matches!(open, Err(corewise_wire::Error::Malformed { .. })));
    } else {
        stage.honest = None;
    }
});
