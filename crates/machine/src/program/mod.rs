//! Watching a program from outside: cumulative counters for each thread of a process tree.
//!
//! [`ProgramMonitor::attach`] takes the root of the tree, best while it still waits to start its
//! program; [`ProgramMonitor::sample`] gives a [`ProgramReading`]. Nothing here stops, slows or
//! changes the program, beyond what the kernel's own counters cost it.
//!
//! What is read how often decides the cost. Run and wait time cost 0.7 µs a thread and are read at
//! every sample ([`Detail::Light`]); user and system time, switches and migrations cost 15 µs a
//! thread and are read at [`Detail::Full`] samples. Listings of threads are left out while the
//! kernel's link counts say that nothing changed.
//!
//! Time on a CPU is up to one tick (1 to 10 ms) late for a thread that runs at this moment.

mod error;
mod files;
mod parse;
mod sampled_lock;
mod sys;
mod thread;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use corewise_decide::reading::{Method, ProgramReading, ThreadReading};

use crate::root::Root;
pub use error::Error;
use files::{Budget, ThreadFiles};
use thread::{Fate, Thread};
use tree::Tree;

/// The scheduler's tick where it is slowest (100 Hz).
const LONGEST_TICK_NS: u64 = 10_000_000;

/// How a program is to be watched.
#[derive(Clone, Debug)]
pub struct MonitorOptions {
    /// Where `proc` is; for a made tree the kernel's own counters (BPF, perf events, CPU clocks)
    /// are not asked.
    pub root: Root,
    /// Whether time blocked on futexes is measured.
    pub lock: bool,
    /// How many descriptors may be kept open for the threads' files; the others are opened at
    /// each read. Default: half of what this process may open, at most 4,096.
    pub open_files: usize,
    /// How often light samples look for new processes (default 200 ms; full samples always do).
    pub find_children_every: Duration,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self {
            root: Root::system(),
            lock: true,
            open_files: (sys::open_files_limit() / 2).min(4096),
            find_children_every: Duration::from_millis(200),
        }
    }
}

/// How much a sample reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Run and wait time only; all optional counters of the reading are `None`. About 1 µs a
    /// thread.
    Light,
    /// Everything. About 20 µs a thread.
    Full,
}

/// How a sensor does its work, and if not as well as it could, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensing {
    /// How figures are obtained; `None` if there are none.
    pub method: Option<Method>,
    /// Why the method is no better (or there is none), and what would help; empty if nothing
    /// could be better.
    pub why: String,
}

/// Watches one process tree.
#[derive(Debug)]
pub struct ProgramMonitor {
    tree: Tree,
    threads: BTreeMap<i32, Thread>,
    /// Sums over threads that ended: as last seen, or better where the kernel tells.
    ended: ThreadReading,
    /// Sums over ended threads of each living process, as last seen, to set against the
    /// process's own CPU clock.
    ended_of_process: BTreeMap<i32, u64>,
    budget: Budget,
    options: MonitorOptions,
    ns_per_tick: u64,
    children_found_ns: u64,
    lock: Sensing,
    cpus: usize,
}

impl ProgramMonitor {
    /// Starts watching the tree below `root_pid` (as seen from this process's PID namespace). Best
    /// called while the root still waits to start its program, so that nothing is missed; works
    /// on a running tree too, whose past then counts as far as the kernel kept it.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if the root is gone, [`Error::Proc`] if /proc cannot be read.
    pub fn attach(root_pid: i32, options: MonitorOptions) -> Result<Self, Error> {
        let tree = Tree::new(&options.root.path("proc"), root_pid)?;
        let mut monitor = Self {
            tree,
            threads: BTreeMap::new(),
            ended: ThreadReading::default(),
            ended_of_process: BTreeMap::new(),
            budget: Budget::new(options.open_files),
            ns_per_tick: 1_000_000_000 / sys::ticks_per_second(),
            children_found_ns: 0,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            lock: Sensing {
                method: None,
                why: "not asked for".to_owned(),
            },
            options,
        };
        monitor.find_threads(true, true);
        if monitor.options.lock {
            monitor.lock = monitor.choose_lock_method();
        }
        Ok(monitor)
    }

    /// Reads the program's counters now.
    ///
    /// A tree that has ended gives a reading without threads. Threads that end while they are
    /// read are no error.
    ///
    /// # Errors
    /// [`Error::Proc`] if /proc itself is no longer there.
    pub fn sample(&mut self, detail: Detail) -> Result<ProgramReading, Error> {
        let time_ns = sys::monotonic_ns();
        let full = detail == Detail::Full;
        let every = u64::try_from(self.options.find_children_every.as_nanos()).unwrap_or(u64::MAX);
        let find_children = full || time_ns.saturating_sub(self.children_found_ns) >= every;
        self.find_threads(find_children, false);

        let mut gone = Vec::new();
        for (tid, thread) in &mut self.threads {
            let mut fate = thread.read_light(&mut self.budget);
            if full && fate == Fate::Lives {
                fate = thread.read_full(&mut self.budget, self.ns_per_tick);
            }
            if fate == Fate::Ended {
                gone.push(*tid);
            } else if self.lock.method == Some(Method::Sampled) {
                thread.estimate_lock(time_ns, &mut self.budget);
            }
        }
        for tid in &gone {
            self.end_thread(*tid);
        }
        if !gone.is_empty() {
            // As many may have started as have ended.
            self.find_threads(false, true);
        }
        if full {
            self.complete_ended();
        }
        Ok(self.reading(time_ns, full))
    }

    /// How time blocked on futexes is obtained, and why not exactly if it is not.
    pub fn lock_method(&self) -> &Sensing {
        &self.lock
    }

    /// The processes that were in the tree at the last sample, sorted.
    pub fn processes(&self) -> Vec<i32> {
        self.tree.processes().into_iter().collect()
    }

    fn choose_lock_method(&mut self) -> Sensing {
        let Some(thread) = self.threads.values_mut().next() else {
            return Sensing {
                method: None,
                why: "the program has no threads left".to_owned(),
            };
        };
        if thread.can_look(&mut self.budget) {
            Sensing {
                method: Some(Method::Sampled),
                why: "the kernel is not asked for each wait".to_owned(),
            }
        } else {
            Sensing {
                method: None,
                why: "/proc/PID/syscall of the program cannot be read: it belongs to another \
                      user, or the kernel forbids it"
                    .to_owned(),
            }
        }
    }

    fn find_threads(&mut self, children: bool, all: bool) {
        if children {
            let known: Vec<(i32, i32)> = self
                .threads
                .values()
                .map(|t| (t.reading.pid, t.reading.tid))
                .collect();
            // At the first call no thread is known yet: list them first.
            let known = if known.is_empty() {
                self.list_threads(true);
                self.threads
                    .values()
                    .map(|t| (t.reading.pid, t.reading.tid))
                    .collect()
            } else {
                known
            };
            self.tree.find_children(&known);
            self.children_found_ns = sys::monotonic_ns();
        }
        self.list_threads(all);
    }

    fn list_threads(&mut self, all: bool) {
        for (pid, tids) in self.tree.changed_threads(all) {
            let listed: HashSet<i32> = tids.iter().copied().collect();
            let ended: Vec<i32> = self
                .threads
                .values()
                .filter(|t| t.reading.pid == pid && !listed.contains(&t.reading.tid))
                .map(|t| t.reading.tid)
                .collect();
            for tid in ended {
                self.end_thread(tid);
            }
            for tid in tids {
                if !self.threads.contains_key(&tid) {
                    let files = ThreadFiles::new(self.tree.thread_folder(pid, tid));
                    self.threads.insert(tid, Thread::new(pid, tid, files));
                }
            }
        }
    }

    fn end_thread(&mut self, tid: i32) {
        if let Some(thread) = self.threads.remove(&tid) {
            let last = thread.close(&mut self.budget);
            *self.ended_of_process.entry(last.pid).or_default() += last.run_ns;
            thread::add(&mut self.ended, &last);
        }
    }

    /// Adds what ended threads ran after they were last seen, or without ever being seen, as far
    /// as their process lives and its CPU clock tells.
    fn complete_ended(&mut self) {
        if !self.options.root.is_system() {
            return;
        }
        let processes = self.tree.processes();
        self.ended_of_process
            .retain(|pid, _| processes.contains(pid));
        for pid in processes {
            let Some(total) = sys::process_cpu_ns(pid) else {
                continue;
            };
            let living: u64 = self
                .threads
                .values()
                .filter(|t| t.reading.pid == pid)
                .map(|t| t.reading.run_ns)
                .sum();
            // Living threads' counters are up to a tick late: that much has not ended.
            let running = self.threads.len().min(self.cpus);
            let late = LONGEST_TICK_NS * u64::try_from(running).unwrap_or(0);
            let known = self.ended_of_process.entry(pid).or_default();
            let unseen = total.saturating_sub(living + late + *known);
            *known += unseen;
            self.ended.run_ns += unseen;
        }
    }

    fn reading(&self, time_ns: u64, full: bool) -> ProgramReading {
        let shown = |reading: &ThreadReading| {
            if full {
                reading.clone()
            } else {
                ThreadReading {
                    pid: reading.pid,
                    tid: reading.tid,
                    run_ns: reading.run_ns,
                    cpu_wait_ns: reading.cpu_wait_ns,
                    ..ThreadReading::default()
                }
            }
        };
        ProgramReading {
            time_ns,
            threads: self.threads.values().map(|t| shown(&t.reading)).collect(),
            ended: shown(&self.ended),
            regions: None,
        }
    }
}
