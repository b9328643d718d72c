//! One word of each thread, which leads to what the library keeps for it.
//!
//! On x86-64 it lies where the loader puts thread-local storage that is there from the start (the
//! initial-exec model): two instructions, where a library's ordinary thread-local storage is a call into the
//! loader each time. Rust has no stable way to ask for that model, hence the assembly.
//!
//! **Why it is sound.** The word is the calling thread's own, of eight bytes, and zero in a new thread.
#![allow(unsafe_code, reason = "see the module's head")]

use std::ffi::c_void;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".type corewise_inside_word,@object",
    ".size corewise_inside_word,8",
    ".globl corewise_inside_word",
    ".hidden corewise_inside_word",
    "corewise_inside_word:",
    ".zero 8",
    ".popsection",
);

/// What it leads to; null in a thread that has recorded nothing.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn get() -> *mut c_void {
    let value: *mut c_void;
    // SAFETY: reads the word; see the module's head.
    unsafe {
        std::arch::asm!(
            "mov {value}, qword ptr [rip + corewise_inside_word@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Changes it.
#[cfg(target_arch = "x86_64")]
pub fn set(value: *mut c_void) {
    // SAFETY: writes the word; see the module's head.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + corewise_inside_word@GOTTPOFF]",
            "mov qword ptr fs:[{place}], {value}",
            place = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod plain {
    use super::c_void;
    use std::cell::Cell;

    thread_local! {
        static WORD: Cell<*mut c_void> = const { Cell::new(std::ptr::null_mut()) };
    }

    pub fn get() -> *mut c_void {
        WORD.with(Cell::get)
    }

    pub fn set(value: *mut c_void) {
        WORD.with(|word| word.set(value));
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use plain::{get, set};
