//! The runtime folder: where one user's manager and programs find each other.

use crate::Error;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::path::{Path, PathBuf};

/// Where root's manager is, unless it is told otherwise.
const SYSTEM: &str = "/run/corewise";

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
            return Folder::at(SYSTEM);
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

    /// Lets every user reach the socket (mode 0711): what else is in the folder cannot be listed, and is
    /// protected by its own mode.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn let_everyone_in(&self) -> Result<(), Error> {
        let mode = Mode::RWXU | Mode::XGRP | Mode::XOTH;
        rustix::fs::chmod(&self.path, mode).map_err(|errno| Error::Folder {
            path: self.path.clone(),
            why: format!("it cannot be opened to all users ({errno})"),
        })
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

/// Where the system's manager is to be found: root's, which serves every user's programs and managers,
/// each within that user's rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    path: PathBuf,
}

impl System {
    /// `$COREWISE_SYSTEM_DIR` if set (for a container into which the machine's folder is mounted
    /// elsewhere), else `/run/corewise`. Whoever sets it for themselves can only do without the
    /// system's manager: a folder that is not root's is none.
    pub fn of_environment() -> System {
        let set = std::env::var_os("COREWISE_SYSTEM_DIR").filter(|path| !path.is_empty());
        System::at(set.map_or_else(|| PathBuf::from(SYSTEM), PathBuf::from))
    }

    /// The one whose folder is `path`.
    pub fn at(path: impl Into<PathBuf>) -> System {
        let path = path.into();
        let path = std::path::absolute(&path).unwrap_or(path);
        System { path }
    }

    /// Where a program of this user that has found no manager of its own user's may look further;
    /// `None` for root, whose manager is the system's, and where `$COREWISE_RUNTIME_DIR` names the one
    /// folder that is meant.
    pub fn beside_own() -> Option<System> {
        let chosen = std::env::var_os("COREWISE_RUNTIME_DIR").is_some_and(|path| !path.is_empty());
        let root = rustix::process::geteuid().is_root();
        (!chosen && !root).then(System::of_environment)
    }

    /// Its folder; `None` if it is not there now, or not root's alone to write. Only its socket is of
    /// use to others than root. Costs a system call.
    pub fn folder(&self) -> Option<Folder> {
        let found = rustix::fs::lstat(&self.path).ok()?;
        let folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let roots = found.st_uid == 0 && found.st_mode & 0o022 == 0;
        let path = self.path.clone();
        (folder && roots).then_some(Folder { path })
    }

    /// Whether `folder` is the system's, by whatever path.
    pub fn is_at(&self, folder: &Folder) -> bool {
        let file = |path: &Path| rustix::fs::stat(path).map(|found| (found.st_dev, found.st_ino));
        let (own, other) = (file(&self.path), file(folder.path()));
        self.path == folder.path() || (own.is_ok() && own.ok() == other.ok())
    }
}
