//! The machine: its topology, its sensors and controls, and what a process may use of it. This
//! crate knows Linux and decides nothing.
//!
//! Every reader takes a [`Root`], so that a made tree of another machine's files can stand in for
//! `/`.

mod affinity;
pub mod cgroup;
pub mod control;
pub mod counters;
pub mod cpu_list;
pub mod effective;
pub mod energy;
pub mod error;
pub mod frequency;
pub mod heat;
pub mod host;
pub mod identity;
pub mod neighbours;
mod probe;
pub mod program;
pub mod root;
pub mod sensors;
mod sysfs;
pub mod throttling;
pub mod topology;
pub mod undo;

pub use effective::{EffectiveCpus, effective_cpus};
pub use error::Error;
pub use host::HostReader;
pub use root::Root;
pub use topology::Topology;
