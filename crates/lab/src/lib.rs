//! The experiments: each a named function that measures and returns a report. The frame and the
//! tools that experiments share are here; the command line is in main.rs.
//!
//! To add one: a module below, and a line in [`EXPERIMENTS`].

pub mod cgroup;
pub mod experiment;
pub mod load;
pub mod measure;
pub mod stats;

use experiment::Experiment;

/// Every experiment, in the order in which `list` shows them.
pub const EXPERIMENTS: &[Experiment] = &[];
