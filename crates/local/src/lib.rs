//! The local manager's part that lives beside a program nobody changed: it hosts the searches, makes
//! their probes, and remembers what they found.
//!
//! - [`advise`]: from what a user typed to how the program should run.
//! - [`tune`]: hosts a search.
//! - [`probing`]: makes one probe.
//! - [`load`]: what other programs use.
//! - [`history`]: past results.

pub mod advise;
pub mod history;
pub mod load;
pub mod probing;
pub mod tune;
