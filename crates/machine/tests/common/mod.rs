//! Unpacks made trees (see `tests/trees/README.md`).
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::path::{Path, PathBuf};

use corewise_machine::Root;
use tempfile::TempDir;

/// The folder of the made trees.
pub(crate) fn trees() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees")
}

/// A made tree in a folder of its own, which vanishes with it.
pub(crate) struct Tree {
    folder: TempDir,
    pub(crate) root: Root,
}

impl Tree {
    /// One of the files in `tests/trees`, by its name without the ending.
    pub(crate) fn named(name: &str) -> Self {
        let path = trees().join(format!("{name}.tree"));
        Self::of(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}")))
    }

    /// One written out in a test.
    pub(crate) fn of(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let tree = Self {
            // Controls follow no links: not even one on the way to the folder.
            root: Root::at(folder.path().canonicalize().unwrap()),
            folder,
        };
        let mut file: Option<(&str, String)> = None;
        for line in text.lines() {
            match (line.strip_prefix("== "), &mut file) {
                (Some(path), _) => {
                    if let Some((path, content)) = file.replace((path, String::new())) {
                        tree.write(path, &content);
                    }
                }
                (None, Some((_, content))) => {
                    content.push_str(line);
                    content.push('\n');
                }
                (None, None) => {}
            }
        }
        if let Some((path, content)) = file {
            tree.write(path, &content);
        }
        tree
    }

    /// Writes a file of the tree, new or again.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}
