//! Something of ours runs on a thread: signals that come, and cancellation, wait until it has ended.

use super::{Thread, stack};
use crate::{cancels, signals};
use std::sync::atomic::{Ordering, compiler_fence};

impl Thread {
    /// Runs something of ours, which nothing of the program interrupts.
    #[inline(always)]
    pub(crate) fn quietly<T>(&mut self, run: impl FnOnce(&mut Thread) -> T) -> T {
        self.quietly_here(|thread| apart(thread, run))
    }

    /// The same, of something that has nothing to be cleaned up where it fails: see [`apart`].
    #[inline(always)]
    pub(super) fn quietly_here<T>(&mut self, run: impl FnOnce(&mut Thread) -> T) -> T {
        if self.cancelled_anywhere {
            cancels::wait();
        }
        self.busy = stack();
        compiler_fence(Ordering::SeqCst);
        let result = run(self);
        compiler_fence(Ordering::SeqCst);
        self.busy = 0;
        compiler_fence(Ordering::SeqCst);
        // SAFETY: this thread's own word, which a signal may have changed meanwhile.
        if unsafe { (&raw const self.late).read_volatile() } != 0 {
            signals::come_late(|| std::mem::take(&mut self.late));
        }
        if self.cancelled_anywhere {
            cancels::come_late();
        }
        result
    }

    /// Whether something of ours was interrupted where the machine's stack was so deep.
    ///
    /// # Safety
    ///
    /// The calling thread's own.
    pub(crate) unsafe fn is_busy(thread: *const Thread, stack: usize) -> bool {
        // SAFETY: as is said.
        let busy = unsafe { (&raw const (*thread).busy).read_volatile() };
        stack <= busy
    }

    /// Signals came meanwhile, and are blocked until that ends.
    ///
    /// # Safety
    ///
    /// The calling thread's own, with something of ours that is interrupted.
    pub(crate) unsafe fn has_late(thread: *mut Thread, signals: u64) {
        // SAFETY: as is said.
        unsafe {
            let late = &raw mut (*thread).late;
            late.write_volatile(late.read_volatile() | signals);
        }
    }
}

/// A thread may be cancelled anywhere, also in a function of ours before it has begun something. The compiler knows how
/// to leave a function that has nothing to be cleaned up at each instruction, and others at their calls alone: these
/// are called from there.
#[inline(never)]
fn apart<T>(thread: &mut Thread, run: impl FnOnce(&mut Thread) -> T) -> T {
    run(thread)
}
