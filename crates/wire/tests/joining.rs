//! Joining the system's manager without waiting for it.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::VERSION;
use corewise_abi::message::{
    Join, LocalRule, MAX_TEXT, Placement, ToManager, ToProgram, Wants, features,
};
use corewise_wire::{Answer, Channel, ClaimWriter, Error, Folder, Joining, ProgressReader};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::os::fd::{AsFd, OwnedFd};

fn join() -> Join {
    Join {
        version: VERSION,
        features: 0,
        pid: 1,
        name: "n".repeat(2 * MAX_TEXT),
        wants: Wants {
            min_threads: 1,
            max_threads: 1,
            placement: Placement::Any,
            malleable: true,
        },
    }
}

/// A folder with a socket on which this process listens.
fn listening(backlog: i32) -> (tempfile::TempDir, Folder, OwnedFd) {
    let parent = tempfile::tempdir().unwrap();
    let folder = Folder::at(parent.path().join("run")).unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(folder.socket()).unwrap()).unwrap();
    rustix::net::listen(&socket, backlog).unwrap();
    (parent, folder, socket)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn nobody_but_root_is_taken_for_the_systems_manager() {
    let (_keep, folder, _socket) = listening(1);
    let joining = Joining::with_system(&folder, join());
    match is_root() {
        true => assert!(joining.is_ok()),
        false => assert!(matches!(joining, Err(Error::ForeignPeer { .. }))),
    }
}

#[test]
fn a_queue_that_is_full_is_not_waited_for() {
    let (_keep, folder, _socket) = listening(0);
    let crowd: Vec<_> = (0..4)
        .map(|_| Joining::with_system(&folder, join()))
        .collect();
    if is_root() {
        let full = |joining: &Result<Joining, Error>| matches!(joining, Err(Error::Silent { .. }));
        assert!(crowd.iter().any(full), "{crowd:?}");
    }
}

#[test]
fn the_answer_is_taken_when_it_is_there() {
    if !is_root() {
        eprintln!("skipped: nobody can play root's manager but root");
        return;
    }
    let (_keep, folder, socket) = listening(1);
    let joining = Joining::with_system(&folder, join()).unwrap();
    let Answer::NotYet(joining) = joining.answer().unwrap() else {
        panic!("nobody has answered");
    };
    let channel = Channel::from(rustix::net::accept(&socket).unwrap());
    match channel.receive::<ToManager>().unwrap().message {
        ToManager::Join(join) => assert_eq!(join.name.len(), MAX_TEXT),
        other => panic!("{other:?}"),
    }
    let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
    let (_progress, progress_page) = ProgressReader::create().unwrap();
    claim.grant(3, [0]);
    let welcome = ToProgram::Welcome {
        version: VERSION,
        features: features::MEMBERS,
        program: 7,
        rule: LocalRule::Whole,
    };
    let pages = [claim_page.as_fd(), progress_page.as_fd()];
    channel.send(&welcome, &pages).unwrap();
    let Answer::Joined(joined) = joining.answer().unwrap() else {
        panic!("it was answered");
    };
    assert_eq!(joined.claim.granted().threads, 3);
    assert_eq!((joined.program, joined.features), (7, features::MEMBERS));

    // Others: refused, and gone.
    let refused = Joining::with_system(&folder, join()).unwrap();
    let channel = Channel::from(rustix::net::accept(&socket).unwrap());
    let why = ToProgram::Refused("not you".to_owned());
    channel.send(&why, &[]).unwrap();
    assert!(matches!(refused.answer(), Err(Error::Refused(_))));
    let left = Joining::with_system(&folder, join()).unwrap();
    drop(rustix::net::accept(&socket).unwrap());
    assert!(left.answer().is_err());
}
