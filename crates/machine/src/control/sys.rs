//! The system calls that no safe library of ours wraps: affinity masks of any size (rustix's and
//! libc's `CpuSet` stop at 1,024 CPUs), and the scheduler's attributes.
//!
//! Safety: each call passes pointers to values of this module that outlive the call, with their true
//! sizes; what the kernel wrote is looked at only after it reported success. None of the calls can
//! touch this process's memory in any other way.
#![allow(unsafe_code)]

use std::io;

/// CPUs with numbers above this are refused: Linux is built for at most 8,192.
const MAX_CPU: u32 = 65_535;

/// The first version of the kernel's `struct sched_attr` (48 bytes), which every kernel takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedAttr {
    size: u32,
    /// `SCHED_OTHER` and its kin.
    pub(crate) policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// For `SCHED_OTHER` and `SCHED_BATCH`, since Linux 6.12: the slice, in nanoseconds.
    pub(crate) runtime: u64,
    deadline: u64,
    period: u64,
}

/// Lets a thread run on these CPUs only.
pub(crate) fn set_affinity(tid: i32, cpus: &[u32]) -> io::Result<()> {
    let last = cpus.iter().copied().max().unwrap_or(0);
    if last > MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = vec![0_u64; last as usize / 64 + 1];
    for &cpu in cpus {
        mask[cpu as usize / 64] |= 1 << (cpu % 64);
    }
    set_mask(tid, &mask)
}

/// Lets a thread run on every CPU that there is or will be; the kernel leaves out what its cpuset
/// forbids. That is how a thread begins that nobody ever confined.
pub(crate) fn set_affinity_to_all(tid: i32) -> io::Result<()> {
    set_mask(tid, &[u64::MAX; (MAX_CPU as usize + 1) / 64])
}

fn set_mask(tid: i32, mask: &[u64]) -> io::Result<()> {
    // SAFETY: the kernel reads at most `size_of_val(mask)` bytes of `mask`, all of them ours. A mask
    // shorter than the kernel's own is filled with zeros, of a longer one the rest is not read.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            some_thread(tid)?,
            size_of_val(mask),
            mask.as_ptr(),
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Zero would mean the calling thread: never what a caller of ours means.
fn some_thread(tid: i32) -> io::Result<i32> {
    match tid {
        1.. => Ok(tid),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// A thread's attributes.
pub(crate) fn attributes(tid: i32) -> io::Result<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most the size that it is told, which is that of `attr`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            some_thread(tid)?,
            &raw mut attr,
            size_of::<SchedAttr>(),
            0,
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(attr),
    }
}

/// Sets a thread's attributes.
pub(crate) fn set_attributes(tid: i32, attr: SchedAttr) -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        ..attr
    };
    // SAFETY: the kernel reads as many bytes as `size` says, which is the size of `attr`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            some_thread(tid)?,
            &raw const attr,
            0,
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_thread_is_never_meant_by_zero() {
        assert_eq!(
            set_affinity(0, &[0]).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
        assert_eq!(
            attributes(-1).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    fn masks_beyond_1024_cpus_reach_the_kernel() {
        // The kernel leaves out CPUs that it does not have; if none is left it refuses.
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let before = crate::affinity::of(tid).unwrap();
        let mut wanted = before.clone();
        wanted.push(5000);
        set_affinity(tid, &wanted).unwrap();
        assert_eq!(crate::affinity::of(tid).unwrap(), before);
        let error = set_affinity(tid, &[60_000]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        set_affinity_to_all(tid).unwrap();
    }
}
