//! One watched thread: its files and what they said last.

use corewise_decide::reading::ThreadReading;

use super::files::{Budget, Kind, Read, ThreadFiles};
use super::kernel::Noted;
use super::parse::{self, SchedStat};
use super::sampled_lock::{self, SampledLock, Seen};

/// A living thread.
#[derive(Debug)]
pub(super) struct Thread {
    /// What was read last. Fields that only full samples read keep their last value here.
    pub(super) reading: ThreadReading,
    /// The estimate of lock time, where it is not known exactly.
    pub(super) sampled_lock: Option<SampledLock>,
    /// Run time when switches were read last from /proc.
    switches_at_run_ns: Option<u64>,
    files: ThreadFiles,
}

/// What became of a thread at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lives,
    Ended,
}

impl Thread {
    pub(super) fn new(pid: i32, tid: i32, files: ThreadFiles) -> Self {
        Self {
            reading: ThreadReading {
                pid,
                tid,
                ..ThreadReading::default()
            },
            sampled_lock: None,
            switches_at_run_ns: None,
            files,
        }
    }

    /// Reads run and wait time. Costs about 0.7 µs.
    pub(super) fn read_light(&mut self, budget: &mut Budget) -> Fate {
        let mut buffer = [0u8; 128];
        match self.files.read(Kind::SchedStat, budget, &mut buffer) {
            Read::Gone => return Fate::Ended,
            Read::Refused => {}
            Read::Text(text) => {
                if let Some(read) = parse::schedstat(text) {
                    // Counters of one thread only grow; a smaller value is an execve by another
                    // thread that took over this number.
                    self.reading.run_ns = self.reading.run_ns.max(read.run_ns);
                    self.reading.cpu_wait_ns = self.reading.cpu_wait_ns.max(read.cpu_wait_ns);
                }
            }
        }
        Fate::Lives
    }

    /// Reads user and system time. Costs about 2.4 µs.
    pub(super) fn read_times(&mut self, budget: &mut Budget, ns_per_tick: u64) -> Fate {
        let mut buffer = [0u8; 1024];
        match self.files.read(Kind::Stat, budget, &mut buffer) {
            Read::Gone => return Fate::Ended,
            Read::Refused => {}
            Read::Text(text) => {
                if let Some(stat) = parse::stat(text) {
                    let reading = &mut self.reading;
                    // Ticks are coarser than what the kernel noted before.
                    let user_ns = stat.user_ticks * ns_per_tick;
                    let system_ns = stat.system_ticks * ns_per_tick;
                    reading.user_ns = Some(user_ns.max(reading.user_ns.unwrap_or(0)));
                    reading.system_ns = Some(system_ns.max(reading.system_ns.unwrap_or(0)));
                }
            }
        }
        Fate::Lives
    }

    /// Reads switches and migrations, if the thread has run since they were read last. Costs about
    /// 13 µs.
    pub(super) fn read_switches(&mut self, budget: &mut Budget) -> Fate {
        if self.switches_at_run_ns == Some(self.reading.run_ns) {
            return Fate::Lives;
        }
        let mut buffer = [0u8; 4096];
        match self.files.read(Kind::Status, budget, &mut buffer) {
            Read::Gone => return Fate::Ended,
            Read::Refused => {}
            Read::Text(text) => {
                if let Some((voluntary, involuntary)) = parse::switches(text) {
                    self.reading.voluntary_switches = Some(voluntary);
                    self.reading.involuntary_switches = Some(involuntary);
                }
            }
        }
        match self.files.read(Kind::Sched, budget, &mut buffer) {
            Read::Gone => return Fate::Ended,
            Read::Refused => {}
            Read::Text(text) => {
                if let Some(migrations) = parse::migrations(text) {
                    self.reading.migrations = Some(migrations);
                }
            }
        }
        self.switches_at_run_ns = Some(self.reading.run_ns);
        Fate::Lives
    }

    /// Takes what the kernel noted, at no cost of its own. False if the thread has run since, so
    /// that its user and system time are to be read.
    pub(super) fn take_noted(&mut self, noted: Noted) -> bool {
        let reading = &mut self.reading;
        // What was read from /proc may be newer.
        let newer = |known: Option<u64>, noted: u64| Some(noted.max(known.unwrap_or(0)));
        reading.lock_ns = newer(reading.lock_ns, noted.lock_ns);
        reading.voluntary_switches = newer(reading.voluntary_switches, noted.voluntary);
        reading.involuntary_switches = newer(reading.involuntary_switches, noted.involuntary);
        reading.migrations = newer(reading.migrations, noted.migrations);
        let complete = noted.run_ns == reading.run_ns;
        if complete {
            let user_ns = noted.run_ns.saturating_sub(noted.system_ns);
            reading.user_ns = newer(reading.user_ns, user_ns);
            reading.system_ns = newer(reading.system_ns, noted.system_ns);
        }
        complete
    }

    /// Brings the estimate of lock time up to date. Costs about 2 µs if the thread did anything.
    pub(super) fn estimate_lock(&mut self, time_ns: u64, budget: &mut Budget) {
        let counters = SchedStat {
            run_ns: self.reading.run_ns,
            cpu_wait_ns: self.reading.cpu_wait_ns,
        };
        let files = &mut self.files;
        let lock = self
            .sampled_lock
            .get_or_insert_with(|| SampledLock::new(time_ns, counters));
        lock.update(time_ns, counters, || look(files, budget));
        self.reading.lock_ns = Some(lock.lock_ns());
    }

    /// The state's letter from `stat`, such as `Z` for a zombie.
    pub(super) fn state(&mut self, budget: &mut Budget) -> Option<u8> {
        let mut buffer = [0u8; 1024];
        match self.files.read(Kind::Stat, budget, &mut buffer) {
            Read::Text(text) => parse::stat(text).map(|s| s.state),
            Read::Gone | Read::Refused => None,
        }
    }

    /// Whether the kernel lets us see this thread's present system call.
    pub(super) fn can_look(&mut self, budget: &mut Budget) -> bool {
        look(&mut self.files, budget).is_some()
    }

    /// Whether the thread is blocked on a futex now.
    pub(super) fn is_on_futex(&mut self, budget: &mut Budget) -> bool {
        look(&mut self.files, budget) == Some(Seen::Futex)
    }

    /// Gives its descriptors back.
    pub(super) fn close(mut self, budget: &mut Budget) -> ThreadReading {
        self.files.close(budget);
        self.reading
    }
}

fn look(files: &mut ThreadFiles, budget: &mut Budget) -> Option<Seen> {
    let mut buffer = [0u8; 256];
    match files.read(Kind::Syscall, budget, &mut buffer) {
        Read::Text(text) => sampled_lock::seen(text),
        Read::Gone | Read::Refused => None,
    }
}
