//! Analyses of running programs, on deferred calls: the call profiler, and the race detector ([`race`]).
//!
//! A profile is kept in a [`region`] of shared memory that the command makes and the program's processes
//! map: tables ([`table`]) of functions and of who called whom, and the buffers of deferred calls. So
//! nothing is lost when a program dies, however it does: what its threads had stored, and nobody had
//! processed, is processed by whoever reads the region ([`mod@read`]).
//!
//! [`profile`] is the analysis: the same code runs at each call (sequentially), or on deferred calls. Its
//! results are [given names](names), made into a [`graph`], and shown: as a profiling [`blueprint`], a
//! [flame graph](flame), for [Graphviz](dot), or in the format of [`callgrind`].

#[cfg(feature = "show")]
pub mod blueprint;
#[cfg(feature = "show")]
pub mod callgrind;
#[cfg(feature = "show")]
pub mod dot;
#[cfg(feature = "show")]
pub mod flame;
#[cfg(feature = "show")]
pub mod graph;
pub mod inside;
#[cfg(feature = "show")]
pub mod names;
pub mod profile;
pub mod race;
pub mod read;
pub mod region;
pub mod table;
