//! What can go wrong when the machine is read.

use std::io;
use std::path::PathBuf;

/// Why something about the machine could not be learned: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that has to be there could not be read.
    #[error("cannot read {}: {source}; {advice}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// A file says something that this reader does not understand.
    #[error("{} says {found:?} where {expected} was expected; please report the file's content", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The text found, at most its first 80 characters.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The process is not there.
    #[error(
        "there is no process {pid} in this PID namespace; it may have ended: check the number with ps"
    )]
    NoProcess {
        /// The process that was asked for.
        pid: i32,
    },
    /// The CPUs that a process may use could not be found out at all.
    #[error(
        "cannot tell which CPUs may be used: {why}; mount /proc, or give the number of threads yourself"
    )]
    NoCpus {
        /// What was tried.
        why: String,
    },
    /// A description of a topology was refused.
    #[error("cannot build a topology from {what}: {why}; {advice}")]
    Topology {
        /// What it was to be made from.
        what: String,
        /// What hwloc, or a check before it, said.
        why: String,
        /// What to do about it.
        advice: &'static str,
    },
}

impl Error {
    pub(crate) fn parse(path: impl Into<PathBuf>, found: &str, expected: &'static str) -> Self {
        Self::Parse {
            path: path.into(),
            found: found.chars().take(80).collect(),
            expected,
        }
    }
}
