//! The undo log: every setting that is changed for a program can be put back, by us or by the next
//! one after we were killed.
//!
//! # Problem
//!
//! A program that was confined to two CPUs must not stay so when its manager is gone, whether that
//! left in order or by `kill -9` in the middle of a system call. And nothing may be "put back" that
//! is not ours any more: the program may have changed it itself, the thread may have ended and its
//! number been given to another one.
//!
//! # Approach
//!
//! - Before a setting is changed for the first time, its original is appended to a file, with what
//!   it will be; each later change appends what it will be then. So at every moment the file knows
//!   more than the machine, never less.
//! - What is put back: settings whose present value is ours, that is the one we set last, or the
//!   one before, because we may have been killed between the line and the change. All else
//!   somebody else has changed, and it is left alone.
//! - Threads and processes are known by number and start time, the whole file by the boot and the
//!   PID namespace: entries of others are forgotten, never applied.
//! - The file is locked (`flock`) while its writer lives; the kernel unlocks it when the writer
//!   ends, in whichever way. So a log that can be locked is an abandoned one. A child of the writer
//!   that was forked and never replaced by `exec` would hold the lock too: start children by `exec`.
//! - Threads inherit affinity and slice. Those that were born with a value of ours get the original
//!   of their process's first thread.
//!
//! A line is one `write(2)` with `O_APPEND`, without `fsync`: what was written is in the kernel's
//! page cache and survives the writer, however it is killed. Only a power loss or a crash of the
//! kernel could lose it, and either ends the boot that the settings belong to. A line can be torn
//! when its writer is killed in the middle of it; then what it announces has not happened, and it
//! is passed over.
//!
//! Files are `PID-STARTTIME.jsonl` with mode 0600 in a folder that only its owner may write to;
//! links are not followed. When everything is put back the file is removed.
//!
//! # Limits
//!
//! A value that somebody else sets to exactly what we had set is taken for ours. Between looking at
//! a value and writing the original, another one may change it: the kernel has no compare-and-set
//! for these. Processes that have inherited a setting and whose parent has ended are not found.

mod entries;
mod file;
mod restore;
mod setting;

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::control::{self, Done};
use entries::{Entries, Entry, Line};
use file::{LogFile, LogFolder};

pub use restore::{Report, restore_abandoned};
pub(crate) use setting::PRESENT;
pub use setting::{Change, Setting};

/// Why the undo log cannot be written. Then nothing may be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder of the logs cannot be used.
    #[error("cannot keep undo logs in {}: {why}; give a folder of your own (0700)", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The log cannot be written.
    #[error("cannot write the undo log {}: {source}; nothing is set without it, make room or give another folder", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl Error {
    fn write(path: PathBuf, source: io::Error) -> Self {
        Self::Write { path, source }
    }
}

/// The undo log of this process: see the [module](self).
///
/// When it is dropped, everything is put back and the file removed. It can be used from several
/// threads; changes are made one after the other.
#[derive(Debug)]
pub struct UndoLog {
    state: Mutex<State>,
}

/// A log that is made when something is to be set for the first time: most who could set something never do.
#[derive(Debug)]
pub struct LogOnDemand {
    folder: PathBuf,
    owner: &'static str,
    log: OnceCell<UndoLog>,
}

impl LogOnDemand {
    /// One in this folder, of this `owner`: see [`UndoLog::create`].
    pub fn new(folder: PathBuf, owner: &'static str) -> LogOnDemand {
        LogOnDemand {
            folder,
            owner,
            log: OnceCell::new(),
        }
    }

    /// The log, which is made if there is none yet.
    ///
    /// # Errors
    /// As [`UndoLog::create`].
    pub fn get(&self) -> Result<&UndoLog, Error> {
        if let Some(log) = self.log.get() {
            return Ok(log);
        }
        let log = UndoLog::create(&self.folder, self.owner)?;
        Ok(self.log.get_or_init(|| log))
    }

    /// Where it is, or will be.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The log, if there is one already.
    pub fn made(&self) -> Option<&UndoLog> {
        self.log.get()
    }
}

#[derive(Debug)]
struct State {
    file: LogFile,
    entries: Entries,
    closed: bool,
}

impl UndoLog {
    /// Makes a log in a folder, which is made (0700) if its parent is there. `owner` says to people
    /// who wrote it ("manager", "run").
    ///
    /// Call [`restore_abandoned`] first, so that what former ones left behind is not taken for an
    /// original.
    ///
    /// # Errors
    /// The folder belongs to another user, others may write into it, or the file cannot be made.
    pub fn create(dir: &Path, owner: &str) -> Result<UndoLog, Error> {
        let file = LogFile::create(LogFolder::make(dir)?, owner)?;
        Ok(UndoLog {
            state: Mutex::new(State {
                file,
                entries: Entries::default(),
                closed: false,
            }),
        })
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.state().file.path()
    }

    /// How many settings there are to be put back.
    pub fn len(&self) -> usize {
        self.state().entries.len()
    }

    /// Whether nothing is to be put back.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes down a change that is about to be made by other means than [`UndoLog::set`]. If it
    /// then fails, [`UndoLog::failed`] takes it back.
    ///
    /// Cost: one write of some 150 bytes, about 2 µs.
    ///
    /// # Errors
    /// The log cannot be written: then the change must not be made.
    pub fn before(&self, change: &Change) -> Result<(), Error> {
        let change = change.clone();
        self.state().write(Line::Set {
            what: change.what,
            original: change.original,
            ours: change.ours,
            earlier: None,
        })
    }

    /// Takes back the last change of a setting that was announced and not made.
    ///
    /// # Errors
    /// The log cannot be written. The setting's value before the last change still counts as ours.
    pub fn failed(&self, what: &Setting) -> Result<(), Error> {
        self.state().write(Line::Failed(what.clone()))
    }

    /// Sets a value: reads the present one, writes the log, sets, and reads again.
    ///
    /// A setting that somebody else has changed since we did is left alone, now and from then on
    /// (until it is put back, which leaves it alone too and forgets it).
    ///
    /// # Errors
    /// As [`control::Error`] has them; in each case the setting is as before.
    pub fn set(&self, what: &Setting, value: &str) -> Result<Done, control::Error> {
        self.state().set(what, value)
    }

    /// What a setting was before it was changed for the first time; `None` where it has not been changed.
    pub fn original(&self, what: &Setting) -> Option<String> {
        let state = self.state();
        state.entries.get(what).map(|entry| entry.original.clone())
    }

    /// Puts back the settings that `filter` chooses, in reverse order of their first change, where
    /// they are still ours, and forgets them. What could not be put back stays in the log.
    pub fn restore(&self, filter: impl FnMut(&Setting) -> bool) -> Report {
        self.state().restore(filter)
    }

    /// Forgets the settings of threads and processes that have ended, to keep the log short.
    pub fn forget_gone(&self) {
        let mut state = self.state();
        let gone: Vec<Setting> = state
            .entries
            .iter()
            .filter(|entry| matches!(entry.what.present(), Ok(None)))
            .map(|entry| entry.what.clone())
            .collect();
        for what in gone {
            // What cannot be written now is found gone again later.
            let _ = state.write(Line::Forget(what));
        }
    }

    /// Puts everything back and removes the file (unless something failed: then the file stays for
    /// the next one). Dropping the log does the same without a report.
    pub fn close(self) -> Report {
        self.state().close()
    }

    /// After a panic in the middle of a change the log is still as true as after a kill.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UndoLog {
    fn drop(&mut self) {
        self.state().close();
    }
}

impl State {
    /// Writes a line and takes it in.
    fn write(&mut self, line: Line) -> Result<(), Error> {
        self.file.append(&line)?;
        self.entries.apply(line);
        if self.file.is_long() {
            let lines = self.entries.iter().filter(|e| !e.foreign).map(Entry::line);
            // Where it cannot be written anew the long one serves.
            let _ = self.file.rewrite(lines);
        }
        Ok(())
    }

    fn set(&mut self, what: &Setting, value: &str) -> Result<Done, control::Error> {
        let gone = || control::Error::Gone {
            what: what.to_string(),
        };
        let Some(present) = what.present()? else {
            self.forget(what)?;
            return Err(gone());
        };
        let original = match self.entries.get(what) {
            Some(entry) if entry.foreign || !what.comes_of(&entry.ours, &present) => {
                self.leave_alone(what)?;
                return Ok(Done::LeftAlone { present });
            }
            Some(_) if what.same(&present, value) => return Ok(Done::AlreadySo),
            Some(entry) => entry.original.clone(),
            None => match self.original_of_inherited(what, &present) {
                Some(original) => original,
                None if what.same(&present, value) => return Ok(Done::AlreadySo),
                None => present.clone(),
            },
        };
        self.write(Line::Set {
            what: what.clone(),
            original,
            ours: value.to_owned(),
            earlier: None,
        })?;
        if let Err(error) = what.put(value) {
            match error.is_gone() {
                true => self.forget(what)?,
                false => self.write(Line::Failed(what.clone()))?,
            }
            return Err(error);
        }
        let now = match what.present() {
            Ok(Some(now)) => now,
            Ok(None) => {
                self.forget(what)?;
                return Err(gone());
            }
            // It was set; only how far is unknown.
            Err(_) => return Ok(Done::Set),
        };
        self.judge(what, value, &present, now)
    }

    /// What became of a setting that the kernel took.
    fn judge(
        &mut self,
        what: &Setting,
        value: &str,
        before: &str,
        now: String,
    ) -> Result<Done, control::Error> {
        if what.same(&now, value) {
            return Ok(Done::Set);
        }
        if what.narrowed(value, &now) {
            // Ours is what the kernel made of it.
            self.write(Line::Set {
                what: what.clone(),
                original: before.to_owned(),
                ours: now.clone(),
                earlier: None,
            })?;
            return Ok(Done::Narrowed { present: now });
        }
        if what.same(&now, before) {
            self.write(Line::Failed(what.clone()))?;
            return Err(control::Error::Ignored {
                what: what.to_string(),
                value: value.to_owned(),
                present: now,
                advice: "this kernel does not know the setting, or a container's filter drops it",
            });
        }
        // Somebody was faster than we could look.
        self.leave_alone(what)?;
        Ok(Done::LeftAlone { present: now })
    }

    /// The original of a thread that was born with a value of ours: that of its process, or of the
    /// process that made its process.
    fn original_of_inherited(&self, what: &Setting, present: &str) -> Option<String> {
        /// Shells in shells; further up nobody is looked for.
        const GENERATIONS: usize = 8;
        let thread = what.thread()?;
        let mut pid = thread.pid;
        for _ in 0..GENERATIONS {
            let family: Vec<&Entry> = self
                .entries
                .iter()
                .filter(|entry| {
                    let kin = entry.what.thread().filter(|t| t.pid == pid);
                    !entry.foreign
                        && kin.is_some_and(|t| {
                            entry.what.of_thread(thread).as_ref() == Some(what) && t != thread
                        })
                })
                .collect();
            let from_us = family.iter().any(|entry| entry.is_ours(present));
            // Only where one of the threads is the one of the log, the process is.
            let lives = |entry: &&Entry| entry.what.thread().is_some_and(|t| t.lives());
            if from_us && family.iter().any(lives) {
                return restore::original_of(pid, &family).map(|entry| entry.original.clone());
            }
            pid = control::process::parent(pid)?;
        }
        None
    }

    fn leave_alone(&mut self, what: &Setting) -> Result<(), Error> {
        let Some(entry) = self.entries.get_mut(what) else {
            return Ok(());
        };
        if !entry.foreign {
            // In the file it is forgotten; here it is remembered that it is not ours any more.
            entry.foreign = true;
            self.file.append(&Line::Forget(what.clone()))?;
        }
        Ok(())
    }

    fn forget(&mut self, what: &Setting) -> Result<(), Error> {
        match self.entries.get(what) {
            Some(_) => self.write(Line::Forget(what.clone())),
            None => Ok(()),
        }
    }

    fn restore(&mut self, mut filter: impl FnMut(&Setting) -> bool) -> Report {
        let mut report = Report::default();
        let chosen: Vec<Entry> = self
            .entries
            .iter()
            .filter(|entry| filter(&entry.what))
            .cloned()
            .collect();
        if chosen.is_empty() {
            return report;
        }
        let mut settled = Vec::new();
        restore::put_back(&chosen, &self.entries, &mut report, |what| {
            settled.push(what.clone());
        });
        for what in settled {
            // A line that cannot be written is one more to find unchanged for the next one.
            if self.write(Line::Forget(what.clone())).is_err() {
                self.entries.apply(Line::Forget(what));
            }
        }
        report
    }

    fn close(&mut self) -> Report {
        // The name of a removed file may be another log's by now.
        if std::mem::replace(&mut self.closed, true) {
            return Report::default();
        }
        let report = self.restore(|_| true);
        if report.failed.is_empty() {
            self.file.remove();
        }
        report
    }
}
