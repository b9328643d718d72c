//! The file of an undo log: made, locked, appended to, written anew when long, read by the next.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::Error;
use super::entries::{Entries, Header, Line, VERSION};
use crate::control::Process;

/// How the names of logs end.
pub(super) const ENDING: &str = ".jsonl";
/// How those end that are not finished: a log that is being written anew.
pub(super) const UNFINISHED: &str = ".new";

/// A log that has grown by so much is written anew with what still counts.
const LONG: u64 = 1 << 20;
/// Of a log no more is read: one that long was not written by us.
const MAX_READ: u64 = 256 << 20;
/// A line of ours is far shorter.
const MAX_LINE: usize = 64 << 10;
/// Names that are tried for a new log, and times that a race for one may be lost.
const MAX_TRIES: u32 = 1000;

/// The folder of the logs, checked to be ours alone to write.
#[derive(Debug)]
pub(super) struct LogFolder {
    fd: OwnedFd,
    path: PathBuf,
}

impl LogFolder {
    /// Opens it.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |why: String| Error::Folder {
            path: path.to_owned(),
            why,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|e| failed(io::Error::from(e).to_string()))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(e.to_string()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            return Err(failed(
                "others own it or may write into it, so what it says cannot be trusted".into(),
            ));
        }
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Makes it (0700) if it is not there, and opens it.
    pub(super) fn make(path: &Path) -> Result<Self, Error> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(error) => Err(Error::Folder {
                path: path.to_owned(),
                why: error.to_string(),
            }),
        }
    }

    /// The names of the files in it that can be logs, finished or not.
    pub(super) fn names(&self) -> Vec<String> {
        let Ok(folder) = rustix::fs::Dir::read_from(&self.fd) else {
            return Vec::new();
        };
        folder
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
            .filter(|name| name.ends_with(ENDING) || name.ends_with(UNFINISHED))
            .collect()
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a log whose writer is gone, and locks it. `None`: the writer lives, another one is at
    /// it, or it is no log of ours (another owner, a link, a folder, a FIFO).
    pub(super) fn take(&self, name: &str) -> Option<File> {
        // NONBLOCK: a FIFO in its place must not hold us.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_mode & 0o022 == 0;
        (ours && lock(&fd) && self.is_linked(&fd, name)).then(|| File::from(fd))
    }

    /// Whether the name still leads to this file. Whoever gets a lock after its holder removed or
    /// replaced the file must not touch the name any more.
    fn is_linked(&self, fd: &OwnedFd, name: &str) -> bool {
        let here = rustix::fs::fstat(fd);
        let there = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        matches!((here, there), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    fn create(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)
    }
}

fn lock(fd: &OwnedFd) -> bool {
    rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// A log that is being written. The lock lasts as long as it.
#[derive(Debug)]
pub(super) struct LogFile {
    folder: LogFolder,
    name: String,
    file: File,
    header: Header,
    /// Bytes since the log was begun or written anew.
    grown: u64,
    /// The last line may lack its end: the next begins with a newline.
    torn: bool,
}

impl LogFile {
    /// Makes `PID-STARTTIME.jsonl`, or with one more number if this process has one already.
    pub(super) fn create(folder: LogFolder, owner: &str) -> Result<Self, Error> {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let start_time = Process::of(pid).map_or(0, |process| process.start_time);
        let header = Header {
            version: VERSION,
            boot: boot(),
            pid_namespace: pid_namespace(),
            owner: owner.to_owned(),
            pid,
            start_time,
        };
        for try_ in 0..MAX_TRIES {
            let name = match try_ {
                0 => format!("{pid}-{start_time}{ENDING}"),
                n => format!("{pid}-{start_time}-{n}{ENDING}"),
            };
            let fd = match folder.create(&name) {
                Ok(fd) => fd,
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(Error::write(folder.path_of(&name), error.into())),
            };
            // One who restores may have found the file before it was locked, and removes it as
            // empty: then another name.
            if !lock(&fd) || !folder.is_linked(&fd, &name) {
                continue;
            }
            let mut log = Self {
                folder,
                name,
                file: File::from(fd),
                header: header.clone(),
                grown: 0,
                torn: false,
            };
            log.append(&Line::Log(header))?;
            return Ok(log);
        }
        let why = io::Error::new(
            io::ErrorKind::AlreadyExists,
            "too many logs of this process",
        );
        Err(Error::write(folder.path.clone(), why))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path_of(&self.name)
    }

    /// Appends a line by one `write(2)`. When it fails, what the line announces must not be done.
    pub(super) fn append(&mut self, line: &Line) -> Result<(), Error> {
        let mut text = match self.torn {
            true => "\n".to_owned(),
            false => String::new(),
        };
        text.push_str(&encode(line).map_err(|e| Error::write(self.path(), e))?);
        match self.file.write(text.as_bytes()) {
            Ok(written) if written == text.len() => {
                self.torn = false;
                self.grown += written as u64;
                Ok(())
            }
            Ok(_) => {
                self.torn = true;
                Err(Error::write(self.path(), io::ErrorKind::StorageFull.into()))
            }
            Err(error) => Err(Error::write(self.path(), error)),
        }
    }

    /// Whether it is worth to be written anew.
    pub(super) fn is_long(&self) -> bool {
        self.grown > LONG
    }

    /// Writes it anew with these lines alone: a second file takes the first one's name in one step,
    /// locked before that, so that at every moment the name leads to a whole and locked log.
    pub(super) fn rewrite(&mut self, lines: impl Iterator<Item = Line>) -> Result<(), Error> {
        // Not again before it has grown as much once more, whether this succeeds or not.
        self.grown = 0;
        let name = format!("{}{UNFINISHED}", self.name);
        // A former try may have left one.
        let _ = self.folder.remove(&name);
        let result = self.write_and_rename(&name, lines);
        if result.is_err() {
            let _ = self.folder.remove(&name);
        }
        result.map_err(|e| Error::write(self.folder.path_of(&name), e))
    }

    fn write_and_rename(
        &mut self,
        name: &str,
        lines: impl Iterator<Item = Line>,
    ) -> io::Result<()> {
        let fd = self.folder.create(name)?;
        if !lock(&fd) || !self.folder.is_linked(&fd, name) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut text = encode(&Line::Log(self.header.clone()))?;
        for line in lines {
            text.push_str(&encode(&line)?);
        }
        let mut file = File::from(fd);
        file.write_all(text.as_bytes())?;
        rustix::fs::renameat(&self.folder.fd, name, &self.folder.fd, &self.name)?;
        self.file = file;
        self.torn = false;
        Ok(())
    }

    /// Removes it.
    pub(super) fn remove(&self) {
        // If it stays, the next one finds nothing in it that is still ours, and removes it.
        let _ = self.folder.remove(&self.name);
    }
}

fn encode(line: &Line) -> io::Result<String> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    Ok(text)
}

/// What a log says.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// `None`: the writer was killed before it wrote anything, or the file is damaged.
    pub(super) header: Option<Header>,
    pub(super) entries: Entries,
    /// Lines that are none.
    pub(super) damaged: usize,
}

/// Reads a log, whatever is in it.
pub(super) fn read(file: &mut File) -> io::Result<Contents> {
    let mut bytes = Vec::new();
    file.take(MAX_READ).read_to_end(&mut bytes)?;
    let mut contents = Contents::default();
    let lines = bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.trim_ascii().is_empty());
    for line in lines {
        let parsed = match line.len() {
            ..=MAX_LINE => serde_json::from_slice(line).ok(),
            _ => None,
        };
        match parsed {
            None => contents.damaged += 1,
            Some(Line::Set {
                ref what,
                ref original,
                ..
            }) if !what.takes(original) => contents.damaged += 1,
            Some(Line::Log(header)) => contents.header = contents.header.or(Some(header)),
            Some(line) => contents.entries.apply(line),
        }
    }
    Ok(contents)
}

/// The number of this boot; empty where it cannot be read.
pub(super) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// The PID namespace of this process; empty where it cannot be read.
pub(super) fn pid_namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default()
}
