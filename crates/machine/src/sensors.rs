//! Every sensor and control that corewise knows: whether this machine has it, and why not.
//!
//! Each entry is tried, not guessed from a version: the file is read, the event opened. Where a tree
//! of files stands in for the machine, only files can be tried, and the entries that need a system
//! call say so.

use std::io;

use serde::{Deserialize, Serialize};

use crate::{HostReader, Root, Topology, probe};

mod controls;
mod hardware;

pub use controls::controls;

/// A sensor or a control, and whether it can be used here by the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facility {
    /// Its name, which does not change from version to version.
    pub name: String,
    /// Whether it works here, now, for this user.
    pub available: bool,
    /// Where it is available: what it is read or set by. Else: what is missing and what would help.
    pub why: String,
}

impl Facility {
    fn new(name: &str, tried: Result<String, String>) -> Self {
        let (available, why) = match tried {
            Ok(why) => (true, why),
            Err(why) => (false, why),
        };
        Self {
            name: name.to_owned(),
            available,
            why,
        }
    }
}

/// Outcome of trying: what it is read by, or why it is not.
type Tried = Result<String, String>;

const ON_FILES: &str = "needs a system call, which a tree of files cannot answer";

/// All sensors, in the order program, machine, hardware.
///
/// Cost: a few milliseconds, most of it the topology; for people and start-up, not for loops.
pub fn sensors(root: &Root) -> Vec<Facility> {
    vec![
        Facility::new("topology", topology(root)),
        // Of a program and each of its threads.
        Facility::new("run-time", schedstat(root, "time on CPUs")),
        Facility::new("cpu-wait", schedstat(root, "time waiting for a CPU")),
        Facility::new("user-system-time", user_system(root)),
        Facility::new("switches", switches(root)),
        Facility::new("migrations", migrations(root)),
        Facility::new("lock-time", lock_exact(root)),
        Facility::new("lock-time-sampled", lock_sampled(root)),
        Facility::new("spin", spin(root)),
        Facility::new("regions", regions(root)),
        // Of the machine.
        Facility::new(
            "cpu-use",
            stat(root, "busy and idle time of each CPU", "cpu0 "),
        ),
        Facility::new(
            "run-queue",
            stat(root, "threads running or runnable", "procs_running "),
        ),
        Facility::new("steal", steal(root)),
        Facility::new("pressure", pressure(root)),
        // Of the hardware.
        Facility::new("hardware-counters", hardware::counters(root)),
        Facility::new("instructions", hardware::instructions(root)),
        Facility::new("frequency", hardware::frequency(root)),
        Facility::new("temperature", hardware::temperature(root)),
        Facility::new("core-temperature", hardware::core_temperature(root)),
        Facility::new("throttling", hardware::throttling(root)),
        Facility::new("energy", hardware::energy(root)),
    ]
}

fn topology(root: &Root) -> Tried {
    if !root.is_system() {
        return match root.exists("/sys/devices/system/cpu/online") {
            true => Err(
                "hwloc reads the living machine only; give XML or a synthetic description".into(),
            ),
            false => Err("/sys is not there".into()),
        };
    }
    Topology::this_machine()
        .map(|_| "hwloc, from /sys".to_owned())
        .map_err(|e| e.to_string())
}

/// Reads a file of our own process as a stand-in for those of the programs we start.
fn own(root: &Root, file: &str) -> Result<String, String> {
    let path = format!("/proc/self/{file}");
    root.read(&path).map_err(|e| {
        if root.exists("/proc/self") {
            format!("{path} cannot be read: {}", cause(&e))
        } else {
            "/proc is not mounted; mount it: mount -t proc proc /proc".to_owned()
        }
    })
}

/// An error in words that a reader of `corewise machine` can use.
fn cause(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOENT) => "it is not there".into(),
        Some(libc::EACCES | libc::EPERM) => "it is not allowed".into(),
        _ => e.to_string(),
    }
}

fn schedstat(root: &Root, what: &str) -> Tried {
    let text =
        own(root, "schedstat").map_err(|e| format!("{e} (a kernel without CONFIG_SCHED_INFO?)"))?;
    match text.split_whitespace().count() {
        3.. => Ok(format!(
            "{what} of each thread, in ns: /proc/PID/task/TID/schedstat, exact"
        )),
        _ => Err(format!("/proc/self/schedstat says {:?}", text.trim())),
    }
}

fn user_system(root: &Root) -> Tried {
    own(root, "stat")?;
    Ok("time in user mode and in the kernel of each thread, in clock ticks: /proc/PID/task/TID/stat".into())
}

fn switches(root: &Root) -> Tried {
    match own(root, "status")?.contains("nonvoluntary_ctxt_switches:") {
        true => Ok(
            "voluntary and involuntary switches of each thread: /proc/PID/task/TID/status, exact"
                .into(),
        ),
        false => Err("/proc/self/status has no counts of switches".into()),
    }
}

fn migrations(root: &Root) -> Tried {
    match own(root, "sched") {
        Ok(text) if text.contains("nr_migrations") => {
            Ok("moves between CPUs of each thread: /proc/PID/task/TID/sched, exact".into())
        }
        Ok(_) => Err("/proc/self/sched does not count them".into()),
        Err(e) => Err(format!("{e} (a kernel without CONFIG_SCHED_DEBUG?)")),
    }
}

fn lock_exact(root: &Root) -> Tried {
    if !root.exists("/sys/kernel/btf/vmlinux") {
        return Err("no kernel type information (/sys/kernel/btf/vmlinux): a kernel with CONFIG_DEBUG_INFO_BTF has it; the sampled time is used".into());
    }
    live(root)?;
    match probe::bpf() {
        Ok(()) => Ok(
            "time blocked on futexes of each thread: BPF on the kernel's tracepoints, exact".into(),
        ),
        Err(e) => Err(format!(
            "BPF programs cannot be loaded ({}): needs root, or CAP_BPF and CAP_PERFMON; the sampled time is used",
            cause(&e)
        )),
    }
}

fn lock_sampled(root: &Root) -> Tried {
    own(root, "syscall").map_err(|e| {
        format!(
            "{e}: needs a kernel with CONFIG_HAVE_ARCH_TRACEHOOK and the right to trace the program"
        )
    })?;
    Ok("time blocked on futexes of each thread, from samples of /proc/PID/task/TID/syscall; for programs of one's own user".into())
}

fn spin(root: &Root) -> Tried {
    live(root)?;
    match probe::clock_samples() {
        Ok(()) => Ok(
            "part of run time spent waiting in a loop: samples of the CPU clock (perf_event_open)"
                .into(),
        ),
        Err(e) => Err(not_perf(root, &e)),
    }
}

fn regions(root: &Root) -> Tried {
    let source = "/sys/bus/event_source/devices/uprobe/type";
    let number = root
        .read(source)
        .ok()
        .and_then(|t| t.trim().parse().ok())
        .ok_or_else(|| format!("the kernel has no uprobes for perf ({source} is not there)"))?;
    live(root)?;
    match probe::user_probe(number) {
        Ok(()) => Ok(
            "parallel regions that a program enters: uprobes on its runtime's functions, exact"
                .into(),
        ),
        Err(e) => Err(format!(
            "uprobes cannot be set ({}): needs root or CAP_PERFMON",
            cause(&e)
        )),
    }
}

fn live(root: &Root) -> Result<(), String> {
    match root.is_system() {
        true => Ok(()),
        false => Err(ON_FILES.into()),
    }
}

fn not_perf(root: &Root, e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let level = root
                .read("/proc/sys/kernel/perf_event_paranoid")
                .map_or_else(|_| "unknown".into(), |t| t.trim().to_owned());
            format!(
                "perf events are not allowed (kernel.perf_event_paranoid is {level}, or a container's filter forbids them): needs root, CAP_PERFMON, or a level of 2 or less"
            )
        }
        Some(libc::ENOSYS) => "the kernel has no perf events (CONFIG_PERF_EVENTS)".into(),
        _ => format!("perf_event_open failed: {}", cause(e)),
    }
}

fn stat(root: &Root, what: &str, line: &str) -> Tried {
    HostReader::open(root)
        .and_then(|mut reader| reader.read())
        .map_err(|e| e.to_string())?;
    let text = root.read("/proc/stat").unwrap_or_default();
    // CPU 0 may be offline; any numbered CPU will do.
    let found = text.lines().any(|l| match line {
        "cpu0 " => l.starts_with("cpu") && !l.starts_with("cpu "),
        _ => l.starts_with(line),
    });
    match found {
        true => Ok(format!("{what}: /proc/stat")),
        false => Err(format!("/proc/stat has no line {:?}", line.trim())),
    }
}

fn steal(root: &Root) -> Tried {
    stat(root, "time that a hypervisor gave to others", "cpu0 ")?;
    let virtual_machine = root.read("/proc/cpuinfo").is_ok_and(|t| {
        t.lines()
            .any(|l| l.starts_with("flags") && l.contains(" hypervisor"))
    });
    Ok(match virtual_machine {
        true => "time that the hypervisor gave to others, where it tells: /proc/stat".into(),
        false => "time that a hypervisor gave to others: /proc/stat (stays 0 on bare metal)".into(),
    })
}

fn pressure(root: &Root) -> Tried {
    let file = "/proc/pressure/cpu";
    match root.read(file) {
        Ok(text) if text.starts_with("some ") => Ok(format!(
            "time in which some thread waited for a CPU: {file}"
        )),
        Ok(text) => Err(format!("{file} says {:?}", text.trim())),
        Err(e) => Err(format!(
            "{file} cannot be read ({}): needs a kernel with CONFIG_PSI (Linux 4.20), started with psi=1 where it is off by default",
            cause(&e)
        )),
    }
}
