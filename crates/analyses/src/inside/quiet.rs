//! Moments in which a library works for itself on a thread of the program.
//!
//! **Why it is sound.** Signal sets are plain data; `errno` is the calling thread's own.
#![allow(unsafe_code, reason = "see the module's head")]

use super::cancel;
use std::ptr::null_mut;

/// Nothing of the program happens on this thread while this is there: signals wait, it is not cancelled, `errno` is
/// kept.
#[must_use]
pub struct Quiet {
    signals: libc::sigset_t,
    errno: i32,
    cancel: i32,
}

impl Quiet {
    /// Begins such a moment.
    pub fn now() -> Quiet {
        // SAFETY: plain sets, and this thread's own errno. The system call itself, since the C library's
        // function may be interposed by the program.
        unsafe {
            let errno = *libc::__errno_location();
            let cancel = cancel::never();
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut signals);
            Quiet {
                signals,
                errno,
                cancel,
            }
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, null_mut());
            *libc::__errno_location() = self.errno;
        }
        cancel::as_before(self.cancel);
    }
}
