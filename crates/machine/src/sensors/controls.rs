//! What can be set. Nothing is set to find out: permissions are asked for, and calls are made for
//! processes that do not exist.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Facility, ON_FILES, Tried, cause};
use crate::cgroup::{self, Certainty, Place, Version};
use crate::{Root, control, probe};

mod hardware;

/// All controls.
///
/// Cost: some tens of files, under a millisecond.
pub fn controls(root: &Root) -> Vec<Facility> {
    vec![
        Facility::new("affinity", affinity(root)),
        Facility::new(
            "wait-policy",
            Ok("how OpenMP threads wait, chosen at launch: OMP_WAIT_POLICY and its kin".into()),
        ),
        Facility::new(
            "cgroup-cpuset",
            control::group_place::affinity_survives(root)
                .and_then(|()| group(root, "cpuset", "CPUs of a group", "cpuset.cpus")),
        ),
        Facility::new(
            "cgroup-weight",
            group(root, "cpu", "share of a group", "cpu.weight"),
        ),
        Facility::new("cgroup-idle", idle(root)),
        Facility::new(
            "cgroup-freeze",
            group(
                root,
                "freezer",
                "stopping of a group, never by default",
                "cgroup.freeze",
            ),
        ),
        Facility::new(
            "cgroup-quota",
            group(root, "cpu", "CFS quota of a group", "cpu.max"),
        ),
        Facility::new("slice", slice(root)),
        Facility::new("frequency", hardware::frequency(root)),
        Facility::new("duty-cycle", hardware::duty_cycle(root)),
        Facility::new("prefetchers", hardware::prefetchers(root)),
        Facility::new("cache-share", hardware::cache_share(root)),
        Facility::new("bandwidth-share", hardware::bandwidth_share(root)),
    ]
}

fn affinity(root: &Root) -> Tried {
    if !root.is_system() {
        return Err(ON_FILES.into());
    }
    probe::set_affinity()
        .map(|()| "CPUs of each thread of one's own programs: sched_setaffinity; other users' programs need CAP_SYS_NICE".into())
        .map_err(|e| format!("sched_setaffinity is not allowed here ({}): a container's filter forbids it", cause(&e)))
}

fn slice(root: &Root) -> Tried {
    if !root.is_system() {
        return Err(ON_FILES.into());
    }
    control::slice::available()?;
    Ok(
        "how long each thread of one's own programs runs at a time, 0.1 to 100 ms: sched_setattr"
            .into(),
    )
}

/// Whether groups with a controller can be made below our own, which is where a program that we
/// start is. See [`control::ProgramCgroup`].
fn group(root: &Root, controller: &str, what: &str, file: &str) -> Tried {
    let (place, folder) = own_group(root, controller)?;
    let file = match (place.version, file) {
        (Version::V1, "cpu.weight") => "cpu.shares",
        (Version::V1, "cpu.max") => "cpu.cfs_quota_us",
        (Version::V1, "cgroup.freeze") => "freezer.state",
        (_, file) => file,
    };
    Ok(format!(
        "{what}: {file} of a group made in {}",
        folder.display()
    ))
}

/// Our own group in the hierarchy that has the controller, if groups with it can be made there.
fn own_group(root: &Root, controller: &str) -> Result<(Place, PathBuf), String> {
    let places = cgroup::places_with(root, None, &[controller])?;
    // v1 where it has the controller: v2 cannot have it then.
    let place = places
        .iter()
        .find(|p| p.version == Version::V1 && p.may_have(controller))
        .or_else(|| places.iter().find(|p| p.version == Version::V2))
        .ok_or_else(|| format!("no control groups with the {controller} controller"))?;
    if let Certainty::Guessed(why) | Certainty::Hidden(why) = &place.certainty {
        return Err(format!("which group is ours is not known: {why}"));
    }
    let folder = place
        .folders
        .first()
        .ok_or_else(|| format!("the {controller} controller's groups cannot be seen"))?;
    if !root.exists(folder) {
        return Err(format!("our group {} is gone", folder.display()));
    }
    writable(root, place, controller, folder)?;
    Ok((place.clone(), folder.clone()))
}

/// The file is in the groups that can be made if it is in any group of the hierarchy but the top of
/// v2.
fn idle(root: &Root) -> Tried {
    let (place, folder) = own_group(root, "cpu")?;
    let is_top = place.version == Version::V2 && place.folders.len() == 1;
    if !is_top && !root.exists(folder.join("cpu.idle")) {
        return Err("the kernel has no cpu.idle: it came with Linux 5.15".into());
    }
    Ok(format!(
        "running only what others leave idle: cpu.idle of a group made in {}",
        folder.display()
    ))
}

fn writable(root: &Root, place: &Place, controller: &str, folder: &Path) -> Result<(), String> {
    // Freezing on v2 needs no controller.
    if place.version == Version::V2 && controller != "freezer" {
        let lists = |file: &str| {
            root.read(folder.join(file))
                .unwrap_or_default()
                .split_whitespace()
                .any(|c| c == controller)
        };
        if !lists("cgroup.controllers") {
            return Err(format!(
                "the {controller} controller is not given to {} (cgroup.controllers): its parent must list it in cgroup.subtree_control",
                folder.display()
            ));
        }
        if !lists("cgroup.subtree_control") {
            return Err(format!(
                "groups made in {} do not get the {controller} controller: whoever owns it writes +{controller} to its cgroup.subtree_control",
                folder.display()
            ));
        }
    }
    may_write(root, folder).map_err(|why| {
        format!(
            "no group can be made in {} ({why}): needs root, or a group delegated to this user (systemd-run --user --scope -p Delegate=yes)",
            folder.display()
        )
    })
}

/// Whether the caller may write a file, or into a folder.
fn may_write(root: &Root, path: impl AsRef<Path>) -> Result<(), String> {
    access(root.path(path), Access::WRITE_OK).map_err(|e| match e {
        rustix::io::Errno::ROFS => "it is mounted read-only".into(),
        e => cause(&e.into()),
    })
}
