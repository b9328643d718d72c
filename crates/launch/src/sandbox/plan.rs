//! How the sandbox's view of the files is put together: a list of steps, made before anything
//! starts, carried out by the sandbox's first process. Pure, but for looking at folders through
//! [`Look`].
//!
//! Every real file system gets an overlay whose upper layer lies in memory. An ordinary user meets
//! one obstacle: in a user namespace the mounts that were inherited are locked together, and the
//! kernel refuses an overlay over a folder under which a locked mount lies (it would uncover what
//! the mount hides). Such a folder is *split*: made anew in memory, each of its entries carried over
//! by itself. A second obstacle has the same cure: the first write below a folder copies the folder
//! up with its owner, and an owner that the user namespace does not know cannot be copied. So
//! the folders in which programs write, if they are somebody else's (`/var/tmp`), must be the roots
//! of overlays, and the folders above them are split.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::look::{Kind, Look};
use super::mountinfo::{self, Mount};

/// Where the scratch file system is mounted while the view is put together. Nothing is carried over
/// from `/proc`, so hiding it hides no source.
pub(crate) const SCRATCH: &CStr = c"/proc";
/// The new root, while it is put together.
pub(crate) const NEW_ROOT: &CStr = c"/proc/root";

/// A regular file in a split folder is copied up to this size (bytes), so that it can be written;
/// larger ones can only be read.
const COPY_LIMIT: u64 = 1 << 20;
/// A folder with more entries than this is not split.
const SPLIT_LIMIT: usize = 4096;

/// File systems whose files are windows into the kernel: never overlaid, shown read-only.
const PSEUDO: &[&str] = &[
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// One step. Paths are complete; targets lie under [`NEW_ROOT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A copy-on-write view of the folder `source`. Where the kernel refuses it: a read-only view,
    /// unless it is `required`.
    Overlay {
        source: CString,
        target: CString,
        /// `lowerdir=`'s value: the source, or `.` when its name has characters that overlayfs
        /// would take for separators (the step then changes folder first).
        lower: CString,
        upper: CString,
        work: CString,
        flags: Flags,
        required: bool,
    },
    /// A read-only view of `source` and everything mounted under it.
    ReadOnly { source: CString, target: CString },
    /// A read-only view of one file; the target is created first.
    File { source: CString, target: CString },
    /// A copy of a small regular file, or a read-only view where it cannot be read.
    Copy { source: CString, target: CString },
    /// A new folder with the mode of another, and its owner where possible.
    FolderLike { like: CString, target: CString },
    /// A new folder.
    Folder { target: CString, mode: u32 },
    /// A symbolic link.
    Link { target: CString, to: CString },
    /// A new socket or FIFO: the name is there, nobody is behind it.
    Node { target: CString, mode: u32 },
    /// A fresh file system in memory.
    Memory {
        target: CString,
        mode: &'static CStr,
    },
    /// A fresh `/proc` of the new PID namespace, its settings read-only.
    Proc {
        target: CString,
        read_only: Vec<CString>,
    },
    /// A fresh instance of the pseudo-terminals.
    Terminals { target: CString },
}

/// Mount flags that are kept. Device files are never usable outside `/dev`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) read_only: bool,
    pub(crate) nosuid: bool,
    pub(crate) noexec: bool,
}

/// The steps, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountPlan {
    pub(crate) steps: Vec<Step>,
    /// Folders of the scratch file system that the steps need (upper and work layers).
    pub(crate) folders: Vec<CString>,
}

/// Why no plan could be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PlanError {
    #[error("nothing is mounted on / (a changed root?)")]
    NoRoot,
    #[error(
        "{} has more than {SPLIT_LIMIT} entries and a file system mounted under it", .0.display()
    )]
    TooManyEntries(PathBuf),
}

/// What the plan is made for.
pub(crate) struct Wish<'a> {
    /// In a user namespace (see the module).
    pub(crate) split: bool,
    /// The folder in which the program will run, which must be writable in the view.
    pub(crate) cwd: &'a Path,
    /// Folders that must be roots of overlays, when splitting.
    pub(crate) roots: &'a [PathBuf],
}

/// Makes the plan.
pub(crate) fn plan(
    mounts: &[Mount],
    wish: &Wish<'_>,
    look: &dyn Look,
) -> Result<MountPlan, PlanError> {
    let visible = mountinfo::visible(mounts);
    let root = visible.first().ok_or(PlanError::NoRoot)?;
    let mut planner = Planner {
        cwd_mount: mountinfo::reached_by(mounts, wish.cwd).map(|m| m.id),
        cwd: wish.cwd,
        split: wish.split,
        roots: wish.roots,
        look,
        points: visible.iter().map(|m| m.point.clone()).collect(),
        out: MountPlan::default(),
        made: BTreeSet::new(),
        split_folders: BTreeSet::new(),
        slots: 0,
    };
    planner.mount(root)?;
    for mount in &visible[1..] {
        let under = |place: &str| mount.point.starts_with(place);
        if under("/proc") || under("/sys") || under("/dev") {
            continue; // made below, as a whole
        }
        planner.mount(mount)?;
    }
    planner.system_folders(&visible)?;
    Ok(planner.out)
}

struct Planner<'a> {
    cwd: &'a Path,
    roots: &'a [PathBuf],
    cwd_mount: Option<u32>,
    split: bool,
    look: &'a dyn Look,
    points: BTreeSet<PathBuf>,
    out: MountPlan,
    /// Targets that steps have created (in split folders nothing exists before).
    made: BTreeSet<PathBuf>,
    /// Folders made anew so far.
    split_folders: BTreeSet<PathBuf>,
    slots: usize,
}

impl Planner<'_> {
    fn mount(&mut self, mount: &Mount) -> Result<(), PlanError> {
        let point = &mount.point;
        let flags = Flags {
            read_only: mount.read_only,
            nosuid: mount.nosuid,
            noexec: mount.noexec,
        };
        match self.look.kind(point) {
            Some(Kind::Folder) => {}
            // A bind-mounted file; a socket or FIFO would lead out of the sandbox.
            Some(kind) => {
                self.entry(point, kind);
                return Ok(());
            }
            None => return Ok(()),
        }
        // Touching an automount point would mount something, outside as well.
        if mount.fs_type == "autofs" {
            return Ok(());
        }
        if PSEUDO.contains(&mount.fs_type.as_str()) {
            self.push(Step::ReadOnly {
                source: c(point),
                target: new(point),
            });
            return Ok(());
        }
        let required = point == Path::new("/") || self.cwd_mount == Some(mount.id);
        if self.split && self.must_split(point) {
            self.push(Step::Memory {
                target: new(point),
                mode: c"mode=755",
            });
            self.split_folder(point, flags, required)
        } else {
            self.overlay(point, flags, required);
            Ok(())
        }
    }

    /// Carries the entries of a folder over one by one.
    fn split_folder(&mut self, at: &Path, flags: Flags, required: bool) -> Result<(), PlanError> {
        self.split_folders.insert(at.to_owned());
        let names = self.look.names(at);
        if names.len() > SPLIT_LIMIT {
            return Err(PlanError::TooManyEntries(at.to_owned()));
        }
        for name in names {
            let path = at.join(name);
            let Some(kind) = self.look.kind(&path) else {
                continue;
            };
            if kind != Kind::Folder {
                if !self.points.contains(&path) {
                    self.entry(&path, kind);
                }
                continue;
            }
            self.push(Step::FolderLike {
                like: c(&path),
                target: new(&path),
            });
            if self.points.contains(&path) || is_system_folder(&path) {
                continue; // its own mount follows
            }
            if self.must_split(&path) {
                self.split_folder(&path, flags, required)?;
            } else {
                let required = required && self.cwd.starts_with(&path);
                self.overlay(&path, flags, required);
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, kind: Kind) {
        let (source, target) = (c(path), new(path));
        let in_split = self.parent_is_split(path);
        let step = match kind {
            Kind::File { size } if size <= COPY_LIMIT && in_split => Step::Copy { source, target },
            Kind::File { .. } => Step::File { source, target },
            Kind::Link { to } => Step::Link { target, to: c(&to) },
            Kind::Socket if in_split => Step::Node {
                target,
                mode: libc::S_IFSOCK | 0o666,
            },
            Kind::Fifo if in_split => Step::Node {
                target,
                mode: libc::S_IFIFO | 0o666,
            },
            // Bound over an overlay, which has a plain file of that name: leave that.
            Kind::Socket | Kind::Fifo | Kind::Device | Kind::Folder => return,
        };
        self.push(step);
    }

    fn overlay(&mut self, path: &Path, flags: Flags, required: bool) {
        let slot = self.slots;
        self.slots += 1;
        let folder = |part: &str| c(Path::new(&format!("/proc/{part}{slot}")));
        let (upper, work) = (folder("upper"), folder("work"));
        self.out.folders.push(upper.clone());
        self.out.folders.push(work.clone());
        let plain = !path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|b| b",:\\\"".contains(b));
        self.push(Step::Overlay {
            source: c(path),
            target: new(path),
            lower: if plain { c(path) } else { c".".into() },
            upper,
            work,
            flags,
            required,
        });
    }

    /// `/proc`, `/sys` and `/dev`, which are never the machine's own.
    fn system_folders(&mut self, visible: &[Mount]) -> Result<(), PlanError> {
        let sub = |parts: &[&str]| {
            parts
                .iter()
                .map(|p| new(Path::new("/proc").join(p).as_path()))
                .collect()
        };
        self.push(Step::Proc {
            target: new(Path::new("/proc")),
            read_only: sub(&["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"]),
        });
        if self.look.kind(Path::new("/sys")) == Some(Kind::Folder) {
            self.push(Step::ReadOnly {
                source: c"/sys".into(),
                target: new(Path::new("/sys")),
            });
        }
        if self.look.kind(Path::new("/dev")) != Some(Kind::Folder) {
            return Ok(());
        }
        self.push(Step::Memory {
            target: new(Path::new("/dev")),
            mode: c"mode=755",
        });
        for name in ["null", "zero", "full", "random", "urandom"] {
            let path = Path::new("/dev").join(name);
            if self.look.kind(&path).is_some() {
                self.push(Step::File {
                    source: c(&path),
                    target: new(&path),
                });
            }
        }
        for (name, to) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            self.push(Step::Link {
                target: new(&Path::new("/dev").join(name)),
                to: c(Path::new(to)),
            });
        }
        for name in ["pts", "shm"] {
            self.push(Step::Folder {
                target: new(&Path::new("/dev").join(name)),
                mode: 0o755,
            });
        }
        self.push(Step::Terminals {
            target: new(Path::new("/dev/pts")),
        });
        match visible.iter().find(|m| m.point == Path::new("/dev/shm")) {
            Some(shm) => self.mount(shm)?,
            None => self.push(Step::Memory {
                target: new(Path::new("/dev/shm")),
                mode: c"mode=1777",
            }),
        }
        Ok(())
    }

    fn mounts_under(&self, path: &Path) -> bool {
        self.points.iter().any(|p| p != path && p.starts_with(path))
    }

    fn must_split(&self, path: &Path) -> bool {
        self.mounts_under(path)
            || self.roots.iter().any(|r| r != path && r.starts_with(path))
                && self.look.names(path).len() <= SPLIT_LIMIT
    }

    fn parent_is_split(&self, path: &Path) -> bool {
        path.parent()
            .is_some_and(|p| self.split_folders.contains(p))
    }

    fn push(&mut self, step: Step) {
        // A split folder and a mount on it may both ask for the same new folder.
        if let Step::FolderLike { target, .. } = &step
            && !self
                .made
                .insert(PathBuf::from(target.to_string_lossy().into_owned()))
        {
            return;
        }
        self.out.steps.push(step);
    }
}

fn is_system_folder(path: &Path) -> bool {
    ["/proc", "/sys", "/dev"]
        .iter()
        .any(|p| path == Path::new(p))
}

/// A path for the kernel. A path that came from the kernel holds no zero byte.
fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// The same place under the new root.
fn new(path: &Path) -> CString {
    let mut bytes = NEW_ROOT.to_bytes().to_vec();
    if path != Path::new("/") {
        bytes.extend_from_slice(path.as_os_str().as_bytes());
    }
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests;
