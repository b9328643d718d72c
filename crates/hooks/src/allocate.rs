//! The C library's allocation functions, interposed: the real one is called, and what it gave is counted for
//! the innermost function. C++'s `operator new` comes here, too.
//!
//! **Why it is sound.** Arguments and results are passed on as they are ([`allocator`]).

use crate::thread::Thread;
use corewise_analyses::inside::allocator;
use libc::{c_int, c_void, size_t};

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

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::malloc(size) };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::calloc(count, size) };
    counted(memory, count.saturating_mul(size))
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::realloc(memory, size) };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::memalign(align, size) };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::aligned_alloc(align, size) };
    counted(memory, size)
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    // SAFETY: the caller's arguments; `place` is written if the function succeeds.
    unsafe {
        let result = allocator::posix_memalign(place, align, size);
        if result == 0 {
            counted(*place, size);
        }
        result
    }
}
