//! The experiments about the simulated world.

pub mod gangs;
pub mod neighbour;
pub mod oversubscription;
pub mod policy;
pub mod real;
pub mod reeact;
pub mod reinforcer;
pub mod speed;
