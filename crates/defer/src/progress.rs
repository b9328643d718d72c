//! How far the calls of one thread are processed, although its buffers are processed in any order.

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, lock, wait, wait_at_most};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What is processed of one thread's buffers. They are counted from 1.
pub(crate) struct Progress {
    /// Every buffer up to this one is processed.
    through: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Processed buffers after `through`.
    beyond: BTreeSet<u64>,
    waiters: usize,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            through: AtomicU64::new(0),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        }
    }

    /// This buffer is processed, or was thrown away: in any case nobody has to wait for it any longer.
    pub(crate) fn finished(&self, buffer: u64) {
        let mut state = lock(&self.state);
        state.beyond.insert(buffer);
        let mut through = self.through.load(Ordering::Relaxed);
        while state.beyond.remove(&(through + 1)) {
            through += 1;
        }
        self.through.store(through, Ordering::Release);
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Whether every buffer up to this one is processed.
    pub(crate) fn is_past(&self, buffer: u64) -> bool {
        self.through.load(Ordering::Acquire) >= buffer
    }

    /// Sleeps until every buffer up to this one is processed.
    pub(crate) fn wait(&self, buffer: u64) {
        let mut state = lock(&self.state);
        state.waiters += 1;
        while !self.is_past(buffer) {
            state = wait(&self.changed, state);
        }
        state.waiters -= 1;
    }

    /// The same, for so long at most. Whether they are.
    pub(crate) fn wait_at_most(&self, buffer: u64, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = lock(&self.state);
        state.waiters += 1;
        while !self.is_past(buffer) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = wait_at_most(&self.changed, state, left);
        }
        state.waiters -= 1;
        self.is_past(buffer)
    }
}
