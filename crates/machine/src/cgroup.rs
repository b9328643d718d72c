//! Where a process's cgroups lie in the file system: for each hierarchy that can limit CPUs, the
//! folder of the process's own group and those of all its ancestors that can be seen.
//!
//! `/proc/PID/cgroup` names a group by a path, and `/proc/self/mountinfo` says which group stands
//! at a mount point (its *root* field). Both are written relative to the *reader's* cgroup
//! namespace: a path above the namespace's top begins with `/..` once for each level. So both are
//! taken apart into levels up and names down before one is looked for below the other:
//!
//! | group | mounted root | the group's folder |
//! | --- | --- | --- |
//! | `/a/b` | `/` | mount/a/b |
//! | `/docker/x/y` | `/docker/x` | mount/y |
//! | `/../other` | `/..` | mount/other |
//! | `/` | `/..` | one unnamed level below the mount: looked for by the process's number |
//! | `/a` | `/b` | not below the mount: a guess, and said to be one |
//! | `/..` | `/` | above what can be seen: hidden, and said to be |

use std::path::{Path, PathBuf};

use procfs_core::process::MountInfo;
use procfs_core::{FromBufRead, ProcessCGroups};

use crate::Root;

/// At most so many folders are looked into when a group's name is not known. Containers that hide
/// a level show few others; a host with thousands of groups shows the names.
const MAX_SEARCHED: usize = 2_000;

/// The two interfaces that Linux has to control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller or pair of them.
    V1,
    /// The unified hierarchy.
    V2,
}

/// How sure it is that the folders are the process's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// What `/proc` and the mounts say fits together.
    Known,
    /// A guess; the text says from what.
    Guessed(String),
    /// Nothing of this hierarchy can be seen; the text says why.
    Hidden(String),
}

/// A process's place in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which interface the hierarchy has.
    pub version: Version,
    /// The controllers bound to the hierarchy (v1); empty for v2.
    pub controllers: Vec<String>,
    /// The group's path as `/proc/PID/cgroup` has it.
    pub group: String,
    /// Folders of the group and its ancestors, the group's own first, the mount point last; not
    /// yet below a [`Root`]. They may have vanished since. Empty when hidden.
    pub folders: Vec<PathBuf>,
    /// How sure that is.
    pub certainty: Certainty,
}

impl Place {
    /// Whether a controller acts through this hierarchy. On v2 that depends on each folder, so the
    /// answer is yes.
    pub fn may_have(&self, controller: &str) -> bool {
        self.version == Version::V2 || self.controllers.iter().any(|c| c == controller)
    }
}

/// The places of a process (`None`: the calling one) in every hierarchy that can limit CPUs: v2,
/// and those of v1 that have `cpu` or `cpuset`.
///
/// Mounts are those that the caller sees. Cost: two small files, of which the list of mounts grows
/// with what is mounted; only where a namespace hides the group's name, folders are searched too.
///
/// # Errors
/// The text says why the groups could not be learned; there may still be some.
pub fn places(root: &Root, pid: Option<i32>) -> Result<Vec<Place>, String> {
    let places = places_with(root, pid, &["cpu", "cpuset"])?;
    // Where v1 has both controllers, a v2 hierarchy that is not mounted cannot limit CPUs.
    let v1_has = |controller: &str| {
        places
            .iter()
            .any(|p| p.version == Version::V1 && p.may_have(controller))
    };
    let v1_has_both = v1_has("cpu") && v1_has("cpuset");
    Ok(places
        .into_iter()
        .filter(|p| !(v1_has_both && p.version == Version::V2 && p.folders.is_empty()))
        .collect())
}

/// The places of a process in v2 and in those hierarchies of v1 that have one of the controllers.
///
/// # Errors
/// As [`places`].
pub(crate) fn places_with(
    root: &Root,
    pid: Option<i32>,
    controllers: &[&str],
) -> Result<Vec<Place>, String> {
    let process = process_folder(pid);
    let file = format!("{process}/cgroup");
    let text = root
        .read(&file)
        .map_err(|e| format!("{file} cannot be read ({e})"))?;
    let groups = ProcessCGroups::from_buf_read(text.as_bytes())
        .map_err(|e| format!("{file} is not as expected ({e})"))?;
    let mounts = match root.read("/proc/self/mountinfo") {
        Ok(text) => cgroup_mounts(&text),
        Err(e) => return Err(format!("/proc/self/mountinfo cannot be read ({e})")),
    };
    Ok(groups
        .into_iter()
        .filter(|g| {
            g.hierarchy == 0
                || g.controllers
                    .iter()
                    .any(|c| controllers.contains(&c.as_str()))
        })
        .map(|g| place(root, pid, &mounts, g.controllers, g.pathname))
        .collect())
}

/// `/proc/PID` or `/proc/self`.
pub(crate) fn process_folder(pid: Option<i32>) -> String {
    pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"))
}

/// A mounted cgroup file system.
struct Mount {
    version: Version,
    controllers: Vec<String>,
    root: String,
    point: PathBuf,
}

/// The cgroup mounts of a mountinfo file. Only their lines are parsed: a container host has
/// thousands of others.
fn cgroup_mounts(mountinfo: &str) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = mountinfo
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| MountInfo::from_line(line).ok())
        .filter_map(|info| {
            let version = match info.fs_type.as_str() {
                "cgroup" => Version::V1,
                "cgroup2" => Version::V2,
                _ => return None,
            };
            Some(Mount {
                version,
                controllers: info.super_options.into_keys().collect(),
                root: unescape(&info.root),
                point: PathBuf::from(unescape(&info.mount_point.to_string_lossy())),
            })
        })
        .collect();
    // A later mount on the same point covers the earlier one.
    let points: Vec<PathBuf> = mounts.iter().map(|m| m.point.clone()).collect();
    let mut index = 0;
    mounts.retain(|m| {
        index += 1;
        !points[index..].contains(&m.point)
    });
    mounts
}

/// Undoes the octal escapes (`\040` for a space) of mountinfo.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes
            .get(at + 1..at + 4)
            .filter(|_| bytes[at] == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where a group stands below a mount.
#[derive(Debug, PartialEq, Eq)]
enum Below {
    /// At this path.
    At(PathBuf),
    /// So many unnamed levels down, then at this path.
    Unnamed { levels: usize, rest: PathBuf },
    /// Beside the mounted root.
    Beside,
    /// Above the mounted root, or below something above it.
    Above,
}

/// Levels up from the namespace's top, and names down from there.
fn levels(path: &str) -> (usize, Vec<&str>) {
    let names: Vec<&str> = path.split('/').filter(|n| !n.is_empty()).collect();
    let up = names.iter().take_while(|n| **n == "..").count();
    (up, names[up..].to_vec())
}

fn below(mounted_root: &str, group: &str) -> Below {
    let (mount_up, mount_names) = levels(mounted_root);
    let (up, names) = levels(group);
    if up == mount_up {
        return match names.strip_prefix(&mount_names[..]) {
            Some(rest) => Below::At(rest.iter().collect()),
            None if mount_names.starts_with(&names) => Below::Above,
            None => Below::Beside,
        };
    }
    if up > mount_up {
        return Below::Above;
    }
    // The group lies below a level whose name is hidden by the namespace. A mounted root with a
    // name of its own would be a sibling of that level.
    match mount_names.is_empty() {
        true => Below::Unnamed {
            levels: mount_up - up,
            rest: names.iter().collect(),
        },
        false => Below::Beside,
    }
}

fn place(
    root: &Root,
    pid: Option<i32>,
    mounts: &[Mount],
    controllers: Vec<String>,
    pathname: String,
) -> Place {
    // A group that was removed with the process still in it; its ancestors count.
    let group = pathname
        .strip_suffix(" (deleted)")
        .unwrap_or(&pathname)
        .to_owned();
    let version = match controllers.is_empty() {
        true => Version::V2,
        false => Version::V1,
    };
    let mut candidates: Vec<(&Mount, Below)> = mounts
        .iter()
        .filter(|m| m.version == version && controllers.iter().all(|c| m.controllers.contains(c)))
        .map(|m| (m, below(&m.root, &group)))
        .collect();
    // The surest first; among the sure, the one that shows most ancestors.
    candidates.sort_by_key(|(_, below)| match below {
        Below::At(rest) => (0, usize::MAX - rest.components().count()),
        Below::Unnamed { .. } => (1, 0),
        Below::Beside => (2, 0),
        Below::Above => (3, 0),
    });
    let (folders, certainty) = match candidates.first() {
        None => (
            Vec::new(),
            Certainty::Hidden("the hierarchy is not mounted here".into()),
        ),
        Some((mount, Below::At(rest))) => (chain(&mount.point, rest), Certainty::Known),
        Some((mount, Below::Unnamed { levels, rest })) => {
            match search(root, pid, &mount.point, *levels, rest) {
                Some(found) => (chain(&mount.point, &found), Certainty::Known),
                None => (
                    vec![mount.point.clone()],
                    Certainty::Guessed(format!(
                        "the group's name is hidden by a cgroup namespace; limits at {} count, those between are not seen",
                        mount.point.display()
                    )),
                ),
            }
        }
        Some((mount, Below::Beside)) => {
            let rest = longest_suffix(root, &mount.point, &group);
            (
                chain(&mount.point, &rest),
                Certainty::Guessed(format!(
                    "the group {group} is not below {}, which is mounted at {}",
                    mount.root,
                    mount.point.display()
                )),
            )
        }
        Some((mount, Below::Above)) => (
            Vec::new(),
            Certainty::Hidden(format!(
                "the group {group} lies above what is mounted at {}",
                mount.point.display()
            )),
        ),
    };
    Place {
        version,
        controllers,
        group,
        folders,
        certainty,
    }
}

/// The folder of a group and those of its ancestors, up to the mount point.
fn chain(point: &Path, rest: &Path) -> Vec<PathBuf> {
    let steps = rest.components().count();
    point
        .join(rest)
        .ancestors()
        .take(steps + 1)
        // `join` with an empty path leaves a trailing slash, which `components` drops.
        .map(|p| p.components().collect())
        .collect()
}

/// The longest end of a group's path that exists below a mount point. Containers that were given a
/// part of the hierarchy under another name are often found so.
fn longest_suffix(root: &Root, point: &Path, group: &str) -> PathBuf {
    let (_, names) = levels(group);
    (0..names.len())
        .map(|skip| names[skip..].iter().collect::<PathBuf>())
        // A name may hold no `..` any more, but be careful: it would lead out of the mount.
        .filter(|rest| !rest.components().any(|c| c.as_os_str() == ".."))
        .find(|rest| root.exists(point.join(rest)))
        .unwrap_or_default()
}

/// Looks for the group that holds the process `levels` unnamed levels below `point`.
fn search(
    root: &Root,
    pid: Option<i32>,
    point: &Path,
    levels: usize,
    rest: &Path,
) -> Option<PathBuf> {
    let pid = match pid {
        Some(pid) => pid,
        None if root.is_system() => i32::try_from(std::process::id()).ok()?,
        None => root
            .read("/proc/self/status")
            .ok()?
            .lines()
            .find_map(|l| l.strip_prefix("Pid:"))?
            .trim()
            .parse()
            .ok()?,
    };
    let mut level = vec![PathBuf::new()];
    let mut searched = 0;
    for _ in 0..levels {
        let mut next = Vec::new();
        for folder in level {
            for entry in std::fs::read_dir(root.path(point.join(&folder))).ok()? {
                let Ok(entry) = entry else { continue };
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    searched += 1;
                    if searched > MAX_SEARCHED {
                        return None;
                    }
                    next.push(folder.join(entry.file_name()));
                }
            }
        }
        level = next;
    }
    level.into_iter().map(|f| f.join(rest)).find(|folder| {
        root.read(point.join(folder).join("cgroup.procs"))
            .is_ok_and(|procs| procs.lines().any(|l| l.trim().parse() == Ok(pid)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_below_the_mounted_root() {
        assert_eq!(below("/", "/a/b"), Below::At("a/b".into()));
        assert_eq!(below("/docker/x", "/docker/x/y"), Below::At("y".into()));
        assert_eq!(below("/docker/x", "/docker/x"), Below::At("".into()));
        assert_eq!(below("/..", "/../other"), Below::At("other".into()));
        assert_eq!(below("/../p", "/../p/q"), Below::At("q".into()));
    }

    #[test]
    fn a_namespace_hides_names_and_the_search_knows_how_many() {
        assert_eq!(
            below("/../..", "/x"),
            Below::Unnamed {
                levels: 2,
                rest: "x".into()
            }
        );
    }

    #[test]
    fn a_group_beside_or_above_the_mount_is_told_apart() {
        assert_eq!(below("/b", "/a"), Below::Beside);
        assert_eq!(below("/bc", "/b/c"), Below::Beside);
        assert_eq!(below("/", "/../other"), Below::Above);
        assert_eq!(below("/a/b", "/a"), Below::Above);
    }

    #[test]
    fn the_chain_ends_at_the_mount_point() {
        assert_eq!(
            chain(Path::new("/m"), Path::new("a/b")),
            ["/m/a/b", "/m/a", "/m"].map(PathBuf::from)
        );
        assert_eq!(chain(Path::new("/m"), Path::new("")), [PathBuf::from("/m")]);
    }

    #[test]
    fn mount_points_with_spaces_and_covered_mounts_are_understood() {
        let mounts = cgroup_mounts(
            "31 23 0:28 / /my\\040cg rw - cgroup2 cgroup2 rw\n\
             30 23 0:27 / / rw - ext4 /dev/vda rw\n\
             32 23 0:29 /x /v1 rw - cgroup cgroup rw,cpu,cpuacct\n\
             33 23 0:29 / /v1 rw - cgroup cgroup rw,cpu,cpuacct\n\
             this is - cgroup nonsense\n",
        );
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point, Path::new("/my cg"));
        assert_eq!(mounts[1].root, "/");
    }
}
