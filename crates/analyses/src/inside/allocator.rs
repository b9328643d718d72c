//! The allocation functions that the program would have called, for libraries that interpose them.
//!
//! Until the real functions are found (looking for them may allocate), the C library's own are used by their
//! other names, which is what would be found unless somebody else interposes, too.
//!
//! **Why it is sound.** Arguments and results are passed on as they are, to functions that were found by the name
//! of the type that they are called by.
#![allow(unsafe_code, reason = "see the module's head")]

use super::Next;
use libc::{c_int, c_void, size_t};
use std::mem::transmute;

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
    fn __libc_free(memory: *mut c_void);
}

type Malloc = unsafe extern "C" fn(size_t) -> *mut c_void;
type Two = unsafe extern "C" fn(size_t, size_t) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, size_t, size_t) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);

static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static REALLOC: Next = Next::new(c"realloc");
static MEMALIGN: Next = Next::new(c"memalign");
static ALIGNED: Next = Next::new(c"aligned_alloc");
static POSIX: Next = Next::new(c"posix_memalign");
static FREE: Next = Next::new(c"free");

/// The real `malloc`.
///
/// # Safety
/// Its own contract; so below.
#[inline(always)]
pub unsafe fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        match MALLOC.get() {
            Some(real) => transmute::<*mut c_void, Malloc>(real)(size),
            None => __libc_malloc(size),
        }
    }
}

/// # Safety
/// `next` is the name of a function of this type.
#[inline(always)]
unsafe fn by_two(next: &Next, own: Two, one: size_t, two: size_t) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        match next.get() {
            Some(real) => transmute::<*mut c_void, Two>(real)(one, two),
            None => own(one, two),
        }
    }
}

/// The real `calloc`.
///
/// # Safety
/// Its own contract.
#[inline(always)]
pub unsafe fn calloc(count: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { by_two(&CALLOC, __libc_calloc, count, size) }
}

/// The real `memalign`.
///
/// # Safety
/// Its own contract.
#[inline(always)]
pub unsafe fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { by_two(&MEMALIGN, __libc_memalign, align, size) }
}

/// The real `aligned_alloc`.
///
/// # Safety
/// Its own contract.
#[inline(always)]
pub unsafe fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { by_two(&ALIGNED, __libc_memalign, align, size) }
}

/// The real `realloc`.
///
/// # Safety
/// Its own contract.
#[inline(always)]
pub unsafe fn realloc(memory: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe {
        match REALLOC.get() {
            Some(real) => transmute::<*mut c_void, Realloc>(real)(memory, size),
            None => __libc_realloc(memory, size),
        }
    }
}

/// The real `posix_memalign`; `ENOMEM` as long as it is not found.
///
/// # Safety
/// Its own contract.
#[inline(always)]
pub unsafe fn posix_memalign(place: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match POSIX.get() {
            Some(real) => transmute::<*mut c_void, PosixMemalign>(real)(place, align, size),
            None => libc::ENOMEM,
        }
    }
}

/// The real `free`.
///
/// # Safety
/// Its own contract.
#[inline(always)]
pub unsafe fn free(memory: *mut c_void) {
    // SAFETY: the caller's argument.
    unsafe {
        match FREE.get() {
            Some(real) => transmute::<*mut c_void, Free>(real)(memory),
            None => __libc_free(memory),
        }
    }
}
