//! The workers of a team, and what they do when.
//!
//! What is looked at for each unit is lock-free (the claim word, `places`, `units`). The lock guards what
//! is rare: the queue of jobs, and going to sleep. Whoever makes a place or work available takes the
//! lock before it wakes somebody, and whoever goes to sleep has looked at both under the lock: so no
//! wake-up is lost.

use super::context::{self, Place};
use super::job::Job;
use super::meter::Meter;
use super::places::Places;
use crate::gang::Turns;
use crate::pin::ThreadPin;
use crate::service;
use crate::shared::{Shared, lock};
use crate::sys::BlockedSignals;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Workers that stand in for blocked ones, beyond the threads granted: blocking must not make threads
/// without bound.
const MOST_STAND_INS: usize = 64;

/// A worker's stack: as large as Rust's threads have it.
const WORKER_STACK_BYTES: usize = 2 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    places: Places,
    blocked: AtomicU32,
    state: Mutex<State>,
    wake: Condvar,
    next_slot: AtomicUsize,
    /// Workers take the signals that the thread which made the team takes.
    blocked_signals: BlockedSignals,
}

#[derive(Debug, Default)]
struct State {
    /// Jobs with units that nobody has taken, most of the time; the first one is worked on first.
    queue: VecDeque<Arc<Job>>,
    workers: Vec<JoinHandle<()>>,
    asleep: usize,
    closing: bool,
}

impl State {
    /// The first job of which something is left; forgets those before it.
    fn front(&mut self) -> Option<Arc<Job>> {
        while self.queue.front().is_some_and(|job| job.remaining() == 0) {
            self.queue.pop_front();
        }
        self.queue.front().map(Arc::clone)
    }

    /// Units that nobody has taken.
    fn remaining(&self) -> usize {
        let jobs = self.queue.iter().map(|job| job.remaining());
        jobs.fold(0, usize::saturating_add)
    }
}

/// Why a worker stopped working on a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// No unit is left.
    NothingLeft,
    /// More workers run than are granted; the place is given back.
    Surplus,
}

impl Pool {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Pool> {
        Arc::new(Pool {
            shared: Arc::clone(shared),
            places: Places::new(),
            blocked: AtomicU32::new(0),
            state: Mutex::new(State::default()),
            wake: Condvar::new(),
            // The caller is the first.
            next_slot: AtomicUsize::new(1),
            blocked_signals: BlockedSignals::of_this_thread(),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Queues a job that the calling thread is going to work on ([`Pool::take_part`]): before all
    /// others, since the caller waits for it.
    pub(super) fn submit_first(self: &Arc<Pool>, job: &Arc<Job>) {
        let mut state = lock(&self.state);
        state.queue.push_front(Arc::clone(job));
        self.rouse(&mut state);
    }

    /// Queues a job behind all others.
    pub(super) fn submit_last(self: &Arc<Pool>, job: Arc<Job>) {
        let mut state = lock(&self.state);
        state.queue.push_back(job);
        self.rouse(&mut state);
    }

    /// Works on a job until nothing is left of it, and waits for those who have taken the rest. The
    /// calling thread has a place meanwhile, granted or not: it is the program's own.
    pub(super) fn take_part(self: &Arc<Pool>, job: &Arc<Job>, begin: impl FnOnce()) {
        let lent = self.help(job, begin);
        job.wait();
        self.go_on(lent);
    }

    /// Works on a job until nothing is left of it. Whether the calling thread had a place before and has
    /// none now, until [`Pool::go_on`]: who must wait for others' units lends it meanwhile.
    fn help(self: &Arc<Pool>, job: &Arc<Job>, begin: impl FnOnce()) -> bool {
        let nested = context::is_in(self);
        let mut pin = None;
        if !nested {
            self.places.force();
            // Where all threads of the program are placed, this one is.
            if !self.shared.pins.are_set() {
                pin = Some(ThreadPin::default());
            }
        }
        begin();
        self.publish();
        {
            let _here = Place::enter(Some(self));
            self.work(job, pin.as_mut(), 0, false);
        }
        drop(pin);
        let lends = nested && !job.is_finished();
        if lends || !nested {
            self.places.leave();
        }
        let mut state = lock(&self.state);
        state.queue.retain(|other| !Arc::ptr_eq(other, job));
        self.rouse(&mut state);
        self.publish_with(&state);
        lends
    }

    /// The calling thread goes on with what it did, in its place if it had one.
    fn go_on(&self, lent: bool) {
        if lent {
            self.places.force();
            self.publish();
        }
    }

    /// Does units of a job, looking at the claim before each.
    fn work(
        &self,
        job: &Job,
        mut pin: Option<&mut ThreadPin>,
        slot: usize,
        may_stop: bool,
    ) -> Stopped {
        let mut meter = Meter::new();
        let mut turns = Turns::default();
        let mut done = 0;
        let stopped = loop {
            turns.await_own(&self.shared);
            if may_stop && self.places.leave_if_surplus(self.shared.threads()) {
                break Stopped::Surplus;
            }
            if let Some(pin) = &mut pin {
                pin.follow(&self.shared, slot);
            }
            if !job.step() {
                break Stopped::NothingLeft;
            }
            if let Some(pool) = context::settle() {
                pool.end_blocking();
            }
            done += 1;
            if let Some(units) = meter.tick() {
                self.tell_progress(units);
            }
        };
        match meter.rest() {
            0 => {}
            units => self.tell_progress(units),
        }
        job.finish(done);
        stopped
    }

    fn tell_progress(&self, units: u64) {
        let progress = &self.shared.pages.progress().progress;
        progress.fetch_add(units, Ordering::Relaxed);
        if let Ok(state) = self.state.try_lock() {
            self.publish_with(&state);
        }
    }

    /// Wakes as many sleepers, and makes as many workers, as there are free places and work for.
    fn rouse(self: &Arc<Pool>, state: &mut State) {
        let threads = self.shared.threads() as usize;
        let free = threads.saturating_sub(self.places.taken() as usize);
        let wanted = free.min(state.remaining());
        for _ in 0..wanted.min(state.asleep) {
            self.wake.notify_one();
        }
        let blocked = self.blocked.load(Ordering::Relaxed) as usize;
        let most = threads + blocked.min(MOST_STAND_INS);
        for _ in state.asleep..wanted {
            if state.workers.len() >= most || state.closing {
                break;
            }
            let slot = self.next_slot.fetch_add(1, Ordering::Relaxed);
            let pool = Arc::clone(self);
            // Said here, so that the standard library does not look for it in the environment.
            let thread = Builder::new()
                .name(format!("corewise-{slot}"))
                .stack_size(WORKER_STACK_BYTES);
            let signals = self.blocked_signals;
            let started = service::start(thread, &self.shared, signals, move |_| pool.worker(slot));
            match started {
                Ok(worker) => state.workers.push(worker),
                // Fewer workers do the same work.
                Err(_) => break,
            }
        }
    }

    /// A worker's life.
    fn worker(self: &Arc<Pool>, slot: usize) {
        let mut pin = ThreadPin::default();
        let mut state = lock(&self.state);
        loop {
            match state.front() {
                Some(job) if self.places.try_take(self.shared.threads()) => {
                    self.publish_with(&state);
                    drop(state);
                    let stopped = {
                        let _here = Place::enter(Some(self));
                        self.work(&job, Some(&mut pin), slot, true)
                    };
                    if stopped == Stopped::NothingLeft {
                        self.places.leave();
                    }
                    drop(job);
                    state = lock(&self.state);
                    self.publish_with(&state);
                }
                None if state.closing => return,
                _ => {
                    pin.follow(&self.shared, slot);
                    state.asleep += 1;
                    state = self.sleep(state);
                    state.asleep -= 1;
                }
            }
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.wake.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim has changed: free places are filled, and sleepers look where they may be.
    pub(super) fn changed(self: &Arc<Pool>) {
        let mut state = lock(&self.state);
        self.rouse(&mut state);
        self.wake.notify_all();
    }

    /// Gives the calling thread's place away while it blocks; [`Pool::end_blocking`] takes it back.
    pub(super) fn begin_blocking(self: &Arc<Pool>) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
        self.places.leave();
        let mut state = lock(&self.state);
        self.rouse(&mut state);
        self.publish_with(&state);
    }

    /// The calling thread, which has begun to block, goes on.
    pub(super) fn end_blocking(self: &Arc<Pool>) {
        self.blocked.fetch_sub(1, Ordering::Relaxed);
        self.places.force();
        self.publish();
    }

    /// Says on the progress page how the team is.
    fn publish(&self) {
        self.publish_with(&lock(&self.state));
    }

    /// As [`Pool::publish`]; with the lock held, so that what is said last is what is true.
    fn publish_with(&self, state: &State) {
        let team = self.places.taken();
        let could_use = u32::try_from(state.remaining())
            .unwrap_or(u32::MAX)
            .saturating_add(team)
            .max(1);
        let page = self.shared.pages.progress();
        page.team.store(team, Ordering::Relaxed);
        page.could_use.store(could_use, Ordering::Relaxed);
        let blocked = self.blocked.load(Ordering::Relaxed);
        page.blocked.store(blocked, Ordering::Relaxed);
        self.shared.saw(&self.shared.pages.look());
    }

    /// Does what is queued, and ends the workers.
    pub(super) fn close(self: &Arc<Pool>) {
        loop {
            let job = lock(&self.state).front();
            match job {
                // Nobody waits: who drops a team in a unit of its work would wait for itself.
                Some(job) => {
                    let lent = self.help(&job, || ());
                    self.go_on(lent);
                }
                None => break,
            }
        }
        let workers = {
            let mut state = lock(&self.state);
            state.closing = true;
            self.wake.notify_all();
            std::mem::take(&mut state.workers)
        };
        let own = std::thread::current().id();
        for worker in workers {
            // A team that is dropped by its own worker ends without waiting for that one.
            if worker.thread().id() != own {
                let _ = worker.join();
            }
        }
    }
}
