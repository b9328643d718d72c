//! Messages and descriptors arrive as they were sent, and nothing that the other side does panics,
//! hangs or leaks.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_wire::abi::message::{Join, MAX_MESSAGE, Placement, ToManager, ToProgram, Wants};
use corewise_wire::{Channel, Error};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn channels() -> (Channel, Channel) {
    let (a, b) = pair();
    (a.into(), b.into())
}

fn join() -> ToManager {
    ToManager::Join(Join {
        version: 1,
        features: 0,
        pid: 17,
        name: "render".to_owned(),
        wants: Wants {
            min_threads: 1,
            max_threads: 8,
            placement: Placement::Scatter,
            malleable: true,
        },
    })
}

#[test]
fn a_message_arrives_as_it_was_sent() {
    let (a, b) = channels();
    a.send(&join(), &[]).unwrap();
    a.send(&ToManager::Threads(3), &[]).unwrap();
    assert_eq!(b.receive::<ToManager>().unwrap().message, join());
    let second = b.receive::<ToManager>().unwrap();
    assert_eq!(second.message, ToManager::Threads(3));
    assert!(second.fds.is_empty());
    assert!(matches!(b.receive::<ToManager>(), Err(Error::WouldBlock)));
}

#[test]
fn descriptors_come_with_their_message_and_close_on_exec() {
    let (a, b) = channels();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"page").unwrap();
    file.rewind().unwrap();
    a.send(&ToProgram::Done, &[file.as_fd(), a.as_fd()])
        .unwrap();
    let received = b.receive::<ToProgram>().unwrap();
    assert_eq!(received.fds.len(), 2);
    let flags = rustix::io::fcntl_getfd(&received.fds[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let mut text = String::new();
    let first = received.fds.into_iter().next().unwrap();
    File::from(first).read_to_string(&mut text).unwrap();
    assert_eq!(text, "page");
}

#[test]
fn descriptors_of_what_is_no_message_are_closed() {
    let (a, b) = pair();
    let b = Channel::from(b);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [writer.as_fd()];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let bytes = std::io::IoSlice::new(&[0xff; 9]);
    rustix::net::sendmsg(&a, &[bytes], &mut control, SendFlags::empty()).unwrap();
    drop(writer);
    let error = b.receive::<ToManager>().unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    // The pipe has no writer any more: its end is read at once.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
}

#[test]
fn the_other_sides_end_is_closed_on_both_ways() {
    let (a, b) = channels();
    a.send(&ToManager::Status, &[]).unwrap();
    drop(a);
    // What was sent before the end still arrives.
    assert_eq!(b.receive::<ToManager>().unwrap().message, ToManager::Status);
    assert!(matches!(b.receive::<ToManager>(), Err(Error::Closed)));
    assert!(matches!(b.send(&ToProgram::Done, &[]), Err(Error::Closed)));
}

#[test]
fn a_connection_that_is_shut_down_ends_whoever_else_holds_it_and_what_was_sent_arrives() {
    let (one, other) = pair();
    let held = one.try_clone().unwrap();
    let (one, other) = (Channel::from(one), Channel::from(other));
    one.send(&ToProgram::Done, &[]).unwrap();
    drop(one);
    assert_eq!(
        other.receive::<ToProgram>().unwrap().message,
        ToProgram::Done
    );
    let open = other.receive::<ToProgram>();
    assert!(matches!(open, Err(Error::WouldBlock)), "{open:?}");
    let again = Channel::from(held.try_clone().unwrap());
    again.send(&ToProgram::Done, &[]).unwrap();
    again.shut_down();
    assert_eq!(
        other.receive::<ToProgram>().unwrap().message,
        ToProgram::Done
    );
    let ended = other.receive::<ToProgram>();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    drop(held);
}

#[test]
fn a_packet_that_is_too_long_is_malformed() {
    let (a, b) = pair();
    let b = Channel::from(b);
    rustix::net::send(&a, &[0; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
    assert!(matches!(
        b.receive::<ToManager>(),
        Err(Error::Malformed { .. })
    ));
    let part = ToProgram::Part {
        more: false,
        bytes: vec![0; MAX_MESSAGE],
    };
    assert!(matches!(b.send(&part, &[]), Err(Error::Malformed { .. })));
}

#[test]
fn an_empty_packet_ends_the_connection() {
    let (a, b) = pair();
    let b = Channel::from(b);
    rustix::net::send(&a, &[], SendFlags::empty()).unwrap();
    assert!(matches!(b.receive::<ToManager>(), Err(Error::Closed)));
}

#[test]
fn whoever_does_not_read_holds_nobody_up() {
    let (a, _unread) = channels();
    let a = a.with_patience(Duration::ZERO);
    let part = ToProgram::Part {
        more: true,
        bytes: vec![7; 4000],
    };
    let full = (0..10_000).find_map(|_| a.send(&part, &[]).err());
    assert!(matches!(full, Some(Error::WouldBlock)), "{full:?}");
}

#[test]
fn the_peer_is_this_process() {
    let (a, _b) = channels();
    let peer = a.peer().unwrap();
    assert_eq!(peer.pid.unsigned_abs(), std::process::id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
}

#[test]
fn where_nobody_listens_there_is_no_manager() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manager.sock");
    let missing = Channel::connect(&path).unwrap_err();
    assert!(matches!(missing, Error::NoManager { .. }), "{missing}");
    // A socket whose manager was killed.
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let dead = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&dead, &address).unwrap();
    drop(dead);
    let stale = Channel::connect(&path).unwrap_err();
    assert!(matches!(stale, Error::NoManager { .. }), "{stale}");
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 1..600)) {
        let (a, b) = pair();
        let b = Channel::from(b);
        rustix::net::send(&a, &bytes, SendFlags::empty()).unwrap();
        rustix::net::send(&a, &bytes, SendFlags::empty()).unwrap();
        let _ = b.receive::<ToManager>();
        let _ = b.receive::<ToProgram>();
        prop_assert!(matches!(b.receive::<ToManager>(), Err(Error::WouldBlock)));
    }
}
