//! The C library's allocation functions, interposed: the real one is called, and what it gave is counted for
//! the innermost function. C++'s `operator new` comes here, too.
//!
//! **Why it is sound.** Arguments and results are passed on as they are. Until the real functions are found
//! (looking for them may allocate), the C library's own are used by their other names, which is what would
//! be found unless somebody else interposes, too.

use crate::thread::Thread;
use corewise_analyses::inside::Next;
use libc::{c_int, c_void, size_t};

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
}

#[inline(always)]
fn counted(memory: *mut c_void, bytes: size_t) -> *mut c_void {
    if !memory.is_null()
        && let Some(thread) = Thread::existing()
        && !thread.is_busy()
    {
        thread.allocated(bytes as u64, crate::entry::stack());
    }
    memory
}

type Malloc = unsafe extern "C" fn(size_t) -> *mut c_void;
type Two = unsafe extern "C" fn(size_t, size_t) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, size_t, size_t) -> c_int;

static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static REALLOC: Next = Next::new(c"realloc");
static MEMALIGN: Next = Next::new(c"memalign");
static ALIGNED: Next = Next::new(c"aligned_alloc");
static POSIX: Next = Next::new(c"posix_memalign");

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: a function of this type was found by this name; so below.
    let memory = unsafe {
        match MALLOC.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Malloc>(real)(size),
            None => __libc_malloc(size),
        }
    };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe {
        match CALLOC.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Two>(real)(count, size),
            None => __libc_calloc(count, size),
        }
    };
    counted(memory, count.saturating_mul(size))
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe {
        match REALLOC.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Realloc>(real)(memory, size),
            None => __libc_realloc(memory, size),
        }
    };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe {
        match MEMALIGN.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Two>(real)(align, size),
            None => __libc_memalign(align, size),
        }
    };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe {
        match ALIGNED.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Two>(real)(align, size),
            None => __libc_memalign(align, size),
        }
    };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    // SAFETY: as above; `place` is the caller's to be written, if the function succeeds.
    unsafe {
        let Some(real) = POSIX.get() else {
            return libc::ENOMEM;
        };
        let result = std::mem::transmute::<*mut c_void, PosixMemalign>(real)(place, align, size);
        if result == 0 {
            counted(*place, size);
        }
        result
    }
}
