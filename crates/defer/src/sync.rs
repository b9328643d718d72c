//! The locks and atomics of what threads hand over. `tests/loom.rs` compiles those modules over loom's in
//! their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A thread that sleeps until it is woken, without a lock: as [`std::thread::park`], which remembers that it was woken
/// meanwhile, and may wake for nothing.
#[derive(Clone)]
pub(crate) struct Sleeper(std::thread::Thread);

impl Sleeper {
    /// The calling thread.
    pub(crate) fn this() -> Sleeper {
        Sleeper::of(std::thread::current())
    }

    pub(crate) fn of(thread: std::thread::Thread) -> Sleeper {
        Sleeper(thread)
    }

    /// Only the thread itself calls this.
    pub(crate) fn sleep(&self) {
        std::thread::park();
    }

    pub(crate) fn wake(&self) {
        self.0.unpark();
    }
}

/// Locks, also after a panic: what is kept under the locks here is whole at every moment, and the bodies of
/// deferred calls never run under one in a way that could leave it half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits on a condition, also after a panic.
pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The same, for so long at most.
pub(crate) fn wait_at_most<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    let waited = condition.wait_timeout(guard, time);
    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
}
