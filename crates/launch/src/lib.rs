//! Starts programs: finds them, runs them as probes that leave no trace, or for real.

pub mod adapters;
pub mod command;
mod exec;
pub mod jobserver;
mod outcome;
pub mod probe;
pub mod prompt;
mod pump;
pub mod run;
pub mod runtimes;
pub mod sandbox;
mod signals;
pub mod spool;
pub mod stops;
mod tail;
pub mod template;

pub use command::{Command, LookupError};
pub use outcome::{Outcome, Status};
pub use probe::{Limit, Probe, ProbeEnd};
pub use run::{RunOptions, Running};
pub use sandbox::{Availability, Sandbox};
pub use spool::Spool;
