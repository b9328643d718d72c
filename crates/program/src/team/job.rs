//! One job: units of work, what is done in each, and how it ended.
//!
//! Safety: a job that borrows its body from the caller's stack is reached by workers that may look at it
//! after the caller has gone on. They call the body only for a unit that they have taken and not yet
//! finished, and the caller does not return from [`Job::wait`] before all units are finished (those that
//! a panic left over count as finished by who closed them). So no call of the body begins or goes on
//! after its borrow has ended.
#![allow(unsafe_code)]

use super::units::Units;
use crate::shared::lock;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Unit = dyn Fn(usize) + Send + Sync;

enum Body {
    /// The caller's, who waits.
    Borrowed(*const Unit),
    /// Nobody needs to wait.
    Owned(Box<Unit>),
}

// SAFETY: what it points to is `Send + Sync`, and alive whenever it is used; see the module.
unsafe impl Send for Body {}
// SAFETY: as above.
unsafe impl Sync for Body {}

/// See the module.
pub(crate) struct Job {
    units: Units,
    body: Body,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    ended: Mutex<()>,
    end: Condvar,
}

impl Job {
    /// Runs `body` for each unit below `units`: `work` is given the job to be worked on by whoever, and
    /// this returns when all of it is done. A panic in a unit is resumed here, after the others ended.
    pub(crate) fn scoped(
        units: usize,
        body: &(dyn Fn(usize) + Sync),
        work: impl FnOnce(&Arc<Job>),
    ) {
        /// Waits even if `work` panics.
        struct Wait<'a>(&'a Job);
        impl Drop for Wait<'_> {
            fn drop(&mut self) {
                let left = self.0.units.close();
                self.0.finish(left);
                self.0.wait();
            }
        }
        // `Sync` is all that calling a shared reference from elsewhere needs: `&F` is `Send` then.
        let by_reference = |unit: usize| body(unit);
        let borrowed: &(dyn Fn(usize) + Send + Sync) = &by_reference;
        // SAFETY: only the lifetime is changed; see the module for why it is not outlived. `Wait` is
        // dropped before `by_reference` and `body` end.
        let erased: *const Unit = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Send + Sync), &'static Unit>(borrowed)
        };
        let job = Arc::new(Job::new(units, Body::Borrowed(erased)));
        {
            let wait = Wait(&job);
            work(&job);
            wait.0.wait();
        }
        job.resume();
    }

    /// A job that is done whether or not anybody waits.
    pub(crate) fn owned(units: usize, body: Box<Unit>) -> Arc<Job> {
        Arc::new(Job::new(units, Body::Owned(body)))
    }

    fn new(units: usize, body: Body) -> Job {
        Job {
            units: Units::new(units),
            body,
            panic: Mutex::new(None),
            ended: Mutex::new(()),
            end: Condvar::new(),
        }
    }

    /// Units that nobody has taken.
    pub(crate) fn remaining(&self) -> usize {
        self.units.remaining()
    }

    /// Takes a unit, and does it; whether there was one. Who got one must call [`Job::finish`] later.
    pub(crate) fn step(&self) -> bool {
        let Some(unit) = self.units.take() else {
            return false;
        };
        let body: &Unit = match &self.body {
            // SAFETY: a unit is taken and not finished: the caller waits; see the module.
            Body::Borrowed(body) => unsafe { &**body },
            Body::Owned(body) => body,
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(unit))) {
            // The first panic is the one to be told of.
            let mut first = lock(&self.panic);
            if first.is_none() {
                *first = Some(panic);
            }
            drop(first);
            self.finish(self.units.close());
        }
        true
    }

    /// Finishes units that were taken.
    pub(crate) fn finish(&self, units: usize) {
        if self.units.finish(units) {
            // With the lock, so that nobody begins to wait between its look and its sleep.
            let _ended = lock(&self.ended);
            self.end.notify_all();
        }
    }

    /// Whether everything is done.
    pub(crate) fn is_finished(&self) -> bool {
        self.units.are_finished()
    }

    /// Waits until everything is done.
    pub(crate) fn wait(&self) {
        if self.is_finished() {
            return;
        }
        let mut ended = lock(&self.ended);
        while !self.is_finished() {
            ended = self.end.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Goes on with a unit's panic, if there was one.
    pub(crate) fn resume(&self) {
        if let Some(panic) = lock(&self.panic).take() {
            std::panic::resume_unwind(panic);
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("units", &self.units)
            .finish_non_exhaustive()
    }
}
