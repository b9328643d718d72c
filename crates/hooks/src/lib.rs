//! The library that is loaded into a program to profile it (`LD_PRELOAD=libcorewise_hooks.so`): what
//! compilers call at the begin and end of every function (`-finstrument-functions`), and the C library's
//! allocation functions, record into the region of `corewise profile`. A program can call the same by the
//! small C interface of `corewise_profile.h`.
//!
//! - [`entry`]: the hooks themselves: the stack of calls, and the call that is appended.
//! - [`process`]: the environment of this process, what happens at its start, forks and end.
//! - [`allocate`]: the allocation functions; [`unload`]: libraries that are unloaded.
//!
//! **Without the variable, or with a region that is gone**, the hooks return at once.
//!
//! **Being in a foreign process.** Nothing here throws or panics on purpose; bodies of deferred calls only
//! count. What we need of memory comes from an allocator of our own: the program's may be the one that is
//! being profiled. While a buffer is handed over, signals are blocked and `errno` is kept. A hook that is
//! interrupted by a signal handler whose functions are instrumented, too, is noticed: the handler's calls are
//! counted as lost. No signal handler is installed: what a program leaves unprocessed when it dies is in
//! shared memory, and the command processes it.
#![allow(
    unsafe_code,
    reason = "hooks in a foreign process; each module states its argument"
)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the hooks are for 64-bit Linux");

mod allocate;
mod entry;
mod process;
mod thread;
mod unload;

/// Ours, beside the program's.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
