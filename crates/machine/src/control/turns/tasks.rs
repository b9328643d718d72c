//! Which threads a program has at this moment, and which of them run: as cheaply as that can be told, because it
//! is asked at every switch and all the time while the program stands still.
//!
//! - Whether any thread or process has been made at all since the last listing: the number that the kernel gave
//!   last (`/proc/loadavg`), one small file for the whole machine.
//! - Whether anything of a process has run: its CPU clock, one system call.
//! - What a thread does: its `stat`, kept open as long as there are descriptors.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::control::process::{Children, threads};
use crate::program::{parse, process_cpu_ns};

/// Files that are kept open, at most; further ones are opened each time. Well below the usual limit of 1,024.
const MOST_FILES: usize = 400;

/// Threads of the kernel's own that the program's process only lends its name to, which nobody can trace:
/// `PF_IO_WORKER`, `PF_USER_WORKER` and `PF_KTHREAD` of the kernel's flags.
const NOT_OURS: u64 = 0x10 | 0x4000 | 0x20_0000;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It is on a CPU, or wants one.
    Runs,
    /// It sleeps, or somebody else has stopped it.
    Waits,
    /// It has ended.
    Ended,
}

/// The threads of a process tree.
#[derive(Debug)]
pub(super) struct Tasks {
    root: i32,
    processes: BTreeMap<i32, Process>,
    /// The number that the kernel had given last when they were listed; `None` where it does not say.
    listed_at: Option<u64>,
    loadavg: Option<File>,
    open_files: usize,
    has_children_files: bool,
}

#[derive(Debug, Default)]
struct Process {
    threads: BTreeMap<i32, Option<File>>,
    /// CPU time of all its threads when it was last asked.
    cpu_ns: u64,
}

impl Tasks {
    /// Those of the process `root` and of all below it. Nothing is listed yet.
    pub(super) fn below(root: i32) -> Tasks {
        Tasks {
            root,
            processes: BTreeMap::from([(root, Process::default())]),
            listed_at: None,
            loadavg: File::open("/proc/loadavg").ok(),
            open_files: 0,
            has_children_files: fs::exists(format!("/proc/{root}/task/{root}/children"))
                .unwrap_or(false),
        }
    }

    /// Whether threads or processes have been made on this machine since the last listing. Cost: 2 µs.
    pub(super) fn may_be_new(&self) -> bool {
        self.listed_at.is_none() || self.newest() != self.listed_at
    }

    fn newest(&self) -> Option<u64> {
        let mut text = [0; 64];
        let length = self.loadavg.as_ref()?.read_at(&mut text, 0).ok()?;
        let last = text.get(..length)?.rsplit(|b| *b == b' ').next()?;
        parse::number(last)
    }

    /// Whether any thread has run since this was last asked. Cost: 0.5 µs a process.
    pub(super) fn have_run(&mut self) -> bool {
        let mut ran = false;
        for (pid, process) in &mut self.processes {
            let now = process_cpu_ns(*pid).unwrap_or(0);
            ran |= now != process.cpu_ns;
            process.cpu_ns = now;
        }
        ran
    }

    /// Lists all anew. Cost: for each process some 10 µs, for each thread 6 µs.
    pub(super) fn list(&mut self) {
        // Before: what is made meanwhile is found next time.
        self.listed_at = self.newest();
        let pids: Vec<i32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.list_threads(pid);
        }
        match self.has_children_files {
            true => self.find_children(),
            false => self.find_below(),
        }
    }

    fn list_threads(&mut self, pid: i32) {
        let living = threads(pid);
        if living.is_empty() && pid != self.root {
            self.forget(pid);
            return;
        }
        let process = self.processes.entry(pid).or_default();
        let before = process.threads.len();
        process.threads.retain(|tid, file| {
            let lives = living.contains(tid);
            self.open_files -= usize::from(!lives && file.is_some());
            lives
        });
        if before == living.len() && process.threads.len() == before {
            return;
        }
        for tid in living {
            process.threads.entry(tid).or_insert_with(|| {
                let file = (self.open_files < MOST_FILES)
                    .then(|| File::open(path(pid, tid, "stat")).ok())
                    .flatten();
                self.open_files += usize::from(file.is_some());
                file
            });
        }
    }

    fn find_children(&mut self) {
        let mut open: Vec<(i32, i32)> = self.all().collect();
        while let Some((pid, tid)) = open.pop() {
            let Ok(text) = fs::read(path(pid, tid, "children")) else {
                continue;
            };
            let children = text.split(|b| *b == b' ').filter_map(parse::number);
            for child in children.filter_map(|n| i32::try_from(n).ok()) {
                if self.processes.contains_key(&child) {
                    continue;
                }
                self.list_threads(child);
                let new = self.processes.get(&child);
                let tids = new.into_iter().flat_map(|p| p.threads.keys());
                open.extend(tids.map(|tid| (child, *tid)));
            }
        }
    }

    /// Where the kernel has no `children` files: every process of the machine is asked for its parent.
    fn find_below(&mut self) {
        for pid in Children::listed().below(self.root) {
            if !self.processes.contains_key(&pid) {
                self.list_threads(pid);
            }
        }
    }

    fn forget(&mut self, pid: i32) {
        let gone = self.processes.remove(&pid).unwrap_or_default();
        self.open_files -= gone.threads.values().flatten().count();
    }

    /// The processes, as last listed.
    pub(super) fn processes(&self) -> impl Iterator<Item = i32> {
        self.processes.keys().copied()
    }

    /// Process and number of each thread, as last listed.
    pub(super) fn all(&self) -> impl Iterator<Item = (i32, i32)> {
        self.processes
            .iter()
            .flat_map(|(pid, process)| process.threads.keys().map(move |tid| (*pid, *tid)))
    }

    /// The threads that run and fulfil `wanted`. Those that have ended are forgotten. Cost: 2.5 µs for each
    /// wanted one.
    pub(super) fn running(&mut self, mut wanted: impl FnMut(i32) -> bool, into: &mut Vec<i32>) {
        let open_files = &mut self.open_files;
        for (pid, process) in &mut self.processes {
            process.threads.retain(|tid, file| {
                if !wanted(*tid) {
                    return true;
                }
                let does = match file {
                    Some(file) => does(file),
                    None => {
                        File::open(path(*pid, *tid, "stat")).map_or(Does::Ended, |file| does(&file))
                    }
                };
                if does == Does::Runs {
                    into.push(*tid);
                }
                let lives = does != Does::Ended || *tid == *pid;
                *open_files -= usize::from(!lives && file.is_some());
                lives
            });
        }
    }
}

fn path(pid: i32, tid: i32, file: &str) -> String {
    format!("/proc/{pid}/task/{tid}/{file}")
}

fn does(stat: &File) -> Does {
    let mut text = [0; 256];
    match stat.read_at(&mut text, 0) {
        Ok(length) => text.get(..length).and_then(said).unwrap_or(Does::Waits),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Does::Waits,
        Err(_) => Does::Ended,
    }
}

/// What a thread does, by the beginning of its `stat`.
fn said(text: &[u8]) -> Option<Does> {
    // The name may hold spaces and parentheses, so the fields are counted from its end.
    let end = text.iter().rposition(|b| *b == b')')?;
    let mut fields = text.get(end + 2..)?.split(|b| *b == b' ');
    // The state is field 3 in proc(5), the flags are field 9.
    let state = *fields.next()?.first()?;
    let flags = parse::number(fields.nth(5)?)?;
    Some(match state {
        b'R' if flags & NOT_OURS == 0 => Does::Runs,
        b'Z' | b'X' => Does::Ended,
        _ => Does::Waits,
    })
}

/// What a thread does now, by its number alone: any number of a thread has a folder, listed or not.
pub(super) fn does_now(tid: i32) -> Does {
    File::open(format!("/proc/{tid}/stat")).map_or(Does::Ended, |file| does(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_found_behind_any_name() {
        let line = |state: &str, flags: &str| format!("7 (a) R 1 () {state} 1 7 7 0 -1 {flags} 1");
        let said = |state, flags| said(line(state, flags).as_bytes());
        assert_eq!(said("R", "4194304"), Some(Does::Runs));
        assert_eq!(said("S", "4194304"), Some(Does::Waits));
        assert_eq!(said("Z", "4194304"), Some(Does::Ended));
        assert_eq!(said("t", "0"), Some(Does::Waits));
    }

    #[test]
    fn threads_of_the_kernel_are_left_out() {
        assert_eq!(said(b"7 (iou-wrk-7) R 1 7 7 0 -1 16 1"), Some(Does::Waits));
    }

    #[test]
    fn this_very_thread_runs_and_is_listed() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let mut tasks = Tasks::below(pid);
        assert!(tasks.may_be_new());
        tasks.list();
        assert!(tasks.all().any(|thread| thread == (pid, tid)));
        let mut running = Vec::new();
        tasks.running(|_| true, &mut running);
        assert!(running.contains(&tid), "{running:?}");
        assert_eq!(does_now(tid), Does::Runs);
    }
}
