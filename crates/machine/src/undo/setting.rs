//! What can be set and undone, each with the calls that read it, set it and put it back.
//!
//! Values are text: what a person reads in the log is what the kernel reads and writes.
//!
//! | setting | value |
//! | --- | --- |
//! | affinity | the kernel's list of CPUs, `0-3,8` |
//! | slice | nanoseconds |
//! | file of a group | the file's text, without the last newline |
//! | group of a process | the group's folder |
//! | group made, share made | `present` or `absent` |
//! | file of the hardware | the file's text, without the last newline |
//! | register | the bits that are ours, `0xf` |

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control::process::{Process, Thread};
use crate::control::registers::Register;
use crate::control::{Error, group_files, group_place, hardware_files, registers, resctrl_files};
use crate::control::{slice, sys};
use crate::{Root, affinity, cgroup, cpu_list};

/// The value of [`Setting::CgroupMade`] while the group is there.
pub(crate) const PRESENT: &str = "present";
/// The value of [`Setting::CgroupMade`] while it is not.
pub(crate) const ABSENT: &str = "absent";

/// One thing that can be set; the key of the undo log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// The CPUs that a thread may run on.
    Affinity(Thread),
    /// A thread's scheduling slice.
    Slice(Thread),
    /// A file of a cgroup that was made here (its folder's name begins with `corewise-`).
    CgroupFile {
        /// The file.
        path: PathBuf,
    },
    /// The cgroup of a process in one hierarchy.
    CgroupOf {
        /// The process.
        process: Process,
        /// A controller of the hierarchy (v1); empty for v2.
        hierarchy: String,
    },
    /// That a cgroup is there. Putting it back removes the group.
    CgroupMade {
        /// Its folder, whose name begins with `corewise-`.
        path: PathBuf,
        /// The folder of the group that takes back the processes which are still in it then.
        processes_go_to: PathBuf,
    },
    /// A file by which the hardware is set: a limit of frequency, or the state of a cooling device.
    HardwareFile {
        /// The file.
        path: PathBuf,
    },
    /// Bits of a register of a CPU.
    Register {
        /// The CPU's registers (`/dev/cpu/N/msr`).
        path: PathBuf,
        /// Which one.
        register: Register,
    },
    /// That a group of resctrl is there. Putting it back removes the group; its threads are in the default
    /// group then, from which they came.
    ShareMade {
        /// Its folder, whose name begins with `corewise-`.
        path: PathBuf,
    },
}

/// A change of a setting that is about to happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What is changed.
    pub what: Setting,
    /// What it is before. Where the log has the setting already, the first original counts and
    /// this one does not.
    pub original: String,
    /// What it will be.
    pub ours: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Affinity(thread) => write!(f, "the CPUs of thread {}", thread.tid),
            Setting::Slice(thread) => write!(f, "the slice of thread {}", thread.tid),
            Setting::CgroupFile { path } => write!(f, "{}", path.display()),
            Setting::CgroupOf { process, hierarchy } => {
                let hierarchy = match hierarchy.as_str() {
                    "" => "v2",
                    name => name,
                };
                write!(f, "the {hierarchy} cgroup of process {}", process.pid)
            }
            Setting::CgroupMade { path, .. } => write!(f, "the cgroup {}", path.display()),
            Setting::HardwareFile { path } => write!(f, "{}", path.display()),
            Setting::Register { path, register } => {
                write!(f, "register {:#x} of {}", register.number(), path.display())
            }
            Setting::ShareMade { path } => write!(f, "the resctrl group {}", path.display()),
        }
    }
}

impl Setting {
    /// The process that it belongs to; `None` for groups and their files, and for the hardware.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Setting::Affinity(thread) | Setting::Slice(thread) => Some(thread.pid),
            Setting::CgroupOf { process, .. } => Some(process.pid),
            Setting::CgroupFile { .. } | Setting::CgroupMade { .. } => None,
            Setting::HardwareFile { .. } | Setting::Register { .. } | Setting::ShareMade { .. } => {
                None
            }
        }
    }

    /// Whether it is the machine's hardware that is set, and no program.
    pub fn is_of_hardware(&self) -> bool {
        matches!(
            self,
            Setting::HardwareFile { .. } | Setting::Register { .. }
        )
    }

    /// Whether it can be a setting with this original. What is read from a damaged log may not be.
    pub(super) fn takes(&self, original: &str) -> bool {
        match self {
            Setting::Affinity(thread) => thread.tid > 0 && cpus(original).is_ok(),
            Setting::Slice(thread) => thread.tid > 0 && nanoseconds(original).is_ok(),
            Setting::CgroupFile { path } => group_files::is_file_of_ours(path),
            Setting::CgroupOf { process, .. } => {
                process.pid > 0 && Path::new(original).is_absolute()
            }
            Setting::CgroupMade { path, .. } => group_files::is_ours(path) && original == ABSENT,
            Setting::HardwareFile { path } => {
                hardware_files::is_known(path) && original.parse::<i64>().is_ok()
            }
            Setting::Register { path, register } => {
                registers::is_file_of_registers(path) && register.bits(original).is_ok()
            }
            Setting::ShareMade { path } => resctrl_files::is_ours(path) && original == ABSENT,
        }
    }

    /// The thread that it belongs to, where it does.
    pub(super) fn thread(&self) -> Option<Thread> {
        match self {
            Setting::Affinity(thread) | Setting::Slice(thread) => Some(*thread),
            _ => None,
        }
    }

    /// The same setting of another thread.
    pub(super) fn of_thread(&self, thread: Thread) -> Option<Setting> {
        match self {
            Setting::Affinity(_) => Some(Setting::Affinity(thread)),
            Setting::Slice(_) => Some(Setting::Slice(thread)),
            _ => None,
        }
    }

    /// Its value now; `None` where what it belongs to is gone.
    ///
    /// # Errors
    /// What the kernel answered.
    pub fn present(&self) -> Result<Option<String>, Error> {
        let value = match self {
            Setting::Affinity(thread) | Setting::Slice(thread) if !thread.lives() => {
                return Ok(None);
            }
            Setting::CgroupOf { process, .. } if !process.lives() => return Ok(None),
            Setting::Affinity(thread) => affinity::of(thread.tid).map(|c| cpu_list::format(&c)),
            Setting::Slice(thread) => slice::read(thread.tid).map(|ns| ns.to_string()),
            Setting::CgroupFile { path } => group_files::read(path),
            Setting::CgroupOf { process, hierarchy } => {
                group_place::of_process(&Root::system(), process.pid, hierarchy)
                    .map_err(io::Error::other)
                    .and_then(|place| text(&place.folder))
            }
            Setting::CgroupMade { path, .. } | Setting::ShareMade { path } => {
                Ok(match path.symlink_metadata() {
                    Ok(_) => PRESENT.to_owned(),
                    Err(_) => ABSENT.to_owned(),
                })
            }
            Setting::HardwareFile { path } => hardware_files::read(path),
            Setting::Register { path, register } => {
                registers::read(path, *register).map(|bits| format!("{bits:#x}"))
            }
        };
        match value {
            Ok(value) => Ok(Some(value)),
            Err(source) if means_gone(&source) => Ok(None),
            // A process that ended meanwhile has no cgroup file any more.
            Err(_) if matches!(self, Setting::CgroupOf { process, .. } if !process.lives()) => {
                Ok(None)
            }
            Err(source) => Err(Error::Read {
                what: self.to_string(),
                source,
            }),
        }
    }

    /// Sets it. The log must have the change already.
    pub(super) fn put(&self, value: &str) -> Result<(), Error> {
        let done = match self {
            Setting::Affinity(thread) => {
                cpus(value).and_then(|cpus| sys::set_affinity(thread.tid, &cpus))
            }
            Setting::Slice(thread) => {
                nanoseconds(value).and_then(|ns| slice::write(thread.tid, ns))
            }
            Setting::CgroupFile { path } => group_files::write(path, value),
            Setting::CgroupOf { process, .. } => {
                group_files::move_process(process.pid, Path::new(value))
            }
            Setting::CgroupMade { path, .. } => group_files::make(path),
            Setting::HardwareFile { path } => hardware_files::write(path, value),
            Setting::Register { path, register } => register
                .bits(value)
                .and_then(|bits| registers::write(path, *register, bits)),
            Setting::ShareMade { path } => resctrl_files::make(path),
        };
        self.explained(done, value)
    }

    /// Puts the original back.
    pub(super) fn put_back(&self, original: &str) -> Result<(), Error> {
        let done = match self {
            Setting::Affinity(thread) => {
                cpus(original).and_then(|cpus| put_affinity_back(*thread, &cpus))
            }
            Setting::Slice(thread) => {
                nanoseconds(original).and_then(|ns| slice::put_back(thread.tid, ns))
            }
            Setting::CgroupMade {
                path,
                processes_go_to,
            } => group_files::remove(path, processes_go_to),
            Setting::ShareMade { path } => resctrl_files::remove(path),
            Setting::CgroupFile { .. }
            | Setting::CgroupOf { .. }
            | Setting::HardwareFile { .. }
            | Setting::Register { .. } => return self.put(original),
        };
        self.explained(done, original)
    }

    fn explained(&self, done: io::Result<()>, value: &str) -> Result<(), Error> {
        done.map_err(|source| match means_gone(&source) {
            true => Error::Gone {
                what: self.to_string(),
            },
            false => Error::Write {
                what: self.to_string(),
                value: value.to_owned(),
                advice: advice(self, &source),
                source,
            },
        })
    }

    /// Whether two values mean the same.
    pub(super) fn same(&self, a: &str, b: &str) -> bool {
        match self {
            // A v1 group is FREEZING until its last thread has stopped.
            Setting::CgroupFile { path } if path.ends_with("freezer.state") => {
                let wish = |state: &str| state == "FREEZING" || state == "FROZEN";
                a == b || (wish(a) && wish(b))
            }
            // A cooling device that does nothing says -1 before Linux 6.3, and 0 from then on.
            Setting::HardwareFile { path } if hardware_files::is_cooling(path) => {
                let rests = |state: &str| state == "-1" || state == "0";
                a == b || (rests(a) && rests(b))
            }
            _ => a == b,
        }
    }

    /// Whether `present` is what `ours` may have become without anybody else's doing.
    pub(super) fn comes_of(&self, ours: &str, present: &str) -> bool {
        match self {
            // Before Linux 6.3 a cooling device that works says what it reaches, not what it was told.
            Setting::HardwareFile { path } if hardware_files::is_cooling(path) => {
                let works = |state: &str| state.parse::<i64>().is_ok_and(|state| state > 0);
                self.same(ours, present) || (works(ours) && works(present))
            }
            _ => self.same(ours, present),
        }
    }

    /// Whether `present` is what is left of `wanted` after the kernel took away what it forbids.
    pub(super) fn narrowed(&self, wanted: &str, present: &str) -> bool {
        if let Setting::HardwareFile { path } = self {
            // A driver rounds frequencies to those that it has.
            return hardware_files::is_frequency(path) || self.comes_of(wanted, present);
        }
        let (Setting::Affinity(_), Ok(wanted), Ok(present)) = (self, cpus(wanted), cpus(present))
        else {
            return false;
        };
        present.iter().all(|cpu| wanted.binary_search(cpu).is_ok())
    }
}

fn means_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        // ENXIO: the registers of a CPU that is offline.
        Some(libc::ESRCH | libc::ENOENT | libc::ENODEV | libc::ENXIO)
    )
}

fn advice(what: &Setting, error: &io::Error) -> &'static str {
    match (what, error.raw_os_error()) {
        (Setting::Affinity(_) | Setting::Slice(_), Some(libc::EPERM | libc::EACCES)) => {
            "it is another user's thread: that needs CAP_SYS_NICE"
        }
        (Setting::Affinity(_), Some(libc::EINVAL)) => {
            "its cpuset allows none of these CPUs, or they are offline"
        }
        (Setting::Slice(_), Some(libc::EINVAL)) => slice::ADVICE,
        (
            Setting::HardwareFile { .. } | Setting::Register { .. } | Setting::ShareMade { .. },
            Some(libc::EPERM | libc::EACCES | libc::EROFS),
        ) => "it needs root, and a kernel that is not locked down; in a container, the host's root",
        (Setting::ShareMade { .. }, Some(libc::ENOSPC)) => {
            "the processor has no more groups: end another one (info/L3/num_closids says how many there are)"
        }
        (Setting::Register { .. }, Some(libc::EIO)) => {
            "the processor, or the hypervisor, does not have this register"
        }
        (_, Some(libc::EPERM | libc::EACCES | libc::EROFS)) => {
            "it needs root, or a cgroup delegated to this user"
        }
        (Setting::CgroupOf { .. }, Some(libc::ENOSPC)) => {
            "the group has no CPUs or memory nodes yet: set its cpuset.cpus and cpuset.mems"
        }
        (Setting::CgroupFile { .. }, Some(libc::EINVAL)) => {
            "the kernel takes no such value here; cpu.shares cannot be set while cpu.idle is 1"
        }
        _ => "the kernel's answer is all that is known",
    }
}

fn cpus(text: &str) -> io::Result<Vec<u32>> {
    cpu_list::parse(text)
        .filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a list of CPUs"))
}

fn nanoseconds(text: &str) -> io::Result<u64> {
    text.parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a number of nanoseconds"))
}

fn text(path: &Path) -> io::Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} is no UTF-8", path.display()),
        )
    })
}

/// A thread that could use all that its cpuset allows most likely never asked for less. It gets all
/// CPUs back, not those that there were: else the kernel would keep it from CPUs that its cpuset,
/// or the machine, is given later.
fn put_affinity_back(thread: Thread, original: &[u32]) -> io::Result<()> {
    match all_allowed(thread.pid).is_some_and(|all| all == original) {
        true => {
            sys::set_affinity_to_all(thread.tid)?;
            match affinity::of(thread.tid)? == original {
                true => Ok(()),
                false => sys::set_affinity(thread.tid, original),
            }
        }
        false => sys::set_affinity(thread.tid, original),
    }
}

/// The CPUs that a process may use if nobody confined its threads: online and in its cpuset.
fn all_allowed(pid: i32) -> Option<Vec<u32>> {
    let root = Root::system();
    let mut all = cpu_list::parse(&root.read("/sys/devices/system/cpu/online").ok()?)?;
    for place in cgroup::places(&root, Some(pid)).ok()? {
        let Some(folder) = place.folders.first() else {
            continue;
        };
        for file in ["cpuset.cpus.effective", "cpuset.effective_cpus"] {
            if let Ok(text) = root.read(folder.join(file)) {
                all = cpu_list::intersect(&all, &cpu_list::parse(&text)?);
            }
        }
    }
    Some(all)
}
