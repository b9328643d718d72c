//! The system calls of tracing, and of how urgently a thread runs.
//!
//! Safety: ptrace is only asked for requests that read and write nothing of this process, or that fill a
//! structure of the callee's own that outlives the call, with its true size. `waitid` and the scheduler's calls
//! fill or read structures likewise; what the kernel wrote is looked at only after it reported success. What
//! happens to the *traced* thread (it stops, it goes on, a system call of its own begins anew) is memory-safe for
//! us, and stated where it is asked for.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// What has become of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Which one.
    pub(super) tid: i32,
    pub(super) what: What,
}

/// See [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It stands still.
    Stopped {
        /// A signal that was about to be delivered to it, which must be given back; 0: none.
        signal: i32,
        /// Somebody has stopped its process besides: it would stand still without us.
        by_others: bool,
    },
    /// It is not traced, but a child of the calling thread, and somebody has stopped it.
    StoppedBySomebody,
    /// It has ended. The kernel has forgotten it now, unless it was only looked at.
    Ended,
}

/// Which changes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// That this thread stands still now.
    Stop(i32),
    /// That, or its end: then the kernel forgets it, and nobody else hears of it.
    Thread(i32),
    /// Any traced thread's. It is only looked at: whoever asks again gets the same answer.
    Any,
}

/// Traces a thread, which goes on as it was.
pub(super) fn seize(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is passed: address and data are zero.
    let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0_usize, 0_usize) };
    done(result)
}

/// Makes a traced thread stop: at once if it is on a CPU in user mode, else when it next comes there. A sleep
/// that signals may end is ended.
pub(super) fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: as above.
    let result = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0_usize, 0_usize) };
    done(result)
}

/// Lets a traced thread that stands still go on, with a signal unless it is 0, and traces it no longer.
pub(super) fn detach(tid: i32, signal: i32) -> io::Result<()> {
    let signal = usize::try_from(signal).unwrap_or(0);
    // SAFETY: no memory is passed: the data is a number.
    let result = unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0_usize, signal) };
    done(result)
}

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether tracing is allowed to this process at all: a filter of system calls may forbid it.
pub(super) fn may_trace() -> io::Result<()> {
    // No thread has this number: the kernel looks for it before it looks at anything else.
    match seize(i32::MAX) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// What has become of threads that the calling thread traces; `None`: nothing new.
///
/// # Errors
/// ECHILD: it is not traced, or ([`Of::Any`]) none is.
pub(super) fn change(of: Of) -> io::Result<Option<Change>> {
    let mine = libc::WSTOPPED | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
    match of {
        Of::Stop(tid) => wait(libc::P_PID, tid, mine),
        Of::Thread(tid) => wait(libc::P_PID, tid, mine | libc::WEXITED),
        Of::Any => wait(libc::P_ALL, 0, mine | libc::WEXITED | libc::WNOWAIT),
    }
}

/// Makes the kernel forget a thread that has ended, whichever thread of this process traced it. Nothing happens
/// if it lives or is not ours.
pub(super) fn forget_ended(tid: i32) {
    // There is nothing to be done about a failure: it is not ours, then.
    let _ = wait(
        libc::P_PID,
        tid,
        libc::WEXITED | libc::WNOHANG | libc::__WALL,
    );
}

fn wait(which: libc::idtype_t, tid: i32, options: i32) -> io::Result<Option<Change>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: a struct that lives through the call, for which zeroes are valid; the kernel leaves it so where
    // there is nothing new, and fills the fields of a child's change otherwise.
    let (result, signal, tid, status, code) = unsafe {
        let result = libc::waitid(which, tid.cast_unsigned(), info.as_mut_ptr(), options);
        let info = info.assume_init();
        (
            result,
            info.si_signo,
            info.si_pid(),
            info.si_status(),
            info.si_code,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if signal == 0 {
        return Ok(None);
    }
    let what = match code {
        // With an event, the signal says why: SIGTRAP because we wanted it, else what its process was stopped by.
        libc::CLD_TRAPPED if status >> 8 != 0 => What::Stopped {
            signal: 0,
            by_others: status & 0xff != libc::SIGTRAP,
        },
        libc::CLD_TRAPPED => What::Stopped {
            signal: status,
            by_others: false,
        },
        libc::CLD_STOPPED => What::StoppedBySomebody,
        _ => What::Ended,
    };
    Ok(Some(Change { tid, what }))
}

/// A thread that was stopped while it was about to sleep in one of some system calls finds that call
/// interrupted by a signal (EINTR), which never came. Has the kernel begin the call anew, as it does by itself for
/// most calls. The thread must stand still. Whether there was something to repair.
///
/// Where a handler runs before the thread goes on, the program sees the interruption after all, as it should.
#[cfg(target_arch = "x86_64")]
pub(super) fn restart_call(tid: i32) -> io::Result<bool> {
    /// Calls that the kernel does not begin anew (signal(7)) and that have done nothing when they say EINTR.
    const CALLS: [libc::c_long; 14] = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_io_getevents,
        IO_PGETEVENTS,
        libc::SYS_io_uring_enter,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
    ];
    const IO_PGETEVENTS: libc::c_long = 333;
    /// The kernel's own: to be begun anew unless a handler runs.
    const ERESTARTNOHAND: u64 = 514;
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: the kernel fills the whole struct, which lives through the call and for which zeroes are valid.
    let mut registers = unsafe {
        let result = libc::ptrace(libc::PTRACE_GETREGS, tid, 0_usize, registers.as_mut_ptr());
        done(result)?;
        registers.assume_init()
    };
    let interrupted = registers.rax == u64::from(libc::EINTR.unsigned_abs()).wrapping_neg();
    if !interrupted || !CALLS.contains(&registers.orig_rax.cast_signed()) {
        return Ok(false);
    }
    registers.rax = ERESTARTNOHAND.wrapping_neg();
    // SAFETY: the kernel reads a whole struct that lives through the call, and checks what it says. The traced
    // thread makes the call again that it has just made, with the same arguments.
    done(unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0_usize, &raw const registers) })?;
    Ok(true)
}

/// Not done on this processor: the rare thread that was about to sleep sees EINTR.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn restart_call(_tid: i32) -> io::Result<bool> {
    Ok(false)
}

/// Has the calling thread run before all of the usual policy (`SCHED_FIFO`, lowest priority); what it starts does
/// not inherit it.
pub(super) fn run_first() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads a struct that lives through the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lets the calling thread's timers expire when they are due, not up to 50 µs later.
pub(super) fn wake_punctually() -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The monotonic clock, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
