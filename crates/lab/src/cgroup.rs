//! A cgroup of the lab's own with a CPU quota, below the group that the lab is in: v1 where the cpu
//! controller is mounted so, else v2. Removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// The period of the quota, in microseconds: the kernel's default.
const PERIOD_US: u64 = 100_000;

/// A group whose processes together get `cpus` CPUs' time.
pub struct QuotaGroup {
    folder: PathBuf,
}

impl QuotaGroup {
    /// Makes one. Needs write access to the cpu controller: root, or a delegated v2 group.
    pub fn new(cpus: f64) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("no mountinfo")?;
        let groups = fs::read_to_string("/proc/self/cgroup").context("no /proc/self/cgroup")?;
        let Some((parent, version)) = cpu_controller(&mounts, &groups) else {
            bail!("no cgroup file system is mounted: a quota cannot be set");
        };
        let name = format!("corewise-lab-{}", std::process::id());
        let folder = parent.join(name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            result => result.with_context(|| {
                let folder = folder.display();
                format!("could not make {folder} (a quota needs root or a delegated cgroup)")
            })?,
        }
        let group = QuotaGroup { folder };
        let quota = (cpus * PERIOD_US as f64).round() as u64;
        match version {
            Version::V1 => {
                group.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                group.write("cpu.cfs_quota_us", &quota.to_string())?;
            }
            Version::V2 => group.write("cpu.max", &format!("{quota} {PERIOD_US}"))?,
        }
        Ok(group)
    }

    /// The file that a process writes its number to, to enter.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| {
            let path = path.display();
            format!("could not write {value} to {path} (is the cpu controller delegated?)")
        })
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        // A process that has just ended may hold the group for a moment.
        for _ in 0..50 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("lab: {} is still in use and stays", self.folder.display());
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    V1,
    V2,
}

/// The folder of this process's group of the cpu controller.
fn cpu_controller(mounts: &str, groups: &str) -> Option<(PathBuf, Version)> {
    let own = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            wanted(controllers).then(|| fields.next().map(str::to_owned))?
        })
    };
    let has_cpu = |list: &str| list.split(',').any(|controller| controller == "cpu");
    let mounted = |kind: &str, wanted: &dyn Fn(&str) -> bool| {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let (fs, options) = (right.next()?, right.nth(1).unwrap_or(""));
            let mut left = left.split(' ').skip(3);
            let (root, point) = (left.next()?, left.next()?);
            (fs == kind && wanted(options)).then(|| (root.to_owned(), PathBuf::from(point)))
        })
    };
    let (version, (root, point), path) = match mounted("cgroup", &has_cpu) {
        Some(mount) => (Version::V1, mount, own(&has_cpu)?),
        None => (
            Version::V2,
            mounted("cgroup2", &|_| true)?,
            own(&str::is_empty)?,
        ),
    };
    // In a container the mount shows only a part of the tree: its root is then no "/".
    let path = path.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    Some((point.join(Path::new(path.trim_start_matches('/'))), version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_controller_is_found_in_v1_and_v2_and_inside_a_container() {
        let v1 = "1 0 0:9 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup none rw,cpu,cpuacct\n\
                  2 0 0:8 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
        assert_eq!(
            cpu_controller(v1, "2:cpu,cpuacct:/a/b\n0::/\n"),
            Some(("/sys/fs/cgroup/cpu,cpuacct/a/b".into(), Version::V1))
        );
        let v2 = "1 0 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            cpu_controller(v2, "0::/user.slice\n"),
            Some(("/sys/fs/cgroup/user.slice".into(), Version::V2))
        );
        let inside = "1 0 0:9 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            cpu_controller(inside, "0::/docker/1\n"),
            Some(("/sys/fs/cgroup/".into(), Version::V2))
        );
        assert_eq!(cpu_controller("", ""), None);
    }

    #[test]
    fn a_job_in_the_group_sees_it_and_the_group_goes() {
        let group = match QuotaGroup::new(1.0) {
            Ok(group) => group,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        let mut job = crate::measure::Job::new(["cat", "/proc/self/cgroup"]);
        job.cgroup = Some(group.procs());
        let run = job.output(Duration::from_secs(60)).unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        assert!(text.contains("corewise-lab-"), "{text} {}", run.stderr);
        let folder = group.folder.clone();
        drop(group);
        assert!(!folder.exists());
    }
}
