//! The experiments about gangs: programs whose threads need each other, and run by turns.

pub mod bystander;
pub mod collective;
pub mod copies;
pub mod pairs;
pub mod partial;
pub mod scale;
pub mod survive;
pub mod together;
