//! The hooks. gcc calls them at the begin and end of each function that it compiles with
//! `-finstrument-functions`; clang also with `-finstrument-functions-after-inlining`.
//!
//! **Why it is sound.** They are called with two addresses, which are only counted; they use what is the
//! calling thread's own.

use crate::thread::Thread;
use std::ffi::c_void;

/// How deep the machine's stack is: enough to compare calls of the same hook.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn stack() -> usize {
    let depth: usize;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) depth, options(nomem, nostack, preserves_flags));
    }
    depth
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn stack() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&here)) as usize
}

/// A function begins.
#[unsafe(no_mangle)]
extern "C" fn __cyg_profile_func_enter(function: *const c_void, site: *const c_void) {
    if let Some(thread) = Thread::current() {
        thread.enter(function as u64, site as u64, stack());
    }
}

/// A function ends.
#[unsafe(no_mangle)]
extern "C" fn __cyg_profile_func_exit(function: *const c_void, _site: *const c_void) {
    if let Some(thread) = Thread::existing() {
        thread.exit(function as u64, stack());
    }
}

/// See `corewise_profile.h`.
#[unsafe(no_mangle)]
extern "C" fn corewise_profile_enter(function: *const c_void) {
    __cyg_profile_func_enter(function, std::ptr::null());
}

/// See `corewise_profile.h`.
#[unsafe(no_mangle)]
extern "C" fn corewise_profile_exit(function: *const c_void) {
    __cyg_profile_func_exit(function, std::ptr::null());
}

/// See `corewise_profile.h`.
#[unsafe(no_mangle)]
extern "C" fn corewise_profile_allocated(bytes: usize) {
    if let Some(thread) = Thread::current() {
        thread.allocated(bytes as u64, stack());
    }
}
