//! The race detector: finds accesses to the same memory by two threads, one of them a write, that nothing
//! orders.
//!
//! Threads record their [accesses](access) in buffers of deferred calls. Each says in which *segment* of its
//! thread it was made, and [`clock`] remembers what each thread knew of the others in which segment: so it
//! does not matter when, by whom and in which order buffers are processed. [`Search`] compares each access
//! with those that the [`shadow`] remembers of the same memory, by what [happens before](clock) or by
//! [`lockset`]s, and keeps what it [`found`]. Everything is kept in [`words`] of shared memory: if the program
//! dies, the command goes on where its process stopped.

pub mod access;
mod asked;
pub mod clock;
mod compare;
pub mod found;
pub mod interned;
#[cfg(feature = "show")]
pub mod lines;
pub mod lockset;
pub mod recent;
mod records;
#[cfg(feature = "show")]
pub mod report;
mod row;
mod search;
mod settled;
pub mod shadow;
#[cfg(feature = "show")]
pub mod suppress;
#[cfg(feature = "show")]
pub mod text;
#[cfg(feature = "show")]
pub mod unseen;
pub mod words;

pub use access::{Access, Accesses, AccessesBuffer, LIFE_BITS, Run, kind};
pub use clock::{Clock, ThreadClock, Timelines};
pub use found::Race;
pub use recent::Recent;
pub use records::{Block, DESCRIPTOR_BYTES, DESCRIPTORS, ThreadRecord};
pub use search::{Deferred, FREED, Order, Search, Site};
pub use settled::{Present, Settled};
pub use words::{Counter, Reserve};
