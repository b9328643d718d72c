//! Readings of the whole machine: use of each CPU, the run queue, pressure.
//!
//! The files are kept open and read from their start each time, into one buffer that is kept too.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use corewise_decide::reading::{CpuReading, MachineReading};

use crate::{Error, Root};

const STAT: &str = "/proc/stat";
const PRESSURE: &str = "/proc/pressure/cpu";

/// Reads the machine's counters again and again.
///
/// Cost of a reading: two system calls, 6 µs on two CPUs; the kernel writes `/proc/stat` whole, so
/// that it grows with CPUs and interrupts (reckon with 1 µs a CPU). The counters move in steps of a
/// clock tick (10 ms), so that reading every 100 ms is cheap and reading more often says little.
#[derive(Debug)]
pub struct HostReader {
    stat: File,
    stat_path: PathBuf,
    pressure: Option<File>,
    buffer: Vec<u8>,
    ns_per_tick: u64,
    /// The last reading's counters, since the kernel's idle time may step back by a tick.
    last: Vec<CpuReading>,
    started: Option<u64>,
}

impl HostReader {
    /// Opens the files.
    ///
    /// # Errors
    /// [`Error::Read`] without `/proc/stat`. Missing pressure is no error: its reading is `None`.
    pub fn open(root: &Root) -> Result<Self, Error> {
        let stat_path = root.path(STAT);
        let stat = File::open(&stat_path).map_err(|source| Error::Read {
            path: stat_path.clone(),
            source,
            advice: "use of CPUs cannot be seen without it: mount /proc",
        })?;
        // A made tree's ticks are those of every common machine.
        let ticks = match root.is_system() {
            true => rustix::param::clock_ticks_per_second().max(1),
            false => 100,
        };
        let mut reader = Self {
            stat,
            stat_path,
            pressure: File::open(root.path(PRESSURE)).ok(),
            buffer: vec![0; 8192],
            ns_per_tick: 1_000_000_000 / ticks,
            last: Vec::new(),
            started: None,
        };
        // Where pressure is switched off at boot, the file opens and its reading fails.
        if reader.pressure().is_none() {
            reader.pressure = None;
        }
        Ok(reader)
    }

    /// Whether pressure (PSI) can be read here.
    pub fn has_pressure(&self) -> bool {
        self.pressure.is_some()
    }

    /// How many processes and threads the machine had started since it booted, at the last
    /// [`read`](HostReader::read). `None` where nobody counts.
    pub fn started(&self) -> Option<u64> {
        self.started
    }

    /// The machine's counters now. `runnable` includes the thread that reads. Each CPU's counters
    /// never go back from one reading to the next.
    ///
    /// # Errors
    /// [`Error::Read`] when `/proc/stat` can no longer be read, [`Error::Parse`] when it is not
    /// what it should be.
    pub fn read(&mut self) -> Result<MachineReading, Error> {
        let time_ns = now_ns();
        let pressure_ns = self.pressure();
        let length = read_whole(&self.stat, &mut self.buffer).map_err(|source| Error::Read {
            path: self.stat_path.clone(),
            source,
            advice: "use of CPUs cannot be seen without it: mount /proc",
        })?;
        let text = String::from_utf8_lossy(&self.buffer[..length]);
        let Stat {
            mut cpus,
            runnable,
            started,
        } = parse_stat(&text, self.ns_per_tick)
            .map_err(|line| Error::parse(&self.stat_path, line, "a line of CPU times"))?;
        self.started = started;
        for cpu in &mut cpus {
            if let Ok(index) = self.last.binary_search_by_key(&cpu.cpu, |c| c.cpu) {
                let last = &self.last[index];
                cpu.busy_ns = cpu.busy_ns.max(last.busy_ns);
                cpu.idle_ns = cpu.idle_ns.max(last.idle_ns);
                cpu.steal_ns = cpu.steal_ns.max(last.steal_ns);
            }
        }
        self.last.clone_from(&cpus);
        Ok(MachineReading {
            time_ns,
            cpus,
            runnable,
            pressure_ns,
            ..MachineReading::default()
        })
    }

    fn pressure(&mut self) -> Option<u64> {
        let length = read_whole(self.pressure.as_ref()?, &mut self.buffer).ok()?;
        parse_pressure(std::str::from_utf8(&self.buffer[..length]).ok()?)
    }
}

/// The monotonic clock, in nanoseconds.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Monotonic time is not negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Reads a file from its start; the buffer grows to hold it.
fn read_whole(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            buffer.resize(length * 2, 0);
        }
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => return Ok(length),
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// What `/proc/stat` says.
#[derive(Debug)]
struct Stat {
    /// Each CPU's times, ascending.
    cpus: Vec<CpuReading>,
    /// Threads that run or could.
    runnable: Option<u32>,
    /// Processes and threads that were started since boot.
    started: Option<u64>,
}

/// The contents; the line that is not as it should be on failure.
fn parse_stat(text: &str, ns_per_tick: u64) -> Result<Stat, &str> {
    let mut cpus = Vec::new();
    let mut runnable = None;
    let mut started = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("cpu") {
            // The first line is the sum of all.
            if !rest.starts_with(' ') {
                cpus.push(parse_cpu(rest, ns_per_tick).ok_or(line)?);
            }
        } else if let Some(rest) = line.strip_prefix("procs_running ") {
            runnable = rest.trim().parse().ok();
        } else if let Some(rest) = line.strip_prefix("processes ") {
            // A sandbox that shows a constant shows 0.
            started = rest.trim().parse().ok().filter(|started| *started > 0);
        }
    }
    if cpus.is_empty() {
        return Err(text.lines().next().unwrap_or_default());
    }
    cpus.sort_by_key(|c: &CpuReading| c.cpu);
    Ok(Stat {
        cpus,
        runnable,
        started,
    })
}

/// `N user nice system idle iowait irq softirq steal guest guest_nice`. Guests' time is part of
/// user and nice already. Old kernels write fewer columns.
fn parse_cpu(rest: &str, ns_per_tick: u64) -> Option<CpuReading> {
    let mut fields = rest.split_ascii_whitespace();
    let cpu = fields.next()?.parse().ok()?;
    let mut ticks = [0_u64; 8];
    let mut found = 0;
    for (slot, field) in ticks.iter_mut().zip(fields) {
        *slot = field.parse().ok()?;
        found += 1;
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    let ns = |ticks: u64| ticks.saturating_mul(ns_per_tick);
    (found >= 4).then(|| CpuReading {
        cpu,
        busy_ns: ns(user + nice + system + irq + softirq),
        idle_ns: ns(idle + iowait),
        steal_ns: ns(steal),
    })
}

/// The total of the `some` line, which is in microseconds.
fn parse_pressure(text: &str) -> Option<u64> {
    let some = text.lines().find(|l| l.starts_with("some "))?;
    let total = some.split(' ').find_map(|f| f.strip_prefix("total="))?;
    total.trim().parse::<u64>().ok()?.checked_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_each_cpu_are_in_nanoseconds() {
        let text = "cpu  10 0 0 0 0 0 0 0 0 0\n\
                    cpu1 5 1 2 100 3 4 5 6 2 0\n\
                    cpu0 1 0 0 7 0 0 0 0 0 0\n\
                    intr 5 0\nprocesses 77\nprocs_running 3\nprocs_blocked 0\n";
        let Stat {
            cpus,
            runnable,
            started,
        } = parse_stat(text, 10_000_000).unwrap();
        assert_eq!((runnable, started), (Some(3), Some(77)));
        assert_eq!(cpus.len(), 2);
        assert_eq!(cpus[0].cpu, 0);
        let ms = 1_000_000;
        assert_eq!(cpus[1].busy_ns, (5 + 1 + 2 + 4 + 5) * 10 * ms);
        assert_eq!(cpus[1].idle_ns, 103 * 10 * ms);
        assert_eq!(cpus[1].steal_ns, 60 * ms);
    }

    #[test]
    fn old_kernels_and_sandboxes_write_less() {
        let stat = parse_stat("cpu0 1 2 3 4\nprocesses 0\n", 1).unwrap();
        assert_eq!((stat.cpus[0].busy_ns, stat.cpus[0].idle_ns), (6, 4));
        assert_eq!((stat.runnable, stat.started), (None, None));
    }

    #[test]
    fn what_is_no_stat_file_is_refused() {
        for text in ["", "hello\n", "cpu0 a b c d\n", "cpu0 1 2\n"] {
            assert!(parse_stat(text, 1).is_err(), "{text:?}");
        }
    }

    #[test]
    fn pressure_is_the_total_of_the_some_line() {
        let text = "some avg10=2.88 avg60=0.98 avg300=0.52 total=5692859\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse_pressure(text), Some(5_692_859_000));
        assert_eq!(parse_pressure(""), None);
    }

    #[test]
    fn a_reading_does_not_go_back_when_the_kernel_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        std::fs::create_dir_all(root.path("proc")).unwrap();
        let stat = root.path(STAT);
        std::fs::write(&stat, "cpu0 1 0 0 9\nprocs_running 1\n").unwrap();
        let mut reader = HostReader::open(&root).unwrap();
        assert!(!reader.has_pressure());
        let first = reader.read().unwrap();
        assert_eq!(first.pressure_ns, None);
        std::fs::write(&stat, "cpu0 2 0 0 8\nprocs_running 1\n").unwrap();
        let second = reader.read().unwrap();
        assert_eq!(second.cpus[0].busy_ns, 20_000_000);
        assert_eq!(second.cpus[0].idle_ns, first.cpus[0].idle_ns);
        assert!(second.time_ns >= first.time_ns);
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        let mut buffer = vec![0; 16];
        let length = read_whole(&File::open(path).unwrap(), &mut buffer).unwrap();
        assert_eq!(length, 10_000);
    }

    #[test]
    fn without_proc_the_error_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = HostReader::open(&Root::at(folder.path())).unwrap_err();
        assert!(error.to_string().contains("mount /proc"), "{error}");
    }

    #[test]
    fn this_machine_gives_a_reading_of_each_cpu() {
        let mut reader = HostReader::open(&Root::system()).unwrap();
        let reading = reader.read().unwrap();
        for cpu in crate::affinity::of(0).unwrap() {
            assert!(reading.cpus.iter().any(|c| c.cpu == cpu));
        }
        assert!(reading.runnable.unwrap() >= 1);
        assert_eq!(reading.pressure_ns.is_some(), reader.has_pressure());
    }
}
