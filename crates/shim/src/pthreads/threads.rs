//! Threads that begin and end, and the names that they are given.
//!
//! A thread that is counted begins at our [`begin_thread`], which jumps on to the program's function: nothing
//! of ours lies under it. Its end is told by a key of the C library's whose value it has set, however it ends.
//!
//! Safety: what passes from creator to thread lies in a place of a fixed table that nobody else has taken.

use super::counted;
use super::entry::begin_thread;
use crate::{follower, link, openblas};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

type Start = unsafe extern "C" fn();
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> c_int;

/// Threads that can be about to begin at the same time; others are not counted.
const MOST: usize = 256;

/// What a thread is to run.
struct Beginning {
    taken: AtomicU32,
    start: AtomicPtr<c_void>,
    argument: AtomicPtr<c_void>,
}

static BEGINNINGS: [Beginning; MOST] = [const {
    Beginning {
        taken: AtomicU32::new(0),
        start: AtomicPtr::new(null_mut()),
        argument: AtomicPtr::new(null_mut()),
    }
}; MOST];

/// The key by which we are told of a thread's end.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// The C library allocates memory for the values of keys from this one on.
const FIRST_ALLOCATED: u32 = 32;

/// Somebody, who will be returned to at `caller`, creates a thread. Gives the function to go on with.
pub(super) extern "C" fn creation(caller: usize) -> *mut c_void {
    let real = openblas::thread_begins(caller);
    match real.is_null() || counted().is_none() {
        true => real,
        false => create_counted as *mut c_void,
    }
}

/// Creates a thread that is counted. Code of the program does not run under this frame: in a thread of its own.
unsafe extern "C" fn create_counted(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: this is what the C library has under that name; it was there when `creation` asked.
    let create: Create =
        unsafe { std::mem::transmute::<*mut c_void, Create>(follower::pthread_create()) };
    let free = |place: &&Beginning| place.taken.swap(1, Ordering::AcqRel) == 0;
    let Some(place) = BEGINNINGS.iter().find(free).filter(|_| have_key()) else {
        // SAFETY: the caller's own arguments.
        return unsafe { create(thread, attributes, start, argument) };
    };
    place.start.store(start as *mut c_void, Ordering::Relaxed);
    place.argument.store(argument, Ordering::Relaxed);
    let own = std::ptr::from_ref(place).cast_mut().cast();
    // SAFETY: the caller's own arguments, and a place that nobody else has until the thread has read it.
    let failed = unsafe { create(thread, attributes, begin_thread, own) };
    if failed != 0 {
        place.taken.store(0, Ordering::Release);
    } else if let Some(report) = link::report() {
        report.created.fetch_add(1, Ordering::Relaxed);
    }
    failed
}

/// What a thread goes on with.
#[repr(C)]
pub(super) struct Jump {
    start: *mut c_void,
    argument: *mut c_void,
}

/// A thread begins that [`create_counted`] has made.
pub(super) extern "C" fn begins(place: *const c_void) -> Jump {
    // SAFETY: a place of the table.
    let place = unsafe { &*place.cast::<Beginning>() };
    let jump = Jump {
        start: place.start.load(Ordering::Relaxed),
        argument: place.argument.load(Ordering::Relaxed),
    };
    place.taken.store(0, Ordering::Release);
    // SAFETY: a key of ours, whose values the C library keeps without allocating; any value but null.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Acquire), (&raw const KEY).cast()) };
    jump
}

unsafe extern "C" fn ended(_: *mut c_void) {
    if let Some(report) = link::report() {
        report.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes the key where there is none yet.
fn have_key() -> bool {
    if KEY.load(Ordering::Acquire) != NO_KEY {
        return true;
    }
    let mut key = 0;
    // SAFETY: it writes the key; `ended` stays loaded, as this library does.
    unsafe {
        if libc::pthread_key_create(&raw mut key, Some(ended)) != 0 {
            return false;
        }
        let usable = key < FIRST_ALLOCATED
            && KEY
                .compare_exchange(NO_KEY, key, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if !usable {
            libc::pthread_key_delete(key);
        }
    }
    KEY.load(Ordering::Acquire) != NO_KEY
}

/// A thread is given a name. Gives the function to go on with.
pub(super) extern "C" fn named(name: *const c_char) -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        real = super::next(c"pthread_setname_np");
        REAL.store(real, Ordering::Release);
    }
    if let (Some(page), false) = (counted(), name.is_null()) {
        // SAFETY: the real function reads the same string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        // Longer ones are refused.
        if name.len() < corewise_abi::locks::NAME_BYTES {
            page.name(name);
        }
    }
    real
}
