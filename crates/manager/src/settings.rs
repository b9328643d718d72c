//! What is set for programs beyond their claims, through the undo log: weights, CPUs and freezing of
//! control groups, the scheduler's slice, parts of caches; and what is set of the machine's hardware.

use corewise_decide::cpus::CpuSet;
use corewise_decide::status::ProgramId;
use corewise_decide::world::Action;
use corewise_machine::Root;
use corewise_machine::control::process::threads;
use corewise_machine::control::{
    Controller, DutyCycleControl, FreezeOk, FrequencyControl, PrefetchControl, Process,
    ProgramCgroup, ProgramShare, SliceControl, Thread,
};
use corewise_machine::undo::{LogOnDemand, Report, Setting, UndoLog};
use std::collections::HashMap;

/// Whoever was killed needs this long at most until its undo log can be told from a living one's, in
/// nanoseconds.
const SETTLED_NS: u64 = 200_000_000;

/// A manager that starts does not hear of those that were killed with the one before it. Where one of them may not have
/// ended altogether yet, it looks once more after [`SETTLED_NS`], and so long after that: who is killed beside many
/// others may wait for a CPU to end on.
const STARTED_NS: u64 = 2_000_000_000;

/// What is set, and the log to undo it. The log is made when something is set for the first time.
pub(crate) struct Settings<'log> {
    log: &'log LogOnDemand,
    /// Whether a service manager starts the next manager if this one is killed.
    kept: bool,
    groups: HashMap<ProgramId, Group<'log>>,
    /// Processes whose slices were set.
    slices: HashMap<ProgramId, Process>,
    /// Parts of caches and bandwidth that programs have.
    shares: HashMap<ProgramId, ProgramShare<'log>>,
    /// Where hardware is set.
    root: Root,
    /// What the last putting back of what others had left has shown.
    pub(crate) found: Report,
    sweep_ns: Option<u64>,
    /// When somebody left last who may have left a log behind.
    left_ns: u64,
}

/// A program's control groups, and what is set in them.
struct Group<'log> {
    group: ProgramCgroup<'log>,
    wanted: Wanted,
}

/// What a program's control groups are to have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted {
    weight: Option<u32>,
    cpus: Option<CpuSet>,
    frozen: Option<bool>,
}

impl Wanted {
    fn controllers(&self) -> Vec<Controller> {
        let each = [
            (Controller::Cpu, self.weight.is_some()),
            (Controller::Cpuset, self.cpus.is_some()),
            (Controller::Freezer, self.frozen.is_some()),
        ];
        each.iter().filter(|(_, on)| *on).map(|(c, _)| *c).collect()
    }
}

impl<'log> Settings<'log> {
    /// Nothing is set yet. Puts back what was left by those who were killed.
    pub(crate) fn new(log: &'log LogOnDemand, root: Root, now_ns: u64) -> Settings<'log> {
        let found = corewise_machine::undo::restore_abandoned(log.folder());
        let in_use = found.logs_in_use > 0;
        Settings {
            log,
            kept: std::env::var_os("NOTIFY_SOCKET").is_some(),
            groups: HashMap::new(),
            slices: HashMap::new(),
            shares: HashMap::new(),
            root,
            found,
            sweep_ns: in_use.then(|| now_ns + SETTLED_NS),
            left_ns: if in_use { now_ns + STARTED_NS } else { 0 },
        }
    }

    fn log(&self) -> Result<&'log UndoLog, String> {
        self.log.get().map_err(|error| error.to_string())
    }

    /// Sets something for a program, of process `pid`. Takes some hundred microseconds where a group
    /// has to be made.
    ///
    /// # Errors
    /// Why not, for the policy and the journal.
    pub(crate) fn set(
        &mut self,
        pid: i32,
        program: ProgramId,
        action: &Action,
    ) -> Result<(), String> {
        let process = Process::of(pid).ok_or_else(|| format!("process {pid} has ended"))?;
        let mut wanted = self.wanted(program);
        match action {
            Action::Slice { slice_ns, .. } => return self.set_slice(program, process, *slice_ns),
            Action::Weight { weight, .. } => wanted.weight = Some(*weight),
            Action::Cpuset { cpus, .. } => wanted.cpus = Some(cpus.clone()),
            Action::Freeze { frozen: false, .. } if wanted.frozen.is_none() => return Ok(()),
            Action::Freeze { frozen: true, .. } if !self.kept => {
                return Err(
                    "freezing is not done by a manager that no service manager would start again: \
                     killed, it would leave the program frozen"
                        .to_owned(),
                );
            }
            Action::Freeze { frozen, .. } => wanted.frozen = Some(*frozen),
            Action::Cache { .. } | Action::Bandwidth { .. } => {
                return self.set_share(program, process, action);
            }
            Action::Prefetchers { .. } | Action::Frequency { .. } | Action::DutyCycle { .. } => {
                return Err(format!("it is nothing of a program: {action}"));
            }
        }
        self.set_group(program, process, wanted)
    }

    /// Sets the hardware of CPUs; `allowed` are those that may be granted. Takes some file reads and writes a
    /// CPU.
    ///
    /// # Errors
    /// Why not, for the policy and the journal. Some of the CPUs may be set then.
    pub(crate) fn set_hardware(&mut self, action: &Action, allowed: &CpuSet) -> Result<(), String> {
        let named = action.cpus().filter(|cpus| !cpus.is_empty());
        let cpus: Vec<u32> = named.unwrap_or(allowed).iter().collect();
        let (log, root) = (self.log()?, &self.root);
        let done = match action {
            Action::Prefetchers { on, .. } => {
                PrefetchControl::new(log, root).and_then(|control| control.switch(&cpus, *on))
            }
            Action::Frequency { most_hz: 0, .. } => {
                return clean(FrequencyControl::new(log, root).release(&cpus));
            }
            Action::Frequency { most_hz, .. } => {
                FrequencyControl::new(log, root).limit(&cpus, *most_hz)
            }
            Action::DutyCycle { percent: 100, .. } => match DutyCycleControl::new(log, root) {
                Ok(control) => return clean(control.release(&cpus)),
                Err(error) => Err(error),
            },
            Action::DutyCycle { percent, .. } => {
                DutyCycleControl::new(log, root).and_then(|control| control.set(&cpus, *percent))
            }
            _ => return Err(format!("it is nothing of the machine: {action}")),
        };
        done.map_err(|error| error.to_string())
    }

    /// Puts the hardware back: whoever wanted it otherwise decides no longer, or has no programs.
    pub(crate) fn release_hardware(&mut self) {
        if let Some(log) = self.log.made() {
            log.restore(Setting::is_of_hardware);
        }
    }

    fn set_share(
        &mut self,
        program: ProgramId,
        process: Process,
        action: &Action,
    ) -> Result<(), String> {
        let text = |error: corewise_machine::control::Error| error.to_string();
        let new = match self.shares.contains_key(&program) {
            true => None,
            false => Some(ProgramShare::create(self.log()?, &self.root, process).map_err(text)?),
        };
        let Some(share) = new.as_ref().or(self.shares.get(&program)) else {
            return Ok(());
        };
        let set = match action {
            Action::Cache {
                from_percent,
                to_percent,
                ..
            } => share.set_cache(*from_percent, *to_percent),
            Action::Bandwidth { percent, .. } => share.set_bandwidth(*percent),
            _ => Ok(()),
        };
        // Also those that were made since the last time by threads that were not in it.
        let done = set.and_then(|()| share.move_in()).map(|_| ());
        match (new, &done) {
            (Some(share), Ok(())) => drop(self.shares.insert(program, share)),
            (Some(share), Err(_)) => drop(share.leave()),
            (None, _) => {}
        }
        done.map_err(text)
    }

    fn wanted(&self, program: ProgramId) -> Wanted {
        let known = self.groups.get(&program);
        known.map(|group| group.wanted.clone()).unwrap_or_default()
    }

    fn set_group(
        &mut self,
        program: ProgramId,
        process: Process,
        wanted: Wanted,
    ) -> Result<(), String> {
        let before = self.wanted(program);
        let group = match self.groups.remove(&program) {
            Some(known) if before.controllers() == wanted.controllers() => known.group,
            known => {
                // Another controller needs another group: what was set moves over.
                if let Some(known) = known {
                    known.group.leave();
                }
                let log = self.log()?;
                let group = ProgramCgroup::create(log, process, &wanted.controllers())
                    .map_err(|error| error.to_string())?;
                if let Err(error) = group.move_in() {
                    group.leave();
                    return Err(error.to_string());
                }
                group
            }
        };
        let done = apply(&group, &wanted);
        match done {
            Ok(()) => {
                self.groups.insert(program, Group { group, wanted });
            }
            Err(_) if before == Wanted::default() => {
                group.leave();
            }
            // What was wanted before is still set.
            Err(_) => {
                let wanted = Wanted {
                    weight: before.weight.or(wanted.weight),
                    cpus: before.cpus.or(wanted.cpus),
                    frozen: before.frozen.or(wanted.frozen),
                };
                self.groups.insert(program, Group { group, wanted });
            }
        }
        done
    }

    fn set_slice(
        &mut self,
        program: ProgramId,
        process: Process,
        slice_ns: u64,
    ) -> Result<(), String> {
        let control = SliceControl::new(self.log()?);
        self.slices.insert(program, process);
        for tid in threads(process.pid) {
            let Some(thread) = Thread::of(process.pid, tid) else {
                continue;
            };
            match control.set(thread, slice_ns) {
                Err(error) if !error.is_gone() => return Err(error.to_string()),
                _ => {}
            }
        }
        Ok(())
    }

    /// A program has left: what was set for it is put back, if it still lives. `beside`: it was joined
    /// for by a process that may have been killed, whose own undo log is looked at soon.
    pub(crate) fn release(&mut self, program: ProgramId, beside: bool, now_ns: u64) {
        if beside {
            // Not put off: where somebody leaves all the time it would never come.
            self.sweep_ns.get_or_insert(now_ns + SETTLED_NS);
            self.left_ns = now_ns;
        }
        if let Some(group) = self.groups.remove(&program) {
            group.group.leave();
        }
        if let Some(share) = self.shares.remove(&program) {
            share.leave();
        }
        if let (Some(process), Some(log)) = (self.slices.remove(&program), self.log.made()) {
            let of_process = |thread: &Thread| thread.pid == process.pid;
            log.restore(|what| matches!(what, Setting::Slice(thread) if of_process(thread)));
        }
    }

    /// When [`sweep`](Settings::sweep) has something to do.
    pub(crate) fn sweep_ns(&self) -> Option<u64> {
        self.sweep_ns
    }

    /// Puts back what was left by those who were killed, if somebody may have been.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        if self.sweep_ns.is_some_and(|at| at <= now_ns) {
            let settled_ns = self.left_ns + SETTLED_NS;
            self.sweep_ns = (settled_ns > now_ns).then_some(settled_ns);
            self.found = corewise_machine::undo::restore_abandoned(self.log.folder());
        }
    }

    /// How many settings there are to be put back.
    pub(crate) fn len(&self) -> usize {
        self.log.made().map_or(0, UndoLog::len)
    }

    /// Puts everything back.
    pub(crate) fn end(&mut self) {
        if let Some(log) = self.log.made() {
            log.restore(|_| true);
        }
    }
}

fn clean(report: Report) -> Result<(), String> {
    match report.failed.is_empty() {
        true => Ok(()),
        false => Err(report.failed.join("; ")),
    }
}

fn apply(group: &ProgramCgroup<'_>, wanted: &Wanted) -> Result<(), String> {
    let text = |error: corewise_machine::control::Error| error.to_string();
    if let Some(weight) = wanted.weight {
        group.set_weight(weight).map_err(text)?;
    }
    if let Some(cpus) = &wanted.cpus {
        let cpus: Vec<u32> = cpus.iter().collect();
        group.set_cpus(&cpus).map_err(text)?;
    }
    let kept_by = "the service manager, which starts the next manager";
    match wanted.frozen {
        Some(true) => group.freeze(FreezeOk { kept_by }).map_err(text)?,
        Some(false) => group.thaw().map_err(text)?,
        None => return Ok(()),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_that_starts_looks_again_at_logs_of_those_who_may_be_about_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("undo");
        let ours = LogOnDemand::new(logs.clone(), "manager");
        let starts = |now_ns| Settings::new(&ours, Root::system(), now_ns);
        assert_eq!(starts(5).sweep_ns(), None);
        let theirs = LogOnDemand::new(logs, "dies");
        theirs.get().unwrap();
        let mut settings = starts(5);
        assert_eq!(settings.sweep_ns(), Some(5 + SETTLED_NS));
        settings.sweep(5 + SETTLED_NS);
        assert_eq!(settings.sweep_ns(), Some(5 + STARTED_NS + SETTLED_NS));
        settings.sweep(5 + STARTED_NS + SETTLED_NS);
        assert_eq!(settings.sweep_ns(), None);
    }
}
