//! The locks and atomics of what threads hand over. `tests/loom.rs` compiles those modules over loom's in
//! their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

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
