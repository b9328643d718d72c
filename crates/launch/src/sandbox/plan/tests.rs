//! Plans for made trees.

use super::*;
use std::collections::BTreeMap;

/// A made tree: complete paths and what they are.
struct Made(BTreeMap<PathBuf, Kind>);

impl Look for Made {
    fn kind(&self, path: &Path) -> Option<Kind> {
        self.0.get(path).cloned()
    }
    fn names(&self, path: &Path) -> Vec<std::ffi::OsString> {
        self.0
            .keys()
            .filter(|p| p.parent() == Some(path))
            .filter_map(|p| p.file_name().map(ToOwned::to_owned))
            .collect()
    }
}

fn tree() -> Made {
    let folders = [
        "/",
        "/dev",
        "/dev/shm",
        "/etc",
        "/home",
        "/home/u",
        "/mnt",
        "/mnt/disk",
        "/proc",
        "/run",
        "/sys",
        "/var",
        "/var/tmp",
        "/var/lib",
        "/auto",
        "/bpf",
    ];
    let mut made: BTreeMap<_, _> = folders
        .iter()
        .map(|f| (PathBuf::from(f), Kind::Folder))
        .collect();
    for (path, kind) in [
        (
            "/bin",
            Kind::Link {
                to: "usr/bin".into(),
            },
        ),
        ("/etc/resolv.conf", Kind::File { size: 10 }),
        ("/etc/big", Kind::File { size: 1 << 30 }),
        ("/etc/pipe", Kind::Fifo),
        ("/run/docker.sock", Kind::Socket),
        ("/dev/null", Kind::Device),
    ] {
        made.insert(path.into(), kind);
    }
    Made(made)
}

const MOUNTS: &[u8] = b"\
1 0 8:1 / / rw - ext4 a rw
2 1 0:1 / /proc rw - proc proc rw
3 1 0:2 / /sys rw - sysfs sysfs rw
4 1 0:3 / /dev rw - devtmpfs dev rw
5 4 0:4 / /dev/shm rw,nosuid - tmpfs tmpfs rw
6 1 8:2 / /mnt/disk ro,noexec - xfs b rw
7 1 8:1 /x /etc/resolv.conf rw - ext4 a rw
8 1 0:5 /d /run/docker.sock rw - tmpfs c rw
9 1 0:6 / /auto rw - autofs d rw
10 1 0:7 / /bpf rw - bpf e rw
";

fn plan_of(split: bool, cwd: &str, roots: &[&str]) -> Vec<Step> {
    let roots: Vec<PathBuf> = roots.iter().map(PathBuf::from).collect();
    let wish = Wish {
        split,
        cwd: Path::new(cwd),
        roots: &roots,
    };
    let mounts = mountinfo::parse(MOUNTS).unwrap();
    plan(&mounts, &wish, &tree()).unwrap().steps
}

/// The sources of the overlays, and which of them are required.
fn overlays(steps: &[Step]) -> Vec<(&str, bool)> {
    steps
        .iter()
        .filter_map(|s| match s {
            Step::Overlay {
                source, required, ..
            } => Some((source.to_str().unwrap(), *required)),
            _ => None,
        })
        .collect()
}

#[test]
fn each_real_file_system_gets_one_overlay() {
    let steps = plan_of(false, "/home/u", &[]);
    let expected = [("/", true), ("/mnt/disk", false), ("/dev/shm", false)];
    assert_eq!(overlays(&steps), expected);
}

#[test]
fn mount_flags_are_kept() {
    let steps = plan_of(false, "/", &[]);
    let disk = steps.iter().find_map(|s| match s {
        Step::Overlay { source, flags, .. } if source.to_bytes() == b"/mnt/disk" => Some(*flags),
        _ => None,
    });
    let expected = Flags {
        read_only: true,
        nosuid: false,
        noexec: true,
    };
    assert_eq!(disk, Some(expected));
}

#[test]
fn the_current_folders_file_system_must_be_writable() {
    let steps = plan_of(false, "/mnt/disk", &[]);
    assert!(overlays(&steps).contains(&("/mnt/disk", true)));
}

#[test]
fn in_a_user_namespace_folders_with_mounts_below_are_split() {
    let steps = plan_of(true, "/home/u", &[]);
    let names: Vec<&str> = overlays(&steps).into_iter().map(|o| o.0).collect();
    assert_eq!(names, ["/home", "/var", "/mnt/disk", "/dev/shm"]);
    assert!(overlays(&steps).contains(&("/home", true)));
}

#[test]
fn folders_of_others_in_which_programs_write_are_roots_of_overlays() {
    let steps = plan_of(true, "/home/u", &["/var/tmp"]);
    let names: Vec<&str> = overlays(&steps).into_iter().map(|o| o.0).collect();
    assert_eq!(
        names,
        ["/home", "/var/lib", "/var/tmp", "/mnt/disk", "/dev/shm"]
    );
}

#[test]
fn sockets_and_fifos_never_lead_out() {
    for split in [false, true] {
        for step in plan_of(split, "/", &[]) {
            if let Step::File { source, .. } | Step::Copy { source, .. } = step {
                let source = source.to_str().unwrap();
                assert!(
                    !source.contains("docker") && !source.contains("pipe"),
                    "{source}"
                );
            }
        }
    }
}

#[test]
fn kernel_windows_are_read_only_and_automounts_are_not_touched() {
    let steps = plan_of(false, "/", &[]);
    let views: Vec<&str> = steps
        .iter()
        .filter_map(|s| match s {
            Step::ReadOnly { source, .. } => Some(source.to_str().unwrap()),
            _ => None,
        })
        .collect();
    assert_eq!(views, ["/bpf", "/sys"]);
}

#[test]
fn in_split_folders_small_files_are_copied_and_large_ones_shown() {
    let steps = plan_of(true, "/", &[]);
    let big = steps
        .iter()
        .any(|s| matches!(s, Step::File { source, .. } if source.to_bytes() == b"/etc/big"));
    let small = steps.iter().any(
        |s| matches!(s, Step::Copy { source, .. } if source.to_bytes() == b"/etc/resolv.conf"),
    );
    assert!(big && small);
}
