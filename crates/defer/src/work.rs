//! A full buffer on its way to whoever processes it.

use crate::block::Block;
use crate::columns::{Columns, Execute};
use crate::environment::Core;
use crate::progress::Progress;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Who processes a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The thread that filled it.
    Producer,
    /// A thread that is there for nothing else.
    Consumer,
    /// A thread that waits for a checkpoint, a future, a semaphore or the program's end.
    Waiter,
}

/// A full buffer. Whoever [runs](Work::run) it executes its calls; dropping it throws the calls away, with
/// their arguments, and counts them as lost.
pub struct Work(Box<dyn Runs>);

impl Work {
    /// Executes the calls of the buffer, in order. Panics of their bodies are caught and counted.
    pub fn run(mut self, by: By) {
        self.0.run(by);
    }

    pub(crate) fn new<C: Columns>(
        block: Block<C>,
        number: u64,
        progress: Arc<Progress>,
        core: Arc<Core<C>>,
    ) -> Work {
        Work(Box::new(Submitted {
            block: Some(block),
            number,
            progress,
            core,
        }))
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

trait Runs: Send {
    fn run(&mut self, by: By);
}

struct Submitted<C: Columns> {
    block: Option<Block<C>>,
    number: u64,
    progress: Arc<Progress>,
    core: Arc<Core<C>>,
}

impl<C: Columns> Runs for Submitted<C> {
    fn run(&mut self, by: By) {
        if let Some(mut block) = self.block.take() {
            self.core.process(&mut block, by);
            self.ended(block);
        }
    }
}

impl<C: Columns> Submitted<C> {
    fn ended(&mut self, block: Block<C>) {
        self.core.ended(block);
        self.progress.finished(self.number);
    }
}

impl<C: Columns> Drop for Submitted<C> {
    fn drop(&mut self) {
        if let Some(mut block) = self.block.take() {
            self.core.throw_away(&mut block);
            self.ended(block);
        }
    }
}

/// How a buffer's calls are executed: on one target throughout, or with something done before and after
/// each buffer.
///
/// The latter is for *coalescing*: an implementation makes something of its own for the buffer, executes the
/// calls on that, and merges the result once, instead of going to what all threads share in each call.
///
/// ```
/// # use corewise_defer::{deferred, Environment, Pending, Process};
/// # use std::cell::Cell;
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// #[deferred]
/// trait Counts {
///     fn add(&self, number: u64);
/// }
///
/// /// The sum of one buffer.
/// struct Local(Cell<u64>);
/// impl Counts for Local {
///     fn add(&self, number: u64) {
///         self.0.set(self.0.get() + number);
///     }
/// }
///
/// static SUM: AtomicU64 = AtomicU64::new(0);
/// struct Coalesced;
/// impl Process<CountsBuffer> for Coalesced {
///     fn process(&self, calls: &mut Pending<'_, CountsBuffer>) {
///         let local = Local(Cell::new(0));
///         calls.execute(&local);
///         SUM.fetch_add(local.0.get(), Ordering::Relaxed);
///     }
/// }
///
/// let counts = Environment::<CountsBuffer>::around(Coalesced);
/// for number in 1..=100 {
///     counts.add(number);
/// }
/// counts.finish();
/// assert_eq!(SUM.load(Ordering::Relaxed), 5050);
/// ```
pub trait Process<C: Columns>: Send + Sync + 'static {
    /// Executes the calls of one buffer. Calls that it leaves are thrown away, and counted as lost.
    fn process(&self, calls: &mut Pending<'_, C>);
}

/// The calls of a buffer that is being processed.
pub struct Pending<'a, C: Columns> {
    block: &'a mut Block<C>,
    panics: u64,
}

impl<'a, C: Columns> Pending<'a, C> {
    pub(crate) fn new(block: &'a mut Block<C>) -> Self {
        Pending { block, panics: 0 }
    }

    /// How many calls there are to execute.
    pub fn len(&self) -> u32 {
        self.block.left()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Executes them in order. A body that panics is counted, and the next call goes on.
    pub fn execute<T: ?Sized>(&mut self, target: &T)
    where
        C: Execute<T>,
    {
        // The target may be left half changed by a panic; that is its bodies' affair, as it is with a
        // thread that panics.
        while let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.block.execute(target))) {
            self.panics += 1;
            discard_payload(payload);
        }
    }

    /// Says that what the executed calls came to is now merged into what outlives the process. Buffers that
    /// outlive it ([`Memory`](crate::Memory)) are not executed again after this: if the process dies before
    /// the merge has ended, [`execute_left`](crate::execute_left) counts their calls as in doubt. Until it is
    /// called, nothing that lasts may be changed.
    pub fn merging(&self) {
        self.block.mark_merging();
    }

    pub(crate) fn panics(&self) -> u64 {
        self.panics
    }
}

impl<C: Columns> std::fmt::Debug for Pending<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("len", &self.len()).finish()
    }
}

/// What was thrown may itself panic when it is dropped.
pub(crate) fn discard_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// All calls on one target.
pub(crate) struct Direct<T>(pub(crate) T);

impl<C: Execute<T>, T: Send + Sync + 'static> Process<C> for Direct<T> {
    fn process(&self, calls: &mut Pending<'_, C>) {
        calls.execute(&self.0);
    }
}
