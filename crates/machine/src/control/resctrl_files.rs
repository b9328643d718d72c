//! The folders of resctrl groups that were made here: made, filled, removed.
//!
//! The paths may come from an undo log that somebody damaged, so what is no group of ours (its name begins
//! with [`PREFIX`], right below resctrl's own folder) is refused.

use std::fs;
use std::io;
use std::path::Path;

use super::group_files::{PREFIX, plain};

/// Where resctrl is mounted (Documentation/arch/x86/resctrl.rst).
pub(crate) const FOLDER: &str = "/sys/fs/resctrl";

/// The files of a group that are read or written here.
const FILES: [&str; 2] = ["schemata", "tasks"];

/// resctrl's number as a filesystem (linux/magic.h).
const MAGIC: u64 = 0x0765_5821;

/// Whether a path can be that of a group of ours.
pub(crate) fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let below = path.parent().and_then(Path::to_str);
    plain(path).is_ok()
        && name.is_some_and(|name| name.starts_with(PREFIX))
        && below.is_some_and(|folder| folder.ends_with(FOLDER))
}

/// Makes a group of ours; an existing one is an error, for it would be somebody else's.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    of_ours(path)?;
    fs::create_dir(path)?;
    // The kernel fills a group's folder. In a made tree nobody does: it gets what the default group has.
    if let Some(parent) = path.parent().filter(|parent| !is_resctrl(parent)) {
        fs::copy(parent.join(FILES[0]), path.join(FILES[0]))?;
        fs::write(path.join(FILES[1]), "")?;
    }
    Ok(())
}

/// Removes a group of ours: its threads are in the default group then. Content if it is gone already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    of_ours(path)?;
    if path.parent().is_some_and(|parent| !is_resctrl(parent)) {
        for file in FILES {
            let _ = fs::remove_file(path.join(file));
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn is_resctrl(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|stat| stat.f_type as u64 == MAGIC)
}

fn of_ours(path: &Path) -> io::Result<()> {
    match is_ours(path) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is no resctrl group made here", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_made_here_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let resctrl = folder.path().join("sys/fs/resctrl");
        fs::create_dir_all(resctrl.join("users")).unwrap();
        for path in [
            resctrl.join("users"),
            resctrl.join("users/corewise-1"),
            resctrl.join("corewise-1/../users"),
            folder.path().join("corewise-1"),
        ] {
            assert!(remove(&path).is_err(), "{path:?}");
            assert!(make(&path).is_err(), "{path:?}");
        }
        remove(&resctrl.join("corewise-1")).unwrap();
    }
}
