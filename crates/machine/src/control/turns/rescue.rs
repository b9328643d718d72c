//! A second thread for one case in which the first can wait for ever.
//!
//! A process of several threads executes another program: the kernel ends the other threads, and waits until they
//! are gone. One that is traced is only gone when its tracer has taken note. If that tracer is just about to
//! seize another thread of the same process, it waits for the execution to be over (the kernel allows no tracing to
//! begin in the middle of one): each waits for the other. Any thread of the tracer's process may take note in
//! its place, and this one does, whenever a pass takes longer than passes take.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::sys;
use crate::control::process::{processes_below, threads};

/// A pass that is under way at two looks in a row is stuck. Each look takes a CPU from a gang for a moment.
const LOOK: Duration = Duration::from_millis(40);

/// So long after the last pass it still looks; then it sleeps until the next one.
const WATCH: Duration = Duration::from_secs(1);

/// Watches passes over the threads of a process tree.
#[derive(Debug)]
pub(super) struct Rescue {
    passes: Arc<Passes>,
    thread: Option<JoinHandle<()>>,
}

/// Odd: a pass is under way.
#[derive(Debug, Default)]
struct Passes {
    count: AtomicU64,
    sleeps: AtomicBool,
}

impl Rescue {
    /// For the process `root` and those below it. `None` where no thread is to be had.
    ///
    /// The thread inherits the signals that the caller blocks.
    pub(super) fn of(root: i32) -> Option<Rescue> {
        let passes = Arc::new(Passes::default());
        let watched = Arc::downgrade(&passes);
        let thread = std::thread::Builder::new()
            .name("turns-rescue".into())
            .spawn(move || watch(root, &watched))
            .ok()?;
        let thread = Some(thread);
        Some(Rescue { passes, thread })
    }

    /// A pass begins. Cost: nanoseconds, once a second's silence 5 µs.
    pub(super) fn begin(&self) {
        self.passes.count.fetch_add(1, Ordering::SeqCst);
        if self.passes.sleeps.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread()
        {
            thread.unpark();
        }
    }

    /// It is over.
    pub(super) fn end(&self) {
        self.passes.count.fetch_add(1, Ordering::SeqCst);
    }

    fn thread(&self) -> Option<&Thread> {
        self.thread.as_ref().map(JoinHandle::thread)
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        // It ends when it sees that nobody holds the count any more.
        self.passes = Arc::default();
        if let Some(thread) = self.thread() {
            thread.unpark();
        }
    }
}

fn watch(root: i32, passes: &Weak<Passes>) {
    let mut seen = 0;
    let mut since = Instant::now();
    loop {
        {
            let Some(passes) = passes.upgrade() else {
                return;
            };
            let count = passes.count.load(Ordering::SeqCst);
            if count != seen {
                seen = count;
                since = Instant::now();
            } else if count % 2 == 1 {
                take_note_of_ended(root);
            }
            passes.sleeps.store(
                count.is_multiple_of(2) && since.elapsed() > WATCH,
                Ordering::SeqCst,
            );
            // A pass that began before it was said that we sleep wakes nobody.
            if passes.count.load(Ordering::SeqCst) != count {
                passes.sleeps.store(false, Ordering::SeqCst);
            }
            if passes.sleeps.load(Ordering::SeqCst) {
                drop(passes);
                std::thread::park();
                continue;
            }
        }
        std::thread::park_timeout(LOOK);
    }
}

/// Only threads that are not a process's first: those are waited for by the process's parent.
fn take_note_of_ended(root: i32) {
    for pid in processes_below(root) {
        for tid in threads(pid).into_iter().filter(|tid| *tid != pid) {
            sys::forget_ended(tid);
        }
    }
}
