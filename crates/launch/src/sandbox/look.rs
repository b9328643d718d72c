//! What the plan needs to know of folders, and the machine's own answer.

use std::path::{Path, PathBuf};

/// What a folder's entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    File { size: u64 },
    Link { to: PathBuf },
    Socket,
    Fifo,
    Device,
}

/// Looks at the file system; the tests have one of their own.
pub(crate) trait Look {
    /// What `path` itself is (links are not followed), `None` when it cannot be seen.
    fn kind(&self, path: &Path) -> Option<Kind>;
    /// The names in the folder `path`; empty when it cannot be listed.
    fn names(&self, path: &Path) -> Vec<std::ffi::OsString>;
}

/// The machine's own file system.
pub(crate) struct RealFiles;

impl Look for RealFiles {
    fn kind(&self, path: &Path) -> Option<Kind> {
        use std::os::unix::fs::FileTypeExt;
        let meta = path.symlink_metadata().ok()?;
        let kind = meta.file_type();
        Some(if kind.is_dir() {
            Kind::Folder
        } else if kind.is_file() {
            Kind::File { size: meta.len() }
        } else if kind.is_symlink() {
            Kind::Link {
                to: path.read_link().ok()?,
            }
        } else if kind.is_socket() {
            Kind::Socket
        } else if kind.is_fifo() {
            Kind::Fifo
        } else {
            Kind::Device
        })
    }

    fn names(&self, path: &Path) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        let mut names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    }
}
