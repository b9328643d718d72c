//! Locks, interposed: mutexes of POSIX and C11, read-write locks, spin locks.
//!
//! **Why it is sound.** As in [`crate::interposed`]; the addresses of locks are only numbers to us.

use crate::interposed::{Call, interposed, nothing_after, nothing_before};
use crate::thread::Thread;
use corewise_analyses::inside::modules;
use corewise_analyses::race::{Order, kind};
use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where this library is: its allocator's lock is no lock of the program.
static OURS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Finds out where this library is.
pub(crate) fn begin() {
    if let Some((start, end)) = modules::around(OURS.as_ptr() as u64) {
        OURS[0].store(start, Ordering::Relaxed);
        OURS[1].store(end, Ordering::Relaxed);
    }
}

/// Whether an address is in this library.
#[inline(always)]
pub(crate) fn is_ours(address: u64) -> bool {
    // Nothing here may come to call `memset`, which asks this.
    address >= OURS[0].load(Ordering::Relaxed) && address < OURS[1].load(Ordering::Relaxed)
}

/// The calling thread's, where something of the program takes or gives this lock.
#[inline(always)]
fn taker(lock: u64) -> Option<&'static mut Thread> {
    match is_ours(lock) {
        true => None,
        false => Thread::active(),
    }
}

/// A lock as memory: taking it reads it, so that who makes or destroys it has to come before or after. Where
/// locks order nothing, neither does this.
fn touches(call: &Call, kind: u8) {
    let lock = call.arguments[0];
    if let Some(thread) = taker(lock)
        && thread.process.search.order() == Order::HappensBefore
    {
        thread.access(lock, 1, kind, call.code);
    }
}

/// What waits or synchronises is used.
pub(crate) fn uses(call: &Call) {
    touches(call, kind::ATOMIC);
}

/// It is made or destroyed.
pub(crate) fn makes(call: &Call) {
    touches(call, kind::WRITE);
}

/// Whether the answer means that the caller has the lock now, also if its last owner died with it.
fn has(answer: i64) -> bool {
    matches!(answer as c_int, 0 | libc::EOWNERDEAD)
}

fn got(call: &Call, answer: i64, shared: bool) {
    let lock = call.arguments[0];
    if has(answer)
        && let Some(thread) = taker(lock)
    {
        // The lock itself is used without its protection.
        uses(call);
        thread.locked(lock, shared);
    }
}

fn takes(call: &Call, answer: i64) {
    got(call, answer, false);
}

fn takes_shared(call: &Call, answer: i64) {
    got(call, answer, true);
}

/// The lock at this address is about to be given back.
pub(crate) fn gives(lock: u64) {
    if let Some(thread) = taker(lock) {
        thread.unlocks(lock);
    }
}

fn unlocks(call: &Call) {
    gives(call.arguments[0]);
}

fn ends(call: &Call) {
    makes(call);
    if let Some(thread) = taker(call.arguments[0]) {
        thread.quietly(|thread| thread.process.releases.forget(call.arguments[0]));
    }
}

interposed! { libc::ENOSYS;
    pthread_mutex_init c"pthread_mutex_init" makes nothing_after;
    pthread_mutex_lock c"pthread_mutex_lock" nothing_before takes;
    pthread_mutex_trylock c"pthread_mutex_trylock" nothing_before takes;
    pthread_mutex_timedlock c"pthread_mutex_timedlock" nothing_before takes;
    pthread_mutex_clocklock c"pthread_mutex_clocklock" nothing_before takes;
    pthread_mutex_unlock c"pthread_mutex_unlock" unlocks nothing_after;
    pthread_mutex_destroy c"pthread_mutex_destroy" ends nothing_after;
    mtx_lock c"mtx_lock" nothing_before takes;
    mtx_trylock c"mtx_trylock" nothing_before takes;
    mtx_timedlock c"mtx_timedlock" nothing_before takes;
    mtx_unlock c"mtx_unlock" unlocks nothing_after;
    pthread_spin_lock c"pthread_spin_lock" nothing_before takes;
    pthread_spin_trylock c"pthread_spin_trylock" nothing_before takes;
    pthread_spin_unlock c"pthread_spin_unlock" unlocks nothing_after;
    pthread_spin_destroy c"pthread_spin_destroy" ends nothing_after;
    pthread_rwlock_init c"pthread_rwlock_init" makes nothing_after;
    pthread_rwlock_rdlock c"pthread_rwlock_rdlock" nothing_before takes_shared;
    pthread_rwlock_tryrdlock c"pthread_rwlock_tryrdlock" nothing_before takes_shared;
    pthread_rwlock_timedrdlock c"pthread_rwlock_timedrdlock" nothing_before takes_shared;
    pthread_rwlock_clockrdlock c"pthread_rwlock_clockrdlock" nothing_before takes_shared;
    pthread_rwlock_wrlock c"pthread_rwlock_wrlock" nothing_before takes;
    pthread_rwlock_trywrlock c"pthread_rwlock_trywrlock" nothing_before takes;
    pthread_rwlock_timedwrlock c"pthread_rwlock_timedwrlock" nothing_before takes;
    pthread_rwlock_clockwrlock c"pthread_rwlock_clockwrlock" nothing_before takes;
    pthread_rwlock_unlock c"pthread_rwlock_unlock" unlocks nothing_after;
    pthread_rwlock_destroy c"pthread_rwlock_destroy" ends nothing_after;
}
