//! Samples of where a program's threads run, from the kernel's `cpu-clock` event.
//!
//! One event for each CPU follows each thread that exists at the start; threads and processes
//! that these create are followed because events are inherited. Each CPU's events write into one
//! ring that is mapped here.
//!
//! Safety: the rings are mapped for as long as a [`Ring`] lives and nothing else writes through
//! the mapping; the kernel writes records before it publishes `data_head` (read with acquire
//! order), and does not overwrite what lies after `data_tail` (stored with release order).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_COMM, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_SAMPLE, PERF_SAMPLE_IP, PERF_SAMPLE_REGS_USER, PERF_SAMPLE_TID, PERF_SAMPLE_TIME,
    PERF_TYPE_SOFTWARE, perf_event_attr, perf_event_mmap_page,
};

/// Time on a CPU between two samples of it, in nanoseconds; not a round number, so that programs
/// with a beat are not always met at the same place.
pub(super) const PERIOD_NS: u64 = 1_003_001;

/// Pages of a ring: at 48 bytes a millisecond it holds five seconds.
const RING_PAGES: usize = 64;

/// `IP` in the kernel's list of user registers.
#[cfg(target_arch = "x86_64")]
const USER_IP: u64 = 1 << 8;
#[cfg(target_arch = "aarch64")]
const USER_IP: u64 = 1 << 32;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const USER_IP: u64 = 1;

/// What a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A thread was met while it ran.
    Sample {
        pid: i32,
        tid: i32,
        /// Where it was in its own code, also if it was met in the kernel.
        user_ip: u64,
        /// 32 or 64.
        bits: u32,
    },
    /// A process started another program: its code is new.
    Exec { pid: i32 },
}

/// Opens an event, closed when another program is executed here.
pub(super) fn open(attr: &mut perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    // SAFETY: `attr` is a valid attribute structure of the size it states; a path that it points
    // to is borrowed by the caller across this call, and the kernel copies it.
    let fd = unsafe { sys::perf_event_open(attr, pid, cpu, -1, u64::from(PERF_FLAG_FD_CLOEXEC)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Counts the calls of one function in one thread. It must not be inherited: the kernel would look
/// for `path` in the memory of whoever creates a thread, and refuse to create it.
#[derive(Debug)]
pub(super) struct Counter(File);

impl Counter {
    /// Counts how often the instruction at `offset` of the file `path` is executed by `tid`.
    /// `event_type` is the kernel's number for uprobe events.
    pub(super) fn calls(event_type: u32, path: &CStr, offset: u64, tid: i32) -> io::Result<Self> {
        let mut attr = perf_event_attr::default();
        attr.type_ = event_type;
        attr.__bindgen_anon_3.config1 = path.as_ptr().expose_provenance() as u64;
        attr.__bindgen_anon_4.config2 = offset;
        Ok(Self(File::from(open(&mut attr, tid, -1)?)))
    }

    /// How often so far.
    pub(super) fn read(&self) -> u64 {
        let mut count = [0; 8];
        match (&self.0).read(&mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

/// Samples a process tree.
#[derive(Debug)]
pub(super) struct Sampler {
    rings: Vec<Ring>,
    /// Events that write into the rings and that nobody asks again.
    _events: Vec<OwnedFd>,
    /// Whether the kernel's own time is sampled too.
    pub(super) sees_kernel: bool,
}

impl Sampler {
    /// Samples the threads `tids`, and all that they create, on the CPUs `cpus`.
    pub(super) fn start(tids: &[i32], cpus: &[i32]) -> io::Result<Self> {
        match Self::open_all(tids, cpus, false) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Self::open_all(tids, cpus, true)
            }
            result => result,
        }
    }

    fn open_all(tids: &[i32], cpus: &[i32], user_only: bool) -> io::Result<Self> {
        let mut rings: Vec<Ring> = Vec::new();
        let mut events = Vec::new();
        for cpu in cpus {
            let mut ring: Option<Ring> = None;
            for tid in tids {
                let mut attr = perf_event_attr::default();
                attr.type_ = PERF_TYPE_SOFTWARE;
                attr.config = u64::from(PERF_COUNT_SW_CPU_CLOCK);
                attr.sample_type = u64::from(
                    PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_REGS_USER,
                );
                attr.sample_regs_user = USER_IP;
                attr.__bindgen_anon_1.sample_period = PERIOD_NS;
                attr.set_inherit(1);
                attr.set_comm(1);
                attr.set_comm_exec(1);
                attr.set_exclude_hv(1);
                attr.set_exclude_kernel(u64::from(user_only));
                let event = match open(&mut attr, *tid, *cpu) {
                    Ok(event) => event,
                    // The thread has ended, or the CPU is offline.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => {
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                match &ring {
                    None => ring = Some(Ring::map(event)?),
                    Some(ring) => {
                        ring.take_from(&event)?;
                        events.push(event);
                    }
                }
            }
            rings.extend(ring);
        }
        if rings.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(Self {
            rings,
            _events: events,
            sees_kernel: !user_only,
        })
    }

    /// Hands over what was sampled since the last call.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Event)) {
        for ring in &mut self.rings {
            ring.drain(&mut take);
        }
    }
}

/// One CPU's ring.
#[derive(Debug)]
struct Ring {
    page: NonNull<perf_event_mmap_page>,
    length: usize,
    data_offset: usize,
    data_size: usize,
    event: OwnedFd,
}

// SAFETY: the mapping belongs to this value alone and is not bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    fn map(event: OwnedFd) -> io::Result<Self> {
        let page_size = rustix::param::page_size();
        let mut pages = RING_PAGES;
        loop {
            let length = (pages + 1) * page_size;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let address = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    event.as_raw_fd(),
                    0,
                )
            };
            if address != libc::MAP_FAILED
                && let Some(page) = NonNull::new(address.cast())
            {
                return Ok(Self {
                    page,
                    length,
                    data_offset: page_size,
                    data_size: pages * page_size,
                    event,
                });
            }
            let error = io::Error::last_os_error();
            // What an ordinary user may lock is limited.
            if pages <= 4 {
                return Err(error);
            }
            pages /= 2;
        }
    }

    fn take_from(&self, other: &OwnedFd) -> io::Result<()> {
        // SAFETY: both descriptors are open perf events; the call takes no pointers.
        let status = unsafe { sys::ioctls::SET_OUTPUT(other.as_raw_fd(), self.event.as_raw_fd()) };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn drain(&mut self, take: &mut impl FnMut(Event)) {
        // SAFETY: `page` is mapped while `self` lives; the two positions are only ever read and
        // written as whole words, as the kernel does.
        let (head, tail) = unsafe {
            let page = self.page.as_ptr();
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let mut position = tail.load(Ordering::Relaxed);
        let mut record = Vec::with_capacity(64);
        while position < end {
            self.copy(position, 8, &mut record);
            let size = u64::from(u16::from_ne_bytes([record[6], record[7]]));
            if size < 8 || size > end - position {
                // Not as the kernel promises: take nothing more from this lot.
                position = end;
                break;
            }
            self.copy(position, size as usize, &mut record);
            if let Some(event) = parse(&record) {
                take(event);
            }
            position += size;
        }
        tail.store(position, Ordering::Release);
    }

    /// Copies `length` bytes at `position` (which only grows) out of the ring.
    fn copy(&self, position: u64, length: usize, into: &mut Vec<u8>) {
        into.clear();
        let start = (position % self.data_size as u64) as usize;
        let first = length.min(self.data_size - start);
        for (start, length) in [(start, first), (0, length - first)] {
            // SAFETY: `start + length` is at most `data_size`, so within the mapping; the kernel
            // does not write between `data_tail` and the `data_head` that was read.
            let bytes = unsafe {
                let data = self.page.as_ptr().cast::<u8>().add(self.data_offset);
                std::slice::from_raw_parts(data.add(start), length)
            };
            into.extend_from_slice(bytes);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nothing refers to it any more.
        unsafe {
            libc::munmap(self.page.as_ptr().cast(), self.length);
        }
    }
}

/// Reads a record whose sample has the fields that `open_all` asks for.
fn parse(record: &[u8]) -> Option<Event> {
    let word = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(i32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let kind = u32::from_ne_bytes(record.get(0..4)?.try_into().ok()?);
    let misc = u32::from(u16::from_ne_bytes(record.get(4..6)?.try_into().ok()?));
    match kind {
        // header, ip, pid and tid, time, abi, registers
        PERF_RECORD_SAMPLE => Some(Event::Sample {
            pid: half(16)?,
            tid: half(20)?,
            bits: match word(32)? {
                1 => 32,
                2 => 64,
                _ => return None,
            },
            user_ip: word(40)?,
        }),
        PERF_RECORD_COMM if misc & PERF_RECORD_MISC_COMM_EXEC != 0 => {
            Some(Event::Exec { pid: half(8)? })
        }
        _ => None,
    }
}
