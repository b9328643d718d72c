//! Locks, interposed: mutexes of POSIX and C11, read-write locks, spin locks.
//!
//! **Why it is sound.** The real function is called with the arguments that came, and its answer is given
//! back; the addresses of locks are only numbers to us.

use crate::thread::Thread;
use corewise_analyses::inside::{Next, modules};
use libc::{c_int, c_void, timespec};
use std::sync::atomic::{AtomicU64, Ordering};

/// The real function, however many threads look for it at once. `None`: the C library has none.
#[inline(always)]
pub(crate) fn real(next: &Next) -> Option<*mut c_void> {
    match next.get() {
        None => again(next),
        found => found,
    }
}

#[cold]
fn again(next: &Next) -> Option<*mut c_void> {
    (0..1000).find_map(|_| {
        // SAFETY: gives the CPU away.
        unsafe { libc::sched_yield() };
        next.get()
    })
}

type One = unsafe extern "C" fn(*mut c_void) -> c_int;
type Timed = unsafe extern "C" fn(*mut c_void, *const timespec) -> c_int;
type Clocked = unsafe extern "C" fn(*mut c_void, c_int, *const timespec) -> c_int;

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
fn taker(lock: *mut c_void) -> Option<&'static mut Thread> {
    match is_ours(lock as u64) {
        true => None,
        false => Thread::active(),
    }
}

/// Whether the answer means that the caller has the lock now.
fn has(answer: c_int) -> bool {
    answer == 0 || answer == libc::EOWNERDEAD
}

fn got(answer: c_int, lock: *mut c_void, shared: bool) -> c_int {
    if has(answer)
        && let Some(thread) = taker(lock)
    {
        thread.locked(lock as u64, shared);
    }
    answer
}

pub(crate) fn gives(lock: *mut c_void) {
    if let Some(thread) = taker(lock) {
        thread.unlocks(lock as u64);
    }
}

fn ends(lock: *mut c_void) {
    if let Some(thread) = taker(lock) {
        thread.quietly(|thread| thread.process.releases.forget(lock as u64));
    }
}

/// Exports functions that take a lock.
macro_rules! taking {
    ($($name:ident $text:literal $shared:literal;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(lock: *mut c_void) -> c_int {
            static NEXT: Next = Next::new($text);
            let Some(real) = real(&NEXT) else { return libc::ENOSYS };
            // SAFETY: a function of this type has this name; so below.
            let answer = unsafe { std::mem::transmute::<*mut c_void, One>(real)(lock) };
            got(answer, lock, $shared)
        }
    )*};
}

/// Exports those that wait for it until a time.
macro_rules! taking_timed {
    ($($name:ident $text:literal $shared:literal;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(lock: *mut c_void, until: *const timespec) -> c_int {
            static NEXT: Next = Next::new($text);
            let Some(real) = real(&NEXT) else { return libc::ENOSYS };
            let answer = unsafe { std::mem::transmute::<*mut c_void, Timed>(real)(lock, until) };
            got(answer, lock, $shared)
        }
    )*};
}

/// Exports those that say whose time.
macro_rules! taking_clocked {
    ($($name:ident $text:literal $shared:literal;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            lock: *mut c_void,
            clock: c_int,
            until: *const timespec,
        ) -> c_int {
            static NEXT: Next = Next::new($text);
            let Some(real) = real(&NEXT) else { return libc::ENOSYS };
            let answer =
                unsafe { std::mem::transmute::<*mut c_void, Clocked>(real)(lock, clock, until) };
            got(answer, lock, $shared)
        }
    )*};
}

/// Exports functions with something to do before the real one.
macro_rules! before {
    ($($name:ident $text:literal $what:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(lock: *mut c_void) -> c_int {
            static NEXT: Next = Next::new($text);
            let Some(real) = real(&NEXT) else { return libc::ENOSYS };
            $what(lock);
            unsafe { std::mem::transmute::<*mut c_void, One>(real)(lock) }
        }
    )*};
}

taking! {
    pthread_mutex_lock c"pthread_mutex_lock" false;
    pthread_mutex_trylock c"pthread_mutex_trylock" false;
    mtx_lock c"mtx_lock" false;
    mtx_trylock c"mtx_trylock" false;
    pthread_spin_lock c"pthread_spin_lock" false;
    pthread_spin_trylock c"pthread_spin_trylock" false;
    pthread_rwlock_rdlock c"pthread_rwlock_rdlock" true;
    pthread_rwlock_tryrdlock c"pthread_rwlock_tryrdlock" true;
    pthread_rwlock_wrlock c"pthread_rwlock_wrlock" false;
    pthread_rwlock_trywrlock c"pthread_rwlock_trywrlock" false;
}

taking_timed! {
    pthread_mutex_timedlock c"pthread_mutex_timedlock" false;
    mtx_timedlock c"mtx_timedlock" false;
    pthread_rwlock_timedrdlock c"pthread_rwlock_timedrdlock" true;
    pthread_rwlock_timedwrlock c"pthread_rwlock_timedwrlock" false;
}

taking_clocked! {
    pthread_mutex_clocklock c"pthread_mutex_clocklock" false;
    pthread_rwlock_clockrdlock c"pthread_rwlock_clockrdlock" true;
    pthread_rwlock_clockwrlock c"pthread_rwlock_clockwrlock" false;
}

before! {
    pthread_mutex_unlock c"pthread_mutex_unlock" gives;
    mtx_unlock c"mtx_unlock" gives;
    pthread_spin_unlock c"pthread_spin_unlock" gives;
    pthread_rwlock_unlock c"pthread_rwlock_unlock" gives;
    pthread_mutex_destroy c"pthread_mutex_destroy" ends;
    pthread_spin_destroy c"pthread_spin_destroy" ends;
    pthread_rwlock_destroy c"pthread_rwlock_destroy" ends;
}
