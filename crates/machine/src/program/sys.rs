//! The system calls that no safe library of ours wraps.
//!
//! Safety: each function passes only pointers to values that live across the call, with their true
//! sizes, and looks at results only after the kernel reported success.
#![allow(unsafe_code)]

use std::io;

/// The monotonic clock, in nanoseconds: the clock of every reading (and of BPF's
/// `bpf_ktime_get_ns`).
pub(super) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CPU time of all threads that a living process has or had, in nanoseconds. `None` where there is
/// no such process. Costs a system call: half a microsecond, and some nanoseconds for each thread.
pub fn process_cpu_ns(pid: i32) -> Option<u64> {
    // The encoding of clock_getcpuclockid(3): the inverted process number and CPUCLOCK_SCHED (2).
    clock_ns((!pid << 3) | 2)
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that outlives the call.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if status != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// Clock ticks in a second, the unit of `stat`.
pub(super) fn ticks_per_second() -> u64 {
    // SAFETY: sysconf takes a number and returns a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|t| *t > 0).unwrap_or(100)
}

/// How many files this process may have open now (the soft limit).
pub(super) fn open_files_limit() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit that outlives the call.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if status != 0 {
        return 1024;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Reads another process's memory at `address` into `buffer`; what is not mapped ends the read.
pub(super) fn read_memory(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let address =
        usize::try_from(address).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: buffer.len(),
    };
    // SAFETY: `local` is the caller's buffer, exclusively borrowed; `remote` is an address of the
    // other process, which the kernel checks.
    let length =
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}
