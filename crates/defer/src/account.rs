//! What an environment knows of itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What an environment reports on itself: since it was made, but for what is said to be *now*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Buffers processed by the threads that filled them.
    pub by_producers: u64,
    /// Buffers processed by consumers.
    pub by_consumers: u64,
    /// Buffers processed by threads that waited: for a checkpoint, a future, a semaphore, or the end. Also
    /// what was drained from buffers before they were full.
    pub by_waiters: u64,
    /// Calls that were executed, with those that panicked.
    pub calls: u64,
    /// Calls whose bodies panicked.
    pub panics: u64,
    /// Calls that were thrown away.
    pub lost: u64,
    /// Buffers that are submitted and not yet processed, now.
    pub pending: u64,
    /// Time that producers spent waiting for room.
    pub waiting: Duration,
    /// Time that producers spent processing buffers.
    pub helping: Duration,
    /// Memory of all buffers now, in bytes.
    pub bytes: u64,
    /// The most that it was.
    pub most_bytes: u64,
    /// The capacity that new buffers get now, in calls.
    pub capacity: u32,
}

/// The counters behind a [`Report`].
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) by: [AtomicU64; 3],
    pub(crate) calls: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) waiting_ns: AtomicU64,
    pub(crate) helping_ns: AtomicU64,
    bytes: AtomicU64,
    most_bytes: AtomicU64,
}

/// Counts up. Nothing is ordered by it.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// A time span as it is counted.
pub(crate) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Account {
    pub(crate) fn made(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.most_bytes.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn unmade(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, pending: u64, capacity: u32) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            by_producers: read(&self.by[0]),
            by_consumers: read(&self.by[1]),
            by_waiters: read(&self.by[2]),
            calls: read(&self.calls),
            panics: read(&self.panics),
            lost: read(&self.lost),
            pending,
            waiting: Duration::from_nanos(read(&self.waiting_ns)),
            helping: Duration::from_nanos(read(&self.helping_ns)),
            bytes: read(&self.bytes),
            most_bytes: read(&self.most_bytes),
            capacity,
        }
    }
}
