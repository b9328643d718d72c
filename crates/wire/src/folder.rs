//! The runtime folder: where one user's manager and programs find each other.

use crate::Error;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::path::{Path, PathBuf};

/// The runtime folder of one user's manager. It belongs to that user, and nobody else can write to
/// it, so that what stands in it can be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The calling user's: `$COREWISE_RUNTIME_DIR` if set; else for root `/run/corewise`; else
    /// `$XDG_RUNTIME_DIR/corewise`; else `/tmp/corewise-UID`. It is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Folder`] as for [`Folder::at`].
    pub fn of_user() -> Result<Folder, Error> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let uid = rustix::process::geteuid();
        if let Some(path) = set("COREWISE_RUNTIME_DIR") {
            return Folder::at(path);
        }
        if uid.is_root() {
            return Folder::at("/run/corewise");
        }
        let fallback = || PathBuf::from(format!("/tmp/corewise-{}", uid.as_raw()));
        match set("XDG_RUNTIME_DIR") {
            // After `su` the variable may still name another user's folder.
            Some(folder) => {
                Folder::at(Path::new(&folder).join("corewise")).or_else(|_| Folder::at(fallback()))
            }
            None => Folder::at(fallback()),
        }
    }

    /// The folder at `path`, made with mode 0700 if it is not there (its parent must be).
    ///
    /// # Errors
    /// [`Error::Folder`] if it cannot be made, is a symbolic link or no folder, belongs to somebody
    /// else, or can be written to by others.
    pub fn at(path: impl Into<PathBuf>) -> Result<Folder, Error> {
        let path = std::path::absolute(path.into()).map_err(|e| Error::Folder {
            path: PathBuf::new(),
            why: e.to_string(),
        })?;
        let fail = |why: String| Error::Folder {
            path: path.clone(),
            why,
        };
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(fail(format!("it cannot be made ({errno})"))),
        }
        // Opened first and looked at afterwards, so that what is judged is what was opened.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
        let folder = rustix::fs::openat(CWD, &path, flags, Mode::empty())
            .map_err(|errno| fail(format!("it is no folder of its own ({errno})")))?;
        let found = rustix::fs::fstat(&folder).map_err(|errno| fail(errno.to_string()))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return Err(fail("it is a link, or no folder".to_owned()));
        }
        let uid = rustix::process::geteuid().as_raw();
        if found.st_uid != uid {
            return Err(fail(format!(
                "it belongs to user {}, this process to user {uid}",
                found.st_uid
            )));
        }
        if found.st_mode & 0o022 != 0 {
            return Err(fail(format!(
                "others may write to it (mode {:o})",
                found.st_mode & 0o7777
            )));
        }
        Ok(Folder { path })
    }

    /// The system's (`/run/corewise`), as a program of any user may talk to its manager; `None` if it
    /// is not there, or not root's alone to write. Only its socket is of use to others than root.
    pub fn system() -> Option<Folder> {
        let path = PathBuf::from("/run/corewise");
        let found = rustix::fs::lstat(&path).ok()?;
        let folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        (folder && found.st_uid == 0 && found.st_mode & 0o022 == 0).then_some(Folder { path })
    }

    /// Where it is, an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manager's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("manager.sock")
    }

    /// The file whose lock says who is the manager.
    pub fn lock(&self) -> PathBuf {
        self.path.join("manager.lock")
    }

    /// The journal of decisions.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal.jsonl")
    }

    /// The folder of undo logs.
    pub fn undo(&self) -> PathBuf {
        self.path.join("undo")
    }
}
