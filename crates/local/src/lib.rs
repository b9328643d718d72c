//! The local manager's part that lives beside a program nobody changed: it hosts the searches, makes
//! their probes, remembers what they found, and keeps the running program within its claim.
//!
//! - [`advise`]: from what a user typed to how the program should run.
//! - [`request`]: what is asked for, and the search that it means.
//! - [`tune`]: hosts a search.
//! - [`probing`]: makes one probe.
//! - [`load`]: what other programs use.
//! - [`history`]: past results; [`memory`] puts them there and finds them again.
//! - [`outside`]: manages the real run; [`live`]: searches its regions' numbers of threads.

pub mod advise;
pub mod history;
pub mod live;
pub mod load;
pub mod memory;
pub mod outside;
pub mod probing;
pub mod request;
pub mod tune;
