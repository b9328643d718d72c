//! The system calls that no safe library of ours wraps: signals as descriptors, descriptors passed by
//! number, a process that starts on its own.
//!
//! Safety: each function passes only pointers to values that live across the call, with their true
//! sizes. A descriptor passed by number is taken once, and only if the environment says that it was
//! passed to this very process. Between fork and exec only async-signal-safe functions are called.
#![allow(unsafe_code)]

use corewise_abi::MAX_CPUS;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that ask a manager to end, as a descriptor. They are blocked for the thread that made
/// it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Signals {
    file: File,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks SIGTERM, SIGINT and SIGHUP for the calling thread and gives a descriptor for them.
    pub(crate) fn to_end() -> io::Result<Signals> {
        // SAFETY: sigset_t is plain data, for which zero is valid; sigemptyset makes it a set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = set;
        // SAFETY: `set` and `before` are valid sets that outlive the calls; the descriptor that
        // signalfd gives belongs to nobody else.
        let fd = unsafe {
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            let status = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            if status != 0 {
                return Err(io::Error::from_raw_os_error(status));
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor of ours.
        let file = unsafe { File::from_raw_fd(fd) };
        Ok(Signals { file, before })
    }

    /// Takes a signal, if one came.
    pub(crate) fn came(&mut self) -> bool {
        let mut buffer = [0; size_of::<libc::signalfd_siginfo>()];
        matches!(self.file.read(&mut buffer), Ok(n) if n > 0)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `before` is the set that was in force before.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Descriptors that a service manager passes at most.
const MOST_PASSED: u32 = 16_384;

/// What the service manager passed to this process (sd_listen_fds(3)), with names where it gave any;
/// nothing if it passed nothing, and for every further call.
pub(crate) fn passed() -> Vec<(OwnedFd, Option<String>)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let count = number("LISTEN_FDS").unwrap_or(0).min(MOST_PASSED);
    if number("LISTEN_PID") != Some(std::process::id()) || count == 0 {
        return Vec::new();
    }
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let mut passed = Vec::new();
    for number in 3..3 + count {
        let name = names.next().filter(|name| !name.is_empty());
        let Ok(number) = libc::c_int::try_from(number) else {
            break;
        };
        // SAFETY: fcntl with F_SETFD takes no pointer; it fails for what is not open.
        let open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        if open {
            // SAFETY: by the protocol, these descriptors are ours; the flag above makes them ours once.
            passed.push((unsafe { OwnedFd::from_raw_fd(number) }, name));
        }
    }
    passed
}

/// Makes the command start in a session of its own, as nobody's child, without descriptors but the
/// three standard ones: its end concerns neither the terminal nor a caller that waits for all its
/// children, and it keeps nobody's pipe open. Nor does it keep the caller's mask of signals, or its
/// CPUs: it serves others than those who were started by `taskset`. What is spawned ends at once, and
/// is to be waited for.
pub(crate) fn on_its_own(command: &mut Command) -> &mut Command {
    let detach = || {
        // SAFETY: these calls are async-signal-safe; those that take a pointer only read what it points
        // to, values of this frame with their true sizes. Zero is valid for a sigset_t.
        unsafe {
            let mut no_signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut no_signals);
            libc::sigprocmask(
                libc::SIG_SETMASK,
                &raw const no_signals,
                std::ptr::null_mut(),
            );
            // The kernel leaves those that its cpuset allows. Where it refuses, the others are lost.
            let all_cpus = [u64::MAX; MAX_CPUS as usize / 64];
            let bytes = size_of_val(&all_cpus);
            libc::syscall(libc::SYS_sched_setaffinity, 0, bytes, all_cpus.as_ptr());
            // Closed by exec only, since the caller learns of a failed exec through one of them.
            // Kernels before 5.11 cannot, which harms nobody but who left a pipe open.
            let flags = libc::CLOSE_RANGE_CLOEXEC;
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags);
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        }
    };
    // SAFETY: `detach` only makes the calls above.
    unsafe { command.pre_exec(detach) }
}
