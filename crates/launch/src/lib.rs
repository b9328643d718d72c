//! Starts programs: finds them, runs them as probes that leave no trace, or for real.

pub mod command;
pub mod runtimes;
pub mod template;

pub use command::{Command, LookupError};
