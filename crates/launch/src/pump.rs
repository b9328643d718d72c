//! Gives a program the part of a pipe that was taken for probes, then the live rest.
//!
//! A process of its own, not a thread: if corewise dies, the program still gets all its input.
//!
//! # Safety
//! The new process is a copy of one that may have had other threads, so it makes system calls and
//! nothing else. It uses descriptors that were open when it was made, and a buffer of its own.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::exec::errno;
use crate::signals;

/// Starts copying `kept`, then standard input, to `to`. Returns the process's number.
pub(crate) fn start(kept: &File, to: &OwnedFd) -> io::Result<i32> {
    let (kept, to) = (kept.as_raw_fd(), to.as_raw_fd());
    // All signals stay blocked in there: it ends when its work does, not by Ctrl-C.
    let old = signals::change_mask(libc::SIG_SETMASK, &signals::all());
    // SAFETY: a copy of this process that only runs `copy_all`.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(libc::SIGCHLD),
            0,
            0,
            0,
            0,
        )
    };
    if pid == 0 {
        close_all_but([0, kept, to]);
        copy_all(kept, to);
        // SAFETY: ends the copy without running anything of the original.
        unsafe { libc::_exit(0) }
    }
    let error = io::Error::last_os_error();
    signals::change_mask(libc::SIG_SETMASK, &old);
    if pid < 0 { Err(error) } else { Ok(pid as i32) }
}

/// Others must see the end of their pipes.
fn close_all_but(keep: [i32; 3]) {
    // SAFETY: nothing in this copy uses the other descriptors.
    unsafe {
        let (low, high) = if keep[1] < keep[2] {
            (keep[1], keep[2])
        } else {
            (keep[2], keep[1])
        };
        for (from, to) in [(1, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
            if from <= to {
                libc::syscall(libc::SYS_close_range, from, to, 0);
            }
        }
    }
}

fn copy_all(kept: i32, to: i32) {
    let mut buffer = [0u8; 1 << 16];
    for from in [kept, 0] {
        loop {
            if from == 0 && !wait_for_input(to) {
                return;
            }
            // SAFETY: at most as many bytes as the buffer has.
            let n = unsafe { libc::read(from, buffer.as_mut_ptr().cast(), buffer.len()) };
            match n {
                0 => break,
                n if n > 0 => {
                    let n = n.cast_unsigned();
                    if !write_all(to, buffer.get(..n).unwrap_or(&[])) {
                        return;
                    }
                }
                _ if [libc::EINTR, libc::EAGAIN].contains(&errno()) => {}
                _ => return,
            }
        }
    }
}

/// Waits for input; false when nobody reads our output any more.
fn wait_for_input(to: i32) -> bool {
    let mut polled = [
        libc::pollfd {
            fd: 0,
            events: libc::POLLIN,
            revents: 0,
        },
        libc::pollfd {
            fd: to,
            events: 0,
            revents: 0,
        },
    ];
    // SAFETY: two entries, as stated.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
    polled[1].revents & libc::POLLERR == 0
}

fn write_all(to: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: as many bytes as there are. SIGPIPE is blocked, so a missing reader is an error.
        let n = unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
        if n < 0 {
            if errno() == libc::EINTR {
                continue;
            }
            return false;
        }
        bytes = bytes.get(n.cast_unsigned()..).unwrap_or(&[]);
    }
    true
}
