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

/// Bytes of a file of registers.
pub(crate) const REGISTERS: usize = 0x1b0;

/// The desktop, with registers, and a cache of 11 ways that can be shared out.
pub(crate) fn desktop() -> Tree {
    let tree = Tree::named("sandy-bridge");
    for cpu in 0..8 {
        let text = "\0".repeat(REGISTERS);
        tree.write(&format!("dev/cpu/{cpu}/msr"), &text);
    }
    tree
}

/// Mounts resctrl in it; where.
pub(crate) fn with_resctrl(tree: &Tree) -> PathBuf {
    tree.write("sys/fs/resctrl/schemata", "    MB:0=100\n    L3:0=7ff\n");
    tree.write("sys/fs/resctrl/tasks", "");
    tree.write("sys/fs/resctrl/info/L3/cbm_mask", "7ff\n");
    tree.write("sys/fs/resctrl/info/L3/min_cbm_bits", "2\n");
    tree.write("sys/fs/resctrl/info/MB/min_bandwidth", "10\n");
    tree.write("sys/fs/resctrl/info/MB/bandwidth_gran", "10\n");
    tree.root.path("sys/fs/resctrl")
}
