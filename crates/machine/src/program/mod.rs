//! Watching a program from outside: cumulative counters for each thread of a process tree.
//!
//! [`ProgramMonitor::attach`] takes the root of the tree, best while it still waits to start its
//! program; [`ProgramMonitor::sample`] gives a [`ProgramReading`]. Nothing here stops or changes
//! the program; the kernel's counting costs it a fraction of a percent.
//!
//! What is read how often decides the cost. What the whole program has run costs one system call a
//! process ([`ProgramMonitor::cpu_time_ns`]); run and wait time of each thread 0.7 µs a thread
//! ([`Detail::Light`]). The other counters are read at [`Detail::Full`] samples: they
//! cost 0.5 µs a thread where BPF notes them (and 2.4 µs for a thread that runs just then), 15 µs
//! where they come from /proc. Listings of threads are left out while the kernel's link counts say
//! that nothing changed.
//!
//! Time on a CPU is up to one tick (1 to 10 ms) late for a thread that runs at this moment.
//!
//! The parts: `tree` finds processes, `tree_clock` only sums their time, `table` keeps the threads and what the ended ones had
//! used, `kernel` and `bpf/` ask the kernel for exact lock time, `sampled_lock` estimates it
//! where that is not allowed, `spin`, `perf` and `code` find time that is spent waiting on a
//! CPU, `regions` counts parallel regions.

mod code;
mod error;
mod files;
mod kernel;
mod maps;
pub(crate) mod parse;
mod perf;
mod regions;
mod sampled_lock;
mod spin;
mod sys;
mod table;
mod thread;
mod tree;
mod tree_clock;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use corewise_decide::reading::{Method, ProgramReading, ThreadReading};

use crate::root::Root;
pub use error::Error;
use files::Budget;
use kernel::KernelWatch;
pub use maps::mapped_libraries;
use regions::RegionSensor;
use spin::SpinSensor;
pub use sys::process_cpu_ns;
use table::Table;
use thread::Fate;
use tree::Tree;
pub use tree_clock::{Moment, TreeClock};

/// How time blocked on futexes is to be obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOption {
    /// Exactly where the kernel allows BPF, by samples otherwise.
    Best,
    /// By samples.
    Sampled,
    /// Not at all.
    Off,
}

/// How a program is to be watched.
#[derive(Clone, Debug)]
pub struct MonitorOptions {
    /// Where `proc` is; for a made tree the kernel's own counters (BPF, perf events, CPU clocks)
    /// are not asked.
    pub root: Root,
    /// How time blocked on futexes is obtained. With [`LockOption::Best`] and BPF, the counters of
    /// threads that end are exact too, however short they lived.
    pub lock: LockOption,
    /// Whether time spent waiting on a CPU is estimated (by samples each millisecond).
    pub spin: bool,
    /// Whether entries into OpenMP parallel regions are counted. Costs the program about 1 µs for
    /// each region.
    pub regions: bool,
    /// How many descriptors may be kept open for the threads' files; the others are opened at
    /// each read. Default: half of what this process may open, at most 4,096.
    pub open_files: usize,
    /// How often light samples look for new processes (default 200 ms; full samples always do).
    pub find_processes_every: Duration,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self {
            root: Root::system(),
            lock: LockOption::Best,
            spin: true,
            regions: true,
            open_files: (sys::open_files_limit() / 2).min(4096),
            find_processes_every: Duration::from_millis(200),
        }
    }
}

/// How much a sample reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Run and wait time only; all optional counters of the reading are `None`. About 1 µs a
    /// thread.
    Light,
    /// Everything. About 2 µs a thread with BPF, 20 µs without.
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

impl Sensing {
    fn exact() -> Self {
        Self {
            method: Some(Method::Exact),
            why: String::new(),
        }
    }

    fn sampled(why: impl Into<String>) -> Self {
        Self {
            method: Some(Method::Sampled),
            why: why.into(),
        }
    }

    fn none(why: impl Into<String>) -> Self {
        Self {
            method: None,
            why: why.into(),
        }
    }
}

/// Watches one process tree.
#[derive(Debug)]
pub struct ProgramMonitor {
    table: Table,
    options: MonitorOptions,
    ns_per_tick: u64,
    processes_found_ns: u64,
    lock: Sensing,
    spin: Sensing,
    regions: Result<RegionSensor, String>,
    cpu_times: CpuTimes,
}

/// What each process had run when it was last asked, and what those ran that are gone.
#[derive(Debug, Default)]
struct CpuTimes {
    living_ns: BTreeMap<i32, u64>,
    gone_ns: u64,
}

impl CpuTimes {
    fn update(&mut self, pid: i32, now: Option<u64>) {
        let before = self.living_ns.get(&pid).copied().unwrap_or(0);
        match now {
            Some(now) if now >= before => {
                self.living_ns.insert(pid, now);
            }
            // Less than before: the number is used again.
            Some(now) => {
                self.gone_ns += before;
                self.living_ns.insert(pid, now);
            }
            None => {
                self.gone_ns += before;
                self.living_ns.remove(&pid);
            }
        }
    }

    fn total_ns(&self) -> u64 {
        self.gone_ns + self.living_ns.values().sum::<u64>()
    }
}

/// Reads the kernel's type information, which the first [`ProgramMonitor`] of a process would
/// otherwise have to wait for: about 50 ms of CPU time, once. Nothing is lost where it cannot be read.
pub fn prepare() {
    let _ = kernel::kernel_types();
}

impl ProgramMonitor {
    /// Starts watching the tree below `root_pid` (as seen from this process's PID namespace). Best
    /// called while the root still waits to start its program, so that nothing is missed; works
    /// on a running tree too, whose past then counts as far as the kernel kept it.
    ///
    /// Costs some milliseconds, the first time in a process some tens of them.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if the root is gone, [`Error::Proc`] if /proc cannot be read.
    pub fn attach(root_pid: i32, options: MonitorOptions) -> Result<Self, Error> {
        let tree = Tree::new(&options.root.path("proc"), root_pid)?;
        let mut table = Table::new(tree, Budget::new(options.open_files));
        let time_ns = sys::monotonic_ns();
        table.list(time_ns, true);
        table.find_processes();
        table.list(time_ns, true);
        let lock = start_lock(&mut table, &options);
        let spin = start_spin(&mut table, &options);
        let regions = if options.regions && options.root.is_system() {
            RegionSensor::start(&options.root)
        } else {
            Err("not asked for".to_owned())
        };
        Ok(Self {
            table,
            regions,
            ns_per_tick: 1_000_000_000 / sys::ticks_per_second(),
            processes_found_ns: time_ns,
            lock,
            spin,
            options,
            cpu_times: CpuTimes::default(),
        })
    }

    /// CPU time of the whole tree, ended threads included, in nanoseconds: exact, and not late for
    /// threads that run at this moment. Costs one system call for each process, so that it can be
    /// asked often; of a process that ends between two calls only what was last seen is counted.
    ///
    /// New processes are found by [`sample`](ProgramMonitor::sample).
    pub fn cpu_time_ns(&mut self) -> u64 {
        let known: Vec<i32> = self.cpu_times.living_ns.keys().copied().collect();
        let processes = self.table.tree.processes();
        for pid in known.into_iter().filter(|pid| !processes.contains(pid)) {
            self.cpu_times.update(pid, None);
        }
        for pid in processes {
            let now = match self.options.root.is_system() {
                true => sys::process_cpu_ns(pid),
                false => Some(self.table.run_ns_of(pid)),
            };
            self.cpu_times.update(pid, now);
        }
        self.cpu_times.total_ns()
    }

    /// Reads the program's counters now.
    ///
    /// A tree that has ended gives a reading without threads. Threads that end while they are
    /// read are no error.
    ///
    /// # Errors
    /// [`Error::Proc`] if /proc itself is no longer there.
    pub fn sample(&mut self, detail: Detail) -> Result<ProgramReading, Error> {
        let full = detail == Detail::Full;
        let time_ns = sys::monotonic_ns();
        let table = &mut self.table;
        if let Some(spin) = &mut table.spin {
            spin.drain();
        }
        table.take_records(time_ns);
        let every = u64::try_from(self.options.find_processes_every.as_nanos()).unwrap_or(u64::MAX);
        if full || time_ns.saturating_sub(self.processes_found_ns) >= every {
            self.processes_found_ns = time_ns;
            table.find_processes();
        }
        table.list(time_ns, false);

        let ns_per_tick = self.ns_per_tick;
        let estimate_lock = self.lock.method == Some(Method::Sampled);
        table.read(time_ns, |thread, budget, kernel| {
            let mut fate = thread.read_light(budget);
            if full && fate == Fate::Lives {
                match kernel.and_then(|k| k.thread(thread.reading.tid, time_ns)) {
                    Some(noted) => {
                        if !thread.take_noted(noted) {
                            fate = thread.read_times(budget, ns_per_tick);
                        }
                    }
                    None => {
                        fate = thread.read_times(budget, ns_per_tick);
                        if fate == Fate::Lives {
                            fate = thread.read_switches(budget);
                        }
                    }
                }
                if kernel.is_some() {
                    thread.reading.lock_ns.get_or_insert(0);
                }
            }
            if estimate_lock && fate == Fate::Lives {
                thread.estimate_lock(time_ns, budget);
            }
            fate
        });
        if full {
            self.look_for_libraries(time_ns, false);
            self.add_spin();
            if self.options.root.is_system() {
                self.table.complete_ended();
            }
        }
        if self.table.threads.is_empty() && !self.options.root.path("proc/self").exists() {
            let path = self.options.root.path("proc");
            let source = std::io::Error::from_raw_os_error(libc::ENOENT);
            return Err(Error::Proc { path, source });
        }
        Ok(self.reading(time_ns, full))
    }

    /// How time blocked on futexes is obtained, and why not exactly if it is not.
    pub fn lock_method(&self) -> &Sensing {
        &self.lock
    }

    /// How time spent waiting on a CPU is obtained, and why not if it is not.
    pub fn spin_method(&self) -> Sensing {
        match self.table.spin.as_ref().and_then(SpinSensor::unreadable) {
            Some(error) => Sensing::none(format!(
                "the program's code cannot be read: {error}; run as the program's user or as root"
            )),
            None => self.spin.clone(),
        }
    }

    /// How entries into parallel regions are counted; no method while no OpenMP library has been
    /// found.
    pub fn regions_method(&self) -> Sensing {
        let sensor = match &self.regions {
            Ok(sensor) => sensor,
            Err(why) => return Sensing::none(why.clone()),
        };
        match (sensor.count(), sensor.failure()) {
            (_, Some(failure)) => Sensing::none(format!(
                "regions cannot be counted in {failure}; counting needs root or CAP_PERFMON"
            )),
            (None, None) => Sensing::none("the program has mapped no OpenMP library so far"),
            (Some(_), None) => Sensing::exact(),
        }
    }

    /// Looks now for OpenMP libraries that the program has mapped, so that their regions count
    /// from here on. Full samples do the same for processes whose size has changed.
    pub fn scan_libraries(&mut self) {
        self.look_for_libraries(sys::monotonic_ns(), true);
    }

    /// The files that the whole tree has mapped to execute, sorted; see [`mapped_libraries`].
    pub fn mapped_libraries(&self) -> Vec<PathBuf> {
        let proc_root = self.options.root.path("proc");
        let processes = self.table.tree.processes().into_iter();
        let files: BTreeSet<PathBuf> = processes
            .filter_map(|pid| maps::of_process(&proc_root, pid).ok())
            .flatten()
            .collect();
        files.into_iter().collect()
    }

    fn look_for_libraries(&mut self, time_ns: u64, always: bool) {
        if let Ok(sensor) = &mut self.regions {
            let threads: Vec<(i32, i32)> = self.table.thread_numbers();
            sensor.look(time_ns, &threads, always);
        }
    }

    /// The processes that were in the tree at the last sample, sorted.
    pub fn processes(&self) -> Vec<i32> {
        self.table.tree.processes().into_iter().collect()
    }

    fn add_spin(&mut self) {
        let table = &mut self.table;
        if let Some(spin) = &mut table.spin {
            for (tid, thread) in &mut table.threads {
                let reading = &mut thread.reading;
                reading.spin_ns = Some(spin.spin_ns(*tid, reading.run_ns));
            }
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
        let threads = self.table.threads.values();
        ProgramReading {
            time_ns,
            threads: threads.map(|t| shown(&t.reading)).collect(),
            ended: shown(&self.table.ended_now()),
            regions: match &self.regions {
                Ok(sensor) if full => sensor.count(),
                _ => None,
            },
        }
    }
}

/// Chooses how lock time is obtained, and starts BPF if it is to be exact.
fn start_lock(table: &mut Table, options: &MonitorOptions) -> Sensing {
    if options.lock == LockOption::Off {
        return Sensing::none("not asked for");
    }
    let mut why = "asked for by the caller".to_owned();
    if options.lock == LockOption::Best && options.root.is_system() {
        match start_kernel(table) {
            Ok(()) => return Sensing::exact(),
            Err(error) => why = error,
        }
    }
    let budget = &mut table.budget;
    let Some(thread) = table.threads.values_mut().next() else {
        return Sensing::none("the program has no threads left");
    };
    if thread.can_look(budget) {
        Sensing::sampled(why)
    } else {
        Sensing::none(format!(
            "{why}; and /proc/PID/syscall of the program cannot be read: it belongs to another \
             user, or the kernel forbids it"
        ))
    }
}

fn start_kernel(table: &mut Table) -> Result<(), String> {
    let mut kernel = KernelWatch::start()?;
    for pid in table.tree.processes() {
        let of_process = table.threads.values().filter(|t| t.reading.pid == pid);
        kernel.watch(pid, of_process.count())?;
    }
    // What was started before its parent was noted.
    let time_ns = sys::monotonic_ns();
    table.find_processes();
    table.list(time_ns, true);
    for pid in table.tree.processes() {
        if !kernel.watches(pid) {
            let of_process = table.threads.values().filter(|t| t.reading.pid == pid);
            kernel.watch(pid, of_process.count())?;
        }
    }
    // Who is blocked already: looked at twice, so that one that wakes in between is not noted as
    // blocked for good.
    let budget = &mut table.budget;
    for (tid, thread) in &mut table.threads {
        if thread.is_on_futex(budget) {
            thread.read_switches(budget);
            kernel.note_blocked(&thread.reading, time_ns);
            if !thread.is_on_futex(budget) {
                kernel.forget_blocked(*tid);
            }
        }
    }
    table.kernel = Some(kernel);
    Ok(())
}

/// Starts sampling where threads run, if that is wanted and allowed.
fn start_spin(table: &mut Table, options: &MonitorOptions) -> Sensing {
    if !options.spin {
        return Sensing::none("not asked for");
    }
    if !options.root.is_system() {
        return Sensing::none("the tree of files is a made one");
    }
    let budget = &mut table.budget;
    let threads: Vec<(i32, u64)> = table
        .threads
        .iter_mut()
        .map(|(tid, thread)| {
            thread.read_light(budget);
            (*tid, thread.reading.run_ns)
        })
        .collect();
    let cpus = match online_cpus(&options.root) {
        Ok(cpus) => cpus,
        Err(error) => return Sensing::none(format!("/sys/devices/system/cpu/online: {error}")),
    };
    let events = threads.len() * cpus.len();
    if events > options.open_files {
        return Sensing::none(format!(
            "{events} perf events would be needed for {} running threads; watch the program from \
             its start",
            threads.len()
        ));
    }
    match SpinSensor::start(&threads, &cpus) {
        Ok(sensor) => {
            let sensing = if sensor.sees_kernel() {
                Sensing::sampled("")
            } else {
                Sensing::sampled(
                    "perf events of the kernel are not allowed, so time in yielding system calls \
                     is missed; root, CAP_PERFMON or perf_event_paranoid below 2 would help",
                )
            };
            table.spin = Some(sensor);
            sensing
        }
        Err(error) => Sensing::none(format!(
            "perf events are not to be had: {error}; containers often forbid them, and \
             /proc/sys/kernel/perf_event_paranoid may"
        )),
    }
}

fn online_cpus(root: &Root) -> std::io::Result<Vec<i32>> {
    let text = std::fs::read_to_string(root.path("sys/devices/system/cpu/online"))?;
    let cpus = crate::cpu_list::parse(text.trim()).unwrap_or_default();
    if cpus.is_empty() {
        let message = format!("{text:?} is no list of CPUs");
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            message,
        ));
    }
    Ok(cpus
        .into_iter()
        .filter_map(|c| i32::try_from(c).ok())
        .collect())
}
