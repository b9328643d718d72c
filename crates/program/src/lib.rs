//! What programs link to be managed: a claim on cores that they read before every piece of work, and a
//! worker pool that follows it.
//!
//! ```
//! use corewise_program::{Claim, Cpus, Numa, Team};
//! # let runtime = tempfile::tempdir().unwrap();
//! # unsafe { std::env::set_var("COREWISE_RUNTIME_DIR", runtime.path()) };
//!
//! let claim = Claim::join("example");
//! claim.invade(Cpus(1..=8), Numa::Scatter);
//! let team = Team::new(&claim);
//! let mut squares = vec![0_u64; 1024];
//! team.for_each(squares.chunks_mut(64).enumerate(), |(chunk, squares)| {
//!     for (index, square) in squares.iter_mut().enumerate() {
//!         *square = ((chunk * 64 + index) as u64).pow(2);
//!     }
//! });
//! claim.retreat(1);
//! assert_eq!(squares[1023], 1023 * 1023);
//! ```
//!
//! This works with and without a manager. Nothing here fails, and nothing waits for a manager for longer
//! than a stated time: a program that cannot be managed runs as it would on plain Linux.
//!
//! # Claims
//!
//! The idea is Hollmann and Gerndt's (*Invasive Computing: An Application Assisted Resource Management
//! Approach*, sections 2 and 2.1): a claim starts with one core; [`Claim::invade`] asks for more, gets
//! what is free, and goes on with what it has; [`Claim::retreat`] gives back. Between the two a manager
//! may change the claim at any moment, as in REEact (section 2 of its paper), where managers and
//! programs talk continuously.
//!
//! A claim is a number of threads and a set of CPUs, together with a generation that changes when they
//! do. Without a manager it is what Linux gives the process: the CPUs of its affinity, and as many
//! threads as its CPU quota allows; what was invaded for limits the threads in the same way.
//!
//! # The protocol, as a program lives it
//!
//! *Joining.* The program connects to the manager's socket in the runtime folder and says who it is and
//! what it wants. It is answered with two pages of shared memory. The claim page comes down: the manager
//! writes it, the program cannot. The progress page goes up: what the program has done and could use.
//!
//! *Reading.* [`Claim::threads`] loads a pointer to the claim page and one word on it, with acquire
//! ordering. No lock, no system call, and no question whether there is a manager: without one the
//! pointer leads to a page of the program's own. The CPUs stand behind a sequence lock on the same page,
//! so that [`Claim::cpus_into`] never mixes two grants.
//!
//! *Sleeping.* Whoever wants to sleep until the claim changes ([`Claim::wait_change`]) sleeps on two
//! futex words at once: the generation on the page, which a manager wakes, and a word of the process,
//! for when the page itself is exchanged. Linux before 5.16 cannot do that; there, sleepers look every
//! 20 ms. Callbacks ([`Claim::on_change`]) and descriptors ([`Claim::change_fd`]) are served by a thread
//! of ours that sleeps so; it exists only if there are any, or a team.
//!
//! *Asking.* Invading and retreating send a message, and wait until the claim is another, or the manager
//! has answered, or 50 ms are over. The manager in turn may ask the program to run one thread more or
//! less, as REEact's expand and shrink do; a second thread of ours, which owns the socket, answers by
//! the program's rule ([`Claim::on_request`]). It also hears of it when the manager's policy has changed and
//! places threads otherwise: a team's workers are placed anew, and the claim is the same.
//!
//! *When the manager dies* the kernel closes the socket. Our thread sees it, puts threads back where they
//! ran before, and points readers to the program's own page, which holds the effective CPUs: the claim
//! no longer binds (it *fails open*). The old pages stay mapped, because a reader may hold their address;
//! that is 16 KiB for each death of a manager. From then on the thread tries to join, after 100 ms at
//! first and every 2 s at last, with the same wants; the next manager needs to know nothing from the
//! last. A program that started without a manager waits for one in the same way. Meanwhile the effective
//! CPUs are read again as often.
//!
//! *Forking.* A forked child has no claim. It sees its parent's neither managed nor changing, and
//! [`Claim::join`] in it makes one of its own. Teams in it run everything on the calling thread.
//!
//! # Teams
//!
//! A [`Team`] is a pool of workers that take one unit of work at a time. Before each unit a worker looks
//! at the claim: if more workers run than there are threads granted, it gives its place back and sleeps.
//! When the claim grows, sleepers take the free places. The thread that calls takes part, and never
//! gives its place back: it is the program's own. A worker that says that it blocks
//! ([`Team::blocking`]) lends its place to another meanwhile. The protocol of places is in
//! `team/places.rs`, that of units in `team/units.rs`; both are checked with loom.
//!
//! # Gangs
//!
//! A program whose workers need each other at the same time (they meet at barriers, or spin) says so with
//! [`Claim::coschedule`]. Where CPUs are short it takes turns with other gangs, and a team's workers keep the
//! turns between units: all run, or none. Threads outside of the team are not stopped; a program that has such
//! is better run by `corewise run --gang`.

mod capacity;
mod claim;
mod error;
mod fork;
mod gang;
mod mask;
mod memory;
mod pages;
mod pin;
mod reactions;
mod service;
mod shared;
mod sys;
mod team;
mod wants;

pub use claim::Claim;
pub use error::MemoryError;
pub use gang::Gang;
pub use mask::Mask;
pub use memory::Moved;
pub use reactions::{CallbackId, ChangeFd};
pub use team::{Running, Team};
pub use wants::{Cpus, Granted, Numa};

pub use corewise_abi::message::Request;
pub use corewise_wire::Folder;
