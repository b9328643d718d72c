//! The system calls that rustix does not wrap, or not for large machines.
//!
//! Safety: each function passes only pointers to values that live across the call, with their true
//! sizes, and looks at results only after the kernel reported success. The handlers given to
//! pthread_atfork(3) only store to atomics and close a descriptor, which is allowed in a forked child.
#![allow(unsafe_code)]

use crate::mask::Mask;
use std::io;
use std::time::Duration;

/// The CPUs on which a thread may run; 0 is the calling thread. Costs under 1 µs.
pub(crate) fn affinity(thread: i32) -> io::Result<Mask> {
    let mut words = 16; // 1,024 CPUs
    loop {
        let mut mask = vec![0_u64; words];
        // SAFETY: the kernel writes at most `size_of_val(mask)` bytes, all of them inside `mask`.
        let written = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                thread,
                std::mem::size_of_val(&mask[..]),
                mask.as_mut_ptr(),
            )
        };
        if written >= 0 {
            return Ok(Mask::from_words(mask));
        }
        let error = io::Error::last_os_error();
        // EINVAL: the mask is shorter than the kernel's.
        if error.raw_os_error() != Some(libc::EINVAL) || words >= 1 << 10 {
            return Err(error);
        }
        words *= 2;
    }
}

/// Confines a thread; 0 is the calling thread. Costs about 1 µs.
pub(crate) fn set_affinity(thread: i32, mask: &Mask) -> io::Result<()> {
    let words = mask.words();
    // SAFETY: the kernel reads `size_of_val(words)` bytes of `words`.
    let status = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            std::mem::size_of_val(words),
            words.as_ptr(),
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves this process's pages from the NUMA nodes `from` to the nodes `to`; how many could not be
/// moved.
pub(crate) fn migrate_pages(from: &Mask, to: &Mask) -> io::Result<u64> {
    let words = from.words().len().max(to.words().len());
    let padded = |mask: &Mask| {
        let mut all = mask.words().to_vec();
        all.resize(words, 0);
        all
    };
    let (from, to) = (padded(from), padded(to));
    // The kernel takes one bit less than it is told.
    let most_nodes = words * 64 + 1;
    // SAFETY: the kernel reads `words` words of each mask, both of which are that long.
    let left = unsafe {
        libc::syscall(
            libc::SYS_migrate_pages,
            0,
            most_nodes,
            from.as_ptr(),
            to.as_ptr(),
        )
    };
    u64::try_from(left).map_err(|_| io::Error::last_os_error())
}

/// The NUMA nodes on which the pages of `memory` are, asked of the kernel; all of them must have been
/// touched.
#[cfg(test)]
pub(crate) fn nodes_of(memory: &[u8]) -> io::Result<Vec<u32>> {
    let pages = memory.chunks(rustix::param::page_size());
    let addresses: Vec<*const u8> = pages.map(<[u8]>::as_ptr).collect();
    let mut nodes = vec![-1_i32; addresses.len()];
    // SAFETY: the kernel reads as many addresses and writes as many numbers as it is told, which both
    // vectors have; without a list of nodes it moves nothing.
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            nodes.as_mut_ptr(),
            0,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // What is negative is the reason why a page is nowhere.
    let of = |node: i32| u32::try_from(node).map_err(|_| io::Error::from_raw_os_error(-node));
    nodes.into_iter().map(of).collect()
}

/// The monotonic clock. rustix's crashes under valgrind, which hides the kernel's page of clocks.
pub(crate) fn monotonic() -> Option<Duration> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec that outlives the call.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).ok().filter(|_| status == 0)?;
    Some(Duration::new(seconds, u32::try_from(now.tv_nsec).ok()?))
}

/// Signals that a thread does not take.
#[derive(Clone, Copy)]
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// All of them.
    pub(crate) fn all() -> BlockedSignals {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset initialises `all`, and cannot fail for a valid pointer.
        BlockedSignals(unsafe {
            libc::sigfillset(all.as_mut_ptr());
            all.assume_init()
        })
    }

    /// Those of the calling thread.
    pub(crate) fn of_this_thread() -> BlockedSignals {
        let mut now = BlockedSignals::all();
        // SAFETY: `now` is a valid set, written by the call; nothing is changed.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut now.0);
        }
        now
    }

    /// Makes the calling thread have these blocked.
    pub(crate) fn apply(&self) {
        // SAFETY: reads a valid set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }

    /// Runs `start` with these blocked, so that a thread that it starts has them blocked from its
    /// first moment.
    pub(crate) fn while_starting<T>(&self, start: impl FnOnce() -> T) -> T {
        let before = BlockedSignals::of_this_thread();
        self.apply();
        let result = start();
        before.apply();
        result
    }
}

impl std::fmt::Debug for BlockedSignals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockedSignals").finish_non_exhaustive()
    }
}

/// Has `in_child` called in every child that this process forks (by fork(2) of the C library).
pub(crate) fn at_fork(in_child: extern "C" fn()) {
    // SAFETY: the handler is a function of this program, which is never unloaded while it has
    // threads of ours. A failure (no memory) leaves forked children with their parent's claim.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Has `at_end` called when this process ends in good order (exit(3), return from main).
pub(crate) fn at_exit(at_end: extern "C" fn()) {
    // SAFETY: as for `at_fork`. A failure (no memory) leaves the end to the kernel.
    let _ = unsafe { libc::atexit(at_end) };
}

/// Ends a connection, on both sides, without giving its descriptor's number free.
pub(crate) fn end_connection(fd: i32) {
    // SAFETY: a system call on a number; the owner of the descriptor may find its connection ended, as
    // it may at any moment.
    unsafe {
        libc::shutdown(fd, libc::SHUT_RDWR);
    }
}

/// Closes a descriptor that a forked child inherited and that nothing in the child owns.
pub(crate) fn close_inherited(fd: i32) {
    // SAFETY: only called in a forked child, on the number of the parent's socket, whose owner there
    // was a thread that does not exist here.
    unsafe {
        libc::close(fd);
    }
}
