//! What this process did with signals when it was started, so that the programs it starts get the
//! same: a mask, and the set of signals that were ignored (as `nohup` does).
//!
//! # Safety
//! Every block calls a C library function on values of this module's own; none keeps a pointer.
//! Those that run in a new process are only system calls and touch no lock and no heap.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// A set of signals in the C library's form.
pub(crate) type SignalSet = libc::sigset_t;

/// The number of signals that Linux has.
const LAST_SIGNAL: i32 = 64;

/// How a program is to find its signals.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    mask: SignalSet,
    /// Bit n: signal n is ignored.
    ignored: u128,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

impl Inherited {
    /// What this process inherited, read on the first call: call it before changing any signal.
    ///
    /// Rust's runtime ignores SIGPIPE before `main`; nobody can tell afterwards what was inherited,
    /// so programs get the default, as from a shell.
    pub(crate) fn get() -> &'static Self {
        INHERITED.get_or_init(|| {
            let mut ignored = 0u128;
            for signal in 1..=LAST_SIGNAL {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed();
                // SAFETY: queries an action into a zeroed struct that lives through the call.
                let handler = unsafe {
                    libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
                    action.assume_init().sa_sigaction
                };
                if handler == libc::SIG_IGN && signal != libc::SIGPIPE {
                    ignored |= 1 << signal;
                }
            }
            if ignored & (1 << libc::SIGCHLD) != 0 {
                // Or the kernel would throw away how our children end.
                set_disposition(libc::SIGCHLD, false);
            }
            Self {
                mask: change_mask(libc::SIG_BLOCK, &empty()),
                ignored,
            }
        })
    }

    /// Whether `signal` was ignored when this process was started.
    pub(crate) fn ignores(&self, signal: i32) -> bool {
        self.ignored & (1 << signal) != 0
    }

    /// Gives every signal its inherited disposition, then the inherited mask. For a new process just
    /// before it executes a program; only system calls.
    pub(crate) fn restore(&self) {
        for signal in 1..=LAST_SIGNAL {
            set_disposition(signal, self.ignores(signal));
        }
        change_mask(libc::SIG_SETMASK, &self.mask);
    }
}

/// Ignores a signal, or gives it its default effect. Only a system call.
pub(crate) fn set_disposition(signal: i32, ignore: bool) {
    let handler = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither value is a function, so nothing of ours is called later.
    unsafe {
        libc::signal(signal, handler);
    }
}

/// The empty set.
pub(crate) fn empty() -> SignalSet {
    let mut set = MaybeUninit::<SignalSet>::zeroed();
    // SAFETY: fills the set it is given.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// The set of these signals.
pub(crate) fn set_of(signals: &[i32]) -> SignalSet {
    let mut set = empty();
    for &signal in signals {
        // SAFETY: changes the set it is given.
        unsafe {
            libc::sigaddset(&raw mut set, signal);
        }
    }
    set
}

/// Every signal.
pub(crate) fn all() -> SignalSet {
    let mut set = empty();
    // SAFETY: fills the set it is given.
    unsafe {
        libc::sigfillset(&raw mut set);
    }
    set
}

/// Takes back one of these signals that is pending for this thread, which must block them.
pub(crate) fn discard(set: &SignalSet) {
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: reads a set and a time that live through the call.
    unsafe {
        libc::sigtimedwait(set, std::ptr::null_mut(), &raw const at_once);
    }
}

/// Changes this thread's mask (`how` is SIG_BLOCK, SIG_UNBLOCK or SIG_SETMASK) and returns the old
/// one. Only a system call.
pub(crate) fn change_mask(how: i32, set: &SignalSet) -> SignalSet {
    let mut old = empty();
    // SAFETY: both sets live through the call.
    unsafe {
        libc::pthread_sigmask(how, set, &raw mut old);
    }
    old
}
