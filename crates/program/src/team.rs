//! A worker pool that follows its claim.

mod context;
mod job;
mod meter;
mod places;
mod pool;
mod sync;
mod units;

use crate::claim::Claim;
use crate::reactions::ChangeFd;
use crate::service;
use crate::shared::lock;
use job::Job;
use pool::Pool;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use units::MOST_UNITS;

/// The worker pool of a claim: as many workers run as the claim grants threads, the calling thread
/// among them.
///
/// A handle; all teams of a claim are one pool, so that together they keep within the claim. Workers
/// are threads that are made when they are first needed; they sleep when there is nothing to do, and
/// end with the last handle.
///
/// Work is cut into units. A claim is followed between units, so a unit should take long against the
/// few hundred nanoseconds that this costs, and short against the time in which a manager should get its
/// cores back: 20 µs to some milliseconds are good. The team says on its progress page how many units
/// are done, how many workers run, and how many threads it could use (1 while it has nothing to do).
///
/// Workers are placed on the claim's CPUs as the manager's rule has it, and a calling thread for as long
/// as it takes part (which costs it some 3 µs a call); without a manager they are left alone.
#[derive(Clone, Debug)]
pub struct Team {
    // Before the claim, so that what is left is done within it.
    handle: Arc<Handle>,
    claim: Claim,
}

/// Ends the pool with the last team.
#[derive(Debug)]
struct Handle(Arc<Pool>);

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child there are no workers, and locks may be held by nobody.
        if !self.0.shared().pages.is_orphan() {
            self.0.close();
        }
    }
}

/// A claim's team, if it has one.
#[derive(Debug, Default)]
pub(crate) struct TeamSlot {
    handle: Mutex<Weak<Handle>>,
    /// Who only tells of changes must not become the one that ends the team.
    pool: Mutex<Weak<Pool>>,
}

impl TeamSlot {
    /// The claim has changed.
    pub(crate) fn changed(&self) {
        let pool = lock(&self.pool).upgrade();
        if let Some(pool) = pool {
            pool.changed();
        }
    }
}

impl Team {
    /// The team of a claim; made if the claim has none.
    pub fn new(claim: &Claim) -> Team {
        let shared = claim.shared();
        if shared.pages.is_orphan() {
            return Team {
                claim: claim.clone(),
                handle: Arc::new(Handle(Pool::new(shared))),
            };
        }
        service::watch(shared);
        let mut slot = lock(&shared.team.handle);
        let handle = slot.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Handle(Pool::new(shared)));
            *slot = Arc::downgrade(&made);
            *lock(&shared.team.pool) = Arc::downgrade(&made.0);
            made
        });
        drop(slot);
        Team {
            claim: claim.clone(),
            handle,
        }
    }

    /// The claim that the team follows.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Threads that may run now; as [`Claim::threads`].
    pub fn threads(&self) -> u32 {
        self.claim.threads()
    }

    /// Calls `body` for every item, each of which is a unit. For short items give chunks of them.
    ///
    /// # Panics
    /// With the first panic of a unit, after the units that had begun have ended; the others are left
    /// out.
    pub fn for_each<I>(&self, items: I, body: impl Fn(I::Item) + Sync)
    where
        I: IntoIterator,
        I::Item: Send,
    {
        let items = items.into_iter().map(|item| Mutex::new(Some(item)));
        let items: Vec<_> = items.collect();
        self.units(items.len(), &|unit| {
            let item = items.get(unit).and_then(|item| lock(item).take());
            if let Some(item) = item {
                body(item);
            }
        });
    }

    /// Calls `body` for pieces of `range` that are `grain` long (the last one may be shorter, and a
    /// `grain` of 0 counts as 1); each piece is a unit.
    ///
    /// # Panics
    /// As [`Team::for_each`].
    pub fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) {
        let length = range.end.saturating_sub(range.start);
        // At least 1, and no more units than can be counted.
        let grain = grain.max(length / MOST_UNITS + 1);
        self.units(length.div_ceil(grain), &|unit| {
            let start = range.start + unit * grain;
            body(start..range.end.min(start.saturating_add(grain)));
        });
    }

    fn units(&self, units: usize, body: &(dyn Fn(usize) + Sync)) {
        let pool = &self.handle.0;
        if pool.shared().pages.is_orphan() {
            (0..units).for_each(body);
            return;
        }
        if units == 0 {
            return;
        }
        Job::scoped(units, body, |job| {
            pool.take_part(job, || pool.submit_first(job));
        });
    }

    /// Has one of the team's workers do `job` when there is a place; as one unit, behind everything
    /// that was called for. Dropping the team does it at the latest.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Running<T> {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let once = Mutex::new(Some(job));
        let body = move |_: usize| {
            let job = lock(&once).take();
            if let Some(job) = job {
                let value = job();
                *lock(&place) = Some(value);
            }
        };
        let job = Job::owned(1, Box::new(body));
        let pool = Arc::clone(&self.handle.0);
        if pool.shared().pages.is_orphan() {
            job.step();
            job.finish(1);
        } else {
            pool.submit_last(Arc::clone(&job));
        }
        Running { job, pool, result }
    }

    /// Runs `wait`, which blocks outside of the team's work (input, a lock of others), without the
    /// calling worker's place: another one may run meanwhile. Afterwards the worker goes on, and one that
    /// is in surplus then gives its place back after its unit. Outside of a team's work it just runs
    /// `wait`. At most 64 workers stand in for blocked ones.
    ///
    /// Costs a few hundred nanoseconds, and the making of a thread where none sleeps.
    pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
        /// Takes the place back, also after a panic.
        struct Back;
        impl Drop for Back {
            fn drop(&mut self) {
                Team::end_blocking();
            }
        }
        Team::begin_blocking();
        let _back = Back;
        wait()
    }

    /// The first half of [`Team::blocking`], for what cannot be a closure (bindings to other
    /// languages): the calling worker's place is free until [`Team::end_blocking`] on the same thread,
    /// or until its unit ends. Pairs may be nested; only the outermost one counts.
    pub fn begin_blocking() {
        if let Some(pool) = context::lend().filter(|pool| !pool.shared().pages.is_orphan()) {
            pool.begin_blocking();
        }
    }

    /// The second half of [`Team::begin_blocking`]; whether there was a first one.
    pub fn end_blocking() -> bool {
        let Ok(pool) = context::take_back() else {
            return false;
        };
        if let Some(pool) = pool.filter(|pool| !pool.shared().pages.is_orphan()) {
            pool.end_blocking();
        }
        true
    }

    /// A descriptor that becomes readable when the claim changes, as [`Claim::change_fd`].
    ///
    /// # Errors
    /// Where there are too many open files.
    pub fn event_fd(&self) -> io::Result<ChangeFd> {
        self.claim.change_fd()
    }
}

/// A job that was given to [`Team::run`]. Dropping this does not stop the job.
#[derive(Debug)]
pub struct Running<T> {
    job: Arc<Job>,
    pool: Arc<Pool>,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Running<T> {
    /// Whether the job has ended.
    pub fn is_done(&self) -> bool {
        self.job.is_finished()
    }

    /// What the job gave. If nobody has begun it, the calling thread does it.
    ///
    /// # Panics
    /// With the job's panic.
    pub fn wait(self) -> T {
        if !self.job.is_finished() && !self.pool.shared().pages.is_orphan() {
            self.pool.take_part(&self.job, || ());
        }
        self.job.resume();
        let value = lock(&self.result).take();
        match value {
            Some(value) => value,
            // In a forked child: the parent's worker has it.
            None => {
                panic!("the job was begun by a worker of the process that this one was forked from")
            }
        }
    }
}
