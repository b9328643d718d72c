//! CPU use of other programs, by the group in which Linux shares CPU time with them.
//!
//! The scheduler shares CPUs out among groups before it shares them out among threads. A group is a cgroup
//! with a CPU weight of its own; where neither process is in one, it is a session, if autogroup is on. So
//! it makes a great difference whether a busy neighbour was started from the same shell or from another.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::program::process_cpu_ns;
use crate::{Root, cgroup};

/// Processes that use less than this part of a CPU are not looked at: what they want does not matter.
const IDLE_BELOW: f64 = 0.01;

/// The first PID namespace's number: who lives in it sees every process. (PROC_PID_INIT_INO in
/// `include/uapi/linux/nsfs.h`.)
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What others use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Neighbours {
    /// CPUs used by each scheduling group but the caller's own (1.0 = one CPU busy), where that is
    /// anything to speak of.
    pub groups: Vec<f64>,
    /// CPUs used by processes that were seen, the caller's own group included, without the caller.
    pub seen: f64,
    /// Whether there may be processes that cannot be seen: another PID namespace's.
    pub hidden: bool,
}

/// A look at the living machine's processes that has begun.
#[derive(Debug)]
pub struct NeighbourLook {
    began: Instant,
    before: HashMap<i32, u64>,
}

impl NeighbourLook {
    /// Notes what every process has used so far. Costs about a microsecond for each process.
    pub fn begin() -> NeighbourLook {
        NeighbourLook {
            began: Instant::now(),
            before: processes()
                .filter_map(|pid| Some((pid, process_cpu_ns(pid)?)))
                .collect(),
        }
    }

    /// What others have used since. Costs as much again, and some 50 µs for each process that used
    /// anything. Processes that ended in between are not seen.
    pub fn end(self) -> Neighbours {
        let span = self.began.elapsed().max(Duration::from_millis(1));
        let root = Root::system();
        let own = Group::of(&root, None);
        let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
        let mut by_group: BTreeMap<Group, f64> = BTreeMap::new();
        let mut seen = 0.0;
        for pid in processes().filter(|pid| *pid != own_pid) {
            let Some(now) = process_cpu_ns(pid) else {
                continue;
            };
            let before = self.before.get(&pid).copied().unwrap_or(0);
            let used = now.saturating_sub(before) as f64 / 1e9 / span.as_secs_f64();
            if used < IDLE_BELOW {
                continue;
            }
            seen += used;
            if let Some(other) = Group::of(&root, Some(pid)).beside(&own) {
                *by_group.entry(other).or_default() += used;
            }
        }
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        Neighbours {
            groups: by_group.into_values().collect(),
            seen,
            hidden: namespace.is_ok_and(|n| n.as_os_str() != FIRST_PID_NAMESPACE),
        }
    }
}

/// The processes that can be seen.
fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The name of the group with which the kernel shares out a process's CPU time: equal for processes of one
/// group, and of no other meaning. `None` where there are no groups, or it is not known. Costs some 200 µs: cgroups are looked
/// for in the list of mounts.
pub fn scheduling_group(root: &Root, pid: i32) -> Option<String> {
    let Group(names) = Group::of(root, Some(pid));
    (!names.is_empty()).then(|| names.join("/"))
}

/// A scheduling group: the names on the way to it from the outermost.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Group(Vec<String>);

impl Group {
    /// The group of a process (`None`: the calling one). One that cannot be learned is the outermost.
    fn of(root: &Root, pid: Option<i32>) -> Group {
        let names = cgroup_names(root, pid);
        if !names.is_empty() {
            return Group(names);
        }
        Group(autogroup(root, pid).into_iter().collect())
    }

    /// Which group beside `own` it belongs to: the outermost that `own` is not in. `None` where it is
    /// `own` itself, or one within it or around it.
    fn beside(self, own: &Group) -> Option<Group> {
        let common = self
            .0
            .iter()
            .zip(&own.0)
            .take_while(|(a, b)| a == b)
            .count();
        match self.0.len() > common && own.0.len() > common {
            true => Some(Group(self.0[..=common].to_vec())),
            // Threads of the outermost group and whole groups share as equals, too.
            false if common == 0 && self.0.len() != own.0.len() => {
                Some(Group(self.0.into_iter().take(1).collect()))
            }
            false => None,
        }
    }
}

/// The names of the cgroups with a CPU weight that a process is in, the outermost first.
fn cgroup_names(root: &Root, pid: Option<i32>) -> Vec<String> {
    let places = cgroup::places(root, pid).unwrap_or_default();
    let weight_of = |version| match version {
        cgroup::Version::V1 => "cpu.shares",
        cgroup::Version::V2 => "cpu.weight",
    };
    let names = |place: cgroup::Place| -> Vec<String> {
        let weight = weight_of(place.version);
        // The last is the mount point: everybody is in it.
        let groups = place.folders.len().saturating_sub(1);
        let has_weight = |folder: &std::path::PathBuf| root.exists(folder.join(weight));
        let folders = place.folders.into_iter().take(groups).filter(has_weight);
        let mut names: Vec<String> = folders.map(|f| f.to_string_lossy().into_owned()).collect();
        names.reverse();
        names
    };
    let with_cpu = places.into_iter().filter(|p| p.may_have("cpu"));
    with_cpu
        .map(names)
        .find(|n| !n.is_empty())
        .unwrap_or_default()
}

/// The session's group of a process, where sessions have one.
fn autogroup(root: &Root, pid: Option<i32>) -> Option<String> {
    let enabled = root.read("/proc/sys/kernel/sched_autogroup_enabled").ok()?;
    if enabled.trim() != "1" {
        return None;
    }
    let text = root
        .read(format!("{}/autogroup", cgroup::process_folder(pid)))
        .ok()?;
    Some(text.split(' ').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(names: &[&str]) -> Group {
        Group(names.iter().map(|n| (*n).to_owned()).collect())
    }

    fn root_with(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn a_neighbour_counts_where_its_way_parts_from_ours() {
        let own = group(&["user", "ann", "job"]);
        assert_eq!(group(&["user", "ann", "job"]).beside(&own), None);
        // Within ours: it shares with us what we have.
        assert_eq!(group(&["user", "ann", "job", "step"]).beside(&own), None);
        let bob = group(&["user", "bob", "x"]).beside(&own);
        assert_eq!(bob, Some(group(&["user", "bob"])));
        let system = group(&["system", "cron"]).beside(&own);
        assert_eq!(system, Some(group(&["system"])));
    }

    #[test]
    fn a_group_has_a_name_and_no_group_has_none() {
        let (_folder, root) = root_with(&[
            ("proc/sys/kernel/sched_autogroup_enabled", "1\n"),
            ("proc/7/autogroup", "/autogroup-35 nice 0\n"),
        ]);
        assert_eq!(scheduling_group(&root, 7).as_deref(), Some("/autogroup-35"));
        assert_eq!(scheduling_group(&root, 8), None);
    }

    #[test]
    fn another_session_is_another_group_where_sessions_have_groups() {
        let enabled = "proc/sys/kernel/sched_autogroup_enabled";
        let files = [
            (enabled, "1\n"),
            ("proc/self/autogroup", "/autogroup-4 nice 0\n"),
            ("proc/7/autogroup", "/autogroup-9 nice 0\n"),
            ("proc/8/autogroup", "/autogroup-4 nice 0\n"),
        ];
        let (_on, root) = root_with(&files);
        let own = Group::of(&root, None);
        let other = Group::of(&root, Some(7)).beside(&own);
        assert_eq!(other, Some(group(&["/autogroup-9"])));
        assert_eq!(Group::of(&root, Some(8)).beside(&own), None);
        let (_off, root) = root_with(&[&files[1..], &[(enabled, "0\n")]].concat());
        let own = Group::of(&root, None);
        assert_eq!(Group::of(&root, Some(7)).beside(&own), None);
    }

    #[test]
    fn a_cgroup_with_a_weight_hides_the_session() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let (_folder, root) = root_with(&[
            ("proc/self/mountinfo", mounts),
            ("proc/sys/kernel/sched_autogroup_enabled", "1\n"),
            ("proc/self/autogroup", "/autogroup-4 nice 0\n"),
            ("proc/self/cgroup", "0::/user/ann/scope\n"),
            ("proc/7/autogroup", "/autogroup-9 nice 0\n"),
            ("proc/7/cgroup", "0::/user/ann/other\n"),
            ("proc/8/autogroup", "/autogroup-4 nice 0\n"),
            ("proc/8/cgroup", "0::/system/cron\n"),
            ("sys/fs/cgroup/user/cpu.weight", "100\n"),
            ("sys/fs/cgroup/user/ann/cpu.weight", "100\n"),
            ("sys/fs/cgroup/user/ann/scope/cgroup.procs", ""),
            ("sys/fs/cgroup/system/cpu.weight", "100\n"),
        ]);
        let own = Group::of(&root, None);
        // Neither scope has a weight: both processes share what their user has.
        assert_eq!(Group::of(&root, Some(7)).beside(&own), None);
        assert!(Group::of(&root, Some(8)).beside(&own).is_some());
    }
}
