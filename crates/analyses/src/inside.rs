//! What libraries share that are loaded into programs to watch them: the profiler's hooks and the race
//! detector.
//!
//! - [`word`]: the one word of each thread that leads to what the library keeps for it.
//! - [`modules`]: which files are mapped where, for names.
//! - [`Quiet`]: signals and cancellation wait and `errno` is kept while the library works for itself.
//! - [`Next`]: functions that are interposed: the ones that would have been called; [`allocator`]: those that allocate.
//! - [`Lasting`]: memory for buffers that outlives the process.
//! - [`Recording`]: how a process defers what its threads record.

pub mod allocator;
mod cancel;
mod lasting;
pub mod modules;
mod next;
mod quiet;
mod recording;
mod settings;
pub mod word;

pub use lasting::Lasting;
pub use next::Next;
pub use quiet::Quiet;
pub use recording::Recording;
