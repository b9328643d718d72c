//! One connection between a manager and a program: packets that are messages, with descriptors.

use crate::{Error, sys};
use corewise_abi::message::{MAX_MESSAGE, Malformed, decode, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Descriptors that one packet may carry; the kernel closes what is beyond them.
const MOST_FDS: usize = 4;

/// How long [`Channel::send`] waits for room, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(1);

/// One SOCK_SEQPACKET connection, closed on exec. It never blocks in [`receive`](Channel::receive),
/// and in [`send`](Channel::send) only as long as its patience allows.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    patience: Duration,
}

/// A message, and the descriptors that came with it (at most four; they close themselves).
#[derive(Debug)]
pub struct Received<T> {
    /// The message.
    pub message: T,
    /// Descriptors, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// Who is at the other end; the kernel vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that connected (or that listens), as our PID namespace numbers it; 0 if it has no
    /// number here.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
}

impl From<OwnedFd> for Channel {
    /// Takes over a connected SOCK_SEQPACKET socket.
    fn from(socket: OwnedFd) -> Channel {
        Channel {
            socket,
            patience: PATIENCE,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.socket
    }
}

impl Channel {
    /// Connects to a manager's socket.
    ///
    /// # Errors
    /// [`Error::NoManager`] if nobody listens there, [`Error::Silent`] if its queue of connections
    /// stays full for a second, [`Error::System`].
    pub fn connect(path: &Path) -> Result<Channel, Error> {
        Channel::connect_within(path, PATIENCE)
    }

    /// Connects to a manager's socket, and waits for room in its queue of connections for at most
    /// `patience`; the same is the patience of the channel ([`Channel::with_patience`]).
    ///
    /// # Errors
    /// As [`connect`](Channel::connect).
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Channel, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(Error::system("make a socket"))?;
        let address = SocketAddrUnix::new(path).map_err(Error::system(
            "use the path of the manager's socket (at most 107 bytes)",
        ))?;
        let until = Instant::now() + patience;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Ok(Channel { socket, patience }),
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => {
                    let path = path.to_owned();
                    return Err(Error::NoManager { path });
                }
                // A full queue cannot be polled for.
                Err(Errno::AGAIN) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::AGAIN) => {
                    let seconds = patience.as_secs_f64();
                    return Err(Error::Silent { seconds });
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system("connect to the manager's socket")(errno)),
            }
        }
    }

    /// How long [`send`](Channel::send) may wait for room; a second unless set here. A manager sets
    /// zero: a program that does not read must not hold up the others.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Channel {
        Channel { patience, ..self }
    }

    /// Sends a message with descriptors (at most four). Never raises SIGPIPE. Costs about 3 µs.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::WouldBlock`] if the other side has not made room within the
    /// channel's patience; [`Error::Malformed`] if the message is too long; [`Error::System`].
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let bytes = encode(message).map_err(|why| Error::Malformed { why })?;
        let mut until = None;
        loop {
            match self.send_packet(&bytes, fds) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let until = *until.get_or_insert_with(|| Instant::now() + self.patience);
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() || !self.poll(PollFlags::OUT, left)? {
                        return Err(Error::WouldBlock);
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
                Err(errno) => return Err(Error::system("send a message")(errno)),
            }
        }
    }

    /// Ends the connection on both sides, whoever else holds a descriptor of it. What was sent can still be
    /// received.
    pub fn shut_down(&self) {
        // It fails where it has ended already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn send_packet(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)
    }

    /// Receives a message if one is there. Descriptors that come with it are closed on exec. Costs
    /// about 2 µs.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none; [`Error::Closed`] at the end; [`Error::Malformed`] if
    /// it is no message (whatever came with it is closed); [`Error::System`].
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Received<T>, Error> {
        let mut bytes = [0_u8; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let packet = loop {
            let buffers = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.socket, buffers, &mut control, flags) {
                Ok(packet) => break packet,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Error::WouldBlock),
                Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
                Err(errno) => return Err(Error::system("receive a message")(errno)),
            }
        };
        // Taken over first, so that they are closed whatever follows.
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if packet.flags.contains(ReturnFlags::TRUNC) {
            let why = Malformed::TooLong;
            return Err(Error::Malformed { why });
        }
        // No message is empty: an empty packet is as good as the end, which looks the same.
        let Some(bytes) = bytes.get(..packet.bytes).filter(|b| !b.is_empty()) else {
            return Err(Error::Closed);
        };
        let message = decode(bytes).map_err(|why| Error::Malformed { why })?;
        Ok(Received { message, fds })
    }

    /// Waits for a message for at most `timeout`, and receives it.
    ///
    /// # Errors
    /// As [`receive`](Channel::receive); [`Error::WouldBlock`] if none came in time.
    pub fn receive_within<T: DeserializeOwned>(
        &self,
        timeout: Duration,
    ) -> Result<Received<T>, Error> {
        let until = Instant::now() + timeout;
        loop {
            match self.receive() {
                Err(Error::WouldBlock) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() || !self.poll(PollFlags::IN, left)? {
                        return Err(Error::WouldBlock);
                    }
                }
                other => return other,
            }
        }
    }

    /// Whether the socket became ready in time (an interrupted wait counts as ready: look again).
    fn poll(&self, flags: PollFlags, timeout: Duration) -> Result<bool, Error> {
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(Error::system("wait for the connection")(errno)),
        }
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn peer(&self) -> Result<Peer, Error> {
        match sys::peer(self.socket.as_fd()) {
            Ok((pid, uid)) => Ok(Peer { pid, uid }),
            Err(source) => Err(Error::System {
                what: "ask who is at the other end of the connection",
                source,
            }),
        }
    }
}
