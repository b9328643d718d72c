//! The system call for which rustix has no sound wrapper.
//!
//! Safety: the one call writes at most as many bytes as it is told into a value that this function
//! owns, of a type for which every bit pattern is valid.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Process and user at the other end of a Unix socket, as they were when it connected. The process
/// is 0 if it lives in a PID namespace that cannot be seen from here (rustix's type for it does not
/// allow that, hence this function).
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` and `length` are valid for writes during the call, `length` is the true size.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok((found.pid, found.uid)),
        _ => Err(io::Error::last_os_error()),
    }
}
