//! What programs, and runtimes of other languages, say themselves of order and locks: the interface of
//! `sanitizer/tsan_interface.h`, and the older annotations.
//!
//! **Why it is sound.** Addresses are only numbers to us.

use crate::thread::Thread;
use libc::{c_char, c_int, c_void};

/// Exports functions of an address.
macro_rules! of_address {
    ($($name:ident $what:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(address: u64) {
            if let Some(thread) = Thread::active() {
                thread.$what(address);
            }
        }
    )*};
}

of_address! {
    __tsan_acquire acquire;
    __tsan_release release;
    __tsan_java_acquire acquire;
    __tsan_java_release release;
    __tsan_java_release_store release;
}

/// Exports the older annotations of an address, which say their place first.
macro_rules! placed {
    ($($name:ident $what:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(_file: *const c_char, _line: c_int, address: u64) {
            if let Some(thread) = Thread::active() {
                thread.$what(address);
            }
        }
    )*};
}

placed! {
    AnnotateHappensBefore release;
    AnnotateHappensAfter acquire;
}

/// Exports those that begin and end a stretch of accesses that are not to be seen.
macro_rules! ignoring {
    ($($begin:ident $end:ident($($argument:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $begin($(_: $argument),*) {
            if let Some(thread) = Thread::active() {
                thread.ignored += 1;
            }
        }
        #[unsafe(no_mangle)]
        extern "C" fn $end($(_: $argument),*) {
            if let Some(thread) = Thread::active() {
                thread.ignored = thread.ignored.saturating_sub(1);
            }
        }
    )*};
}

ignoring! {
    __tsan_ignore_thread_begin __tsan_ignore_thread_end();
    AnnotateIgnoreReadsBegin AnnotateIgnoreReadsEnd(*const c_char, c_int);
    AnnotateIgnoreWritesBegin AnnotateIgnoreWritesEnd(*const c_char, c_int);
}

/// The lock's flags: it is tried, the try failed, it is for reading.
const TRY_FAILED: u32 = 1 << 5;
const FOR_READING: u32 = 1 << 3;

/// Exports what is of no account here.
macro_rules! nothing {
    ($($name:ident($($argument:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $argument),*) {}
    )*};
}

nothing! {
    __tsan_flush_memory();
    __tsan_mutex_create(u64, u32);
    __tsan_mutex_pre_lock(u64, u32);
    __tsan_mutex_post_unlock(u64, u32);
    __tsan_mutex_pre_signal(u64, u32);
    __tsan_mutex_post_signal(u64, u32);
    __tsan_mutex_pre_divert(u64, u32);
    __tsan_mutex_post_divert(u64, u32);
    AnnotateRWLockCreate(*const c_char, c_int, u64);
    AnnotateRWLockCreateStatic(*const c_char, c_int, u64);
    AnnotateBenignRace(*const c_char, c_int, u64, *const c_char);
    AnnotateFlushState(*const c_char, c_int);
    AnnotateEnableRaceDetection(*const c_char, c_int, c_int);
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateBenignRaceSized(
    _file: *const c_char,
    _line: c_int,
    _address: u64,
    _bytes: u64,
    _why: *const c_char,
) {
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_mutex_destroy(lock: u64, _flags: u32) {
    if let Some(thread) = Thread::active() {
        thread.quietly(|thread| thread.process.releases.forget(lock));
    }
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_mutex_post_lock(lock: u64, flags: u32, _recursion: c_int) {
    if flags & TRY_FAILED == 0
        && let Some(thread) = Thread::active()
    {
        thread.locked(lock, flags & FOR_READING != 0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_mutex_pre_unlock(lock: u64, _flags: u32) -> c_int {
    if let Some(thread) = Thread::active() {
        thread.unlocks(lock);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateRWLockDestroy(_file: *const c_char, _line: c_int, lock: u64) {
    __tsan_mutex_destroy(lock, 0);
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateRWLockAcquired(_file: *const c_char, _line: c_int, lock: u64, writes: u64) {
    __tsan_mutex_post_lock(lock, if writes == 0 { FOR_READING } else { 0 }, 0);
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateRWLockReleased(_file: *const c_char, _line: c_int, lock: u64, _writes: u64) {
    __tsan_mutex_pre_unlock(lock, 0);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_get_current_fiber() -> *mut c_void {
    std::ptr::null_mut()
}
