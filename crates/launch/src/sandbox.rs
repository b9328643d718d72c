//! A sandbox: a place where a program runs on the real files, with the real machine's speed, and
//! leaves no trace.
//!
//! - **Files.** Every mounted file system is seen through an overlay whose changes go to memory and
//!   vanish with the sandbox. A file system over which the kernel allows no overlay can only be read
//!   ([`Probe::limits`] names them). `/proc` is that of the sandbox, `/sys`
//!   and the settings in `/proc/sys` can only be read, `/dev` has only the harmless devices.
//! - **Processes.** A PID namespace: nothing outside can be seen or signalled, and when the first
//!   process in it ends, the kernel kills the rest. That happens when the program ends, when
//!   corewise says so, and when corewise dies.
//! - **The rest.** No network but a loopback interface of its own, no System V or POSIX IPC with the
//!   outside, a host name of its own, and of root's privileges only those that end at these walls.
//!
//! What stays as it is, because the measured speed must be the real one: the session (Linux
//! schedules by session), control groups, niceness, limits (but for core dumps, which are off) and
//! the CPUs that may be used.
//!
//! For an ordinary user (through a user namespace) three things differ from the real run: files and
//! folders of other owners cannot be changed in place, even where their mode allows it (EOVERFLOW);
//! a program cannot use supplementary groups for new files; and before Linux 6.6 a folder cannot be
//! made anew under the name of one that was just deleted (EIO). A program that needs one of these
//! fails in its probe and says why.
//!
//! Not isolated: virtual machine sockets (AF_VSOCK), kernel keyrings, and what a program can do to
//! others by using up CPU time, memory and disk bandwidth.
//!
//! The modules, in the order in which things happen: `mountinfo` reads what is mounted, `plan` says
//! how the view is put together, `look` at folders helps it; `init` is the sandbox's first
//! process, which uses `carry_out` and `confine`, and reports through `wire`.

mod carry_out;
mod confine;
pub(crate) mod init;
mod look;
mod mountinfo;
mod plan;
pub(crate) mod wire;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use look::RealFiles;
use plan::{MountPlan, Step, Wish};

use crate::exec::ZeroByte;
use crate::probe::Probe;
use wire::Stage;

/// Whether programs can be run without leaving a trace here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// They can.
    Full {
        /// Through a user namespace, because this process is not allowed to mount. Files of others
        /// then look as if they were nobody's.
        as_user: bool,
    },
    /// They cannot.
    Unavailable {
        /// What was refused, and what may help.
        why: String,
    },
}

/// What can go wrong with a sandbox or a probe.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No sandbox can be had here.
    #[error("no sandbox for probe runs: {why}")]
    Unavailable {
        /// What was refused, and what may help.
        why: String,
    },
    /// The program could not be started.
    #[error("could not {what} ({program}): {source}")]
    Start {
        /// What was being done.
        what: &'static str,
        /// The program.
        program: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// An argument cannot be given to a program.
    #[error(transparent)]
    ZeroByte(#[from] ZeroByte),
    /// Something of this process failed.
    #[error("could not {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The sandbox's first process ended before the program did: killed from outside, or out of
    /// memory.
    #[error("the sandbox was killed from outside before the program ended (out of memory?)")]
    Lost,
}

impl Error {
    /// The exit code that env and timeout use: 127 program not found, 126 not executable, 125 for
    /// everything else.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Start { what, source, .. } if *what == Stage::Exec.what() => {
                match source.raw_os_error() {
                    Some(libc::ENOENT) => 127,
                    _ => 126,
                }
            }
            _ => 125,
        }
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// A place to run probes in. One sandbox serves many probes, each from the same fresh state.
#[derive(Debug)]
pub struct Sandbox {
    pub(crate) walls: Option<Walls>,
    pub(crate) cwd: CString,
}

#[derive(Debug)]
pub(crate) struct Walls {
    pub(crate) plan: MountPlan,
    pub(crate) scratch_options: CString,
    pub(crate) id_maps: Option<(CString, CString)>,
    pub(crate) flags: u64,
}

impl Sandbox {
    /// Whether sandboxes can be had here, found by making one. Cached; costs some milliseconds.
    pub fn availability() -> Availability {
        static KNOWN: OnceLock<Availability> = OnceLock::new();
        KNOWN
            .get_or_init(|| match Self::prepare_untried().and_then(|s| s.try_out()) {
                Ok(as_user) => Availability::Full { as_user },
                Err(Error::Unavailable { why }) => Availability::Unavailable { why },
                Err(other) => Availability::Unavailable {
                    why: other.to_string(),
                },
            })
            .clone()
    }

    /// Prepares a sandbox for programs that run in the current folder. The plan is made from what
    /// is mounted now.
    pub fn prepare() -> Result<Self, Error> {
        match Self::availability() {
            Availability::Full { .. } => Self::prepare_untried(),
            Availability::Unavailable { why } => Err(Error::Unavailable { why }),
        }
    }

    /// No walls: programs run on the real files. All that is promised is that their output is
    /// discarded and that they and their descendants are killed (as well as can be) with the probe.
    pub fn none() -> Result<Self, Error> {
        Ok(Self {
            walls: None,
            cwd: current_folder()?,
        })
    }

    /// Whether programs in here can leave no trace.
    pub fn is_isolated(&self) -> bool {
        self.walls.is_some()
    }

    fn prepare_untried() -> Result<Self, Error> {
        let mountinfo = std::fs::read("/proc/self/mountinfo").map_err(|e| Error::Unavailable {
            why: format!("/proc/self/mountinfo cannot be read: {e}; is /proc mounted?"),
        })?;
        let unavailable = |why: String| Error::Unavailable { why };
        let mounts = mountinfo::parse(&mountinfo).map_err(|e| unavailable(e.to_string()))?;
        let as_user = !may_mount();
        let cwd = current_folder()?;
        let cwd_path = Path::new(std::ffi::OsStr::from_bytes(cwd.as_bytes()));
        let roots = if as_user {
            writing_places(cwd_path)
        } else {
            Vec::new()
        };
        let wish = Wish {
            split: as_user,
            cwd: cwd_path,
            roots: &roots,
        };
        let plan =
            plan::plan(&mounts, &wish, &RealFiles).map_err(|e| unavailable(e.to_string()))?;
        let mut flags = libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        let id_maps = as_user.then(|| {
            flags |= libc::CLONE_NEWUSER;
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            (
                text(&format!("{uid} {uid} 1")),
                text(&format!("{gid} {gid} 1")),
            )
        });
        Ok(Self {
            walls: Some(Walls {
                plan,
                scratch_options: text(&format!("size={},mode=755", scratch_bytes())),
                id_maps,
                flags: u64::from(flags.cast_unsigned()),
            }),
            cwd,
        })
    }

    fn try_out(&self) -> Result<bool, Error> {
        let mut trial = Probe::trial(self)?;
        trial.kill();
        Ok(self.walls.as_ref().is_some_and(|w| w.id_maps.is_some()))
    }

    /// Says in words why the first process could not be made.
    pub(crate) fn why_no_namespaces(&self, errno: i32) -> Error {
        let source = std::io::Error::from_raw_os_error(errno);
        let why = match errno {
            // What the kernel calls "no space left on device".
            libc::ENOSPC => "the kernel allows no more namespaces: raise the settings \
                             user.max_user_namespaces, max_pid_namespaces and their kin"
                .to_owned(),
            _ => format!(
                "the kernel refused new namespaces: {source}. In a container, allow user \
                 namespaces (its seccomp profile may forbid them) or run corewise outside; on a \
                 machine, see the settings user.max_user_namespaces and \
                 kernel.unprivileged_userns_clone"
            ),
        };
        Error::Unavailable { why }
    }

    /// Says in words why the first process could not make the sandbox.
    pub(crate) fn why_no_setup(&self, stage: Stage, errno: i32, step: Option<u32>) -> Error {
        let source = std::io::Error::from_raw_os_error(errno);
        let place = step.and_then(|s| self.place_of(s)).unwrap_or_default();
        let hint = match errno {
            libc::EPERM | libc::EACCES => {
                ". The kernel's or a container's security policy forbids it (on Ubuntu, see \
                 kernel.apparmor_restrict_unprivileged_userns)"
            }
            libc::ENOSYS => ". Linux 5.12 or later is needed",
            _ => "",
        };
        let at = if place.is_empty() {
            String::new()
        } else {
            format!(" at {place}")
        };
        Error::Unavailable {
            why: format!("could not {}{at}: {source}{hint}", stage.what()),
        }
    }

    /// The place in the file system that a step of the plan is about.
    pub(crate) fn place_of(&self, step: u32) -> Option<String> {
        let step = self.walls.as_ref()?.plan.steps.get(step as usize)?;
        let target = match step {
            Step::Overlay { target, .. }
            | Step::ReadOnly { target, .. }
            | Step::File { target, .. }
            | Step::Copy { target, .. }
            | Step::FolderLike { target, .. }
            | Step::Folder { target, .. }
            | Step::Link { target, .. }
            | Step::Node { target, .. }
            | Step::Memory { target, .. }
            | Step::Proc { target, .. }
            | Step::Terminals { target } => target.to_string_lossy(),
        };
        let new_root = plan::NEW_ROOT.to_string_lossy();
        let place = target.strip_prefix(new_root.as_ref()).unwrap_or(&target);
        Some(if place.is_empty() { "/" } else { place }.to_owned())
    }
}

/// How long making a sandbox may take before it is given up (a network file system may hang).
pub(crate) const SETUP_LIMIT: Duration = Duration::from_secs(20);

fn current_folder() -> Result<CString, Error> {
    let folder = std::env::current_dir().map_err(Error::io("find the current folder"))?;
    CString::new(folder.as_os_str().as_bytes()).map_err(|_| Error::ZeroByte(ZeroByte))
}

/// The folders of others in which programs of this user write: in each place where they do, the
/// deepest folder on the way that is not the user's own.
fn writing_places(cwd: &Path) -> Vec<PathBuf> {
    let me = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let own = |path: &Path| path.metadata().is_ok_and(|m| (m.uid(), m.gid()) == me);
    let named = ["HOME", "TMPDIR"].map(|name| std::env::var_os(name).map(PathBuf::from));
    named
        .into_iter()
        .flatten()
        .chain([cwd.into(), "/tmp".into(), "/var/tmp".into()])
        .filter_map(|place| {
            let place = place.canonicalize().ok()?;
            place.ancestors().find(|a| !own(a)).map(Path::to_path_buf)
        })
        .collect()
}

/// Half of the memory that is available now, in bytes: what a probe may write.
fn scratch_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        let kib = line.strip_prefix("MemAvailable:")?.trim();
        kib.strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    available.map_or(1 << 30, |kib| kib * 1024 / 2)
}

/// Whether this process may make mount namespaces without a user namespace.
fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .is_some_and(|capabilities| capabilities & (1 << CAP_SYS_ADMIN) != 0)
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
