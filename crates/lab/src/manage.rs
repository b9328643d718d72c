//! The experiments about managing several programs.

pub mod cost;
pub mod latency;
pub mod stage;
pub mod survive;
pub mod waves;
