//! The CPUs of threads.
//!
//! A thread inherits its creator's affinity. So, while a process is confined, threads that are made
//! meanwhile by those already confined are right from their first instruction, and those made by
//! the others are found by listing again, until a listing shows nobody new. The same holds for what
//! has to be put back: a thread that was born confined has our value without ever having been set.
//! Its original is then that of its creator's process (see [`UndoLog::original_of_inherited`]).

use std::collections::BTreeSet;

use super::process::{Process, Thread, threads};
use super::{Done, Error};
use crate::cpu_list;
use crate::undo::{Report, Setting, UndoLog};

/// Listings of a process's threads before it is given up that new ones come all the time.
const MAX_LISTINGS: usize = 16;

/// Confines threads to CPUs, through an undo log.
#[derive(Clone, Copy, Debug)]
pub struct AffinityControl<'log> {
    log: &'log UndoLog,
}

/// What became of a process's threads.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Threads that have what was wanted of them, as far as their cpuset allows, now or before.
    pub confined: usize,
    /// Threads whose affinity the program itself has changed since; they are left alone.
    pub left_alone: Vec<i32>,
    /// Threads that could not be set, and why. Those that ended meanwhile are not among them.
    pub failed: Vec<(i32, Error)>,
    /// Whether a last listing showed no further thread. Else there may be some that were not seen:
    /// the process makes threads faster than they can be confined; try again later.
    pub settled: bool,
}

impl<'log> AffinityControl<'log> {
    /// A control that writes to this log.
    pub fn new(log: &'log UndoLog) -> Self {
        Self { log }
    }

    /// Lets a thread run on these CPUs only (those of them that its cpuset allows).
    ///
    /// Cost: two small reads, two to four system calls and one line in the log, about 15 µs.
    ///
    /// # Errors
    /// [`Error::Gone`] when the thread has ended; [`Error::Refused`] for no CPUs;
    /// [`Error::Write`] where the kernel refuses: another user's thread, or CPUs that its cpuset
    /// forbids altogether.
    pub fn confine(&self, thread: Thread, cpus: &[u32]) -> Result<Done, Error> {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        if cpus.is_empty() {
            return Err(Error::Refused {
                what: format!("confining thread {} to no CPU", thread.tid),
                why: "a thread needs at least one: give it one, or put its affinity back".into(),
            });
        }
        self.log
            .set(&Setting::Affinity(thread), &cpu_list::format(&cpus))
    }

    /// Lets all threads of a process run on these CPUs only, those too that are made meanwhile.
    /// Threads made later inherit it.
    ///
    /// Cost: that of [`AffinityControl::confine`] for each thread, and two listings or more.
    ///
    /// # Errors
    /// [`Error::Gone`] when the process has ended; [`Error::Refused`] for no CPUs. What fails for
    /// single threads is in the answer.
    pub fn confine_process(&self, process: Process, cpus: &[u32]) -> Result<Sweep, Error> {
        if !process.lives() {
            return Err(Error::Gone {
                what: format!("process {}", process.pid),
            });
        }
        let mut sweep = Sweep::default();
        let mut seen = BTreeSet::new();
        for _ in 0..MAX_LISTINGS {
            let new: Vec<i32> = threads(process.pid)
                .into_iter()
                .filter(|tid| seen.insert(*tid))
                .collect();
            if new.is_empty() {
                sweep.settled = true;
                break;
            }
            for tid in new {
                let Some(thread) = Thread::of(process.pid, tid) else {
                    continue;
                };
                match self.confine(thread, cpus) {
                    Ok(Done::LeftAlone { .. }) => sweep.left_alone.push(tid),
                    Ok(_) => sweep.confined += 1,
                    Err(error @ Error::Refused { .. }) => return Err(error),
                    Err(error) if error.is_gone() => {}
                    Err(error) => sweep.failed.push((tid, error)),
                }
            }
        }
        Ok(sweep)
    }

    /// Puts the affinities of a process's threads back, where they are still ours.
    pub fn release_process(&self, process: Process) -> Report {
        self.log
            .restore(|what| matches!(what, Setting::Affinity(thread) if thread.pid == process.pid))
    }
}
