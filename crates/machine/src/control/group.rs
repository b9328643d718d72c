//! A cgroup made for one program: its CPUs, weight, idleness, freezing.
//!
//! # Where
//!
//! The group is made below the one that the program is in, so that all limits which the program has
//! (its container's, its session's, its batch job's) still bind it. Somewhere else only where the
//! caller says so, and then at or above the program's present group.
//!
//! On v1 that needs write access to the hierarchy, which in practice is root's. On v2 it needs a
//! group that is delegated to the caller and whose `cgroup.subtree_control` lists the controllers;
//! that file belongs to the user's own group and is not changed here. Where the group's parent has
//! processes of its own (it is *domain threaded* then) the new group becomes *threaded*, which `cpu`
//! and `cpuset` allow. Freezing on v2 needs no controller.
//!
//! # Undoing
//!
//! The group, each process's move into it, and each file set in it are entries of the undo log, so
//! that [`ProgramCgroup::leave`], or the next one after we were killed, sets the files back, moves
//! the processes back and removes the group. Processes that were born in the group go where the
//! program came from.

use std::path::{Path, PathBuf};

use super::group_place::{self, GroupPlace, affinity_survives, begin, given, shares};
use super::process::{Process, processes_below};
use super::{Done, Error, group_files};
use crate::cgroup::Version;
use crate::undo::{PRESENT, Report, Setting, UndoLog};
use crate::{Root, cpu_list};

/// Listings of a program's processes before it is given up that new ones come all the time.
const MAX_LISTINGS: usize = 16;

/// A part of the kernel that acts on cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Weight and idleness.
    Cpu,
    /// The CPUs.
    Cpuset,
    /// Freezing.
    Freezer,
}

impl Controller {
    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Cpuset => "cpuset",
            Controller::Freezer => "freezer",
        }
    }
}

/// Says that the caller knows what freezing means.
///
/// A frozen program stays frozen when we are killed: the kernel does not thaw it, as it lets
/// go of a thread whose tracer died. Only the next one that calls
/// [`crate::undo::restore_abandoned`] does. So freezing is never done by default, and nothing that
/// stops a program for a slice may be built on it: use what the kernel itself undoes. It is for
/// callers who have another keeper that outlives them, such as a service manager that starts them
/// again.
#[derive(Clone, Copy, Debug)]
pub struct FreezeOk {
    /// Who thaws the program if we are killed; for people, in errors and journals.
    pub kept_by: &'static str,
}

/// One hierarchy's group.
#[derive(Clone, Debug)]
struct Group {
    place: GroupPlace,
    serves: Vec<Controller>,
    /// The group that the program was in.
    from: PathBuf,
    made: Setting,
}

/// The cgroups made for a program, one in each hierarchy that is needed.
///
/// Dropping it changes nothing: the undo log keeps what is to be undone.
#[derive(Debug)]
pub struct ProgramCgroup<'log> {
    log: &'log UndoLog,
    program: Process,
    groups: Vec<Group>,
}

impl<'log> ProgramCgroup<'log> {
    /// Makes groups with these controllers below those that the program is in. The program is not
    /// in them before [`ProgramCgroup::move_in`].
    ///
    /// Cost: a few small files and two or three calls for each hierarchy, some 100 µs.
    ///
    /// # Errors
    /// [`Error::Gone`] when the program has ended; [`Error::Unavailable`] where a controller is not
    /// there, or not given to the group; [`Error::Write`] where no group may be made. Groups
    /// already made are removed again.
    pub fn create(
        log: &'log UndoLog,
        program: Process,
        wanted: &[Controller],
    ) -> Result<Self, Error> {
        Self::create_in(&Root::system(), log, program, wanted, None)
    }

    /// As [`ProgramCgroup::create`], below a group of the caller's choice: its folder in each
    /// hierarchy that it is to be used for. The program must be in it or below it; limits of the
    /// groups in between do not bind the program any more.
    ///
    /// # Errors
    /// As there, and [`Error::Refused`] where the program is not in or below the group.
    pub fn create_below(
        log: &'log UndoLog,
        program: Process,
        wanted: &[Controller],
        parent: &Path,
    ) -> Result<Self, Error> {
        Self::create_in(&Root::system(), log, program, wanted, Some(parent))
    }

    pub(crate) fn create_in(
        root: &Root,
        log: &'log UndoLog,
        program: Process,
        wanted: &[Controller],
        below: Option<&Path>,
    ) -> Result<Self, Error> {
        if root.is_system() && !program.lives() {
            return Err(Error::Gone {
                what: format!("process {}", program.pid),
            });
        }
        let mut made = Self {
            log,
            program,
            groups: Vec::new(),
        };
        for &controller in wanted {
            if let Err(error) = made.add(root, controller, below) {
                made.leave();
                return Err(error);
            }
        }
        Ok(made)
    }

    fn add(
        &mut self,
        root: &Root,
        controller: Controller,
        below: Option<&Path>,
    ) -> Result<(), Error> {
        let unavailable = |why: String| Error::Unavailable {
            what: "a cgroup for the program",
            why,
        };
        let place = group_place::with_controller(root, Some(self.program.pid), controller.name())
            .map_err(unavailable)?;
        let from = place.folder.clone();
        let parent = match below {
            Some(parent) if from.starts_with(parent) => parent,
            Some(parent) => {
                return Err(Error::Refused {
                    what: format!("a group in {}", parent.display()),
                    why: format!(
                        "the program is in {} and would escape that group's limits; choose one at or above it",
                        from.display()
                    ),
                });
            }
            None => &from,
        };
        given(&place, parent, controller).map_err(unavailable)?;
        if controller == Controller::Cpuset {
            affinity_survives(root).map_err(unavailable)?;
        }
        if let Some(group) = self.groups.iter_mut().find(|g| g.from == from) {
            // The hierarchy has both.
            group.serves.push(controller);
            return Ok(());
        }
        // The log (and by it the writer) is a part of the name, so that what one left behind is
        // never taken for another's.
        let log = self.log.path();
        let log = log.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{}{}-by-{log}", group_files::PREFIX, self.program.pid);
        let folder = parent.join(name);
        let made = Setting::CgroupMade {
            path: folder.clone(),
            processes_go_to: from.clone(),
        };
        match self.log.set(&made, PRESENT)? {
            Done::Set => {}
            _ => {
                return Err(Error::Refused {
                    what: made.to_string(),
                    why: "it is there already: the program has a group from this log, leave that first"
                        .into(),
                });
            }
        }
        let group = Group {
            place: GroupPlace { folder, ..place },
            serves: vec![controller],
            from: from.clone(),
            made,
        };
        let folder = group.place.folder.clone();
        let begun = begin(group.place.version, &folder, parent);
        self.groups.push(group);
        begun.map_err(|source| Error::Write {
            what: format!("the cgroup {}", folder.display()),
            value: "its parent's CPUs and memory nodes".into(),
            source,
            advice: "its parent may have none itself",
        })
    }

    /// The folders of the groups.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.groups.iter().map(|group| group.place.folder.as_path())
    }

    /// Moves the program and all processes below it into the groups; those that they start are born
    /// there. Processes that are in another group than the program was are left where they are:
    /// somebody put them there. Returns how many are in; call it again to take in those that were
    /// not found (whose parent ended before they were seen).
    ///
    /// Cost: a listing of all processes, two or more, and some 100 µs for each that is moved.
    ///
    /// # Errors
    /// [`Error::Gone`] when the program has ended; [`Error::Write`] where a move is refused.
    pub fn move_in(&self) -> Result<usize, Error> {
        let mut inside = 0;
        for group in &self.groups {
            inside = 0;
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..MAX_LISTINGS {
                let new: Vec<i32> = processes_below(self.program.pid)
                    .into_iter()
                    .filter(|pid| seen.insert(*pid))
                    .collect();
                if new.is_empty() {
                    break;
                }
                for pid in new {
                    inside += usize::from(self.move_one(group, pid)?);
                }
            }
        }
        match self.program.lives() {
            true => Ok(inside),
            false => Err(Error::Gone {
                what: format!("process {}", self.program.pid),
            }),
        }
    }

    /// Whether the process is in the group now.
    fn move_one(&self, group: &Group, pid: i32) -> Result<bool, Error> {
        let Some(process) = Process::of(pid) else {
            return Ok(false);
        };
        let what = Setting::CgroupOf {
            process,
            hierarchy: group.place.hierarchy.clone(),
        };
        let Some(present) = what.present()? else {
            return Ok(false);
        };
        let present = Path::new(&present);
        if present == group.place.folder {
            return Ok(true);
        }
        if present != group.from {
            return Ok(false);
        }
        match self.log.set(&what, &text(&group.place.folder)?) {
            Ok(done) => Ok(!matches!(done, Done::LeftAlone { .. })),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Confines the group to CPUs.
    ///
    /// # Errors
    /// [`Error::Refused`] for no CPUs, or without [`Controller::Cpuset`]; [`Error::Write`] where
    /// the kernel refuses, as for CPUs that the parent does not have (v1).
    pub fn set_cpus(&self, cpus: &[u32]) -> Result<Done, Error> {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        if cpus.is_empty() {
            return Err(Error::Refused {
                what: "a group without CPUs".into(),
                why: "its processes need at least one; leave the group instead".into(),
            });
        }
        let group = self.group(Controller::Cpuset)?;
        self.set(group, "cpuset.cpus", &cpu_list::format(&cpus))
    }

    /// The group's weight against its siblings, 1 to 10,000; 100 is usual. On v1 it becomes shares,
    /// of which 1,024 are usual.
    ///
    /// # Errors
    /// [`Error::Refused`] for other weights, or without [`Controller::Cpu`]; [`Error::Write`] where
    /// the kernel refuses, as it does while the group is idle.
    pub fn set_weight(&self, weight: u32) -> Result<Done, Error> {
        if !(1..=10_000).contains(&weight) {
            return Err(Error::Refused {
                what: format!("a weight of {weight}"),
                why: "weights go from 1 to 10,000, 100 is usual".into(),
            });
        }
        let group = self.group(Controller::Cpu)?;
        match group.place.version {
            Version::V1 => self.set(group, "cpu.shares", &shares(weight).to_string()),
            Version::V2 => self.set(group, "cpu.weight", &weight.to_string()),
        }
    }

    /// Lets the group run only when its siblings leave a CPU idle (Linux 5.15), or as usual again.
    /// The kernel sets the weight back to the usual one when it ends.
    ///
    /// # Errors
    /// As [`ProgramCgroup::set_weight`]; [`Error::Gone`] where the kernel has no such file.
    pub fn set_idle(&self, idle: bool) -> Result<Done, Error> {
        let group = self.group(Controller::Cpu)?;
        self.set(group, "cpu.idle", if idle { "1" } else { "0" })
    }

    /// Stops all processes of the group. See [`FreezeOk`] for why this is never a default. Returns
    /// before the last thread has stopped.
    ///
    /// # Errors
    /// [`Error::Refused`] when the caller itself is in the group, or without
    /// [`Controller::Freezer`].
    pub fn freeze(&self, _ok: FreezeOk) -> Result<Done, Error> {
        let group = self.group(Controller::Freezer)?;
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let members = group_files::members(&group.place.folder).unwrap_or_default();
        if members.contains(&own) {
            return Err(Error::Refused {
                what: "freezing".into(),
                why: "this very process is in the group and could not thaw it any more".into(),
            });
        }
        self.set_frozen(group, true)
    }

    /// Lets the group's processes run again.
    ///
    /// # Errors
    /// [`Error::Write`] where the kernel refuses.
    pub fn thaw(&self) -> Result<Done, Error> {
        self.set_frozen(self.group(Controller::Freezer)?, false)
    }

    fn set_frozen(&self, group: &Group, frozen: bool) -> Result<Done, Error> {
        match (group.place.version, frozen) {
            (Version::V1, true) => self.set(group, "freezer.state", "FROZEN"),
            (Version::V1, false) => self.set(group, "freezer.state", "THAWED"),
            (Version::V2, true) => self.set(group, "cgroup.freeze", "1"),
            (Version::V2, false) => self.set(group, "cgroup.freeze", "0"),
        }
    }

    /// Sets everything back, moves the processes back and removes the groups.
    ///
    /// What fails stays in the undo log.
    pub fn leave(self) -> Report {
        self.log.restore(|what| match what {
            Setting::CgroupMade { .. } => self.groups.iter().any(|g| g.made == *what),
            Setting::CgroupFile { path } => self
                .groups
                .iter()
                .any(|g| path.parent() == Some(&g.place.folder)),
            Setting::CgroupOf { hierarchy, .. } => self.moved_by_us(what, hierarchy),
            Setting::Affinity(_)
            | Setting::Slice(_)
            | Setting::HardwareFile { .. }
            | Setting::Register { .. }
            | Setting::ShareMade { .. } => false,
        })
    }

    /// Another program's processes may be in the log too: ours are those that are in our group. Of
    /// those that have left it there is nothing to put back.
    fn moved_by_us(&self, what: &Setting, hierarchy: &str) -> bool {
        let Some(group) = self.groups.iter().find(|g| g.place.hierarchy == hierarchy) else {
            return false;
        };
        match what.present() {
            Ok(Some(present)) => Path::new(&present) == group.place.folder,
            Ok(None) => true,
            Err(_) => false,
        }
    }

    fn group(&self, controller: Controller) -> Result<&Group, Error> {
        self.groups
            .iter()
            .find(|group| group.serves.contains(&controller))
            .ok_or_else(|| Error::Refused {
                what: format!("setting something of {}", controller.name()),
                why: "the group was made without that controller; name it in `create`".into(),
            })
    }

    fn set(&self, group: &Group, file: &str, value: &str) -> Result<Done, Error> {
        let path = group.place.folder.join(file);
        self.log.set(&Setting::CgroupFile { path }, value)
    }
}

fn text(path: &Path) -> Result<String, Error> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::Refused {
            what: format!("the group {}", path.display()),
            why: "its path is no UTF-8, which the undo log cannot hold".into(),
        })
}

#[cfg(test)]
mod tests;
