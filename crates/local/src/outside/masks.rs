//! Affinity of threads, set through an undo log.

use super::placing::{Masks, Thread};
use corewise_decide::cpus::CpuSet;
use corewise_machine::control::{AffinityControl, Done, Error, Thread as LoggedThread};
use corewise_machine::cpu_list;
use corewise_machine::undo::{Change, LogOnDemand, Setting, UndoLog};
use corewise_wire::Folder;

/// Masks of a program's threads. The log is made when the first is set: most programs have their
/// machine to themselves.
#[derive(Debug)]
pub(super) struct LoggedMasks {
    log: LogOnDemand,
}

impl LoggedMasks {
    /// The masks of the program `pid`, and the one that its first thread has now.
    pub(super) fn of_program(pid: i32, folder: &Folder) -> Result<(LoggedMasks, CpuSet), Error> {
        let masks = LoggedMasks {
            log: LogOnDemand::new(folder.undo(), "corewise run"),
        };
        let gone = || Error::Gone {
            what: format!("process {pid}"),
        };
        let first = LoggedThread::of(pid, pid).ok_or_else(gone)?;
        let starting = present(first)?.ok_or_else(gone)?;
        Ok((masks, starting))
    }

    /// Without it nothing is set.
    fn log(&self) -> Option<&UndoLog> {
        self.log.get().ok()
    }
}

impl Masks for LoggedMasks {
    fn of(&mut self, thread: Thread) -> Option<CpuSet> {
        present(logged(thread)?).ok()?
    }

    fn note(&mut self, thread: Thread, original: &CpuSet, now: &CpuSet) {
        let Some(thread) = logged(thread) else { return };
        let change = Change {
            what: Setting::Affinity(thread),
            original: original.to_string(),
            ours: now.to_string(),
        };
        if let Some(log) = self.log() {
            // Where it cannot be written nothing further is set either.
            let _ = log.before(&change);
        }
    }

    fn confine(&mut self, thread: Thread, cpus: &CpuSet) -> Option<CpuSet> {
        let thread = logged(thread)?;
        let list: Vec<u32> = cpus.iter().collect();
        match AffinityControl::new(self.log()?).confine(thread, &list) {
            Ok(Done::Set | Done::AlreadySo) => Some(cpus.clone()),
            Ok(Done::Narrowed { present }) => parsed(&present),
            Ok(Done::LeftAlone { .. }) | Err(_) => None,
        }
    }

    fn put_all_back(&mut self) {
        if let Some(log) = self.log.made() {
            // What cannot be put back stays in the log, for whoever manages next.
            log.restore(|_| true);
        }
    }

    fn forget_ended(&mut self) {
        if let Some(log) = self.log.made() {
            log.forget_gone();
        }
    }
}

fn logged(thread: Thread) -> Option<LoggedThread> {
    LoggedThread::of(thread.pid, thread.tid)
}

/// Where a thread may run; `None` if it has ended.
fn present(thread: LoggedThread) -> Result<Option<CpuSet>, Error> {
    let text = Setting::Affinity(thread).present()?;
    Ok(text.and_then(|text| parsed(&text)))
}

fn parsed(list: &str) -> Option<CpuSet> {
    Some(cpu_list::parse(list)?.into_iter().collect())
}
