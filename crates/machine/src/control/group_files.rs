//! The files of cgroups that were made here: read, written, processes moved, the group removed.
//!
//! The paths may come from an undo log that somebody damaged, so what is not in a group of ours
//! (its name begins with [`PREFIX`]) is refused, and no symbolic link is followed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The beginning of the name of each group that is made here.
pub(crate) const PREFIX: &str = "corewise-";

/// A group is tried to be removed so often, this long apart: a process that ends holds its group a
/// moment longer than its number.
const REMOVALS: u32 = 100;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(5);

/// Files of groups are short; more is not read.
const MAX_TEXT: u64 = 1 << 20;

/// The text of a file of a group of ours, without the last newline.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    of_ours(path.parent().unwrap_or(path))?;
    read_any(path)
}

pub(crate) fn read_any(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path, OFlags::RDONLY)?
        .take(MAX_TEXT)
        .read_to_string(&mut text)?;
    Ok(text.trim_end().to_owned())
}

/// Writes a file of a group of ours.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    of_ours(path.parent().unwrap_or(path))?;
    write_any(path, value)
}

/// One `write(2)`: the kernel takes the whole text as one value. The newline makes an empty one be
/// noticed.
pub(crate) fn write_any(path: &Path, value: &str) -> io::Result<()> {
    let text = format!("{value}\n");
    let mut file = open(path, OFlags::WRONLY)?;
    file.write_all(text.as_bytes())?;
    // The kernel's files of groups have no length; those of a made tree may be longer than the text.
    // They are not truncated first: who is killed then would leave an empty one.
    match file.metadata()?.len() > text.len() as u64 {
        true => file.set_len(text.len() as u64),
        false => Ok(()),
    }
}

/// Moves a process with all its threads into any group.
pub(crate) fn move_process(pid: i32, group: &Path) -> io::Result<()> {
    // Zero would move ourselves.
    if pid <= 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    plain(group)?;
    write_any(&group.join("cgroup.procs"), &pid.to_string())
}

/// The processes in a group; threads' numbers where the group is one of threads only.
pub(crate) fn members(group: &Path) -> io::Result<Vec<i32>> {
    let text = match read_any(&group.join("cgroup.procs")) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            read_any(&group.join("cgroup.threads"))?
        }
        other => other?,
    };
    // Those of another PID namespace are listed as 0.
    Ok(text
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|pid| *pid > 0)
        .collect())
}

/// Makes a group of ours; an existing one is an error, for it would be somebody else's.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    of_ours(path)?;
    fs::create_dir(path)
}

/// Lets a group of ours run again if it was frozen, moves its processes out and removes it. Content
/// if it is gone already.
pub(crate) fn remove(path: &Path, processes_go_to: &Path) -> io::Result<()> {
    of_ours(path)?;
    if !path.is_dir() {
        return Ok(());
    }
    for (file, running) in [("cgroup.freeze", "0"), ("freezer.state", "THAWED")] {
        // Groups without the file cannot be frozen.
        let _ = write_any(&path.join(file), running);
    }
    let mut tries = 0;
    loop {
        for pid in members(path).unwrap_or_default() {
            // What fails shows when the group is removed.
            if move_process(pid, processes_go_to).is_err() {
                let _ = path.parent().map(|parent| move_process(pid, parent));
            }
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < REMOVALS => {
                tries += 1;
                std::thread::sleep(BETWEEN_REMOVALS);
            }
            other => return other,
        }
    }
}

/// Whether a path can be that of a group of ours.
pub(crate) fn is_ours(folder: &Path) -> bool {
    of_ours(folder).is_ok()
}

/// Whether a path can be that of a file in a group of ours.
pub(crate) fn is_file_of_ours(path: &Path) -> bool {
    plain(path).is_ok() && path.parent().is_some_and(is_ours)
}

fn of_ours(folder: &Path) -> io::Result<()> {
    plain(folder)?;
    match folder.file_name().and_then(|name| name.to_str()) {
        Some(name) if name.starts_with(PREFIX) => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is no group made here", folder.display()),
        )),
    }
}

/// Refuses a path that is relative or climbs.
pub(crate) fn plain(path: &Path) -> io::Result<()> {
    let climbs = path.components().any(|c| c == Component::ParentDir);
    match path.is_absolute() && !climbs {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is no absolute path without ..", path.display()),
        )),
    }
}

/// Opens a file without following a link on the way to it.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    // NONBLOCK: a FIFO in the file's place must not hold us.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = rustix::fs::openat2(
        CWD,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    );
    match opened {
        // Before Linux 5.6, or a container's filter that does not know the call: the last part of
        // the path at least is no link.
        Err(Errno::NOSYS | Errno::PERM) => {
            Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
        }
        Err(error) => Err(error.into()),
        Ok(file) => Ok(File::from(file)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().canonicalize().unwrap().join("corewise-x");
        make(&group).unwrap();
        (folder, group)
    }

    #[test]
    fn files_outside_of_groups_made_here_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.weight");
        fs::write(&file, "100\n").unwrap();
        assert!(read(&file).is_err());
        assert!(write(&file, "1").is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "100\n");
        assert!(write(Path::new("/a/corewise-x/../cpu.weight"), "1").is_err());
        assert!(make(&folder.path().join("other")).is_err());
        assert!(remove(folder.path(), folder.path()).is_err());
    }

    #[test]
    fn links_are_not_followed() {
        let (keep, group) = group();
        let target = keep.path().join("target");
        fs::write(&target, "secret\n").unwrap();
        std::os::unix::fs::symlink(&target, group.join("cpu.weight")).unwrap();
        assert!(read(&group.join("cpu.weight")).is_err());
        assert!(write(&group.join("cpu.weight"), "1").is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "secret\n");
    }

    #[test]
    fn no_file_is_made_by_writing() {
        let (_keep, group) = group();
        assert!(write(&group.join("cpu.weight"), "1").is_err());
        assert!(!group.join("cpu.weight").exists());
    }

    #[test]
    fn a_group_is_made_once_and_its_removal_may_be_repeated() {
        let (keep, group) = group();
        assert!(make(&group).is_err());
        remove(&group, keep.path()).unwrap();
        remove(&group, keep.path()).unwrap();
        assert!(!group.exists());
    }

    #[test]
    fn zero_never_moves_ourselves() {
        let (_keep, group) = group();
        fs::write(group.join("cgroup.procs"), "0\n12\n").unwrap();
        assert_eq!(members(&group).unwrap(), [12]);
        assert!(move_process(0, &group).is_err());
    }
}
