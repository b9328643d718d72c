//! The sixteen programs of Thread Reinforcer on its simulated machine: how fast they are with how many threads
//! (`sim-scaling`), and what searches find (`sim-reinforcer`).

pub mod catalogue;
mod ferret;
mod later;
mod remembering;
pub mod scaling;
pub mod search;
mod thresholds;
