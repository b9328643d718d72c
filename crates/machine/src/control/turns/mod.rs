//! Turns: a program's threads stopped all together, and let go on all together.
//!
//! # Problem
//!
//! Programs whose threads wait for each other are to run by turns, each with all its threads at once. So a
//! program must be stopped and continued many times a second, from outside, without its knowing: its terminal's job
//! control, whoever waits for it, its debugger and its system calls must see nothing. Above all nothing may stay
//! stopped when we die.
//!
//! # Approach
//!
//! [`Means`] is one way to do that, [`means_for`] chooses.
//!
//! - [`Seizing`]: at the end of a turn the threads are seized by ptrace and made to stop; at the beginning of the
//!   next they are released. Between them the program is not traced at all: its signals and its new threads cost
//!   nothing, a debugger may attach. When the tracing thread ends, in whichever way, the kernel releases what it
//!   has seized.
//! - [`Yielding`]: where that is refused, the program comes last out of its turn, by a cgroup of its own. It still runs
//!   where a CPU is idle, which nobody minds.
//!
//! What is not used, and why:
//!
//! - SIGSTOP: whoever waits for the program is told, shells take it for Ctrl-Z, and nobody continues it when we die.
//! - Cgroup freezers: what a killed manager has frozen nobody thaws.
//! - `SCHED_IDLE`: an ordinary user's thread does not come back from it (sched(7): only within RLIMIT_NICE,
//!   which is usually 0), and it counts only among threads of one session, or one group: between two sessions it
//!   changes nothing. `yielding` has the figures.
//!
//! [`hurry`] is for the thread that keeps turns.

mod rescue;
mod seized;
mod sys;
mod tasks;
mod yielding;

pub use seized::Seizing;
pub use yielding::Yielding;

use crate::control::{SLICE_NS, slice};
use crate::undo::LogOnDemand;

/// A way to stop and continue a program.
///
/// What is stopped goes on when this is dropped.
pub trait Means {
    /// What it is called, for people.
    fn name(&self) -> &'static str;

    /// Whether what is stopped stands still. Else it merely comes last: its threads are still seen to run or wait
    /// then, and in its turn those that hardly sleep need a CPU each.
    fn stops(&self) -> bool {
        true
    }

    /// There are turns from now on: whether the program can be stopped, as far as that shows without stopping it.
    ///
    /// # Errors
    /// As [`stop`](Means::stop).
    fn begin(&mut self) -> Result<(), Refused> {
        Ok(())
    }

    /// Stops every thread that runs. Those that sleep are left asleep: they are found by [`look`](Means::look)
    /// when they wake up.
    ///
    /// # Errors
    /// The program cannot be stopped as a whole: then it is let go on as a whole.
    fn stop(&mut self) -> Result<Stopped, Refused>;

    /// While the program is stopped: stops what has woken up or was made since.
    ///
    /// # Errors
    /// As [`stop`](Means::stop).
    fn look(&mut self) -> Result<Stopped, Refused>;

    /// Lets every thread go on. Where some could not be reached yet, this is to be called again soon.
    fn go(&mut self) -> Gone;

    /// After all were let go: there are no turns any more, or not for now. What was set for them is put back.
    fn rest(&mut self) {}
}

/// What became of stopping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Threads that were stopped by this call.
    pub threads: u32,
    /// How many of them did not stand still yet when it returned: they will not run any more, but have not come
    /// by a CPU to find out, or are in the kernel.
    pub awaited: u32,
    /// When it began, on the monotonic clock, in nanoseconds.
    pub began_ns: u64,
    /// When the last of those that stand still did; `began_ns` where there was none.
    pub last_ns: u64,
}

impl Stopped {
    /// No thread was, now.
    fn nobody() -> Stopped {
        let now_ns = sys::now_ns();
        Stopped {
            began_ns: now_ns,
            last_ns: now_ns,
            ..Stopped::default()
        }
    }
}

/// What became of letting go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Threads that were let go on by this call.
    pub threads: u32,
    /// Threads that could not be let go yet, because they do not stand still yet.
    pub awaited: u32,
    /// Somebody has stopped the program by a signal meanwhile: it stands still on. A parent that shares its process
    /// with the caller was not told, and should ask.
    pub by_others: bool,
    /// When the first went on, on the monotonic clock, in nanoseconds.
    pub first_ns: u64,
    /// When the last did.
    pub last_ns: u64,
}

/// Why a program cannot be stopped. It runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be stopped and continued: {why}")]
pub struct Refused {
    /// What stands against it, and what to do.
    pub why: String,
}

/// The best means that is allowed here for the process `pid` and all below it. It belongs to the thread that
/// calls. What it sets is in `log`.
///
/// # Errors
/// [`Refused`] where there is none: says why not of each.
pub fn means_for<'log>(pid: i32, log: &'log LogOnDemand) -> Result<Box<dyn Means + 'log>, Refused> {
    match Seizing::of(pid) {
        Ok(seizing) => Ok(Box::new(seizing)),
        Err(refused) => second_means_for(pid, &refused.why, log),
    }
}

/// The best means besides ptrace, which is refused, because of `why`.
///
/// # Errors
/// As [`means_for`].
pub fn second_means_for<'log>(
    pid: i32,
    why: &str,
    log: &'log LogOnDemand,
) -> Result<Box<dyn Means + 'log>, Refused> {
    match Yielding::of(pid, log) {
        Ok(yielding) => Ok(Box::new(yielding)),
        Err(refused) => Err(Refused {
            why: format!("{why}; nor can it come last by cpu.idle: {}", refused.why),
        }),
    }
}

/// Has the calling thread get a CPU as soon as it wakes up, and wake up when it is time: for a thread that
/// keeps turns, and uses next to no CPU. Says what was to be had.
pub fn hurry() -> &'static str {
    // Where that is not to be had the thread is up to 50 µs late.
    let _ = sys::wake_punctually();
    if sys::run_first().is_ok() {
        return "SCHED_FIFO";
    }
    let here = rustix::thread::gettid().as_raw_nonzero().get();
    // No undo: the thread is our own.
    match slice::write(here, *SLICE_NS.start()) {
        Ok(()) => "the shortest slice",
        Err(_) => "the usual policy",
    }
}
