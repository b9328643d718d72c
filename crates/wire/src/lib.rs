//! What `corewise-abi` defines, carried over Linux: the runtime folder where manager and programs
//! find each other, the socket between them, and the two pages of shared memory.
//!
//! - [`Folder`]: where everything of one user's manager is; [`System`]: where root's is.
//! - [`Channel`]: one connection; a message is a packet, and may carry descriptors.
//! - [`ClaimWriter`], [`ClaimReader`]: the claim page (manager to program) with its sleepers.
//! - [`ProgressWriter`], [`ProgressReader`]: the progress page (program to manager).
//! - [`Link`]: the pages between a local manager and the adapters in its program's processes.
//! - [`LocksReader`]: what those count of locks, for anybody of the same user.
//! - [`join`]: how a program becomes a managed one; [`Joining`]: the same for who must not wait.
//!
//! Nobody is trusted: the other side may send any bytes and any descriptors, stop reading, or die at
//! any moment. Nothing here panics, faults or waits for ever because of that.

mod channel;
mod error;
mod folder;
mod join;
mod keeper;
mod link;
mod locks;
mod mapped;
mod pages;
mod sys;

pub use channel::{Channel, Peer, Received};
pub use error::Error;
pub use folder::{Folder, System};
pub use join::{Answer, Joined, Joining, Welcomed, connect, join};
pub use link::Link;
pub use locks::{LocksReader, is_gone};
pub use pages::{ClaimReader, ClaimWriter, ProgressReader, ProgressWriter};

pub use corewise_abi as abi;
