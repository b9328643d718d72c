//! What can keep a manager from running, or from being asked.

use std::io;
use std::path::{Path, PathBuf};

/// Why a manager cannot run, or cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another manager holds the lock of the runtime folder: there is one for each user.
    #[error("a manager runs already in {}{}; end it with `corewise manage --stop`", folder.display(), process(pid))]
    AlreadyRuns {
        /// The runtime folder.
        folder: PathBuf,
        /// Its process, if it could be read.
        pid: Option<i32>,
    },
    /// The policy is not to be had.
    #[error("the policy {name} cannot be used: {why}")]
    Policy {
        /// Which policy.
        name: String,
        /// Why not.
        why: String,
    },
    /// A file of the runtime folder, or a policy's, cannot be used.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A system call without which no manager can run has failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The socket that the service manager has passed is of another kind.
    #[error(
        "the socket that was passed (LISTEN_FDS) is not one of SOCK_SEQPACKET; use ListenSequentialPacket= in the socket unit"
    )]
    Activation,
    /// A manager that was to be started did not come to listen.
    #[error(
        "`{} manage --on-demand` did not listen within {seconds} s; start it by hand to see why", command.display()
    )]
    NotStarted {
        /// The command that was started.
        command: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// What a manager said of itself cannot be read.
    #[error("the manager's answer cannot be read: {why}; is it of another version?")]
    Answer {
        /// What is wrong with it.
        why: String,
    },
    /// The journal cannot be read.
    #[error("{} line {line} is no line of a journal: {why}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The machine cannot be read.
    #[error(transparent)]
    Machine(#[from] corewise_machine::Error),
    /// The other side of the socket, or the runtime folder.
    #[error(transparent)]
    Wire(#[from] corewise_wire::Error),
}

impl Error {
    /// Turns a failure with the file at `path` into an error that says what was to be done.
    pub(crate) fn file<E: Into<std::io::Error>>(
        what: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Error {
        move |source| Error::File {
            what,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Turns a system call's failure into an error that says what was to be done.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::System {
            what,
            source: errno.into(),
        }
    }
}

fn process(pid: &Option<i32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (process {pid})"))
}
