//! The library that a program runs on whose races are searched for (`LD_PRELOAD=libcorewise_race.so`): what
//! gcc and clang call at each access to memory with `-fsanitize=thread`, and the C library's functions for
//! locks, threads and memory.
//!
//! It has the name of gcc's own runtime, `libtsan.so.2`, so that the loader takes it for that.
//!
//! - [`entry`]: what is called at each access, and at the begin and end of each function.
//! - [`atomics`]: atomic operations, which the runtime has to execute itself.
//! - [`thread`]: what is kept for each thread; [`recorder`]: where it records its accesses.
//! - [`order`]: which thread's work comes before which other's: what is released where, and acquired.
//! - [`interposed`]: how the C library's functions are called in between.
//! - [`locks`], [`waits`], [`create`], [`joins`]: the C library's functions that order threads, interposed.
//! - [`descriptors`]: files, pipes and sockets, by which threads hand things over.
//! - [`allocate`], [`memory`], [`strings`]: those that give, take, copy, set, read and write memory.
//! - [`lives`]: memory that is freed and allocated again is not what it was.
//! - [`versions`]: functions that have an old version which nobody means.
//! - [`annotations`]: what programs and other runtimes say themselves.
//! - [`signals`], [`handlers`]: what signal handlers come after, and what they wait for; [`cancels`]: that threads are
//!   cancelled in nothing of ours.
//! - [`fibers`]: programs that switch stacks themselves, and say so.
//! - [`unload`]: libraries that are unloaded.
//! - [`others`]: what ThreadSanitizer's runtime exports besides.
//! - [`process`]: the environment of this process, what happens at its start, forks and end.
//!
//! **Without the variable, or with a region that is gone**, atomic operations are executed, and nothing else
//! is done.
//!
//! **Being in a foreign process.** Nothing here throws or panics on purpose. What we need of memory comes
//! from an allocator of our own. Functions that a thread may be cancelled in, or that call the program back,
//! have nothing in their frames that would have to be cleaned up.
#![allow(
    unsafe_code,
    reason = "a runtime in a foreign process; each module states its argument"
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the runtime is for 64-bit Linux on x86");

mod allocate;
mod annotations;
mod atomics;
mod cancels;
mod create;
mod descriptors;
mod entry;
mod fibers;
mod handlers;
mod interposed;
mod joins;
mod lives;
mod locks;
mod memory;
mod order;
mod others;
mod process;
mod recorder;
mod signals;
mod strings;
mod thread;
mod unload;
mod versions;
mod waits;

/// Ours, beside the program's.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
