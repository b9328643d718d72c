//! The simulated world: a deterministic discrete-event model of a multicore machine, of Linux's
//! scheduler on it, and of programs. The policies that run here are the very same that run on Linux,
//! driven by the same loop ([`corewise_decide::world::drive`]).
//!
//! Nothing here reads a clock or starts a thread, and only functions that load something read files.
//! Times are virtual, in nanoseconds; the same scenario with the same seed gives the same bytes on any
//! machine.
//!
//! - [`machine`]: what the simulated machine is.
//! - [`kernel`]: Linux's scheduler on it.
//! - [`program`]: programs as data, and their execution on the kernel.
//! - [`scenario`]: a machine, programs, and a policy.
//! - [`probe`]: probes of simulated programs, for searches.
//! - [`world`]: the world that policies see.
//! - [`timeline`], [`report`], [`page`]: what was recorded, as data, as JSON and as a page.

pub mod kernel;
pub mod machine;
pub mod page;
pub mod probe;
pub mod program;
pub mod report;
pub mod scenario;
pub mod timeline;
pub mod world;
