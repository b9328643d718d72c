//! Starts programs: finds them, runs them as probes that leave no trace, or for real.

pub mod command;

pub use command::{Command, LookupError};
