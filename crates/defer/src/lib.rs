//! Deferred calls: calls whose results the caller does not need are stored in the caller's own buffer, and
//! executed later, whole buffers at a time, by whoever has a CPU to spare.
//!
//! ```
//! use corewise_defer::{deferred, Environment};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[deferred]
//! trait Statistics {
//!     fn visited(&self, page: u32, bytes: u64);
//!     fn named(&self, name: String);
//! }
//!
//! #[derive(Default)]
//! struct Totals {
//!     bytes: AtomicU64,
//!     letters: AtomicU64,
//! }
//!
//! impl Statistics for Totals {
//!     fn visited(&self, _page: u32, bytes: u64) {
//!         self.bytes.fetch_add(bytes, Ordering::Relaxed);
//!     }
//!     fn named(&self, name: String) {
//!         self.letters.fetch_add(name.len() as u64, Ordering::Relaxed);
//!     }
//! }
//!
//! let totals = Arc::new(Totals::default());
//! let statistics = Environment::<StatisticsBuffer>::new(Arc::clone(&totals));
//! for page in 0..1000 {
//!     statistics.visited(page, 10); // stored, not executed
//! }
//! statistics.named("deferred".to_owned());
//! statistics.checkpoint().wait();
//! assert_eq!(totals.bytes.load(Ordering::Relaxed), 10_000);
//! assert_eq!(totals.letters.load(Ordering::Relaxed), 8);
//! ```
//!
//! After Ansaloni, Binder, Heydarnoori and Chen, *Exploiting Under-Utilized Cores with Deferred Methods*
//! (technical report USI-INF-TR-2010-7), sections 3 and 4; the names of their interface in brackets below.
//!
//! - [`deferred`] makes the buffer and its front from a trait. Code that is generic over the trait runs
//!   sequentially on the target itself, and deferred on an environment.
//! - [`Environment`] (`DeferredEnv`): several at once, each with its buffers, capacity and strategy.
//! - [`Strategy`] (`Processor`): [`Synchronous`], [`Pool`], [`Adaptive`], or one of your own.
//! - [`Process`] (`ProcessingHooks`): something done around each buffer, for coalescing.
//! - [`Checkpoint`] (`ProcessingCheckPoint`), [`promise()`] and [`Semaphore`]: for those who have to wait.
//! - [`Declared`]: calls declared at run time, for C (`corewise_defer.h` of crates/capi).
//! - A thread's end submits its buffer; the program's end waits for all, also on `exit`.
//!
//! # What is promised
//!
//! Each call is executed exactly once, in order within its buffer, or thrown away and counted
//! ([`Report::lost`]): when a strategy drops its buffer, or a [`Process`] leaves it. A body that panics is
//! counted, and the next call goes on. The thread that calls never waits for a lock before its buffer is
//! full. Between buffers of one thread there is an order only with [`Synchronous`].
//!
//! # What is not
//!
//! A process that dies by a signal, or ends with `_exit`, loses what is stored, unless its buffers are in
//! [`Memory`] that outlives it, or, for signals, it asked for them to be [saved](save_on_fatal_signals). A forked child has no consumers: only its forking thread lives there, and
//! an environment of its parent must not be used in it. A signal handler must not defer calls.

mod account;
mod block;
mod capacity;
mod checkpoint;
mod columns;
mod consumers;
mod declared;
mod ending;
mod environment;
mod fatal;
mod gate;
mod local;
mod memory;
mod outcome;
mod progress;
mod queue;
mod settings;
mod signals;
mod sizing;
mod slot;
mod strategy;
mod sync;
#[cfg(test)]
mod tests;
mod together;
mod work;

pub use account::Report;
pub use block::{Head, Left, execute_left};
pub use capacity::{Capacity, available};
pub use checkpoint::{Checkpoint, Watch};
pub use columns::{Column, Columns, Execute, Places};
pub use consumers::{Adaptive, Pool};
/// ```compile_fail,E0277
/// # use corewise_defer::deferred;
/// #[deferred]
/// trait Calls {
///     // Error: `Rc<u32>` cannot be sent between threads safely.
///     fn call(&self, shared: std::rc::Rc<u32>);
/// }
/// ```
pub use corewise_defer_macros::deferred;
pub use declared::{Declared, DeclaredBuffer, Function, Functions, MOST_WORDS};
pub use environment::Environment;
pub use fatal::save_on_fatal_signals;
pub use memory::{Heap, Memory};
pub use outcome::{Outcome, Promise, Semaphore, promise};
pub use settings::{CAPACITY_VARIABLE, Settings};
pub use slot::Producer;
pub use strategy::{Spent, Strategy, Synchronous};
pub use work::{By, Pending, Process, Work};
