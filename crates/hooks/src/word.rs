//! One word of each thread, which leads to its [`Thread`].
//!
//! On x86-64 it lies where the loader puts thread-local storage that is there from the start (the
//! initial-exec model): two instructions, where a library's ordinary thread-local storage is a call into the
//! loader each time. Rust has no stable way to ask for that model, hence the assembly.
//!
//! **Why it is sound.** The word is the calling thread's own, of eight bytes, and zero in a new thread.

use crate::thread::Thread;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".type corewise_hooks_word,@object",
    ".size corewise_hooks_word,8",
    ".globl corewise_hooks_word",
    ".hidden corewise_hooks_word",
    "corewise_hooks_word:",
    ".zero 8",
    ".popsection",
);

/// What it leads to; null in a thread that has recorded nothing.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn get() -> *mut Thread {
    let value: *mut Thread;
    // SAFETY: reads the word; see the module's head.
    unsafe {
        std::arch::asm!(
            "mov {value}, qword ptr [rip + corewise_hooks_word@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Changes it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn set(value: *mut Thread) {
    // SAFETY: writes the word; see the module's head.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + corewise_hooks_word@GOTTPOFF]",
            "mov qword ptr fs:[{place}], {value}",
            place = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod plain {
    use super::Thread;
    use std::cell::Cell;

    thread_local! {
        static WORD: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
    }

    pub(crate) fn get() -> *mut Thread {
        WORD.with(Cell::get)
    }

    pub(crate) fn set(value: *mut Thread) {
        WORD.with(|word| word.set(value));
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use plain::{get, set};
