//! The socket on which a manager listens.

use crate::{Error, sys};
use corewise_wire::{Channel, Folder};
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
    /// killed manager left. Only the elected manager may call this.
    ///
    /// # Errors
    /// [`Error::Activation`], [`Error::System`], [`Error::File`].
    pub(crate) fn open(folder: &Folder, activated: bool) -> Result<Listener, Error> {
        let spare = rustix::io::dup(std::io::stderr()).ok();
        let passed = activated.then(sys::passed_socket).flatten();
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
        let path = folder.socket();
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
        // Nobody can connect before it listens. The folder keeps others out anyway.
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR).map_err(fail("protect the socket"))?;
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
