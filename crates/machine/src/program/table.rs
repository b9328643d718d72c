//! The threads of the tree: who lives, who has ended, and with how much.
//!
//! Where BPF watches, each thread that ends leaves a record with all that it used. /proc forgets a
//! thread a moment before that record comes, and shows a process that nobody has waited for yet
//! long after; so a thread that /proc has lost is kept as it was seen last until its record comes,
//! and one whose record has come is not taken up again.
//!
//! Without BPF a thread ends with what was read of it last, and a living process's CPU clock tells
//! what its ended threads ran beyond that.

use std::collections::{BTreeMap, HashMap, HashSet};

use corewise_decide::reading::ThreadReading;

use super::files::{Budget, ThreadFiles};
use super::kernel::KernelWatch;
use super::spin::SpinSensor;
use super::sys;
use super::thread::{Fate, Thread};
use super::tree::Tree;

/// The scheduler's tick where it is slowest (100 Hz): so late may a running thread's counters be.
const LONGEST_TICK_NS: u64 = 10_000_000;

/// A thread that /proc has lost waits so long for its record.
const RECORD_COMES_NS: u64 = 50_000_000;

/// The threads of the tree.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) tree: Tree,
    pub(super) threads: BTreeMap<i32, Thread>,
    /// Sums over threads that have ended.
    pub(super) ended: ThreadReading,
    pub(super) budget: Budget,
    pub(super) kernel: Option<KernelWatch>,
    pub(super) spin: Option<SpinSensor>,
    /// Threads that /proc has lost, and since when; their records are still to come.
    leaving: HashMap<i32, (u64, ThreadReading)>,
    /// First threads of processes whose records have come, but that /proc may still show.
    zombies: HashSet<i32>,
    /// Run time of each living process's ended threads that is already in `ended`.
    ended_of_process: HashMap<i32, u64>,
    cpus: usize,
}

impl Table {
    pub(super) fn new(tree: Tree, budget: Budget) -> Self {
        Self {
            tree,
            threads: BTreeMap::new(),
            ended: ThreadReading::default(),
            budget,
            kernel: None,
            spin: None,
            leaving: HashMap::new(),
            zombies: HashSet::new(),
            ended_of_process: HashMap::new(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Looks for new processes in the whole tree.
    pub(super) fn find_processes(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            for pid in kernel.new_processes().unwrap_or_default() {
                self.tree.add(pid);
            }
            return;
        }
        let known = self.thread_numbers();
        self.tree.find_children(&known);
    }

    /// The living threads: process and thread number of each.
    pub(super) fn thread_numbers(&self) -> Vec<(i32, i32)> {
        self.threads
            .values()
            .map(|t| (t.reading.pid, t.reading.tid))
            .collect()
    }

    /// What a process's living threads had run when they were last read, in nanoseconds.
    pub(super) fn run_ns_of(&self, pid: i32) -> u64 {
        let threads = self.threads.values().filter(|t| t.reading.pid == pid);
        threads.map(|t| t.reading.run_ns).sum()
    }

    /// Brings the list of threads up to date; `all` also where the kernel says that a process has
    /// as many threads as before.
    pub(super) fn list(&mut self, time_ns: u64, all: bool) {
        for (pid, tids) in self.tree.changed_threads(all) {
            let listed: HashSet<i32> = tids.iter().copied().collect();
            let lost: Vec<i32> = self
                .threads
                .values()
                .filter(|t| t.reading.pid == pid && !listed.contains(&t.reading.tid))
                .map(|t| t.reading.tid)
                .collect();
            for tid in lost {
                self.leave(tid, time_ns);
            }
            for tid in tids {
                if !self.threads.contains_key(&tid) {
                    self.enter(pid, tid);
                }
            }
        }
        let tree = &self.tree;
        self.zombies.retain(|pid| tree.contains(*pid));
    }

    fn enter(&mut self, pid: i32, tid: i32) {
        let files = ThreadFiles::new(self.tree.thread_folder(pid, tid));
        let mut thread = Thread::new(pid, tid, files);
        if self.zombies.contains(&tid) {
            if !matches!(thread.state(&mut self.budget), Some(b'R' | b'S' | b'D')) {
                thread.close(&mut self.budget);
                return;
            }
            // The number is used again.
            self.zombies.remove(&tid);
        }
        self.threads.insert(tid, thread);
    }

    /// Reads every thread with `read`, and lets those go that have ended.
    pub(super) fn read(
        &mut self,
        time_ns: u64,
        mut read: impl FnMut(&mut Thread, &mut Budget, Option<&KernelWatch>) -> Fate,
    ) {
        let mut lost = Vec::new();
        for (tid, thread) in &mut self.threads {
            if read(thread, &mut self.budget, self.kernel.as_ref()) == Fate::Ended {
                lost.push(*tid);
            }
        }
        for tid in &lost {
            self.leave(*tid, time_ns);
        }
        if !lost.is_empty() {
            // As many may have started as have ended, so that the numbers look unchanged.
            self.list(time_ns, true);
        }
    }

    /// A thread that /proc has lost.
    fn leave(&mut self, tid: i32, time_ns: u64) {
        let Some(thread) = self.threads.remove(&tid) else {
            return;
        };
        let last = thread.close(&mut self.budget);
        if self.kernel.is_some() {
            self.leaving.insert(tid, (time_ns, last));
        } else {
            self.count_ended(last);
        }
    }

    fn count_ended(&mut self, mut last: ThreadReading) {
        if let Some(spin) = &mut self.spin {
            let at_end = spin.finish(last.tid, last.run_ns);
            last.spin_ns = Some(at_end.max(last.spin_ns.unwrap_or(0)));
        }
        *self.ended_of_process.entry(last.pid).or_default() += last.run_ns;
        self.ended.add(&last);
    }

    /// Takes the records of threads that have ended from the kernel.
    pub(super) fn take_records(&mut self, time_ns: u64) {
        let Some(mut kernel) = self.kernel.take() else {
            return;
        };
        let mut records = Vec::new();
        kernel.take_ended(|record| records.push(record));
        let lost = kernel.take_lost();
        self.kernel = Some(kernel);
        for record in records {
            let known = match self.threads.remove(&record.tid) {
                Some(thread) => Some(thread.close(&mut self.budget)),
                None => self.leaving.remove(&record.tid).map(|(_, last)| last),
            };
            if record.pid == record.tid {
                self.zombies.insert(record.tid);
            }
            let mut total = record;
            if let Some(known) = known {
                total.spin_ns = known.spin_ns;
            }
            self.count_ended(total);
        }
        let full = lost.is_some();
        if let Some(lost) = lost {
            // In `lost` are also those that are leaving now: they must not be counted twice.
            self.ended.add(&lost);
            self.leaving.clear();
        }
        let overdue: Vec<i32> = self
            .leaving
            .iter()
            .filter(|(_, (since, _))| time_ns.saturating_sub(*since) > RECORD_COMES_NS)
            .map(|(tid, _)| *tid)
            .collect();
        for tid in overdue {
            if let Some((_, last)) = self.leaving.remove(&tid)
                && !full
            {
                self.count_ended(last);
            }
        }
    }

    /// Without BPF: adds what ended threads of living processes ran after they were last seen, or
    /// without ever being seen.
    pub(super) fn complete_ended(&mut self) {
        if self.kernel.is_some() {
            return;
        }
        let processes = self.tree.processes();
        self.ended_of_process
            .retain(|pid, _| processes.contains(pid));
        for pid in processes {
            let Some(total) = sys::process_cpu_ns(pid) else {
                continue;
            };
            let mut living = 0;
            let mut count = 0;
            for thread in self.threads.values().filter(|t| t.reading.pid == pid) {
                living += thread.reading.run_ns;
                count += 1;
            }
            let late = LONGEST_TICK_NS * u64::try_from(self.cpus.min(count)).unwrap_or(0);
            let known = self.ended_of_process.entry(pid).or_default();
            let unseen = total.saturating_sub(living + late + *known);
            *known += unseen;
            self.ended.run_ns += unseen;
        }
    }

    /// All ended threads, those included whose records are still to come.
    pub(super) fn ended_now(&self) -> ThreadReading {
        let mut sum = self.ended.clone();
        for (_, last) in self.leaving.values() {
            sum.add(last);
        }
        sum.pid = 0;
        sum.tid = 0;
        sum
    }
}
