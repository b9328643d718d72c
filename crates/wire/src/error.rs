//! What can go wrong between manager and programs.

use std::io;
use std::path::PathBuf;

/// Why the other side could not be reached or understood. A program that meets any of these runs on
/// unmanaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens in the runtime folder.
    #[error("no manager listens at {}; start one with `corewise manage`", path.display())]
    NoManager {
        /// The socket that was tried.
        path: PathBuf,
    },
    /// The other side has closed the connection, or has died.
    #[error("the other side has closed the connection")]
    Closed,
    /// Nothing to be received now, or no room to send now.
    #[error("the connection is not ready; try again when it is")]
    WouldBlock,
    /// The other side sent something that is no message. The connection is of no more use.
    #[error("the other side sent no message of this protocol ({why}); is it of another version?")]
    Malformed {
        /// What was wrong with it.
        why: corewise_abi::message::Malformed,
    },
    /// The other side answered with a message that does not belong here.
    #[error("the other side gave an unexpected answer: {what}; is it of another version?")]
    Unexpected {
        /// What was unexpected.
        what: &'static str,
    },
    /// The manager does not answer in time.
    #[error("the manager has not answered within {seconds} s; it may be stopped or overloaded")]
    Silent {
        /// How long was waited.
        seconds: f64,
    },
    /// The manager refuses.
    #[error("the manager refuses: {0}")]
    Refused(String),
    /// Whoever listens on the socket is neither this user nor root.
    #[error(
        "the process behind the manager's socket belongs to user {uid}, who is neither this user nor root; it is not talked to"
    )]
    ForeignPeer {
        /// Whose it is.
        uid: u32,
    },
    /// The runtime folder cannot be used.
    #[error("the runtime folder {} cannot be used: {why}; set COREWISE_RUNTIME_DIR to a folder that only you can write to", path.display())]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A descriptor is not a page that could be mapped without danger.
    #[error("what was received is no {page} page: {why}")]
    Page {
        /// `claim` or `progress`.
        page: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl Error {
    /// Turns a system call's failure into an error that says what was to be done.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::System {
            what,
            source: errno.into(),
        }
    }
}
