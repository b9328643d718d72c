//! The experiments about the simulated world.

pub mod neighbour;
pub mod policy;
pub mod real;
pub mod reinforcer;
pub mod speed;
