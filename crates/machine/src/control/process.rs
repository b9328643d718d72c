//! Threads and processes by number and start time, and what of them is listed in `/proc`.
//!
//! A number alone is not enough to undo a setting: the kernel gives it to another thread later. The
//! start time (clock ticks since boot) tells them apart. Between looking at it and a system call by
//! number a thread could still end and its number come round again; that takes the whole range of
//! numbers (at least 32,768) in a few microseconds.

use std::collections::{HashMap, HashSet};
use std::fs;

use serde::{Deserialize, Serialize};

use crate::program::parse;

/// A thread, so named that no later one can be taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Thread {
    /// Its process.
    pub pid: i32,
    /// Its own number; the process's for the first thread.
    pub tid: i32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

impl Thread {
    /// The living thread with this number in this process; `None` where there is none.
    ///
    /// Cost: one small file, about 5 µs.
    pub fn of(pid: i32, tid: i32) -> Option<Thread> {
        let start_time = stat(&format!("/proc/{pid}/task/{tid}/stat"))?.start_ticks;
        Some(Thread {
            pid,
            tid,
            start_time,
        })
    }

    /// Whether it has not ended. A first thread that ended before the others counts as living.
    pub fn lives(self) -> bool {
        Thread::of(self.pid, self.tid) == Some(self)
    }
}

/// A process, so named that no later one can be taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

impl Process {
    /// The process with this number; `None` where there is none. One that has ended and that
    /// nobody has waited for yet is still there.
    ///
    /// Cost: one small file, about 5 µs.
    pub fn of(pid: i32) -> Option<Process> {
        let start_time = stat(&format!("/proc/{pid}/stat"))?.start_ticks;
        Some(Process { pid, start_time })
    }

    /// Whether it is still there.
    pub fn lives(self) -> bool {
        Process::of(self.pid) == Some(self)
    }
}

fn stat(path: &str) -> Option<parse::Stat> {
    parse::stat(&fs::read(path).ok()?)
}

/// The numbers of a process's threads at this moment; empty when it is gone.
///
/// Cost: about 10 µs and 1 µs a thread.
pub fn threads(pid: i32) -> Vec<i32> {
    numbers_in(&format!("/proc/{pid}/task"))
}

/// A process and all below it at this moment, itself first; empty when it is gone. Those whose
/// parent ended before them are not found.
///
/// Cost: one small file for each process of the machine, about 5 µs each.
pub fn processes_below(pid: i32) -> Vec<i32> {
    match Process::of(pid) {
        Some(_) => Children::listed().below(pid),
        None => Vec::new(),
    }
}

/// The children of each process at one moment.
pub(crate) struct Children(HashMap<i32, Vec<i32>>);

impl Children {
    /// Lists them.
    pub(crate) fn listed() -> Self {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for child in numbers_in("/proc") {
            if let Some(stat) = stat(&format!("/proc/{child}/stat")) {
                children.entry(stat.ppid).or_default().push(child);
            }
        }
        Self(children)
    }

    /// A process and all below it, itself first.
    pub(crate) fn below(&self, pid: i32) -> Vec<i32> {
        let mut found = vec![pid];
        let mut seen = HashSet::from([pid]);
        let mut at = 0;
        while let Some(parent) = found.get(at) {
            // A listing torn by ends and starts may hold a ring: each but once.
            let children = self.0.get(parent).into_iter().flatten();
            let new: Vec<i32> = children.copied().filter(|c| seen.insert(*c)).collect();
            found.extend(new);
            at += 1;
        }
        found
    }
}

/// A process's parent; `None` where either is not there.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    let parent = stat(&format!("/proc/{pid}/stat"))?.ppid;
    (parent > 0).then_some(parent)
}

fn numbers_in(folder: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_start_time_does_not() {
        let pid = std::process::id() as i32;
        let here = Process::of(pid).unwrap();
        assert!(here.lives());
        let other = Process {
            start_time: here.start_time + 1,
            ..here
        };
        assert!(!other.lives());
        assert!(Thread::of(pid, pid).unwrap().lives());
        assert!(threads(pid).contains(&pid));
    }

    #[test]
    fn no_process_has_the_number_zero() {
        assert_eq!(Process::of(0), None);
        assert_eq!(Thread::of(0, 0), None);
        assert!(processes_below(0).is_empty());
        assert!(threads(i32::MAX).is_empty());
    }

    #[test]
    fn a_child_is_below_its_parent() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let found = processes_below(std::process::id() as i32);
        let _ = child.kill();
        let _ = child.wait();
        assert!(found.contains(&(child.id() as i32)), "{found:?}");
    }
}
