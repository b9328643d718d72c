//! How a program ended.
//!
//! # Safety
//! Blocks are system calls on values and on a struct that lives through the call.
#![allow(unsafe_code)]

use crate::signals;

/// Exit code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Signalled(i32),
}

impl Status {
    /// From a status as wait(2) has it.
    pub(crate) fn from_wait(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signalled(libc::WTERMSIG(status))
        } else {
            Self::Exited(libc::WEXITSTATUS(status))
        }
    }

    /// It exited with code 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The exit code as shells give it: 128 and the signal's number for a signal.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => 128 + signal,
        }
    }
}

/// What a real run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's process number (it is free again).
    pub pid: i32,
    /// From its start to its end, in nanoseconds.
    pub wall_ns: u64,
    /// User time of the program and the children that it waited for, in nanoseconds.
    pub user_ns: u64,
    /// System time of the same, in nanoseconds.
    pub system_ns: u64,
    /// The largest resident set among them, in bytes.
    pub max_rss_bytes: u64,
    /// Exit code or signal.
    pub status: Status,
}

impl Outcome {
    /// Ends this process as the program ended: with its exit code, or by the same signal, so that
    /// the shell sees no difference. There is no second core file.
    pub fn exit_like_program(&self) -> ! {
        if let Status::Signalled(signal) = self.status {
            signals::set_disposition(signal, false);
            signals::change_mask(libc::SIG_UNBLOCK, &signals::set_of(&[signal]));
            // SAFETY: system calls; this process is about to end.
            unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                // To this very thread, which then does not come to the lines below.
                libc::raise(signal);
            }
        }
        // For a signal, only reached if it did not kill us.
        std::process::exit(self.status.shell_code())
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Signalled(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}
