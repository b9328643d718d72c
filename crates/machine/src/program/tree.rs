//! Which processes and threads a program has.
//!
//! A process once seen stays in the tree until it is gone, whoever its parent is by then; so
//! daemons that orphan themselves are kept if they were seen before. Where the root is the init of
//! a PID namespace, orphans become its children and none is lost. (With BPF the kernel itself
//! keeps the list, see [`super::lock`].)

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::files::numbers_in;
use super::parse;

/// The process tree below a root.
#[derive(Debug)]
pub(super) struct Tree {
    proc_root: PathBuf,
    /// Each process with the link count that its task folder had when it was last listed: it
    /// changes with the number of threads, so that most listings can be left out.
    processes: HashMap<i32, Option<u64>>,
    /// Whether the kernel has `children` files.
    has_children_files: bool,
}

impl Tree {
    pub(super) fn new(proc_root: &Path, root_pid: i32) -> Result<Self, Error> {
        let folder = proc_root.join(root_pid.to_string());
        if !proc_root.join("self").exists() && !folder.exists() {
            let source = match std::fs::read_dir(proc_root) {
                Err(error) => error,
                Ok(_) => io::Error::new(io::ErrorKind::NotFound, "not a proc file system"),
            };
            return Err(Error::Proc {
                path: proc_root.to_owned(),
                source,
            });
        }
        let task = folder.join("task");
        match std::fs::read_dir(&task) {
            Ok(_) => {}
            Err(error) if Error::means_gone(&error) => {
                return Err(Error::NoSuchProcess {
                    pid: root_pid,
                    path: folder,
                });
            }
            Err(source) => return Err(Error::Proc { path: task, source }),
        }
        let has_children_files = task.join(root_pid.to_string()).join("children").exists();
        Ok(Self {
            proc_root: proc_root.to_owned(),
            processes: HashMap::from([(root_pid, None)]),
            has_children_files,
        })
    }

    /// The processes that are known now, sorted.
    pub(super) fn processes(&self) -> BTreeSet<i32> {
        self.processes.keys().copied().collect()
    }

    /// Whether a process is in the tree.
    pub(super) fn contains(&self, pid: i32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Where a thread's files are.
    pub(super) fn thread_folder(&self, pid: i32, tid: i32) -> PathBuf {
        self.proc_root
            .join(pid.to_string())
            .join("task")
            .join(tid.to_string())
    }

    /// Adds a process that somebody else found.
    pub(super) fn add(&mut self, pid: i32) {
        self.processes.entry(pid).or_insert(None);
    }

    /// Looks for processes that the known ones have started, and theirs. Costs about 5 µs for
    /// each thread, or for each process of the machine where the kernel has no `children` files.
    pub(super) fn find_children(&mut self, threads: &[(i32, i32)]) {
        if !self.has_children_files {
            self.scan_parents();
            return;
        }
        let mut open: Vec<(i32, i32)> = threads.to_vec();
        while let Some((pid, tid)) = open.pop() {
            let path = self.thread_folder(pid, tid).join("children");
            let Ok(text) = std::fs::read(path) else {
                continue;
            };
            for child in text.split(|b| *b == b' ') {
                let Some(child) = parse::number(child).and_then(|n| i32::try_from(n).ok()) else {
                    continue;
                };
                if self.processes.contains_key(&child) {
                    continue;
                }
                self.processes.insert(child, None);
                let task = self.proc_root.join(child.to_string()).join("task");
                let tids = numbers_in(&task).unwrap_or_default();
                open.extend(tids.into_iter().map(|tid| (child, tid)));
            }
        }
    }

    fn scan_parents(&mut self) {
        let Ok(pids) = numbers_in(&self.proc_root) else {
            return;
        };
        let parents: Vec<(i32, i32)> = pids
            .into_iter()
            .filter_map(|pid| {
                let path = self.proc_root.join(pid.to_string()).join("stat");
                let stat = parse::stat(&std::fs::read(path).ok()?)?;
                Some((pid, stat.ppid))
            })
            .collect();
        loop {
            let before = self.processes.len();
            for (pid, parent) in &parents {
                if self.processes.contains_key(parent) {
                    self.processes.entry(*pid).or_insert(None);
                }
            }
            if self.processes.len() == before {
                break;
            }
        }
    }

    /// The threads of those processes whose number of threads has changed since the last call, or
    /// of every process with `all`. Processes that are gone leave the tree.
    pub(super) fn changed_threads(&mut self, all: bool) -> Vec<(i32, Vec<i32>)> {
        let mut changed = Vec::new();
        let proc_root = &self.proc_root;
        self.processes.retain(|pid, links| {
            let task = proc_root.join(pid.to_string()).join("task");
            let Ok(metadata) = std::fs::metadata(&task) else {
                return false;
            };
            if all || *links != Some(metadata.nlink()) {
                let Ok(tids) = numbers_in(&task) else {
                    return false;
                };
                *links = Some(metadata.nlink());
                changed.push((*pid, tids));
            }
            true
        });
        changed
    }
}
