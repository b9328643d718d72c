//! What crosses between the manager and programs.
//!
//! - [`claim`]: the claim page, written by the manager, read by the program: how many threads and
//!   which CPUs it may use now.
//! - [`progress`]: the progress page, written by the program, read by the manager: what it has done
//!   and could use.
//! - [`reports`]: the reports page, written by the adapters in a program's processes, read by its local
//!   manager: what follows the claim, and what it asked for.
//! - [`regions`]: the regions page, beside it: how long each parallel region takes, and its number of threads.
//! - [`locks`]: the locks page, beside it: how long threads were blocked, and who called.
//! - [`turn`]: when a program runs that shares its CPUs by turns; on the claim page.
//! - [`message`]: messages on the socket, for what is rare.
//!
//! Each is one page of shared memory (a memfd whose size is sealed, so that neither side can
//! make the other fault). Their layout is fixed and only grows: a field keeps its offset, new ones
//! come at the end, and the header's `size` says how much of a page its writer knows.
//! `include/corewise_abi.h` says the same in C; a test compares every offset.
#![no_std]

extern crate alloc;

pub mod claim;
mod cpus;
mod header;
pub mod locks;
pub mod message;
pub mod progress;
pub mod regions;
pub mod reports;
mod sync;
pub mod turn;

pub use header::PageHeader;

/// The version of pages and messages. Within one version, things are only added.
pub const VERSION: u16 = 1;

/// Length of a page of either kind, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// CPUs that a claim page can name: 0 to this, exclusive.
pub const MAX_CPUS: u32 = 4096;

/// A reader tries this often to get a set of CPUs that nobody writes meanwhile. A writer that was killed
/// in the middle leaves the lock taken: readers must come out of it.
const READ_TRIES: u32 = 1_000;
