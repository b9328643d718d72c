//! The service manager (systemd), if one has started us: it is told how we are, and keeps descriptors.
//!
//! What is kept are the connections of programs, and nothing else. State is soft, and claim pages are
//! sealed so that nobody but who made them can ever write to them; what a manager that is killed takes
//! with it for good are the connections, whose end tells its programs that no claim binds any more. A
//! connection that is kept does not end: the programs stay within their claims, and the next manager, to
//! which it is passed, asks them on it to join again. Should no next manager come, the service manager
//! drops it, and that is the end of the connection as ever.
//!
//! A connection that is kept ends only when it is shut down: closing our descriptor is not enough. The
//! service manager notices that itself, as it does when the program ends, and keeps it no longer.
//!
//! These few lines are our own (sd_notify(3), sd_listen_fds(3)): they must not block the one thread that
//! everything waits for, as the crates that are there for it do when the service manager is busy.

use crate::connection::Connection;
use crate::listen::is_connection;
use crate::waiter::now_ns;
use crate::world::{LinuxWorld, of_connection};
use corewise_abi::message::ToProgram;
use corewise_wire::Channel;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the descriptors are called that are kept for us.
const NAME: &str = "program";

/// How long the programs of the manager before us are waited for before anything is decided, in
/// nanoseconds.
const PATIENCE_NS: u64 = 50_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    to: Option<(OwnedFd, SocketAddrUnix)>,
}

impl ServiceManager {
    /// The one that NOTIFY_SOCKET names; without it, nothing happens.
    pub(crate) fn of_environment() -> ServiceManager {
        let path = std::env::var_os("NOTIFY_SOCKET");
        let to = path.and_then(|path| {
            let path = path.as_encoded_bytes();
            let address = match path.split_first() {
                Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name),
                _ => SocketAddrUnix::new(path),
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let kind = SocketType::DGRAM;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
            Some((socket.ok()?, address.ok()?))
        });
        ServiceManager { to }
    }

    /// Says how we are. A service manager that does not listen is none.
    pub(crate) fn tell(&self, state: &str) {
        self.send(state, &[]);
    }

    /// Has a connection kept until it ends. Whether it is: not without a service manager, nor by one that
    /// is too busy now. Costs some µs.
    pub(crate) fn keep(&self, connection: &Channel) -> bool {
        self.send(&format!("FDSTORE=1\nFDNAME={NAME}"), &[connection.as_fd()])
    }

    fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> bool {
        let Some((socket, address)) = &self.to else {
            return false;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return false;
        }
        let text = &[IoSlice::new(text.as_bytes())];
        rustix::net::sendmsg_addr(socket, address, text, &mut control, SendFlags::NOSIGNAL).is_ok()
    }
}

/// What the service manager has passed to us.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// The socket to listen on.
    pub(crate) listener: Option<OwnedFd>,
    /// Connections that were kept for the manager before us.
    pub(crate) connections: Vec<OwnedFd>,
}

impl Passed {
    /// Sorts descriptors by their names; of those that are neither the first socket nor a connection,
    /// nothing is known, and they are closed.
    pub(crate) fn sorted(passed: Vec<(OwnedFd, Option<String>)>) -> Passed {
        let mut sorted = Passed::default();
        for (fd, name) in passed {
            if name.as_deref() == Some(NAME) {
                if is_connection(&fd) {
                    sorted.connections.push(fd);
                }
            } else if sorted.listener.is_none() {
                sorted.listener = Some(fd);
            }
        }
        sorted
    }
}

impl LinuxWorld<'_> {
    /// Takes over connections from the manager before us, and asks their programs to join again. Their
    /// claims are held back for a moment until all have done so: each decision would be wrong without the
    /// others.
    pub(crate) fn take_over(&mut self, connections: Vec<OwnedFd>) {
        for fd in connections {
            let channel = Channel::from(fd).with_patience(std::time::Duration::ZERO);
            let (Ok(peer), true) = (
                channel.peer(),
                rustix::io::ioctl_fionbio(&channel, true).is_ok(),
            ) else {
                channel.shut_down();
                continue;
            };
            let id = self.next_connection;
            self.next_connection += 1;
            if self.waiter.add(&channel, of_connection(id)).is_err() {
                channel.shut_down();
                continue;
            }
            let connection = Connection::restored(channel, peer);
            self.connections.insert(id, connection);
            self.say(id, [ToProgram::Again]);
        }
        self.restored_until_ns = now_ns().saturating_add(PATIENCE_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen, socket, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn what_is_passed_is_told_apart_by_its_name_and_kind() {
        let folder = tempfile::tempdir().unwrap();
        let listening = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let path = folder.path().join("socket");
        bind(&listening, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&listening, 1).unwrap();
        let program = || Some(NAME.to_owned());
        let (one, other) = pair();
        let named = Passed::sorted(vec![
            (
                listening.try_clone().unwrap(),
                Some("corewise.socket".to_owned()),
            ),
            (one, program()),
            (other, program()),
            (listening.try_clone().unwrap(), program()),
            (std::fs::File::open("/dev/null").unwrap().into(), program()),
            (listening.try_clone().unwrap(), Some("another".to_owned())),
        ]);
        assert!(named.listener.is_some());
        assert_eq!(named.connections.len(), 2);
        // Without names, as from older service managers: the socket, and nothing else.
        let (one, _other) = pair();
        let unnamed = Passed::sorted(vec![(listening, None), (one, None)]);
        assert!(unnamed.listener.is_some() && unnamed.connections.is_empty());
    }
}
