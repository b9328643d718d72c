//! Under a service manager: programs' connections are kept for the next manager when one is killed, and
//! end where they must. The service manager is played by the tests.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Place, Player, is_closed, join, join_as, own_pid, until, wants};
use corewise_abi::message::{ToManager, ToProgram, features};
use corewise_manager::stop;
use corewise_program::{Claim, Cpus, Numa};
use corewise_wire::{Channel, Joined, Received, Welcomed};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

#[test]
fn helper() {
    common::helper_main();
}

/// What systemd is to a manager: it holds the listening socket, hears how the manager is, and keeps what
/// it is given to keep.
struct Service {
    place: Place,
    listener: OwnedFd,
    notified: OwnedFd,
    kept: Vec<OwnedFd>,
}

impl Service {
    fn new() -> Service {
        let place = Place::new();
        let socket = |kind, path| {
            let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
            rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
            socket
        };
        let listener = socket(SocketType::SEQPACKET, place.folder.socket());
        rustix::net::listen(&listener, 5).unwrap();
        let notified = socket(SocketType::DGRAM, place.folder.path().join("notify"));
        Service {
            place,
            listener,
            notified,
            kept: Vec::new(),
        }
    }

    /// Starts a manager, with the socket and one connection at most.
    fn start(&self) -> Player {
        let name = if self.kept.is_empty() { "" } else { ":program" };
        let passes = format!(
            "exec 3<&0 4<&1 </dev/null >/dev/null; export LISTEN_PID=$$ LISTEN_FDS={} \
             LISTEN_FDNAMES=corewise.socket{name}; exec \"$0\" --exact helper --nocapture",
            1 + self.kept.len(),
        );
        let second = match self.kept.first() {
            Some(kept) => Stdio::from(kept.try_clone().unwrap()),
            None => Stdio::null(),
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", &passes])
            .arg(std::env::current_exe().unwrap())
            .env("COREWISE_TEST_PART", "manager")
            .env("COREWISE_RUNTIME_DIR", self.place.folder.path())
            .env("COREWISE_SYSTEM_DIR", "/nonexistent")
            .env("NOTIFY_SOCKET", self.place.folder.path().join("notify"))
            .stdin(self.listener.try_clone().unwrap())
            .stdout(second);
        Player::spawn(command)
    }

    /// Waits for a message; keeps what comes with it.
    fn hears(&mut self, what: &str) {
        let mut bytes = [0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let packet = rustix::net::recvmsg(&self.notified, buffers, &mut control, flags).unwrap();
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let said = std::str::from_utf8(&bytes[..packet.bytes]).unwrap();
        assert_eq!(said, what);
        assert_eq!(fds.len(), usize::from(what.starts_with("FDSTORE")));
        self.kept.extend(fds);
    }

    /// It hears that a program's connection is to be kept.
    fn keeps(&mut self) {
        self.hears("FDSTORE=1\nFDNAME=program");
    }

    /// Whether a connection has ended: then systemd keeps it no longer.
    fn sees_end(&self, which: usize) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.kept[which], PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).unwrap();
        polled[0].revents().contains(PollFlags::HUP)
    }
}

/// Joins as a program that joins again when it is asked to.
fn join_for_long(service: &Service, name: &str) -> Joined {
    let mut join = join_as(own_pid(), name, wants(1, 4));
    join.features = features::AGAIN;
    corewise_wire::join(&service.place.folder, join).unwrap()
}

fn hear(channel: &Channel) -> Received<ToProgram> {
    channel.receive_within(LONG).unwrap()
}

#[test]
fn a_killed_managers_programs_keep_their_claims_and_join_the_next_one_on_the_same_connection() {
    let mut service = Service::new();
    let mut first = service.start();
    service.hears("READY=1");
    let joined = join_for_long(&service, "stays");
    service.keeps();
    let granted = joined.claim.granted();
    first.kill();
    // Between the two: what is sent is for nobody.
    joined.channel.send(&ToManager::Threads(3), &[]).unwrap();
    assert!(!is_closed(&joined));
    assert_eq!(joined.claim.granted(), granted);

    let second = service.start();
    service.hears("READY=1");
    assert_eq!(hear(&joined.channel).message, ToProgram::Again);
    let mut again = join_as(own_pid(), "stays", wants(1, 2));
    again.features = features::AGAIN;
    joined.channel.send(&ToManager::Join(again), &[]).unwrap();
    let welcomed = Welcomed::by(hear(&joined.channel)).unwrap();
    until("a claim of the next manager's", || {
        welcomed.claim.granted().threads == 2
    });
    let programs = service.place.programs();
    assert_eq!(programs.len(), 1);
    assert_eq!(programs[0]["pid"], own_pid());
    let pid = service.place.status()["manager"]["pid"].clone();
    assert_eq!(pid, second.pid());
    // It is not kept a second time: the next message is about another one.
    let _other = join_for_long(&service, "another");
    service.keeps();
    assert_eq!(service.kept.len(), 2);
}

#[test]
fn a_program_that_links_the_library_is_managed_all_along() {
    let mut service = Service::new();
    let mut first = service.start();
    service.hears("READY=1");
    let claim = Claim::join_at(&service.place.folder, "linked");
    service.keeps();
    claim.invade(Cpus(1..=3), Numa::Any);
    assert!(claim.is_managed());
    let before = claim.generation();
    first.kill();
    let _second = service.start();
    service.hears("READY=1");
    service.place.until_programs(1);
    until("another manager's claim", || {
        assert!(claim.is_managed());
        claim.generation() != before && claim.threads() == 3
    });
    // It is heard, too.
    claim.invade(Cpus(1..=2), Numa::Any);
    until("what is wanted to be known", || {
        service.place.programs()[0]["wants"]["max_threads"] == 2
    });
    drop(claim);
    service.place.until_programs(0);
}

#[test]
fn a_connection_that_is_kept_ends_with_its_program_and_with_its_manager() {
    let mut service = Service::new();
    let mut manager = service.start();
    service.hears("READY=1");
    let leaves = join_for_long(&service, "leaves");
    service.keeps();
    let stays = join_for_long(&service, "stays");
    service.keeps();
    drop(leaves);
    until("the first one's end", || service.sees_end(0));
    assert!(!service.sees_end(1));
    // Whom the manager sends away.
    let twice = join_for_long(&service, "twice");
    service.keeps();
    let again = ToManager::Join(join_as(own_pid(), "twice", wants(1, 1)));
    twice.channel.send(&again, &[]).unwrap();
    until("it is sent away", || is_closed(&twice));
    assert!(stop(&service.place.folder).unwrap());
    service.hears("STOPPING=1");
    manager.child.wait().unwrap();
    until("the end of the other one", || is_closed(&stays));
    assert!(service.sees_end(1) && service.sees_end(2));
}

#[test]
fn who_does_not_join_again_is_not_kept_and_loses_its_connection_with_its_manager() {
    let mut service = Service::new();
    let mut manager = service.start();
    service.hears("READY=1");
    // Of an earlier version.
    let joined = join(&service.place, "old");
    let _kept = join_for_long(&service, "kept");
    service.keeps();
    manager.kill();
    until("its connection's end", || is_closed(&joined));
    assert!(!service.sees_end(0));
}

#[test]
fn a_program_that_ended_while_there_was_no_manager_is_not_waited_for() {
    let mut service = Service::new();
    let mut first = service.start();
    service.hears("READY=1");
    let ended = join_for_long(&service, "ended");
    service.keeps();
    first.kill();
    drop(ended);
    let _second = service.start();
    service.hears("READY=1");
    let joined = join(&service.place, "honest");
    assert_eq!(joined.claim.granted().threads, 4);
    assert_eq!(service.place.programs().len(), 1);
    until("the connection to be closed", || {
        service.place.status()["manager"]["connections"] == 2
    });
}
