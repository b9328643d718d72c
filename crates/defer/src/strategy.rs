//! Who processes full buffers.

use crate::work::{By, Work};
use std::time::{Duration, Instant};

/// What a strategy did with a producer's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time in which it processed buffers.
    pub helping: Duration,
    /// Time in which it waited for room.
    pub waiting: Duration,
}

/// Decides who processes full buffers, and when. Users' own strategies stand on this trait as ours do.
///
/// A strategy may keep buffers; it must run each at some time, or [`help`](Strategy::help) must give it to
/// those who wait. One that drops a buffer throws its calls away.
///
/// ```
/// use corewise_defer::{By, Spent, Strategy, Work};
/// use std::sync::Mutex;
///
/// /// Keeps everything until somebody waits for it.
/// #[derive(Default)]
/// struct Lazy(Mutex<Vec<Work>>);
///
/// impl Strategy for Lazy {
///     fn submit(&self, work: Work) -> Spent {
///         self.0.lock().unwrap().push(work);
///         Spent::default()
///     }
///
///     fn help(&self) -> bool {
///         let work = self.0.lock().unwrap().pop();
///         let found = work.is_some();
///         work.into_iter().for_each(|work| work.run(By::Waiter));
///         found
///     }
/// }
/// ```
pub trait Strategy: Send + Sync + 'static {
    /// Takes a full buffer. The thread that filled it calls this.
    fn submit(&self, work: Work) -> Spent;

    /// Processes one buffer that nobody has begun, on the calling thread, which waits for something. False:
    /// there is none.
    fn help(&self) -> bool {
        false
    }

    /// How many buffers wait now.
    fn queued(&self) -> usize {
        0
    }
}

/// Each buffer is processed by the thread that filled it, at once (section 4.1).
///
/// There is no thread but the program's, and a thread's calls are executed in order. Choose it where the
/// program keeps every CPU busy, where order matters, or in tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synchronous;

impl Strategy for Synchronous {
    fn submit(&self, work: Work) -> Spent {
        run_here(work)
    }
}

/// Processes a buffer on the thread that filled it.
pub(crate) fn run_here(work: Work) -> Spent {
    let began = Instant::now();
    work.run(By::Producer);
    Spent {
        helping: began.elapsed(),
        waiting: Duration::ZERO,
    }
}
