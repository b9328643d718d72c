//! Whatever bytes come, in whatever order, the manager lives, and an honest program keeps its claim.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Place, Player, join, join_as, own_pid, until, wants};
use corewise_abi::message::{MAX_MESSAGE, ToManager, Wants, encode};
use corewise_wire::Channel;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

#[test]
fn helper() {
    common::helper_main();
}

/// A connection without manners.
fn raw(place: &Place) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new(place.folder.socket()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    // The other side may have had enough of us.
    let _ = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
}

/// Whether the other side has closed the connection.
fn until_closed(socket: &OwnedFd) {
    let mut buffer = [0; MAX_MESSAGE];
    until("the connection is closed", || {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut buffer, flags) {
            Ok((_, length)) => length == 0,
            Err(rustix::io::Errno::AGAIN) => false,
            Err(_) => true,
        }
    });
}

#[test]
fn what_is_no_message_ends_its_connection_and_nothing_else() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let honest = join(&place, "honest");
    let too_early = [
        ToManager::Ask(wants(1, 2)),
        ToManager::Threads(1),
        ToManager::Answer {
            request: 0,
            yes: true,
        },
    ];
    let early = too_early.iter().map(|message| encode(message).unwrap());
    let bad = [vec![0xff; 9], vec![0; 1], vec![7; MAX_MESSAGE], vec![]];
    for bytes in bad.into_iter().chain(early) {
        let socket = raw(&place);
        send(&socket, &bytes);
        until_closed(&socket);
    }
    // Longer than a message can be.
    let socket = raw(&place);
    send(&socket, &[0; MAX_MESSAGE + 1]);
    until_closed(&socket);
    assert_eq!(place.programs().len(), 1);
    assert_eq!(honest.claim.granted().threads, 4);
}

#[test]
fn who_joins_twice_on_a_connection_has_left() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let joined = join(&place, "twice");
    let again = ToManager::Join(join_as(own_pid(), "twice", wants(1, 1)));
    joined.channel.send(&again, &[]).unwrap();
    place.until_programs(0);
}

#[test]
fn numbers_beyond_reason_are_bounded() {
    let place = Place::new();
    let period = std::time::Duration::from_millis(10);
    let _manager = Manager::start(&place, place.options("observe").period(period));
    let huge = Wants {
        min_threads: u32::MAX,
        max_threads: 0,
        ..wants(1, 1)
    };
    let join = join_as(own_pid(), &"é".repeat(2000), huge);
    let joined = corewise_wire::join(&place.folder, join).unwrap();
    joined
        .channel
        .send(&ToManager::Threads(u32::MAX), &[])
        .unwrap();
    for field in [
        &joined.progress.team,
        &joined.progress.could_use,
        &joined.progress.blocked,
    ] {
        field.store(u32::MAX, Ordering::Relaxed);
    }
    joined.progress.progress.store(u64::MAX, Ordering::Relaxed);
    until("readings", || place.programs()[0]["uses"].is_number());
    joined.progress.progress.store(0, Ordering::Relaxed);
    until("its threads", || place.programs()[0]["threads"] == 65_536);
    let most = corewise_decide::global::MOST_THREADS;
    assert!(joined.claim.granted().threads <= most);
}

#[test]
fn who_asks_and_does_not_read_is_not_waited_for() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let many: Vec<_> = (0..60)
        .map(|n| join(&place, &format!("program {n}")))
        .collect();
    let socket = raw(&place);
    let ask = encode(&ToManager::Status).unwrap();
    for _ in 0..2_000 {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if rustix::net::send(&socket, &ask, flags).is_err() {
            break;
        }
    }
    assert_eq!(place.programs().len(), many.len());
}

#[test]
fn who_floods_does_not_keep_others_out() {
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let flooding = join(&place, "flood");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut threads = 0;
            while !stop.load(Ordering::Relaxed) {
                threads += 1;
                let _ = flooding.channel.send(&ToManager::Threads(threads), &[]);
            }
        });
        for n in 0..20 {
            drop(join(&place, &format!("guest {n}")));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(place.programs()[0]["name"], "flood");
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let place = Place::new();
    let mut manager = Player::start("manager", &place);
    until("it listens", || place.listens());
    let joined = join(&place, "generous");
    let count = || {
        std::fs::read_dir(format!("/proc/{}/fd", manager.pid()))
            .unwrap()
            .count()
    };
    until("few descriptors", || count() < 20);
    let before = count();
    for n in 0..200 {
        let fds = [joined.channel.as_fd(); 4];
        joined.channel.send(&ToManager::Threads(n), &fds).unwrap();
    }
    until("all are heard", || place.programs()[0]["threads"] == 199);
    until("as many descriptors as before", || count() <= before);
    manager.kill();
}

#[test]
fn more_connections_than_there_is_room_for_are_turned_away_and_room_comes_back() {
    let place = Place::new();
    let _manager = Player::start("manager with few files", &place);
    until("it listens", || place.listens());
    let honest = join(&place, "honest");
    // The manager closes those that it has no room for; these stay open as long as we like.
    let crowd: Vec<OwnedFd> = (0..200).map(|_| raw(&place)).collect();
    until_closed(&crowd[199]);
    let seen = honest.claim.granted().generation;
    let ask = ToManager::Ask(wants(1, 9));
    honest.channel.send(&ask, &[]).unwrap();
    assert!(honest.claim.wait(seen, Some(common::LONG)));
    drop(crowd);
    until("there is room again", || {
        let again = join_as(own_pid(), "again", wants(1, 1));
        corewise_wire::join(&place.folder, again).is_ok()
    });
}

#[test]
fn another_users_process_is_not_talked_to() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    // Root's manager serves everyone, if the folder lets them in; what is checked here is that the
    // usual folder does not.
    let place = Place::new();
    let _manager = Manager::observing(&place);
    let status = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["test", "-e"])
        .arg(place.folder.socket())
        .status();
    match status {
        Ok(status) => assert!(!status.success()),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn no_bytes_end_a_manager(
        packets in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..200), 1..40,
        ),
        joins in any::<bool>(),
    ) {
        let place = Place::new();
        let manager = Manager::observing(&place);
        let honest = join(&place, "honest");
        let socket = raw(&place);
        if joins {
            let join = ToManager::Join(join_as(own_pid(), "hostile", wants(1, 1)));
            send(&socket, &encode(&join).unwrap());
        }
        for packet in &packets {
            send(&socket, packet);
        }
        drop(socket);
        place.until_programs(1);
        prop_assert_eq!(honest.claim.granted().threads, 4);
        prop_assert!(Channel::connect(&place.folder.socket()).is_ok());
        manager.stop().unwrap();
    }
}
