//! The scheduler's slice: how long a thread runs before another one's turn comes.
//!
//! Since Linux 6.12 `sched_setattr(2)` takes `sched_runtime` as a wish for it from threads of
//! `SCHED_OTHER` and `SCHED_BATCH`. A short slice lets a thread preempt sooner, a long one saves it
//! switches; its share of the CPU stays the same. Zero gives the kernel's own back, and because
//! reading tells the slice but not whether it was asked for, that is tried first when it is undone.

use std::io;
use std::ops::RangeInclusive;

use super::process::Thread;
use super::{Done, Error, sys};
use crate::undo::{Setting, UndoLog};

/// Slices that the kernel takes, in nanoseconds: 0.1 to 100 ms. Outside of them it would clamp.
pub const SLICE_NS: RangeInclusive<u64> = 100_000..=100_000_000;

pub(crate) const ADVICE: &str = "custom slices need Linux 6.12 or newer";

/// Sets the slices of threads, through an undo log.
#[derive(Clone, Copy, Debug)]
pub struct SliceControl<'log> {
    log: &'log UndoLog,
}

impl<'log> SliceControl<'log> {
    /// A control that writes to this log.
    pub fn new(log: &'log UndoLog) -> Self {
        Self { log }
    }

    /// Gives a thread a slice, in nanoseconds within [`SLICE_NS`]; 0: puts back what it had.
    ///
    /// Threads made by it inherit its slice; they get the original too when it is put back.
    ///
    /// Cost: as [`super::AffinityControl::confine`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the kernel knows no slices, or the thread is scheduled by
    /// another policy (real-time, deadline, idle); [`Error::Ignored`] where it took the slice and
    /// did nothing; [`Error::Refused`] for slices outside the range; [`Error::Gone`] when the
    /// thread has ended.
    pub fn set(&self, thread: Thread, slice_ns: u64) -> Result<Done, Error> {
        let what = Setting::Slice(thread);
        if slice_ns == 0 {
            return self.put_back(&what);
        }
        if !SLICE_NS.contains(&slice_ns) {
            return Err(Error::Refused {
                what: format!("a slice of {slice_ns} ns"),
                why: "the kernel takes 100,000 to 100,000,000 ns, and 0 for its own".into(),
            });
        }
        self.log
            .set(&what, &slice_ns.to_string())
            .map_err(|error| match error {
                Error::Read { source, .. } if source.kind() == io::ErrorKind::Unsupported => {
                    Error::Unavailable {
                        what: "the scheduler's slice",
                        why: source.to_string(),
                    }
                }
                other => other,
            })
    }

    fn put_back(&self, what: &Setting) -> Result<Done, Error> {
        let report = self.log.restore(|setting| setting == what);
        match report.failed.into_iter().next() {
            Some(why) => Err(Error::Refused {
                what: format!("putting back {what}"),
                why,
            }),
            None if report.restored > 0 => Ok(Done::Set),
            None => Ok(Done::AlreadySo),
        }
    }
}

/// Whether the kernel knows slices: it reports one for a thread of the usual policy.
pub(crate) fn available() -> Result<(), String> {
    let here = rustix::thread::gettid().as_raw_nonzero().get();
    match sys::attributes(here) {
        Err(error) => Err(format!("sched_getattr is not allowed here ({error})")),
        Ok(attr) if !usual_policy(attr.policy) => {
            Err("this thread is scheduled by another policy than SCHED_OTHER".into())
        }
        Ok(attr) if attr.runtime == 0 => Err(format!("the kernel has none: {ADVICE}")),
        Ok(_) => Ok(()),
    }
}

fn usual_policy(policy: u32) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH]
        .iter()
        .any(|p| u32::try_from(*p) == Ok(policy))
}

/// The slice of a living thread, in nanoseconds.
pub(crate) fn read(tid: i32) -> io::Result<u64> {
    let attr = sys::attributes(tid)?;
    if !usual_policy(attr.policy) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the thread is scheduled by another policy than SCHED_OTHER or SCHED_BATCH",
        ));
    }
    if attr.runtime == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, ADVICE));
    }
    Ok(attr.runtime)
}

/// Sets the slice; 0 gives the kernel's own. All else that the call sets stays as it is.
pub(crate) fn write(tid: i32, slice_ns: u64) -> io::Result<()> {
    let mut attr = sys::attributes(tid)?;
    attr.runtime = slice_ns;
    sys::set_attributes(tid, attr)
}

/// Puts a slice back: the kernel's own if that is what it was, else the slice itself.
pub(crate) fn put_back(tid: i32, original_ns: u64) -> io::Result<()> {
    write(tid, 0)?;
    match read(tid)? == original_ns {
        true => Ok(()),
        false => write(tid, original_ns),
    }
}
