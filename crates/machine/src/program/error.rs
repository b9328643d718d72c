//! What can go wrong when a program is watched.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a program cannot be watched. A thread or process that ends while it is read is no error.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no such process, or it has ended.
    #[error("process {pid} does not exist: {path} is missing; watch a program before it ends")]
    NoSuchProcess {
        /// The process that was to be watched.
        pid: i32,
        /// What was looked for.
        path: PathBuf,
    },
    /// The proc file system is not there or shows other users' processes to nobody (`hidepid`).
    #[error(
        "cannot read {path}: {source}; watching a program needs a mounted proc file system that \
         shows this user's processes"
    )]
    Proc {
        /// The file that could not be read.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file was not as the kernel's documentation describes it.
    #[error("{path} says {found:?} where {expected} was expected")]
    Format {
        /// The file.
        path: PathBuf,
        /// What should have been there.
        expected: &'static str,
        /// The start of what was there.
        found: String,
    },
}

impl Error {
    /// Whether an I/O error only says that the thread or process is gone.
    pub(super) fn means_gone(error: &io::Error) -> bool {
        matches!(
            error.raw_os_error(),
            Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR)
        )
    }
}
