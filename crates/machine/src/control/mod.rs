//! Controls: what can be set on Linux for a program from outside, each with its way back.
//!
//! Every setting goes through the undo log ([`crate::undo`]): its first original is written down
//! before it is changed, and is put back, if the value is still ours, when its reason is gone.
//!
//! | control | sets | needs |
//! | --- | --- | --- |
//! | [`AffinityControl`] | the CPUs of each thread | one's own programs, or CAP_SYS_NICE |
//! | [`SliceControl`] | how long a thread runs at a time | Linux 6.12; as above |
//! | [`ProgramCgroup`] | CPUs, weight, idleness, freezing of a group made for the program | a cgroup that may be written to |
//! | [`FrequencyControl`] | between which limits CPUs choose their frequencies | root, a cpufreq driver |
//! | [`DutyCycleControl`] | for how much of the time CPUs run | root, Intel's |
//! | [`PrefetchControl`] | hardware prefetchers | root, Intel's, the kernel's module msr |
//! | [`ProgramShare`] | parts of caches and of memory bandwidth | root, resctrl mounted |
//! | [`turns`] | when all threads of a program run | being its parent, and allowed to trace it |
//!
//! Those of the hardware take a [`Root`](crate::Root), so that a made tree can stand in for another
//! machine's.
//!
//! Which of them work here, and why not, is listed by [`crate::sensors::controls`].
//!
//! A user's own cgroups are never changed: files are set only in groups that were made here, whose
//! names begin with `corewise-`. The nice value is no control of ours: an ordinary user can raise
//! it and not lower it again, so that it could not be undone.

mod affinity;
pub(crate) mod duty_cycle;
mod frequency;
mod group;
pub(crate) mod group_files;
pub(crate) mod group_place;
pub(crate) mod hardware_files;
pub(crate) mod prefetch;
pub mod process;
pub(crate) mod processor;
pub mod registers;
mod resctrl;
pub(crate) mod resctrl_files;
pub(crate) mod slice;
pub(crate) mod sys;
pub mod turns;

use std::io;

pub use affinity::{AffinityControl, Sweep};
pub use duty_cycle::DutyCycleControl;
pub use frequency::FrequencyControl;
pub use group::{Controller, FreezeOk, ProgramCgroup};
pub use prefetch::PrefetchControl;
pub use process::{Process, Thread};
pub use resctrl::{ProgramShare, Resctrl};
pub use slice::{SLICE_NS, SliceControl};

/// Why something could not be set: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The thread, process or group has ended. Nothing is left to be set or undone.
    #[error("{what} is gone; nothing was set")]
    Gone {
        /// What was to be set.
        what: String,
    },
    /// The present value could not be read, so that it could not be put back either.
    #[error("cannot read {what}: {source}; nothing was set")]
    Read {
        /// What was to be read.
        what: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The kernel refused the value.
    #[error("cannot set {what} to {value:?}: {source}; {advice}")]
    Write {
        /// What was to be set.
        what: String,
        /// To what.
        value: String,
        /// What the kernel answered.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// The kernel took the value without an error and did nothing.
    #[error("{what} stays at {present:?} although the kernel took {value:?}; {advice}")]
    Ignored {
        /// What was to be set.
        what: String,
        /// To what.
        value: String,
        /// What it still is.
        present: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The value makes no sense, or is not ours to set.
    #[error("{what} is refused: {why}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Why it is not done, and what to do instead.
        why: String,
    },
    /// The control does not exist here.
    #[error("{what} is not available here: {why}")]
    Unavailable {
        /// Which control.
        what: &'static str,
        /// Why, and what would help.
        why: String,
    },
    /// The undo log could not be written; nothing was set.
    #[error(transparent)]
    Log(#[from] crate::undo::Error),
}

/// What became of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// It has the wanted value, which was written to the undo log first.
    Set,
    /// The kernel set what of the wanted value it allows: a cpuset took CPUs away.
    Narrowed {
        /// What it is now.
        present: String,
    },
    /// It had the wanted value already.
    AlreadySo,
    /// Somebody else, most often the program itself, has changed it since we did. It is left alone
    /// from now on.
    LeftAlone {
        /// What it is now.
        present: String,
    },
}

impl Error {
    /// Whether nothing can be done because the thread, process or group has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Gone { .. })
    }
}
