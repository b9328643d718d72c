//! The machine: its topology, its sensors and controls, and what a process may use of it. This
//! crate knows Linux and decides nothing.
//!
//! Every reader takes a [`Root`], so that a made tree of another machine's files can stand in for
//! `/`.

mod affinity;
pub mod cpu_list;
pub mod error;
pub mod root;

pub use error::Error;
pub use root::Root;
