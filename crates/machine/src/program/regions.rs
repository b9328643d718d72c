//! How many parallel regions a program has entered: a measure of its progress that does not depend
//! on its number of threads.
//!
//! Each OpenMP library has a function that most parallel regions enter through. Once such a library
//! appears among a process's mappings, the kernel counts the calls (uprobes, as perf events that
//! only count) in its first thread: some microseconds for each region. Regions entered before the
//! library is found, from other threads, or as combined loops with a dynamic schedule are not
//! counted: progress needs a steady sample of the regions, not all of them.
//!
//! All of them would be dear. Uprobe events cannot be inherited (see [`Counter::calls`]), and closing
//! each one takes the kernel about 0.1 s, one after the other: so there are few, and they are closed
//! in the background.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol};

use super::error::Error;
use super::maps;
use super::perf::Counter;
use crate::root::Root;

/// More events than this are not open at a time: of a program with many processes, those that were
/// seen last are not counted.
const MOST_EVENTS: usize = 32;

/// A process whose mappings changed is looked at again after this time, in nanoseconds.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// A library larger than this is no OpenMP runtime, whatever its name.
const LARGEST_LIBRARY: u64 = 64 << 20;

/// Counts the parallel regions of a tree.
#[derive(Debug)]
pub(super) struct RegionSensor {
    root: Root,
    /// The kernel's number for uprobe events.
    event_type: u32,
    /// Where regions are entered in each OpenMP library's file.
    libraries: HashMap<FileKey, Vec<u64>>,
    processes: HashMap<i32, Process>,
    /// The events of each thread that is counted.
    counters: HashMap<i32, Vec<Counter>>,
    events: usize,
    /// What threads that have ended had entered.
    ended: u64,
    counting: bool,
    /// What went wrong last.
    failure: Option<String>,
}

/// A file's device and inode.
type FileKey = (u64, u64);

/// What is known of a process.
#[derive(Debug)]
struct Process {
    /// Its size when its mappings were read, which changes when they do, as text.
    size: Vec<u8>,
    looked_ns: u64,
    /// Its OpenMP libraries, each with a path that leads there from here.
    libraries: Vec<(FileKey, CString)>,
}

impl RegionSensor {
    /// Costs nothing until a library is found. The error says why uprobes are not to be had.
    pub(super) fn start(root: &Root) -> Result<Self, String> {
        let path = root.path("sys/bus/event_source/devices/uprobe/type");
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("{}: {e}; the kernel lacks uprobes", path.display()))?;
        let event_type = text
            .trim()
            .parse()
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self {
            root: root.clone(),
            event_type,
            libraries: HashMap::new(),
            processes: HashMap::new(),
            counters: HashMap::new(),
            events: 0,
            ended: 0,
            counting: false,
            failure: None,
        })
    }

    /// Why regions are not counted though a library was found.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Regions entered so far; `None` if no library is counted.
    pub(super) fn count(&self) -> Option<u64> {
        let living = || self.counters.values().flatten().map(Counter::read);
        self.counting.then(|| self.ended + living().sum::<u64>())
    }

    /// Looks for OpenMP libraries in processes whose size changed, or in all with `always`, and
    /// for threads (process and thread number) that are not counted yet. Costs 3 µs a process
    /// that did not change, up to 200 µs for others.
    pub(super) fn look(&mut self, time_ns: u64, threads: &[(i32, i32)], always: bool) {
        let living: HashSet<i32> = threads.iter().map(|(_, tid)| *tid).collect();
        let gone: Vec<i32> = self
            .counters
            .keys()
            .filter(|tid| !living.contains(tid))
            .copied()
            .collect();
        for tid in gone {
            self.forget(tid);
        }
        let processes: HashSet<i32> = threads.iter().map(|(pid, _)| *pid).collect();
        self.processes.retain(|pid, _| processes.contains(pid));
        for pid in processes {
            self.look_at_process(time_ns, pid, always);
        }
        if self.libraries.is_empty() {
            return;
        }
        for (pid, tid) in threads.iter().filter(|(pid, tid)| pid == tid) {
            if let Err(error) = self.count_thread(*pid, *tid) {
                self.failure = Some(error);
                return;
            }
        }
    }

    fn look_at_process(&mut self, time_ns: u64, pid: i32, always: bool) {
        let proc_root = self.root.path("proc");
        let folder = proc_root.join(pid.to_string());
        let Ok(mut size) = std::fs::read(folder.join("statm")) else {
            return;
        };
        size.truncate(size.iter().position(|b| *b == b' ').unwrap_or(0));
        if let Some(process) = self.processes.get(&pid)
            && !always
            && (process.size == size || time_ns.saturating_sub(process.looked_ns) < LOOK_EVERY_NS)
        {
            return;
        }
        let Ok(files) = maps::of_process(&proc_root, pid) else {
            return;
        };
        let mut libraries = Vec::new();
        for file in files.iter().filter(|f| is_openmp(f)) {
            // The path holds in the process's own mount namespace.
            let relative = file.strip_prefix("/").unwrap_or(file);
            match self.library(&folder.join("root").join(relative)) {
                Ok(library) => libraries.push(library),
                Err(error) => self.failure = Some(format!("{}: {error}", file.display())),
            }
        }
        let known = self.processes.get(&pid).map(|p| &p.libraries);
        if known != Some(&libraries) {
            // It had no library, or those of another program: its thread is looked at again.
            self.forget(pid);
        }
        let process = Process {
            size,
            looked_ns: time_ns,
            libraries,
        };
        self.processes.insert(pid, process);
    }

    /// Keeps what a thread's events counted, and closes them.
    fn forget(&mut self, tid: i32) {
        let counters = self.counters.remove(&tid).unwrap_or_default();
        self.events -= counters.len();
        self.ended += counters.iter().map(Counter::read).sum::<u64>();
        close_in_background(counters);
    }

    fn library(&mut self, path: &Path) -> io::Result<(FileKey, CString)> {
        let metadata = std::fs::metadata(path)?;
        let key = (metadata.dev(), metadata.ino());
        if let Entry::Vacant(entry) = self.libraries.entry(key) {
            entry.insert(if metadata.len() > LARGEST_LIBRARY {
                Vec::new()
            } else {
                region_entries(&std::fs::read(path)?).map_err(io::Error::other)?
            });
        }
        Ok((key, CString::new(path.as_os_str().as_bytes())?))
    }

    fn count_thread(&mut self, pid: i32, tid: i32) -> Result<(), String> {
        if self.counters.contains_key(&tid) {
            return Ok(());
        }
        let Some(process) = self.processes.get(&pid) else {
            return Ok(());
        };
        let mut counters = Vec::new();
        for (key, path) in &process.libraries {
            let offsets = self.libraries.get(key).map_or(&[][..], Vec::as_slice);
            if self.events + counters.len() + offsets.len() > MOST_EVENTS {
                break;
            }
            for offset in offsets {
                match Counter::calls(self.event_type, path, *offset, tid) {
                    Ok(counter) => counters.push(counter),
                    // The thread or its process has ended.
                    Err(error) if Error::means_gone(&error) => return Ok(()),
                    Err(error) => {
                        return Err(format!("{}: {error}", path.to_string_lossy()));
                    }
                }
            }
        }
        self.events += counters.len();
        self.counting |= !counters.is_empty();
        self.counters.insert(tid, counters);
        Ok(())
    }
}

impl Drop for RegionSensor {
    fn drop(&mut self) {
        close_in_background(self.counters.drain().flat_map(|(_, c)| c).collect());
    }
}

/// Closes events without making anybody wait. Where no thread can be had, they are closed here.
fn close_in_background(counters: Vec<Counter>) {
    if !counters.is_empty() {
        let closer = std::thread::Builder::new().name("close uprobes".to_owned());
        // An error drops the closure, and with it the events.
        let _ = closer.spawn(move || drop(counters));
    }
}

/// Whether a file's name is that of an OpenMP library; wheels add a hash to it.
fn is_openmp(path: &Path) -> bool {
    let Some(name) = path.file_name().map(|n| n.as_bytes()) else {
        return false;
    };
    ["libgomp", "libomp", "libiomp5"].iter().any(|library| {
        name.strip_prefix(library.as_bytes())
            .and_then(|rest| rest.first())
            .is_some_and(|next| matches!(next, b'.' | b'-'))
    })
}

/// Where in a library's file the functions begin that enter a parallel region.
fn region_entries(file: &[u8]) -> Result<Vec<u64>, object::Error> {
    let library = object::File::parse(file)?;
    let mut offsets: Vec<u64> = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter(|symbol| symbol.name().is_ok_and(enters_region))
        .filter_map(|symbol| {
            library.segments().find_map(|segment| {
                let (offset, size) = segment.file_range();
                let distance = symbol.address().checked_sub(segment.address())?;
                (distance < size).then_some(offset + distance)
            })
        })
        .map(|offset| after_landing(file, offset))
        .collect();
    // Several names may stand for one function.
    offsets.sort_unstable();
    offsets.dedup();
    Ok(offsets)
}

/// The kernel needs two traps for an instruction that it cannot emulate, and the landing mark of
/// indirect calls (ENDBR64) is one: the instruction after it is executed just as often.
fn after_landing(file: &[u8], offset: u64) -> u64 {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let marked = usize::try_from(offset)
        .ok()
        .and_then(|at| file.get(at..at.checked_add(4)?))
        .is_some_and(|code| code == ENDBR64);
    if marked { offset + 4 } else { offset }
}

/// Whether calling a function of this name enters one parallel region, as most regions do.
fn enters_region(name: &str) -> bool {
    matches!(name, "GOMP_parallel" | "__kmpc_fork_call")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmp_libraries_are_known_by_name_with_or_without_a_hash() {
        for name in [
            "/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0",
            "/x/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0",
            "/usr/lib/llvm-14/lib/libomp.so.5",
            "/opt/intel/libiomp5.so",
        ] {
            assert!(is_openmp(Path::new(name)), "{name}");
        }
        for name in [
            "/usr/lib/libompl.so",
            "/usr/lib/libgompx.so",
            "/",
            "/bin/libgomp",
        ] {
            assert!(!is_openmp(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn entries_are_found_in_an_elf_file_or_it_is_refused() {
        assert!(region_entries(b"no library").is_err());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(region_entries(&own).unwrap(), Vec::<u64>::new());
    }
}
