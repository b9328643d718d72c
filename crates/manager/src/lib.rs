//! The global manager in the Linux world: what `corewise-decide` decides, carried out.
//!
//! One thread waits for everything (another one sleeps on the outer claim's page, if there is one): the socket, each connection, the end of each program's process,
//! signals, the time of the next reading. What happens becomes inputs of the decisions; their outputs
//! become stores to claim pages, messages and settings ([`corewise_decide::world::drive`] is the
//! loop). State is soft: a manager that starts knows nothing, and programs that join tell it all there
//! is to know. Only the undo logs outlive it; and under a service manager the programs' connections, so
//! that they need not notice that there is another one.
//!
//! Root's manager in `/run/corewise` is the system's: it serves every user, each within their own rights,
//! and a user's manager is a program of it while it has programs itself. What it is granted there bounds
//! what it grants; without one, the effective CPUs do.
//!
//! Order of work, for latency: from an event to the pages of those whose claims it changes nothing
//! is written to a file and nobody is waited for. Answers, the journal and undoing come after.
//!
//! What a program can do to others through its manager: nothing. Its bytes are bounded and decoded
//! without trust, one that floods is heard more slowly, one that does not read is not waited for, its
//! pages cannot fault, and its claim is its own.

mod admit;
mod ask;
mod clocks;
mod connection;
mod demand;
mod election;
mod error;
mod journal;
mod listen;
mod machine;
mod members;
mod message;
mod options;
mod outer;
mod policy;
mod readings;
mod sensing;
mod serve;
mod service;
mod settings;
mod status;
mod sys;
mod waiter;
mod world;

pub use ask::{override_claim, status_json, stop};
pub use demand::start_on_demand;
pub use error::Error;
pub use journal::{Header, Recorded, recorded};
pub use options::{Options, PolicyChoice};
pub use serve::serve;
