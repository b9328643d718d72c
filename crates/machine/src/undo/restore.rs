//! Putting back.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Serialize;

use super::entries::{Entries, Entry, VERSION};
use super::file::{self, LogFolder, UNFINISHED};
use super::setting::Setting;
use crate::control::process::{Children, Thread, threads};

/// Listings of a process's threads before it is given up that new ones come all the time.
const MAX_LISTINGS: usize = 16;

/// What became of settings that were to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Settings that have their first original again.
    pub restored: usize,
    /// Threads that had inherited a value of ours, and have their creator's original now.
    pub inherited: usize,
    /// Settings that had their original already.
    pub unchanged: usize,
    /// Settings that somebody else has changed since; they were left alone.
    pub left_alone: usize,
    /// Settings whose thread, process or group is gone.
    pub gone: usize,
    /// What could not be put back, each with its reason.
    pub failed: Vec<String>,
    /// Logs whose writer was gone and which are settled and removed now.
    pub logs_removed: usize,
    /// Logs of this boot that stay for the next one: something in them failed, or they were written
    /// by another version or in another PID namespace.
    pub logs_kept: usize,
    /// Logs that were left alone: their writers live, or have not ended altogether yet, or they are another user's.
    pub logs_in_use: usize,
    /// Lines that were none: torn by the writer's end, or damaged.
    pub damaged_lines: usize,
}

impl Report {
    /// Whether nothing of what was changed is still to be put back.
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.logs_kept == 0
    }
}

/// Puts back what those left behind who were killed: see [`crate::undo`].
///
/// Whoever starts to change settings calls this first. It never fails as a whole: what could not be
/// done is in the report. A folder that is not there has no logs; one that others can write into
/// is not believed.
///
/// Cost: a few system calls for each log and each setting; nothing but a listing where all is well.
pub fn restore_abandoned(dir: &Path) -> Report {
    let mut report = Report::default();
    if !dir.exists() {
        return report;
    }
    let folder = match LogFolder::open(dir) {
        Ok(folder) => folder,
        Err(error) => {
            report.failed.push(error.to_string());
            return report;
        }
    };
    let mut names = folder.names();
    names.sort_unstable();
    for name in names {
        // The lock lasts until `file` is dropped, after the file is removed.
        let Some(mut file) = folder.take(&name) else {
            report.logs_in_use += 1;
            continue;
        };
        let settled =
            name.ends_with(UNFINISHED) || settle(&folder.path_of(&name), &mut file, &mut report);
        match settled.then(|| folder.remove(&name)) {
            Some(Ok(())) => report.logs_removed += 1,
            Some(Err(error)) => {
                let path = folder.path_of(&name);
                report
                    .failed
                    .push(format!("cannot remove {}: {error}", path.display()));
            }
            None => report.logs_kept += 1,
        }
    }
    report
}

/// Whether a log has done its service.
fn settle(path: &Path, file: &mut std::fs::File, report: &mut Report) -> bool {
    let contents = match file::read(file) {
        Ok(contents) => contents,
        Err(error) => {
            report
                .failed
                .push(format!("cannot read {}: {error}", path.display()));
            return false;
        }
    };
    report.damaged_lines += contents.damaged;
    let Some(header) = contents.header else {
        // Whoever wrote no header changed nothing. Where it was damaged nobody can say any more
        // which boot the rest belongs to.
        return true;
    };
    if header.version > VERSION {
        return false;
    }
    let boot = file::boot();
    if header.boot != boot && !header.boot.is_empty() && !boot.is_empty() {
        // The machine has forgotten these settings with all else.
        report.gone += contents.entries.len();
        return true;
    }
    if header.pid_namespace != file::pid_namespace() {
        return false;
    }
    let failed = report.failed.len();
    let all: Vec<Entry> = contents.entries.iter().cloned().collect();
    put_back(&all, &contents.entries, report, |_| {});
    report.failed.len() == failed
}

/// Puts back entries, which come in the order of their change, the last first. `known` are all that
/// the log has: threads with an entry of their own have inherited nothing. `done` is told what
/// is settled.
pub(super) fn put_back(
    entries: &[Entry],
    known: &Entries,
    report: &mut Report,
    mut done: impl FnMut(&Setting),
) {
    for entry in entries.iter().rev() {
        if put_one_back(entry, report) {
            done(&entry.what);
        }
    }
    put_inherited_back(entries, known, report);
}

/// Whether the entry is settled.
fn put_one_back(entry: &Entry, report: &mut Report) -> bool {
    let present = match entry.what.present() {
        Ok(Some(present)) => present,
        Ok(None) => {
            report.gone += 1;
            return true;
        }
        Err(error) => {
            report.failed.push(error.to_string());
            return false;
        }
    };
    if entry.what.same(&present, &entry.original) {
        report.unchanged += 1;
        return true;
    }
    if entry.foreign || !entry.is_ours(&present) {
        report.left_alone += 1;
        return true;
    }
    match entry.what.put_back(&entry.original) {
        Ok(()) => report.restored += 1,
        Err(error) if error.is_gone() => report.gone += 1,
        Err(error) => {
            report.failed.push(error.to_string());
            return false;
        }
    }
    true
}

/// Threads inherit affinity and slice from their creator, and so do processes. Those that were made
/// while we had set their creator, and that have no entry of their own, are found by their value.
fn put_inherited_back(entries: &[Entry], known: &Entries, report: &mut Report) {
    let mut families: BTreeMap<(bool, i32), Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|e| !e.foreign) {
        if let Some(thread) = entry.what.thread() {
            let is_slice = matches!(entry.what, Setting::Slice(_));
            families
                .entry((is_slice, thread.pid))
                .or_default()
                .push(entry);
        }
    }
    let lives = |entry: &&Entry| entry.what.thread().is_some_and(Thread::lives);
    // Only where one of a process's threads is the one of the log, the process is.
    families.retain(|_, family| family.iter().any(&lives));
    if families.is_empty() {
        return;
    }
    let children = Children::listed();
    for ((_, pid), family) in families {
        let Some(first) = original_of(pid, &family) else {
            continue;
        };
        let mut seen = HashSet::new();
        for _ in 0..MAX_LISTINGS {
            let new: Vec<Thread> = children
                .below(pid)
                .into_iter()
                .flat_map(|pid| threads(pid).into_iter().map(move |tid| (pid, tid)))
                .filter(|thread| seen.insert(*thread))
                .filter_map(|(pid, tid)| Thread::of(pid, tid))
                .collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                put_heir_back(thread, first, &family, known, report);
            }
        }
    }
}

/// The entry whose original those have that inherited: the process's first thread's, else any.
pub(super) fn original_of<'a>(pid: i32, family: &[&'a Entry]) -> Option<&'a Entry> {
    let of_first = family
        .iter()
        .find(|entry| entry.what.thread().is_some_and(|thread| thread.tid == pid));
    of_first.or(family.first()).copied()
}

fn put_heir_back(
    thread: Thread,
    first: &Entry,
    family: &[&Entry],
    known: &Entries,
    report: &mut Report,
) {
    let Some(what) = first.what.of_thread(thread) else {
        return;
    };
    if known.get(&what).is_some() {
        return;
    }
    let Ok(Some(present)) = what.present() else {
        return;
    };
    if what.same(&present, &first.original) || !family.iter().any(|e| e.is_ours(&present)) {
        return;
    }
    match what.put_back(&first.original) {
        Ok(()) => report.inherited += 1,
        Err(error) if error.is_gone() => {}
        Err(error) => report.failed.push(error.to_string()),
    }
}
