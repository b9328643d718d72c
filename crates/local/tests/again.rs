//! A program that nobody changed, beside a manager that is started anew and was given its connection.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::VERSION;
use corewise_abi::message::{Join, LocalRule, ToManager, ToProgram, features};
use corewise_local::outside::{Outside, Program};
use corewise_machine::control::Thread;
use corewise_machine::undo::Setting;
use corewise_wire::{Channel, ClaimWriter, Folder, ProgressReader};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Far longer than anything here takes: a limit against hanging, not a measurement.
const LONG: Duration = Duration::from_secs(60);

/// A child that sleeps; killed when dropped.
struct Sleeper(Child);

impl Sleeper {
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

fn joins(channel: &Channel) -> Join {
    match channel.receive_within(LONG).unwrap().message {
        ToManager::Join(join) => join,
        other => panic!("{other:?}"),
    }
}

/// Welcomes with a claim of one thread on `cpu`.
fn welcome(channel: &Channel, program: u64, cpu: u32) -> (ClaimWriter, ProgressReader) {
    let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
    let (progress, progress_page) = ProgressReader::create().unwrap();
    claim.grant(1, [cpu]);
    let welcome = ToProgram::Welcome {
        version: VERSION,
        features: 0,
        program,
        rule: LocalRule::Whole,
    };
    let pages = [claim_page.as_fd(), progress_page.as_fd()];
    channel.send(&welcome, &pages).unwrap();
    (claim, progress)
}

#[test]
fn it_joins_again_on_the_same_connection_and_is_confined_all_along() {
    let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    let before = sleeper.cpus();
    let all = corewise_machine::cpu_list::parse(&before).unwrap();
    let [first, .., last] = all[..] else {
        eprintln!("skipped: one CPU only");
        return;
    };
    let runtime = tempfile::tempdir().unwrap();
    let folder = Folder::at(runtime.path()).unwrap();
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(folder.socket()).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    let program = Program::rigid(sleeper.pid(), "sleeper".to_owned(), 1);
    let nobody_else = Box::new(|_: &Folder| Err("there is one".to_owned()));
    let outside = Outside::start(program, folder, nobody_else, None).unwrap();
    let accepted = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
    let channel = Channel::from(accepted);

    let join = joins(&channel);
    assert_eq!(join.features & features::AGAIN, features::AGAIN);
    let old = welcome(&channel, 1, first);
    sleeper.until_on(&first.to_string());
    // The next manager. The old one's pages are nobody's.
    channel.send(&ToProgram::Again, &[]).unwrap();
    let again = loop {
        // It may have told its number of threads before.
        match channel.receive_within(LONG).unwrap().message {
            ToManager::Join(join) => break join,
            ToManager::Threads(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(again, join);
    assert_eq!(sleeper.cpus(), first.to_string(), "until there is another");
    let (mut claim, _progress) = welcome(&channel, 2, last);
    sleeper.until_on(&last.to_string());
    let told = channel.receive_within::<ToManager>(LONG).unwrap().message;
    assert_eq!(told, ToManager::Threads(1));
    // It follows the new page, and it alone.
    drop(old);
    claim.grant(1, [first]);
    sleeper.until_on(&first.to_string());
    let managed = outside.finish();
    assert_eq!(managed.program, Some(2));
    assert_eq!(sleeper.cpus(), before, "put back at the end");
}
