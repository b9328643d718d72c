//! Where a process is in the hierarchy that has a controller, as the folder to write into, and what
//! a group that is made there needs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Controller, group_files};
use crate::Root;
use crate::cgroup::{self, Certainty, Version};

/// A group's usual weight on v2, and its equal in v1's shares.
const USUAL_WEIGHT: u32 = 100;
const USUAL_SHARES: u32 = 1024;

/// A process's group in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupPlace {
    pub(crate) version: Version,
    /// A controller of the hierarchy (v1); empty for v2. The key by which it is found again.
    pub(crate) hierarchy: String,
    /// The group's folder below the root that was read.
    pub(crate) folder: PathBuf,
}

/// The group of a process in a hierarchy that is named as in [`GroupPlace::hierarchy`].
pub(crate) fn of_process(root: &Root, pid: i32, hierarchy: &str) -> Result<GroupPlace, String> {
    let version = match hierarchy {
        "" => Version::V2,
        _ => Version::V1,
    };
    let place = cgroup::places_with(root, Some(pid), &[hierarchy])?
        .into_iter()
        .find(|p| p.version == version && (version == Version::V2 || p.may_have(hierarchy)))
        .ok_or_else(|| format!("no hierarchy of control groups has {hierarchy:?}"))?;
    of_place(root, &place, hierarchy)
}

/// The group of a process where it has a controller: v1 where that has it (v2 cannot have it
/// then), else v2.
pub(crate) fn with_controller(
    root: &Root,
    pid: Option<i32>,
    controller: &str,
) -> Result<GroupPlace, String> {
    let places = cgroup::places_with(root, pid, &[controller])?;
    let v1 = places
        .iter()
        .find(|p| p.version == Version::V1 && p.may_have(controller));
    if let Some(place) = v1 {
        return of_place(root, place, controller);
    }
    let place = places
        .iter()
        .find(|p| p.version == Version::V2)
        .ok_or_else(|| format!("no control groups with the {controller} controller"))?;
    of_place(root, place, "")
}

fn of_place(root: &Root, place: &cgroup::Place, hierarchy: &str) -> Result<GroupPlace, String> {
    match (&place.certainty, place.folders.first()) {
        // To set something in a group that may be the wrong one would be worse than not to.
        (Certainty::Guessed(why) | Certainty::Hidden(why), _) => Err(why.clone()),
        (Certainty::Known, None) => Err("the hierarchy cannot be seen".into()),
        (Certainty::Known, Some(folder)) => Ok(GroupPlace {
            version: place.version,
            hierarchy: hierarchy.to_owned(),
            folder: root.path(folder),
        }),
    }
}

/// v1's shares for a weight of v2, as the kernel itself converts them.
pub(crate) fn shares(weight: u32) -> u32 {
    (weight * USUAL_SHARES + USUAL_WEIGHT / 2) / USUAL_WEIGHT
}

/// Whether a group below `parent` gets the controller.
pub(crate) fn given(
    place: &GroupPlace,
    parent: &Path,
    controller: Controller,
) -> Result<(), String> {
    // v1: by the hierarchy. Freezing on v2: always.
    if place.version == Version::V1 || controller == Controller::Freezer {
        return Ok(());
    }
    let file = parent.join("cgroup.subtree_control");
    let text = fs::read_to_string(&file).unwrap_or_default();
    match text.split_whitespace().any(|c| c == controller.name()) {
        true => Ok(()),
        false => Err(format!(
            "{} does not list {name}, so that groups made there do not have it: its owner writes +{name} to it (in a scope of one's own: systemd-run --user --scope -p Delegate=yes)",
            file.display(),
            name = controller.name(),
        )),
    }
}

/// Before Linux 6.2 a thread that moves to another cpuset gets all CPUs of that, and what its program
/// had confined it to is lost for good: then cpusets are not for us.
pub(crate) fn affinity_survives(root: &Root) -> Result<(), String> {
    const SINCE: (u32, u32) = (6, 2);
    let text = root.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    match (number(), number()) {
        (Some(major), Some(minor)) if (major, minor) < SINCE => Err(format!(
            "this kernel ({}) forgets the affinity of threads that change their cpuset: it needs Linux 6.2; confine the threads themselves",
            text.trim()
        )),
        _ => Ok(()),
    }
}

/// Makes a new group fit to take processes. It is undone by the group's removal.
pub(crate) fn begin(version: Version, folder: &Path, parent: &Path) -> io::Result<()> {
    match version {
        Version::V1 => {
            // A new cpuset of v1 is empty and takes no process.
            for file in ["cpuset.mems", "cpuset.cpus"] {
                let Ok(value) = fs::read_to_string(parent.join(file)) else {
                    continue;
                };
                group_files::write(&folder.join(file), value.trim_end())?;
            }
            Ok(())
        }
        Version::V2 => {
            let kind = folder.join("cgroup.type");
            match group_files::read(&kind) {
                Ok(text) if text == "domain invalid" => group_files::write(&kind, "threaded"),
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_weight_is_the_usual_shares() {
        assert_eq!(shares(100), 1024);
        assert_eq!((shares(1), shares(10_000)), (10, 102_400));
    }

    #[test]
    fn cpusets_of_kernels_that_forget_affinity_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("proc/sys/kernel/osrelease");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (release, survives) in [
            ("5.15.0-91-generic\n", false),
            ("6.1.0", false),
            ("6.2", true),
            ("10.0-rc1", true),
            ("odd", true),
        ] {
            fs::write(&file, release).unwrap();
            let found = affinity_survives(&Root::at(folder.path()));
            assert_eq!(found.is_ok(), survives, "{release}");
        }
    }
}
