//! The socket on which a manager listens.

use crate::{Error, Options};
use corewise_wire::Channel;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    /// Where it is, if we made it: then it is ours to remove.
    path: Option<PathBuf>,
    /// A descriptor kept back, so that a connection can be turned away when there are no more.
    spare: Option<OwnedFd>,
}

/// What came of accepting.
pub(crate) enum Accepted {
    /// A connection.
    Channel(Channel),
    /// One that could not be kept: there are too many open files.
    TurnedAway,
    /// Nobody waits.
    Nobody,
}

impl Listener {
    /// The socket that the service manager passed, or a new one in the folder, in place of what a
    /// killed manager left. Only the elected manager may call this. Where it is the system's, everyone can
    /// reach it from then on; whose process it is that does, the kernel says.
    ///
    /// # Errors
    /// [`Error::Activation`], [`Error::System`], [`Error::File`].
    pub(crate) fn open(options: &Options, passed: Option<OwnedFd>) -> Result<Listener, Error> {
        let spare = rustix::io::dup(std::io::stderr()).ok();
        if let Some(socket) = passed {
            let kind = rustix::net::sockopt::socket_type(&socket);
            if kind != Ok(SocketType::SEQPACKET) {
                return Err(Error::Activation);
            }
            rustix::io::ioctl_fionbio(&socket, true).map_err(Error::system("use the socket"))?;
            return Ok(Listener {
                socket,
                path: None,
                spare,
            });
        }
        let path = options.folder.socket();
        let fail = |what| Error::file::<Errno>(what, &path);
        match rustix::fs::unlink(&path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(fail("remove the old socket")(errno)),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(Error::system("make a socket"))?;
        let address = SocketAddrUnix::new(&path)
            .map_err(fail("listen (the path may have 107 bytes) on the socket"))?;
        rustix::net::bind(&socket, &address).map_err(fail("listen on the socket"))?;
        // Nobody can connect before it listens. The folder keeps others out, too, unless they may.
        let own = Mode::RUSR | Mode::WUSR;
        let everyone = own | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        let mode = if options.everyone { everyone } else { own };
        rustix::fs::chmod(&path, mode).map_err(fail("protect the socket"))?;
        if options.everyone {
            options.folder.let_everyone_in()?;
        }
        rustix::net::listen(&socket, BACKLOG).map_err(fail("listen on the socket"))?;
        Ok(Listener {
            socket,
            path: Some(path),
            spare,
        })
    }

    /// Accepts a connection if one waits.
    pub(crate) fn accept(&mut self) -> Accepted {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => {
                    let channel = Channel::from(socket).with_patience(Duration::ZERO);
                    return Accepted::Channel(channel);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // Left waiting, it would wake us up again and again.
                    self.spare = None;
                    let turned_away = rustix::net::accept_with(&self.socket, flags).is_ok();
                    self.spare = rustix::io::dup(std::io::stderr()).ok();
                    return match turned_away {
                        true => Accepted::TurnedAway,
                        false => Accepted::Nobody,
                    };
                }
                Err(_) => return Accepted::Nobody,
            }
        }
    }

    /// Takes the socket out of the folder, so that nobody can connect any more; those who wait can
    /// still be accepted. Whether it was ours: one that was passed stays, and whoever passed it starts
    /// the next manager for those who connect.
    pub(crate) fn withdraw(&mut self) -> bool {
        let Some(path) = self.path.take() else {
            return false;
        };
        // Gone already: somebody cleaned up.
        let _ = rustix::fs::unlink(path);
        true
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Whether a descriptor is a connection of the kind that we accept.
pub(crate) fn is_connection(fd: &OwnedFd) -> bool {
    let kind = rustix::net::sockopt::socket_type(fd);
    kind == Ok(SocketType::SEQPACKET) && rustix::net::sockopt::socket_acceptconn(fd) == Ok(false)
}
