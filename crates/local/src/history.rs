//! What was learned about a program stays: the curve of speed over threads, whether it spins, what
//! was chosen. The next run recalls it in a few milliseconds instead of searching.
//!
//! - [`key`]: under what a result is kept. Pure functions.
//! - [`record`]: what is kept.
//! - [`whole`]: times of whole runs, beside the result that they used.
//! - [`store`]: the SQLite file: [`History`].
//!
//! **Where.** `$COREWISE_HISTORY` if set; else `$XDG_STATE_HOME/corewise/history.sqlite`; else
//! `~/.local/state/corewise/history.sqlite`, for root as for everybody. The file is 0600, a folder
//! that corewise makes 0700.
//!
//! **Never in the way.** History is a convenience: whatever fails here (full disk, unwritable folder,
//! damaged file, a newer corewise's file) is a typed error that says what still works, and the
//! caller warns and goes on without. A damaged file is moved aside, and a new one begun.
//!
//! **Several at once, killed at any moment.** SQLite in WAL mode on local file systems: readers are
//! never blocked, a commit is one append, and what a killed process left half-written is ignored by
//! the next. On network file systems, where WAL's shared memory cannot work, a rollback journal is
//! used. Each change is one immediate transaction.

mod file;
pub mod key;
pub mod record;
pub mod store;
#[cfg(test)]
mod tests;
pub mod whole;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use key::{Key, MachineKey, ProgramKey};
pub use record::{Entry, Point, Record, Wait};
pub use store::{Forget, History, Listing};
pub use whole::WholeRuns;

/// Why history cannot be used, and what still works.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Neither variable nor home says where the file belongs.
    #[error(
        "no place for the history: none of COREWISE_HISTORY, XDG_STATE_HOME and HOME is set; nothing is remembered until one is"
    )]
    NoPlace,
    /// The file or its folder could not be made or opened.
    #[error("the history {path} cannot be opened: {why}; going on without it. Make the folder writable, or set COREWISE_HISTORY to another file", path = path.display())]
    Open {
        /// The history's file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Others held the file for longer than was waited for.
    #[error("the history {path} is in use by others; going on without it this time", path = path.display())]
    Busy {
        /// The history's file.
        path: PathBuf,
    },
    /// No space left.
    #[error("the history {path} cannot grow, its disk is full: what is there can be recalled, nothing new is remembered. Free some space, or set COREWISE_HISTORY to another file", path = path.display())]
    Full {
        /// The history's file.
        path: PathBuf,
    },
    /// Readable but not writable.
    #[error("the history {path} cannot be written: what is there can be recalled, nothing new is remembered. Make file and folder writable, or set COREWISE_HISTORY to another file", path = path.display())]
    ReadOnly {
        /// The history's file.
        path: PathBuf,
    },
    /// Not, or no longer, a history.
    #[error("the history {} is damaged{}", path.display(), match moved_to {
        Some(to) => format!(" and was moved to {}; a new one is begun", to.display()),
        None => "; going on without it. Remove it, or set COREWISE_HISTORY to another file".into(),
    })]
    Corrupt {
        /// The history's file.
        path: PathBuf,
        /// Where the damaged file is now, if it could be moved.
        moved_to: Option<PathBuf>,
    },
    /// Written by a newer corewise.
    #[error("the history {path} was written by a newer corewise (version {theirs} of its layout, this one knows {ours}): it is left alone. Update corewise, or set COREWISE_HISTORY to another file", path = path.display())]
    Newer {
        /// The history's file.
        path: PathBuf,
        /// The file's version.
        theirs: i64,
        /// The newest version that this corewise knows.
        ours: i64,
    },
    /// One result could not be read.
    #[error(
        "result {id} in the history cannot be read ({why}): it will be replaced by the next search; `corewise history forget {id}` removes it now"
    )]
    Record {
        /// The result's number.
        id: i64,
        /// What was wrong.
        why: String,
    },
    /// Anything else that SQLite reports.
    #[error("the history {path} failed: {why}; going on without it", path = path.display())]
    Sqlite {
        /// The history's file.
        path: PathBuf,
        /// What SQLite said.
        why: String,
    },
}

/// Where the history is, by this process's environment.
///
/// # Errors
/// [`HistoryError::NoPlace`].
pub fn default_path() -> Result<PathBuf, HistoryError> {
    path_from(|name| std::env::var_os(name))
}

fn path_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, HistoryError> {
    let set = |name| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = set("COREWISE_HISTORY") {
        return Ok(path);
    }
    // The XDG specification: a relative path is to be ignored.
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let state = set("XDG_STATE_HOME").and_then(absolute).or_else(|| {
        set("HOME")
            .and_then(absolute)
            .map(|home| home.join(Path::new(".local/state")))
    });
    state
        .map(|s| s.join("corewise/history.sqlite"))
        .ok_or(HistoryError::NoPlace)
}
