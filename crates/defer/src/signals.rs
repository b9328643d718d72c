//! Signals of our own threads.
#![allow(unsafe_code, reason = "signal masks: system calls on plain data")]

/// What a thread does to itself: the instruction is executed again after a handler, and faults again.
pub(crate) const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Blocks the signals of this thread, so that the threads that it starts meanwhile have none but those of
/// faults: a body that faults is seen by the program's handlers, whichever thread executes it.
pub(crate) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(crate) fn now() -> SignalsBlocked {
        // SAFETY: plain sets, initialised by the calls that get them.
        unsafe {
            let mut most: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut most);
            for fault in FAULTS {
                libc::sigdelset(&raw mut most, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const most, &raw mut before);
            SignalsBlocked(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that was there before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
