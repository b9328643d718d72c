//! The file under the history: making it private, opening it as far as rights allow, its kind of
//! journal, moving a damaged one aside, SQLite's errors in our words.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::{FlockOperation, flock};

use super::HistoryError;

/// What may be done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Only recalled from.
    Read,
    /// Everything.
    Write,
}

/// Magic numbers of network and user-space file systems, on which memory cannot be shared between
/// machines: NFS, SMB (three), 9P, FUSE, AFS, Ceph, Lustre, GPFS.
const NETWORK: &[u64] = &[
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x6573_5546,
    0x5346_414f,
    0x00c3_6400,
    0x0bd0_0bd0,
    0x4750_4653,
];

/// Opens the file, and makes it and its folder where they are missing.
pub(super) fn connect(path: &Path) -> Result<(Connection, Access), HistoryError> {
    let open_error = |e: &io::Error| match e.kind() {
        io::ErrorKind::StorageFull => HistoryError::Full {
            path: path.to_owned(),
        },
        _ => HistoryError::Open {
            path: path.to_owned(),
            why: e.to_string(),
        },
    };
    let access = match make(path) {
        Ok(()) => Access::Write,
        Err(error) if refused(&error) && path.is_file() => Access::Read,
        Err(error) => return Err(open_error(&error)),
    };
    if !path.is_file() {
        return Err(HistoryError::Open {
            path: path.to_owned(),
            why: "it is not a regular file".into(),
        });
    }
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match access {
        Access::Write if folder_is_writable(path) => {
            let connection =
                Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_READ_WRITE);
            connection.map(|c| (c, Access::Write))
        }
        // Without a writable folder SQLite can neither lock nor share memory: read the file as if
        // nobody changed it, which holds for what was checkpointed.
        _ => {
            let flags = flags | OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(immutable_uri(path), flags).map(|c| (c, Access::Read))
        }
    };
    opened.map_err(|e| error(path, &e))
}

fn refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Makes folder and file, private from the start, or checks that the file may be written.
fn make(path: &Path) -> io::Result<()> {
    let folder = folder_of(path);
    let owner = owner_above(&folder);
    if !folder.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        give_to(&folder, owner);
    }
    let fresh = !path.exists();
    OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    if fresh {
        give_to(path, owner);
    }
    Ok(())
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The owner of the nearest folder that exists: under `sudo`, which may keep HOME, what root makes in
/// a user's home must be the user's, or the user is locked out.
fn owner_above(folder: &Path) -> Option<(u32, u32)> {
    folder
        .ancestors()
        .find_map(|f| std::fs::metadata(f).ok())
        .map(|m| (m.uid(), m.gid()))
}

fn give_to(path: &Path, owner: Option<(u32, u32)>) {
    if let Some((uid, gid)) = owner
        && uid != 0
        && rustix::process::geteuid().is_root()
    {
        // Best effort: where it fails, the file is root's, and an error later says so.
        let _ = std::os::unix::fs::chown(path, Some(uid), Some(gid));
    }
}

fn folder_is_writable(path: &Path) -> bool {
    rustix::fs::access(folder_of(path), rustix::fs::Access::WRITE_OK).is_ok()
}

fn immutable_uri(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut uri = String::from("file:");
    for &byte in absolute.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02x}"));
        }
    }
    uri.push_str("?immutable=1");
    uri
}

/// WAL where memory can be shared, a rollback journal elsewhere.
pub(super) fn choose_journal(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let network = rustix::fs::statfs(folder_of(path))
        .is_ok_and(|fs| NETWORK.contains(&(fs.f_type as u64 & 0xffff_ffff)));
    let wanted = if network { "DELETE" } else { "WAL" };
    // The answer is the mode that is now in force; any of them is safe.
    connection.pragma_update_and_check(None, "journal_mode", wanted, |_| Ok(()))
}

/// Holds others off while the file is made, moved or updated. Best effort: `None` where the file
/// system has no locks or another process keeps it for two seconds.
pub(super) fn lock(path: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(beside(path, ".lock"))
        .ok()?;
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR)
                if Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return None,
        }
    }
}

/// The file's device and inode.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Moves a damaged file aside, with what SQLite keeps beside it, if `path` still leads to that file
/// (another process may have moved it already). Returns its new place, if it was moved.
pub(super) fn set_aside(path: &Path, damaged: Option<(u64, u64)>) -> Option<PathBuf> {
    let lock = lock(path)?;
    if damaged.is_none() || identity(path) != damaged {
        return None;
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let target = (0..100)
        .map(|n| {
            beside(
                path,
                &format!(
                    ".damaged-{now}{}",
                    if n == 0 {
                        String::new()
                    } else {
                        format!("-{n}")
                    }
                ),
            )
        })
        .find(|t| !t.exists())?;
    std::fs::rename(path, &target).ok()?;
    for suffix in ["-wal", "-shm", "-journal"] {
        // Left behind, they would be taken for those of the new file.
        let _ = std::fs::rename(beside(path, suffix), beside(&target, suffix));
    }
    drop(lock);
    Some(target)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// SQLite's error in our words.
pub(super) fn error(path: &Path, error: &rusqlite::Error) -> HistoryError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => HistoryError::Busy { path },
        Some(ErrorCode::DiskFull) => HistoryError::Full { path },
        Some(ErrorCode::ReadOnly) => HistoryError::ReadOnly { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => HistoryError::Corrupt {
            path,
            moved_to: None,
        },
        Some(ErrorCode::CannotOpen) => HistoryError::Open {
            path,
            why: error.to_string(),
        },
        // Shared memory that cannot grow is reported as an I/O error.
        Some(ErrorCode::SystemIoFailure) if no_space(&path) => HistoryError::Full { path },
        _ => HistoryError::Sqlite {
            path,
            why: error.to_string(),
        },
    }
}

fn no_space(path: &Path) -> bool {
    rustix::fs::statvfs(folder_of(path)).is_ok_and(|fs| fs.f_bavail == 0)
}
