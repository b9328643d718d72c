//! The folder that readers take for `/`.

use std::io;
use std::path::{Path, PathBuf};

/// The folder under which `proc` and `sys` lie: `/` on a living machine, any folder in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self::system()
    }
}

impl Root {
    /// The living machine: `/`.
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A made tree: `folder` holds `proc`, `sys` and what else is to be read.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Whether this is the living machine, where system calls can be asked as well as files.
    pub fn is_system(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// A path below this root. A leading `/` of `path` stands for this root, so that a path which
    /// the kernel printed (a mount point) can be given as it is.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file below this root. Bytes that are no UTF-8 (a mount point may have some)
    /// are replaced, not refused.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let bytes = std::fs::read(self.path(path))?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// Whether a file or folder exists below this root.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_the_kernel_printed_stays_below_the_root() {
        let root = Root::at("/made");
        assert_eq!(root.path("/proc/stat"), Path::new("/made/proc/stat"));
        assert_eq!(root.path("proc/stat"), Path::new("/made/proc/stat"));
        assert!(!root.is_system());
    }

    #[test]
    fn the_living_machine_is_the_default() {
        assert!(Root::default().is_system());
        assert_eq!(Root::system().path("proc/stat"), Path::new("/proc/stat"));
    }
}
