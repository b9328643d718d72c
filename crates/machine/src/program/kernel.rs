//! What BPF programs tell of a program's threads: exact lock time, what ended threads had used,
//! and which processes belong to the tree. The BPF side is `bpf/lock.bpf.c`.
//!
//! Needs CAP_BPF and CAP_PERFMON (root has both), the kernel's type information (BTF), and the
//! initial PID namespace, because BPF sees the numbers that threads have there.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use aya::maps::{Array, HashMap, MapData, MapError, RingBuf};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf, EbpfLoader};
use corewise_decide::reading::ThreadReading;

#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/lock.x86.bpf.o"));
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/lock.arm64.bpf.o"));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static OBJECT: &[u8] = &[];

/// `bpf(2)`: only make what is not there yet.
const BPF_NOEXIST: u64 = 1;

/// Number of the initial PID namespace (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The BPF programs, watching one tree. They are gone when this is dropped.
pub(super) struct KernelWatch {
    threads: HashMap<MapData, i32, [u64; 8]>,
    watched: HashMap<MapData, i32, i64>,
    ends: RingBuf<MapData>,
    totals: Array<MapData, [u64; 11]>,
    lost_before: [u64; 11],
    /// How many processes had been started when they were last asked for.
    processes_before: Option<u64>,
    /// Holds the programs and their attachments.
    _programs: Ebpf,
}

/// What the kernel noted of a living thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    /// Time blocked on futexes, the present wait included.
    pub(super) lock_ns: u64,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
    pub(super) migrations: u64,
    /// Run time when it left a CPU last, and the kernel's part of it.
    pub(super) run_ns: u64,
    pub(super) system_ns: u64,
}

impl std::fmt::Debug for KernelWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelWatch").finish_non_exhaustive()
    }
}

impl KernelWatch {
    /// Loads and attaches the programs. Costs some milliseconds, the first time in a process some
    /// tens of them.
    ///
    /// The error says why not, and what would help.
    pub(super) fn start() -> Result<Self, String> {
        if OBJECT.is_empty() {
            return Err("there is no BPF object for this architecture".to_owned());
        }
        match std::fs::read_link("/proc/self/ns/pid") {
            Ok(namespace) if namespace == Path::new(INITIAL_PID_NAMESPACE) => {}
            _ => {
                return Err(
                    "this process is not in the initial PID namespace (a container?): BPF would \
                     see other thread numbers; run it outside"
                        .to_owned(),
                );
            }
        }
        if !may_load() {
            return Err("BPF needs root or CAP_BPF and CAP_PERFMON".to_owned());
        }
        let btf = kernel_types()?;
        let refused = |what: &str, error: &dyn std::error::Error| {
            let mut text = format!("{what}: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            // The kernel's verifier may say a great deal.
            text.truncate(text.floor_char_boundary(300));
            format!("{text}; BPF needs root or CAP_BPF and CAP_PERFMON")
        };
        let mut programs = EbpfLoader::new()
            .btf(Some(btf))
            .load(OBJECT)
            .map_err(|e| refused("BPF maps cannot be made", &e))?;
        for (name, event) in [
            ("switched", "sched_switch"),
            ("woken", "sched_wakeup"),
            ("forked", "sched_process_fork"),
            ("executed", "sched_process_exec"),
        ] {
            let program: &mut BtfTracePoint = programs
                .program_mut(name)
                .ok_or_else(|| format!("the BPF object has no program {name}"))?
                .try_into()
                .map_err(|e| refused("the BPF object is not as expected", &e))?;
            program
                .load(event, btf)
                .map_err(|e| refused("a BPF program cannot be loaded", &e))?;
            program
                .attach()
                .map_err(|e| refused("a BPF program cannot be attached", &e))?;
        }
        let mut take = |name: &str| {
            programs
                .take_map(name)
                .ok_or_else(|| format!("the BPF object has no map {name}"))
        };
        let wrong = |e: MapError| refused("a BPF map is not as expected", &e);
        Ok(Self {
            threads: HashMap::try_from(take("threads")?).map_err(wrong)?,
            watched: HashMap::try_from(take("watched")?).map_err(wrong)?,
            ends: RingBuf::try_from(take("ends")?).map_err(wrong)?,
            totals: Array::try_from(take("totals")?).map_err(wrong)?,
            lost_before: [0; 11],
            processes_before: None,
            _programs: programs,
        })
    }

    /// Watches a process that has `threads` threads now, and all that it starts from here on.
    pub(super) fn watch(&mut self, pid: i32, threads: usize) -> Result<(), String> {
        self.watched
            .insert(pid, i64::try_from(threads).unwrap_or(i64::MAX), 0)
            .map_err(|e| format!("a process cannot be noted for BPF: {e}"))
    }

    /// Whether a process is watched.
    pub(super) fn watches(&self, pid: i32) -> bool {
        self.watched.get(&pid, 0).is_ok()
    }

    /// Notes that a thread, whose counters are given, is blocked on a futex since `time_ns`, at
    /// the latest.
    pub(super) fn note_blocked(&mut self, thread: &ThreadReading, time_ns: u64) {
        let entry = [
            0,
            time_ns,
            thread.voluntary_switches.unwrap_or(0),
            thread.involuntary_switches.unwrap_or(0),
            thread.migrations.unwrap_or(0),
            0,
            0,
            0,
        ];
        // A full map only means that this wait is not counted; an entry that is there by now is
        // the kernel's own.
        let _ = self.threads.insert(thread.tid, entry, BPF_NOEXIST);
    }

    /// Takes back [`KernelWatch::note_blocked`].
    pub(super) fn forget_blocked(&mut self, tid: i32) {
        // If it has ended, its entry is gone already.
        let _ = self.threads.remove(&tid);
    }

    /// What the kernel noted of a thread; `None` if it has not left a CPU since it is watched.
    /// Costs about 0.5 µs.
    pub(super) fn thread(&self, tid: i32, time_ns: u64) -> Option<Noted> {
        let [
            lock_ns,
            since_ns,
            voluntary,
            involuntary,
            migrations,
            run_ns,
            user,
            system,
        ] = self.threads.get(&tid, 0).ok()?;
        let present = match since_ns {
            0 => 0,
            since_ns => time_ns.saturating_sub(since_ns),
        };
        Some(Noted {
            lock_ns: lock_ns + present,
            voluntary,
            involuntary,
            migrations,
            run_ns,
            system_ns: system_ns(run_ns, user, system),
        })
    }

    /// The processes of the tree, if any was started since the last call. Costs about 1 µs, or
    /// 100 µs if there was.
    pub(super) fn new_processes(&mut self) -> Option<BTreeSet<i32>> {
        let started = self.totals.get(&0, 0).ok().map(|totals| totals[0]);
        if started.is_some() && started == self.processes_before {
            return None;
        }
        self.processes_before = started;
        Some(self.watched.keys().flatten().collect())
    }

    /// Hands over what threads that have ended since the last call had used in their lives.
    pub(super) fn take_ended(&mut self, mut take: impl FnMut(ThreadReading)) {
        while let Some(record) = self.ends.next() {
            if let Some(reading) = ended(&record) {
                take(reading);
            }
        }
    }

    /// The sums over ended threads whose records found no room since the last call; `None` if
    /// there were none.
    pub(super) fn take_lost(&mut self) -> Option<ThreadReading> {
        let now = self.totals.get(&0, 0).ok()?;
        if now[1] == self.lost_before[1] {
            return None;
        }
        let mut delta = [0u64; 8];
        for (index, value) in delta.iter_mut().enumerate() {
            *value = now[index + 3].saturating_sub(self.lost_before[index + 3]);
        }
        self.lost_before = now;
        Some(reading_of(0, 0, delta))
    }
}

/// Whether this process has the capabilities, as a quick answer before the costly preparations:
/// if this cannot be found out, the kernel will say.
fn may_load() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON: u64 = 1 << 38;
    const BPF: u64 = 1 << 39;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let Some(effective) = status.lines().find_map(|l| l.strip_prefix("CapEff:")) else {
        return true;
    };
    let set = u64::from_str_radix(effective.trim(), 16).unwrap_or(u64::MAX);
    set & SYS_ADMIN != 0 || (set & PERFMON != 0 && set & BPF != 0)
}

/// The kernel's type information, parsed once.
pub(super) fn kernel_types() -> Result<&'static Btf, String> {
    static TYPES: OnceLock<Result<Btf, String>> = OnceLock::new();
    TYPES
        .get_or_init(|| {
            Btf::from_sys_fs().map_err(|e| {
                format!(
                    "the kernel's type information (/sys/kernel/btf/vmlinux) cannot be read: {e}"
                )
            })
        })
        .as_ref()
        .map_err(Clone::clone)
}

/// Reads a record as `struct ended` lays it out.
fn ended(record: &[u8]) -> Option<ThreadReading> {
    let tgid = i32::from_ne_bytes(record.get(0..4)?.try_into().ok()?);
    let tid = i32::from_ne_bytes(record.get(4..8)?.try_into().ok()?);
    let mut fields = [0u64; 8];
    for (field, bytes) in fields.iter_mut().zip(record.get(8..)?.chunks_exact(8)) {
        *field = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    Some(reading_of(tgid, tid, fields))
}

/// The kernel's part of a run time. As the kernel does it: what was counted by ticks (`user`,
/// `system`) gives only the proportion, the run time is exact.
fn system_ns(run_ns: u64, user: u64, system: u64) -> u64 {
    match user.checked_add(system) {
        Some(0) | None => 0,
        Some(both) => (u128::from(run_ns) * u128::from(system) / u128::from(both)) as u64,
    }
}

fn reading_of(pid: i32, tid: i32, fields: [u64; 8]) -> ThreadReading {
    let [
        run_ns,
        cpu_wait_ns,
        user,
        system,
        voluntary,
        involuntary,
        migrations,
        lock_ns,
    ] = fields;
    let system_ns = system_ns(run_ns, user, system);
    ThreadReading {
        pid,
        tid,
        run_ns,
        cpu_wait_ns,
        user_ns: Some(run_ns - system_ns),
        system_ns: Some(system_ns),
        voluntary_switches: Some(voluntary),
        involuntary_switches: Some(involuntary),
        migrations: Some(migrations),
        lock_ns: Some(lock_ns),
        spin_ns: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_record_is_read_as_the_kernel_wrote_it() {
        let mut record = Vec::new();
        record.extend(7i32.to_ne_bytes());
        record.extend(9i32.to_ne_bytes());
        for field in [1000u64, 20, 30, 10, 5, 6, 2, 400] {
            record.extend(field.to_ne_bytes());
        }
        let reading = ended(&record).unwrap();
        assert_eq!((reading.pid, reading.tid), (7, 9));
        assert_eq!((reading.run_ns, reading.cpu_wait_ns), (1000, 20));
        assert_eq!((reading.user_ns, reading.system_ns), (Some(750), Some(250)));
        assert_eq!(reading.migrations, Some(2));
        assert_eq!(reading.lock_ns, Some(400));
        assert!(ended(&record[..6]).is_none());
    }

    #[test]
    fn the_committed_objects_were_built_from_the_present_source() {
        use std::process::Command;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
        let sums = std::fs::read_to_string(folder.join("lock.sha256")).unwrap();
        for file in ["lock.bpf.c", "lock.x86.bpf.o", "lock.arm64.bpf.o"] {
            assert!(sums.contains(file), "{file} has no hash");
        }
        let status = Command::new("sha256sum")
            .args(["--check", "--quiet", "lock.sha256"])
            .current_dir(&folder)
            .status()
            .unwrap();
        assert!(
            status.success(),
            "run scripts/build-bpf and commit what it makes"
        );
    }
}
