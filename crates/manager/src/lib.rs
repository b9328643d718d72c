//! The global manager in the Linux world: what `corewise-decide` decides, carried out.
//!
//! One thread waits for everything: the socket, each connection, the end of each program's process,
//! signals, the time of the next reading. What happens becomes inputs of the decisions; their outputs
//! become stores to claim pages, messages and settings ([`corewise_decide::world::drive`] is the
//! loop). State is soft: a manager that starts knows nothing, and programs that join tell it all there
//! is to know. Only the undo logs outlive it.
//!
//! Order of work, for latency: from an event to the pages of those whose claims it changes nothing
//! is written to a file and nobody is waited for. Answers, the journal and undoing come after.
//!
//! What a program can do to others through its manager: nothing. Its bytes are bounded and decoded
//! without trust, one that floods is heard more slowly, one that does not read is not waited for, its
//! pages cannot fault, and its claim is its own.

mod admit;
mod ask;
mod connection;
mod demand;
mod election;
mod error;
mod journal;
mod listen;
mod machine;
mod message;
mod options;
mod policy;
mod serve;
mod settings;
mod status;
mod sys;
mod tree;
mod waiter;
mod world;

pub use ask::{override_claim, status_json, stop};
pub use demand::start_on_demand;
pub use error::Error;
pub use journal::{Header, Recorded, recorded};
pub use options::{Options, PolicyChoice};
pub use serve::serve;
