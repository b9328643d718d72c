//! Functions that copy, set and compare memory, interposed: compilers leave such loops to them.
//!
//! **Why it is sound.** The real function is called with the arguments that came. Our own code, and the
//! libraries that it is made of, come here, too: until the real ones are found, and while they are looked
//! for, a loop does the same.

use crate::entry::told_where;
use crate::locks;
use crate::thread::Thread;
use corewise_analyses::inside::Next;
use corewise_analyses::race::kind;
use libc::{c_int, c_void, size_t};

static MEMCPY: Next = Next::new(c"memcpy");
static MEMMOVE: Next = Next::new(c"memmove");
static MEMSET: Next = Next::new(c"memset");

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> *mut c_void;
type Set = unsafe extern "C" fn(*mut c_void, c_int, size_t) -> *mut c_void;

told_where! {
    /// The C library's.
    memcpy => copies;
    /// The C library's.
    memmove => moves;
    /// The C library's.
    memset => sets;
    /// The same, where the compiler has it checked.
    __memcpy_chk => copies;
    /// The same, where the compiler has it checked.
    __memmove_chk => moves;
    /// The same, where the compiler has it checked.
    __memset_chk => sets;
    /// ThreadSanitizer's name for it.
    __tsan_memcpy => copies;
    /// ThreadSanitizer's name for it.
    __tsan_memmove => moves;
    /// ThreadSanitizer's name for it.
    __tsan_memset => sets;
}

#[inline(always)]
fn seen(to: *mut c_void, from: *const c_void, bytes: size_t, code: u64) {
    // First of all: what follows may come here again.
    if locks::is_ours(code) {
        return;
    }
    if let Some(thread) = Thread::active()
        && !thread.alone
    {
        if !from.is_null() {
            thread.range(from as u64, bytes as u64, 0, code);
        }
        thread.range(to as u64, bytes as u64, kind::WRITE, code);
    }
}

unsafe extern "C-unwind" fn copies(
    to: *mut c_void,
    from: *const c_void,
    bytes: size_t,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    seen(to, from, bytes, code);
    match MEMCPY.get() {
        // SAFETY: a function of this type was found by this name; so below.
        Some(real) => unsafe { std::mem::transmute::<*mut c_void, Copy>(real)(to, from, bytes) },
        None => unsafe { forward(to, from, bytes) },
    }
}

unsafe extern "C-unwind" fn moves(
    to: *mut c_void,
    from: *const c_void,
    bytes: size_t,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    seen(to, from, bytes, code);
    match MEMMOVE.get() {
        // SAFETY: as above.
        Some(real) => unsafe { std::mem::transmute::<*mut c_void, Copy>(real)(to, from, bytes) },
        None if (to as usize) < from as usize || from as usize + bytes <= to as usize => unsafe {
            forward(to, from, bytes)
        },
        None => unsafe { backward(to, from, bytes) },
    }
}

unsafe extern "C-unwind" fn sets(
    to: *mut c_void,
    value: c_int,
    bytes: size_t,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    seen(to, std::ptr::null(), bytes, code);
    match MEMSET.get() {
        // SAFETY: as above.
        Some(real) => unsafe { std::mem::transmute::<*mut c_void, Set>(real)(to, value, bytes) },
        None => unsafe {
            std::arch::asm!(
                "rep stosb",
                inout("rcx") bytes => _,
                inout("rdi") to => _,
                in("al") value as u8,
                options(nostack, preserves_flags),
            );
            to
        },
    }
}

/// By the processor's own loop: Rust's copies would come back here.
unsafe fn forward(to: *mut c_void, from: *const c_void, bytes: size_t) -> *mut c_void {
    // SAFETY: the caller's contract is that of `memcpy`.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

unsafe fn backward(to: *mut c_void, from: *const c_void, bytes: size_t) -> *mut c_void {
    if bytes == 0 {
        return to;
    }
    // SAFETY: the caller's contract is that of `memmove`; the direction is put back.
    unsafe {
        std::arch::asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") bytes => _,
            inout("rdi") to.cast::<u8>().add(bytes - 1) => _,
            inout("rsi") from.cast::<u8>().add(bytes - 1) => _,
            options(nostack),
        );
    }
    to
}
