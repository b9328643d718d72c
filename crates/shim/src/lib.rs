//! Adapters that are preloaded into programs nobody changed (`LD_PRELOAD=libcorewise_shim.so`): their
//! runtimes follow the claim of their program while they run. An adapter senses and follows; it decides
//! nothing.
//!
//! - [`link`]: the pages that the local manager keeps: the claim to follow, the report to write.
//! - [`held`]: the claim of a program that holds it itself, by libcorewise.
//! - [`objects`]: which copy of a runtime a caller uses (wheels bring copies of their own);
//!   [`loaded`]: how the loader finds it.
//! - [`listed`]: libraries of which it is proven that a number they demand may be changed.
//! - [`entry`]: the functions that are interposed: each asks an adapter, and jumps on to the real one.
//! - [`libgomp`]: the adapter for GCC's OpenMP; [`llvm_openmp`]: for LLVM's and Intel's; [`timing`]: how long
//!   their regions take, while somebody wants to know;
//!   [`openblas`]: for OpenBLAS with threads of its own; [`onetbb`]: for oneTBB, which asks us.
//! - [`pthreads`]: not for following, but for seeing: threads, and the time that they are blocked in locks.
//! - [`follower`]: the one thread that we add, for runtimes that have to be told.
//!
//! **Nothing changes where nothing is asked.** Without the variable that leads to the pages, with pages
//! whose keeper is dead or that grant nothing, every call goes on with the arguments that it came with.
//!
//! **Being in a foreign process.** No frame of ours lies under the program's code: where one of its
//! functions could run, we jump (it may throw, be cancelled, or call `longjmp`). Nothing here panics; only
//! [`onetbb`], whose functions are called rarely and never by the loader, allocates; no thread-local
//! storage; no lock that is held while foreign code runs. The loader's lock is only taken once for each
//! library that calls, by the thread that calls first.
#![allow(unsafe_code, reason = "interposition; each module states its argument")]
#![cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), allow(unused))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the adapters are for 64-bit Linux");

mod clock;
#[cfg(target_arch = "x86_64")]
mod entry;
mod follower;
mod held;
mod libgomp;
mod link;
mod listed;
#[cfg(target_arch = "x86_64")]
mod llvm_openmp;
mod loaded;
mod objects;
mod onetbb;
mod openblas;
#[cfg(target_arch = "x86_64")]
mod pthreads;
mod timing;
