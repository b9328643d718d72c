//! What tests share that play a manager.

use corewise_wire::Folder;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;

/// The socket of a folder, for one who joins.
pub(crate) fn listen(folder: &Folder) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new(folder.socket()).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    socket
}
