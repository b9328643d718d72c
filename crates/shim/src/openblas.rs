//! The adapter for OpenBLAS that makes threads of its own (as the wheels of NumPy and SciPy do): it is told
//! the claim's number of threads, by its own setter, as soon as the claim changes; the next product of
//! matrices, also within a longer call, runs with it.
//!
//! OpenBLAS gives itself away when it creates its threads. From then on the [`follower`] calls the setter. A
//! number that the program sets meanwhile becomes the number that is bounded. A forked child has no such
//! thread, and keeps the number that it had.
//!
//! Safety: the setter may be called at any time from any thread; up to the number of threads that OpenBLAS
//! began with it only writes that number (`goto_set_num_threads`). A library that follows is kept loaded.

use crate::follower;
use crate::link;
use crate::loaded::Library;
use corewise_abi::reports::adapters;
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// What a setter and its getter are called: builds that live beside others have names of their own.
const FUNCTIONS: [(&CStr, &CStr); 4] = [
    (
        c"scipy_openblas_set_num_threads64_",
        c"scipy_openblas_get_num_threads64_",
    ),
    (
        c"scipy_openblas_set_num_threads",
        c"scipy_openblas_get_num_threads",
    ),
    (
        c"openblas_set_num_threads64_",
        c"openblas_get_num_threads64_",
    ),
    (c"openblas_set_num_threads", c"openblas_get_num_threads"),
];

/// Copies of OpenBLAS in one process that can be followed.
const MOST: usize = 8;

/// One copy of OpenBLAS.
#[derive(Debug)]
struct Copy {
    /// An address in it, as long as it has not been looked at.
    found_at: AtomicUsize,
    setter: AtomicPtr<c_void>,
    getter: AtomicPtr<c_void>,
    /// The number of threads that it would have without a claim.
    own: AtomicI32,
    /// What was set last; 0: nothing.
    set: AtomicI32,
}

static COPIES: [Copy; MOST] = [const {
    Copy {
        found_at: AtomicUsize::new(0),
        setter: AtomicPtr::new(null_mut()),
        getter: AtomicPtr::new(null_mut()),
        own: AtomicI32::new(0),
        set: AtomicI32::new(0),
    }
}; MOST];

/// Somebody, who will be returned to at `caller`, creates a thread. Gives the C library's function for it.
/// Takes no lock: others may hold the loader's and wait for this thread.
pub(crate) extern "C" fn thread_begins(caller: usize) -> *mut c_void {
    let create = follower::pthread_create();
    if link::claim().is_some() && !create.is_null() {
        notice(caller);
    }
    create
}

/// Follows the library that a thread is created by, if it is an OpenBLAS.
fn notice(caller: usize) {
    let Some(library) = Library::at(caller) else {
        return;
    };
    let path = library.path().to_bytes();
    if !path.windows(8).any(|part| part == b"openblas") {
        return;
    }
    let start = library.start();
    for copy in &COPIES {
        let taken = copy
            .found_at
            .compare_exchange(0, start, Ordering::AcqRel, Ordering::Acquire);
        match taken {
            Ok(_) => break,
            Err(other) if other == start => return,
            Err(_) => {}
        }
    }
    follower::follow();
}

/// Bounds every copy's number of threads.
pub(crate) fn bound(limit: Option<u32>) {
    for copy in &COPIES {
        copy.bound(limit);
    }
}

impl Copy {
    /// Bounds its number of threads.
    fn bound(&self, limit: Option<u32>) {
        if self.setter.load(Ordering::Acquire).is_null() && !self.look() {
            return;
        }
        let (setter, getter) = (
            self.setter.load(Ordering::Acquire),
            self.getter.load(Ordering::Acquire),
        );
        // SAFETY: OpenBLAS's functions of these names: `void (int)` and `int (void)`.
        let set: extern "C" fn(c_int) = unsafe { std::mem::transmute(setter) };
        // SAFETY: as above.
        let get: extern "C" fn() -> c_int = unsafe { std::mem::transmute(getter) };
        let now = get();
        // Another number than ours is the program's wish.
        if now != self.set.load(Ordering::Relaxed) {
            self.own.store(now, Ordering::Relaxed);
        }
        let own = self.own.load(Ordering::Relaxed);
        let wanted = match limit.and_then(|limit| c_int::try_from(limit).ok()) {
            Some(limit) => own.min(limit).max(1),
            None => own,
        };
        if wanted != now {
            set(wanted);
        }
        let before = self.set.swap(wanted, Ordering::Relaxed);
        if before != wanted
            && let Some(report) = link::report()
        {
            let number = |n: c_int| u32::try_from(n).unwrap_or(1);
            report
                .adapters
                .fetch_or(adapters::OPENBLAS, Ordering::Relaxed);
            report.note(number(own), number(wanted));
        }
    }

    /// Finds setter and getter of a copy that has been noticed. Waits for the loader's lock, and so until
    /// the library has been loaded completely.
    fn look(&self) -> bool {
        let address = self.found_at.load(Ordering::Acquire);
        if address == 0 {
            return false;
        }
        let Some(library) = Library::at(address) else {
            return false;
        };
        let handle = library.open();
        for (setter, getter) in FUNCTIONS {
            let (setter, getter) = (handle.own_function(setter), handle.own_function(getter));
            if !setter.is_null() && !getter.is_null() {
                self.getter.store(getter, Ordering::Release);
                self.setter.store(setter, Ordering::Release);
                // It is called from now on: it must stay.
                std::mem::forget(handle);
                return true;
            }
        }
        false
    }
}
