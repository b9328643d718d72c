//! Effective CPUs on made trees of several machines, and of real processes on this one.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Tree;
use corewise_machine::effective::LimitValue;
use corewise_machine::{EffectiveCpus, Error, Root, effective_cpus};

fn on(name: &str) -> EffectiveCpus {
    effective_cpus(&Tree::named(name).root, None).unwrap()
}

/// The sources of the limits of one kind.
fn sources(cpus: &EffectiveCpus, kind: fn(&LimitValue) -> bool) -> Vec<&str> {
    cpus.limits
        .iter()
        .filter(|l| kind(&l.value))
        .map(|l| l.source.as_str())
        .collect()
}

fn quotas(cpus: &EffectiveCpus) -> Vec<&str> {
    sources(cpus, |v| matches!(v, LimitValue::Quota(_)))
}

#[test]
fn an_unlimited_virtual_machine_gives_all_its_cpus() {
    let cpus = on("virtual-2-cpus");
    assert_eq!(cpus.cpus, [0, 1]);
    assert_eq!((cpus.quota, cpus.count, cpus.threads()), (None, 2.0, 2));
    assert_eq!(cpus.limits.len(), 1, "only affinity: {:?}", cpus.limits);
}

#[test]
fn an_unlimited_server_gives_all_its_cpus() {
    let cpus = on("numa-24-cpus");
    assert_eq!(cpus.cpus.len(), 24);
    assert_eq!((cpus.quota, cpus.threads()), (None, 24));
    assert_eq!(cpus.unknown().count(), 0);
}

#[test]
fn the_quota_of_an_ancestor_counts() {
    let cpus = on("container-v2-quota-on-ancestor");
    assert_eq!(cpus.cpus, [4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(
        (cpus.quota, cpus.count, cpus.threads()),
        (Some(3.0), 3.0, 3)
    );
    assert_eq!(
        quotas(&cpus),
        [
            "/sys/fs/cgroup/kubepods.slice/pod7/cpu.max",
            "/sys/fs/cgroup/kubepods.slice/cpu.max"
        ]
    );
}

#[test]
fn a_container_whose_group_is_mounted_as_the_top_is_limited_by_both_controllers() {
    let cpus = on("container-v1");
    assert_eq!(cpus.cpus, [2, 3, 6]);
    assert_eq!(
        (cpus.quota, cpus.count, cpus.threads()),
        (Some(1.5), 1.5, 2)
    );
    assert_eq!(cpus.unknown().count(), 0);
}

#[test]
fn in_a_hybrid_layout_the_tightest_quota_wins_whatever_its_period() {
    let cpus = on("hybrid-nested");
    assert_eq!(
        (cpus.quota, cpus.count, cpus.threads()),
        (Some(2.5), 2.5, 3)
    );
    assert_eq!(quotas(&cpus).len(), 2);
}

#[test]
fn half_a_cpu_is_one_thread() {
    let cpus = on("half-a-cpu");
    assert_eq!(cpus.cpus.len(), 4);
    assert_eq!(
        (cpus.quota, cpus.count, cpus.threads()),
        (Some(0.5), 0.5, 1)
    );
}

#[test]
fn a_change_is_seen_when_read_again() {
    let tree = Tree::named("half-a-cpu");
    tree.write("sys/fs/cgroup/cpu.max", "max 100000\n");
    tree.write("sys/fs/cgroup/cpuset.cpus.effective", "1-2\n");
    let cpus = effective_cpus(&tree.root, None).unwrap();
    assert_eq!((&cpus.cpus[..], cpus.quota), (&[1, 2][..], None));
}

#[test]
fn without_proc_the_cpus_online_count_and_the_rest_is_said_to_be_unknown() {
    let cpus = on("no-proc");
    assert_eq!(cpus.cpus, [0, 1, 2, 3]);
    let unknown: Vec<_> = cpus.unknown().collect();
    assert_eq!(unknown.len(), 1, "{:?}", cpus.limits);
    assert!(unknown[0].why.contains("cgroup"), "{}", unknown[0].why);
}

#[test]
fn with_nothing_at_all_it_is_an_error_that_says_what_to_do() {
    let error = effective_cpus(&Tree::of("").root, None).unwrap_err();
    assert!(matches!(error, Error::NoCpus { .. }));
    assert!(error.to_string().contains("mount /proc"), "{error}");
}

#[test]
fn a_group_hidden_by_a_namespace_is_found_by_the_process() {
    let cpus = on("namespace-hides-two-levels");
    assert_eq!(quotas(&cpus), ["/sys/fs/cgroup/b/cpu.max"]);
    assert_eq!(cpus.unknown().count(), 0);
}

/// A v2 machine of four CPUs with a group, a mounted root and further files.
fn v2(group: &str, mounted: &str, files: &str) -> EffectiveCpus {
    let tree = Tree::of(&format!(
        "== proc/self/status\nPid:\t4242\nCpus_allowed_list:\t0-3\n\
         == proc/self/cgroup\n0::{group}\n\
         == proc/self/mountinfo\n30 23 0:26 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
         {files}"
    ));
    effective_cpus(&tree.root, None).unwrap()
}

#[test]
fn a_hidden_group_that_is_not_found_is_unknown_but_the_mounts_own_limit_counts() {
    let cpus = v2("/", "/..", "== sys/fs/cgroup/cpu.max\n200000 100000\n");
    assert_eq!(cpus.quota, Some(2.0));
    assert_eq!(cpus.unknown().count(), 1);
}

#[test]
fn a_group_above_the_mount_is_unknown_and_no_foreign_quota_is_applied() {
    let cpus = v2("/../other", "/", "== sys/fs/cgroup/cpu.max\n50000 100000\n");
    assert_eq!(cpus.quota, None);
    assert_eq!(cpus.unknown().count(), 1);
}

#[test]
fn a_sibling_is_reached_where_the_mount_shows_it() {
    let cpus = v2(
        "/../other",
        "/..",
        "== sys/fs/cgroup/other/cpu.max\n50000 100000\n",
    );
    assert_eq!(cpus.quota, Some(0.5));
    assert_eq!(cpus.unknown().count(), 0);
}

#[test]
fn a_group_beside_the_mount_is_looked_for_by_the_end_of_its_path() {
    let cpus = v2(
        "/docker/abc/inner",
        "/elsewhere",
        "== sys/fs/cgroup/abc/inner/cpu.max\n150000 100000\n\
         == sys/fs/cgroup/abc/cpu.max\n100000 100000\n",
    );
    assert_eq!(cpus.quota, Some(1.0));
    assert_eq!(
        cpus.unknown().count(),
        1,
        "it is a guess, and said to be one"
    );
}

#[test]
fn a_removed_group_leaves_its_ancestors_limits() {
    let cpus = v2(
        "/slice/gone (deleted)",
        "/",
        "== sys/fs/cgroup/slice/cpu.max\n200000 100000\n",
    );
    assert_eq!(cpus.quota, Some(2.0));
}

#[test]
fn files_that_make_no_sense_are_unknown_limits() {
    let cpus = v2(
        "/",
        "/",
        "== sys/fs/cgroup/cpu.max\ngarbage\n== sys/fs/cgroup/cpuset.cpus.effective\nx-y\n",
    );
    assert_eq!((cpus.cpus.len(), cpus.quota), (4, None));
    assert_eq!(cpus.unknown().count(), 2, "{:?}", cpus.limits);
}

#[test]
fn a_cpuset_that_would_leave_nothing_is_not_applied() {
    let cpus = v2("/", "/", "== sys/fs/cgroup/cpuset.cpus.effective\n8-9\n");
    assert_eq!(cpus.cpus, [0, 1, 2, 3]);
    assert!(cpus.limits.iter().any(|l| l.why.contains("not applied")));
}

#[test]
fn cpus_that_are_offline_do_not_count() {
    let cpus = v2("/", "/", "== sys/devices/system/cpu/online\n0,2-3\n");
    assert_eq!(cpus.cpus, [0, 2, 3]);
}

#[test]
fn more_than_1024_cpus_are_counted() {
    let tree = Tree::of("== proc/self/status\nCpus_allowed_list:\t0-2047\n");
    let cpus = effective_cpus(&tree.root, None).unwrap();
    assert_eq!(cpus.threads(), 2048);
    assert_eq!(
        cpus.unknown().count(),
        0,
        "a kernel without cgroups limits nothing"
    );
}

#[test]
fn v1_without_a_mount_is_unknown() {
    let tree = Tree::of(
        "== proc/self/status\nCpus_allowed_list:\t0-1\n\
         == proc/self/cgroup\n2:cpu,cpuacct:/docker/abc\n\
         == proc/self/mountinfo\n1 0 0:1 / / rw - ext4 /dev/vda rw\n",
    );
    let cpus = effective_cpus(&tree.root, None).unwrap();
    assert_eq!(cpus.unknown().count(), 1);
}

#[test]
fn another_process_is_read_by_its_number() {
    let tree = Tree::named("hybrid-nested");
    tree.write("proc/7/status", "Cpus_allowed_list:\t3\n");
    tree.write("proc/7/cgroup", "4:cpu,cpuacct:/\n5:cpuset:/\n");
    let cpus = effective_cpus(&tree.root, Some(7)).unwrap();
    assert_eq!((&cpus.cpus[..], cpus.quota), (&[3][..], None));
    assert!(matches!(
        effective_cpus(&tree.root, Some(8)),
        Err(Error::NoProcess { pid: 8 })
    ));
}

#[test]
fn they_survive_json() {
    let cpus = on("container-v1");
    let text = serde_json::to_string(&cpus).unwrap();
    assert_eq!(serde_json::from_str::<EffectiveCpus>(&text).unwrap(), cpus);
}

/// A process that does nothing, ended when dropped.
struct Idle(Child);

impl Idle {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn this_process_may_use_at_least_one_cpu() {
    let cpus = effective_cpus(&Root::system(), None).unwrap();
    assert!(!cpus.cpus.is_empty() && cpus.count > 0.0 && cpus.threads() >= 1);
    assert!(cpus.threads() as usize <= cpus.cpus.len());
}

#[test]
fn the_affinity_of_a_living_process_counts() {
    let cpu = effective_cpus(&Root::system(), None).unwrap().cpus[0];
    // `cat` waits for its input; taskset becomes it.
    let idle = Idle::start(Command::new("taskset").args(["-c", &cpu.to_string(), "cat"]));
    // taskset sets the mask before it becomes cat.
    let comm = format!("/proc/{}/comm", idle.pid());
    let patience = Instant::now() + Duration::from_secs(30);
    while std::fs::read_to_string(&comm).unwrap().trim() != "cat" {
        assert!(Instant::now() < patience, "taskset did not start cat");
        std::thread::yield_now();
    }
    let cpus = effective_cpus(&Root::system(), Some(idle.pid())).unwrap();
    assert_eq!(cpus.cpus, [cpu]);
    assert_eq!(cpus.threads(), 1);
}

#[test]
fn a_process_that_has_ended_is_an_error() {
    let pid = Idle::start(&mut Command::new("cat")).pid();
    assert!(matches!(
        effective_cpus(&Root::system(), Some(pid)),
        Err(Error::NoProcess { .. })
    ));
}

/// Groups one in the other, removed when dropped.
struct Groups(Vec<PathBuf>);

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[test]
fn the_quota_of_a_real_ancestor_counts() {
    let root = Root::system();
    let places = match corewise_machine::cgroup::places(&root, None) {
        Ok(places) => places,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let Some(own) = places
        .iter()
        .filter(|p| p.may_have("cpu"))
        .find_map(|p| p.folders.first())
    else {
        return eprintln!("skipped: no group with the cpu controller is visible");
    };
    let outer = own.join(format!("corewise-test-{}", std::process::id()));
    let inner = outer.join("inner");
    let groups = Groups(vec![outer.clone(), inner.clone()]);
    if let Err(e) = groups.0.iter().try_for_each(std::fs::create_dir) {
        return eprintln!("skipped: no group can be made in {}: {e}", own.display());
    }
    let set = std::fs::write(outer.join("cpu.cfs_quota_us"), "150000")
        .or_else(|_| std::fs::write(outer.join("cpu.max"), "150000 100000"));
    if let Err(e) = set {
        return eprintln!("skipped: no quota can be set in {}: {e}", outer.display());
    }
    let idle = Idle::start(&mut Command::new("cat"));
    if let Err(e) = std::fs::write(inner.join("cgroup.procs"), idle.pid().to_string()) {
        return eprintln!(
            "skipped: a process cannot be moved to {}: {e}",
            inner.display()
        );
    }
    let cpus = effective_cpus(&root, Some(idle.pid())).unwrap();
    assert_eq!(cpus.quota, Some(1.5), "{:?}", cpus.limits);
    drop(idle);
    drop(groups);
}
