//! A program that nobody changed, beside a manager that says what the test says.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::listen;
use corewise_abi::VERSION;
use corewise_abi::message::{LocalRule, ToManager, ToProgram, features};
use corewise_local::outside::{Outside, Program};
use corewise_machine::control::Thread;
use corewise_machine::undo::Setting;
use corewise_wire::{Channel, ClaimWriter, Folder, ProgressReader};
use rustix::net::SocketFlags;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Far longer than anything here takes: a limit against hanging, not a measurement.
const LONG: Duration = Duration::from_secs(60);

/// A child that sleeps; killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// The kernel's list of the CPUs where it may run.
    fn cpus(&self) -> String {
        let thread = Thread::of(self.pid(), self.pid()).unwrap();
        Setting::Affinity(thread).present().unwrap().unwrap()
    }

    fn until_on(&self, cpus: &str) {
        let end = Instant::now() + LONG;
        while self.cpus() != cpus {
            assert!(Instant::now() < end, "on {}, never on {cpus}", self.cpus());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_stays_as_it_is_is_told_only_to_a_manager_that_understands_it() {
    for (bits, expected) in [(features::FOLLOWS, 1), (0, 0)] {
        let sleeper = Sleeper::start();
        let runtime = tempfile::tempdir().unwrap();
        let folder = Folder::at(runtime.path()).unwrap();
        let socket = listen(&folder);
        let program = Program {
            stay: vec!["rayon".to_owned()],
            ..Program::rigid(sleeper.pid(), "sleeper".to_owned(), 1)
        };
        let nobody_else = Box::new(|_: &Folder| Err("there is one".to_owned()));
        let outside = Outside::start(program, folder, nobody_else, None).unwrap();
        let accepted = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        let channel = Channel::from(accepted);
        let joins = channel.receive_within::<ToManager>(LONG).unwrap();
        assert!(matches!(joins.message, ToManager::Join(_)));
        let (_claim, claim_page) = ClaimWriter::create(1).unwrap();
        let (_progress, progress_page) = ProgressReader::create().unwrap();
        let welcome = ToProgram::Welcome {
            version: VERSION,
            features: bits,
            program: 1,
            rule: LocalRule::Leave,
        };
        let pages = [claim_page.as_fd(), progress_page.as_fd()];
        channel.send(&welcome, &pages).unwrap();
        let mut told = 0;
        // The threads are told at the first look, as is what follows.
        let mut messages = 0;
        while messages < 1 + expected {
            let said = channel.receive_within::<ToManager>(LONG).unwrap().message;
            messages += 1;
            if let ToManager::Follows { runtimes, stay } = said {
                assert!(runtimes.is_empty());
                assert_eq!(stay, ["rayon"]);
                told += 1;
            }
        }
        outside.finish();
        // What else it said before it left.
        while let Ok(said) = channel.receive_within::<ToManager>(LONG) {
            told += usize::from(matches!(said.message, ToManager::Follows { .. }));
        }
        assert_eq!(told, expected);
    }
}

#[test]
fn a_program_is_placed_anew_when_the_manager_says_another_rule() {
    let sleeper = Sleeper::start();
    let before = sleeper.cpus();
    let all = corewise_machine::cpu_list::parse(&before).unwrap();
    let [first, _, ..] = all[..] else {
        eprintln!("skipped: one CPU only");
        return;
    };
    let runtime = tempfile::tempdir().unwrap();
    let folder = Folder::at(runtime.path()).unwrap();
    let socket = listen(&folder);
    let program = Program::rigid(sleeper.pid(), "sleeper".to_owned(), 1);
    let nobody_else = Box::new(|_: &Folder| Err("there is one".to_owned()));
    let outside = Outside::start(program, folder, nobody_else, None).unwrap();

    let accepted = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
    let channel = Channel::from(accepted);
    let ToManager::Join(join) = channel.receive_within(LONG).unwrap().message else {
        panic!("it begins with something else");
    };
    // Or a manager would not tell it.
    assert_eq!(join.features & features::RULE, features::RULE);
    let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
    let (_progress, progress_page) = ProgressReader::create().unwrap();
    claim.grant(1, [first]);
    let welcome = ToProgram::Welcome {
        version: VERSION,
        features: features::RULE,
        program: 1,
        rule: LocalRule::Leave,
    };
    let pages = [claim_page.as_fd(), progress_page.as_fd()];
    channel.send(&welcome, &pages).unwrap();

    let rule = |rule| channel.send(&ToProgram::Rule(rule), &[]).unwrap();
    rule(LocalRule::Whole);
    sleeper.until_on(&first.to_string());
    rule(LocalRule::Leave);
    sleeper.until_on(&before);
    rule(LocalRule::OneEach);
    sleeper.until_on(&first.to_string());
    let managed = outside.finish();
    assert_eq!(managed.program, Some(1));
    assert_eq!(sleeper.cpus(), before, "put back at the end");
}
