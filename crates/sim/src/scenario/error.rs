//! What is wrong with a scenario.

use std::io;
use std::path::{Path, PathBuf};

/// A scenario that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Something in a file is wrong.
    #[error("{}:{line}: {why}", path.display())]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1 on.
        line: usize,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A file that the scenario names is wrong; its own error says where.
    #[error("{}: {why}", path.display())]
    Within {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with the line where that is known.
        why: String,
    },
}

impl ScenarioError {
    pub(super) fn file(path: &Path, error: &io::Error) -> ScenarioError {
        ScenarioError::File {
            path: path.to_owned(),
            why: error.to_string(),
        }
    }

    pub(super) fn within(path: &Path, why: impl std::fmt::Display) -> ScenarioError {
        ScenarioError::Within {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }
}

/// The line (from 1 on) of a place in a text.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    1 + before.filter(|byte| **byte == b'\n').count()
}
