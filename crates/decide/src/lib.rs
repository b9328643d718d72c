//! Pure decisions. No clock, no file, no thread lives here: time, what was seen and what failed come
//! in; what to do and when to look again comes out. The Linux world and the simulated one feed the
//! same code, so a decision can be tested, simulated and deployed without changing a line.
//!
//! - [`reading`]: what sensors said: cumulative counters of a program's threads and of the machine.
//! - [`setting`]: what a search may choose.
//! - [`profile`]: what one probe showed in its window.
//! - [`watch`]: watching one probe: when its window opens and closes.
//! - [`search`]: the searches for a number of threads.
//! - [`status`]: what is known of machine and programs; [`cpus`]: sets of CPUs.
//! - [`policy`]: who may use which CPUs; [`local`]: where threads run within a claim.
//! - [`global`]: the global manager's decisions: the status, the policy, and the checks between.
//! - [`jobserver`]: how many tokens a build's jobserver keeps in circulation.
//! - [`live`]: the number of threads of each parallel region, while the program runs.
//! - [`gang`]: when coscheduled sets run.
//! - [`world`]: what comes in and goes out, and the driver loop.

pub mod cpus;
pub mod gang;
pub mod global;
pub mod jobserver;
pub mod live;
pub mod local;
pub mod policy;
pub mod profile;
pub mod reading;
pub mod search;
pub mod setting;
pub mod status;
pub mod watch;
pub mod world;
