//! What can be set. Nothing is set to find out: permissions are asked for, and calls are made for
//! processes that do not exist.

use std::path::Path;

use rustix::fs::{Access, access};

use super::{Facility, ON_FILES, Tried, cause, find};
use crate::cgroup::{self, Place, Version};
use crate::{Root, probe};

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
            group(root, "cpuset", "CPUs of a group", "cpuset.cpus"),
        ),
        Facility::new(
            "cgroup-weight",
            group(root, "cpu", "share of a group", "cpu.weight"),
        ),
        Facility::new(
            "cgroup-quota",
            group(root, "cpu", "CFS quota of a group", "cpu.max"),
        ),
        Facility::new("frequency", frequency(root)),
        Facility::new("prefetchers", prefetchers(root)),
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

/// Whether groups with a controller can be made below our own.
fn group(root: &Root, controller: &str, what: &str, file: &str) -> Tried {
    let places = cgroup::places(root, None)?;
    // v1 where it has the controller: v2 cannot have it then.
    let place = places
        .iter()
        .find(|p| p.version == Version::V1 && p.may_have(controller))
        .or_else(|| places.iter().find(|p| p.version == Version::V2))
        .ok_or_else(|| format!("no control groups with the {controller} controller"))?;
    let folder = place
        .folders
        .first()
        .ok_or_else(|| format!("the {controller} controller's groups cannot be seen"))?;
    if !root.exists(folder) {
        return Err(format!("our group {} is gone", folder.display()));
    }
    writable(root, place, controller, folder)?;
    let file = match (place.version, file) {
        (Version::V1, "cpu.weight") => "cpu.shares",
        (Version::V1, "cpu.max") => "cpu.cfs_quota_us",
        (_, file) => file,
    };
    Ok(format!(
        "{what}: {file} of a group made in {}",
        folder.display()
    ))
}

fn writable(root: &Root, place: &Place, controller: &str, folder: &Path) -> Result<(), String> {
    if place.version == Version::V2 {
        let controllers = root
            .read(folder.join("cgroup.controllers"))
            .unwrap_or_default();
        if !controllers.split_whitespace().any(|c| c == controller) {
            return Err(format!(
                "the {controller} controller is not given to {} (cgroup.controllers): its parent must list it in cgroup.subtree_control",
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

fn frequency(root: &Root) -> Tried {
    let file = find(root, "/sys/devices/system/cpu", |cpu| {
        let file = format!("{cpu}/cpufreq/scaling_max_freq");
        root.exists(&file).then_some(file)
    })
    .ok_or("no cpufreq driver (/sys/devices/system/cpu/cpu*/cpufreq is not there)")?;
    may_write(root, &file)
        .map(|()| format!("limits and governor of each CPU: {file} and its kin"))
        .map_err(|why| format!("{file} cannot be written ({why}): needs root"))
}

fn prefetchers(root: &Root) -> Tried {
    const INTEL_PREFETCHERS: u64 = 0x1a4;
    let intel = root
        .read("/proc/cpuinfo")
        .is_ok_and(|t| t.contains("GenuineIntel"));
    if !intel {
        return Err("known for Intel processors only".into());
    }
    let file = find(root, "/dev/cpu", |cpu| {
        let file = format!("{cpu}/msr");
        root.exists(&file).then_some(file)
    })
    .ok_or("no /dev/cpu/*/msr: needs the kernel's msr module (modprobe msr)")?;
    may_write(root, &file)
        .map_err(|why| format!("{file} cannot be written ({why}): needs root (CAP_SYS_RAWIO)"))?;
    let read = std::fs::File::open(root.path(&file)).and_then(|device| {
        use std::os::unix::fs::FileExt;
        device.read_exact_at(&mut [0; 8], INTEL_PREFETCHERS)
    });
    read.map(|()| format!("each core's prefetchers: register {INTEL_PREFETCHERS:#x} through {file} and its kin"))
        .map_err(|e| format!("register {INTEL_PREFETCHERS:#x} cannot be read through {file} ({}): the processor, or the hypervisor, does not have it", cause(&e)))
}
