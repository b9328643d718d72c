//! The experiments on deferred calls and the profiler on them.

pub mod append;
pub mod baselines;
pub mod cost;
pub mod programs;
pub mod strategies;
pub mod table;
