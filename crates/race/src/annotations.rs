//! What programs, and runtimes of other languages, say themselves of order and locks: the interface of
//! `sanitizer/tsan_interface.h`, and the older annotations.
//!
//! **Why it is sound.** Addresses are only numbers to us.

use crate::thread::Thread;
use libc::{c_char, c_int};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
    WTFAnnotateHappensBefore release;
    WTFAnnotateHappensAfter acquire;
}

/// Exports those that begin and end a stretch of accesses, or of what orders, that is not to be seen.
macro_rules! ignoring {
    ($($what:ident $begin:ident $end:ident($($argument:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $begin($(_: $argument),*) {
            if let Some(thread) = Thread::active() {
                thread.$what += 1;
            }
        }
        #[unsafe(no_mangle)]
        extern "C" fn $end($(_: $argument),*) {
            if let Some(thread) = Thread::active() {
                thread.$what = thread.$what.saturating_sub(1);
            }
        }
    )*};
}

ignoring! {
    ignored __tsan_ignore_thread_begin __tsan_ignore_thread_end();
    ignored AnnotateIgnoreReadsBegin AnnotateIgnoreReadsEnd(*const c_char, c_int);
    ignored AnnotateIgnoreWritesBegin AnnotateIgnoreWritesEnd(*const c_char, c_int);
    orders_ignored AnnotateIgnoreSyncBegin AnnotateIgnoreSyncEnd(*const c_char, c_int);
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
    AnnotateRWLockCreate(*const c_char, c_int, u64);
    AnnotateRWLockCreateStatic(*const c_char, c_int, u64);
    AnnotateFlushState(*const c_char, c_int);
    AnnotateEnableRaceDetection(*const c_char, c_int, c_int);
}

/// Where races are none, by what the program says: begins and ends. As many are remembered as there is room
/// for.
static BENIGN: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static BENIGN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether the program said that races there are none.
#[inline(always)]
pub(crate) fn is_benign(address: u64) -> bool {
    let count = BENIGN_COUNT.load(Ordering::Relaxed);
    count > 0
        && BENIGN[..count.min(BENIGN.len())]
            .iter()
            .any(|[begin, end]| {
                (begin.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address)
            })
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateBenignRaceSized(
    _file: *const c_char,
    _line: c_int,
    address: u64,
    bytes: u64,
    _why: *const c_char,
) {
    if let Some([begin, end]) = BENIGN.get(BENIGN_COUNT.fetch_add(1, Ordering::Relaxed)) {
        begin.store(address & !7, Ordering::Relaxed);
        end.store(address.saturating_add(bytes), Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
extern "C" fn WTFAnnotateBenignRaceSized(
    file: *const c_char,
    line: c_int,
    address: u64,
    bytes: u64,
    why: *const c_char,
) {
    AnnotateBenignRaceSized(file, line, address, bytes, why);
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateBenignRace(
    file: *const c_char,
    line: c_int,
    address: u64,
    why: *const c_char,
) {
    AnnotateBenignRaceSized(file, line, address, 1, why);
}

/// What a lock of the program's own does inside is no concern of others: it says where that begins, with 1, and
/// ends.
fn inside(by: i32) {
    if let Some(thread) = Thread::active() {
        thread.ignored = thread.ignored.saturating_add_signed(by);
        thread.orders_ignored = thread.orders_ignored.saturating_add_signed(by);
    }
}

/// Exports the begins and ends of what locks do inside, and of what they call in between.
macro_rules! insides {
    ($($name:ident $by:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(_lock: u64, _flags: u32) {
            inside($by);
        }
    )*};
}

insides! {
    __tsan_mutex_pre_lock 1;
    __tsan_mutex_post_unlock -1;
    __tsan_mutex_pre_signal 1;
    __tsan_mutex_post_signal -1;
    __tsan_mutex_pre_divert -1;
    __tsan_mutex_post_divert 1;
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_mutex_destroy(lock: u64, _flags: u32) {
    if let Some(thread) = Thread::active() {
        thread.quietly(|thread| thread.process.releases.forget(lock));
    }
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_mutex_post_lock(lock: u64, flags: u32, _recursion: c_int) {
    inside(-1);
    acquired(lock, flags);
}

fn acquired(lock: u64, flags: u32) {
    if flags & TRY_FAILED == 0
        && let Some(thread) = Thread::active()
    {
        thread.locked(lock, flags & FOR_READING != 0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_mutex_pre_unlock(lock: u64, _flags: u32) -> c_int {
    released(lock);
    inside(1);
    0
}

fn released(lock: u64) {
    if let Some(thread) = Thread::active() {
        thread.unlocks(lock);
    }
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateRWLockDestroy(_file: *const c_char, _line: c_int, lock: u64) {
    __tsan_mutex_destroy(lock, 0);
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateRWLockAcquired(_file: *const c_char, _line: c_int, lock: u64, writes: u64) {
    acquired(lock, if writes == 0 { FOR_READING } else { 0 });
}

#[unsafe(no_mangle)]
extern "C" fn AnnotateRWLockReleased(_file: *const c_char, _line: c_int, lock: u64, _writes: u64) {
    released(lock);
}
