//! Checkpoints: places in the calls of a thread that can be waited for.

use crate::columns::Columns;
use crate::progress::Progress;
use crate::slot::Slot;
use crate::strategy::Strategy;
use std::sync::Arc;

/// A place in the calls of one thread to one environment. It is processed when *every* call that the thread
/// made before it is, wherever these calls are: in the buffer that it fills, in a queue, or half processed
/// by somebody.
///
/// Waiting does not starve where all CPUs are busy (the paper's known weakness, section 4.3): whoever waits
/// helps, and takes buffers out of the queue until there is nothing left to do but to wait for those that
/// others have begun.
#[derive(Clone)]
pub struct Checkpoint {
    /// The number of the buffer that has the last call before it.
    place: u64,
    progress: Arc<Progress>,
    drain: Arc<dyn Drain>,
}

/// Asks for checkpoints in the calls of a thread, which any other may do.
#[derive(Clone)]
pub struct Watch(Arc<dyn Drain>);

impl Watch {
    pub(crate) fn of<C: Columns>(slot: &Arc<Slot<C>>) -> Watch {
        let drain: Arc<Slot<C>> = Arc::clone(slot);
        Watch(drain)
    }

    /// A checkpoint behind the calls that the thread made so far: at least behind all that it made before anything of it
    /// that the caller saw. `None`: somebody has its buffer in hand at this moment. Does not wait.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        Arc::clone(&self.0).checkpoint_if_free()
    }

    /// Processes, on the calling thread, what is in the thread's buffer, unless somebody has it in hand. A body must not
    /// call this.
    pub fn process(&self) {
        Arc::clone(&self.0).drain_if_free();
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// What a waiter does for the calls that are not yet submitted, and for those that wait in a queue.
trait Drain: Send + Sync {
    fn drain(self: Arc<Self>);
    fn strategy(&self) -> Arc<dyn Strategy>;
    /// See [`Watch::process`].
    fn drain_if_free(self: Arc<Self>);
    /// See [`Watch::checkpoint`].
    fn checkpoint_if_free(self: Arc<Self>) -> Option<Checkpoint>;
}

impl<C: Columns> Drain for Slot<C> {
    fn drain(self: Arc<Self>) {
        Slot::drain(&self);
    }

    fn strategy(&self) -> Arc<dyn Strategy> {
        self.core.strategy()
    }

    fn drain_if_free(self: Arc<Self>) {
        Slot::drain_if_free(&self);
    }

    fn checkpoint_if_free(self: Arc<Self>) -> Option<Checkpoint> {
        Some(Checkpoint {
            place: self.place_if_free()?,
            progress: Arc::clone(&self.progress),
            drain: self,
        })
    }
}

impl Checkpoint {
    pub(crate) fn behind<C: Columns>(slot: &Arc<Slot<C>>) -> Checkpoint {
        let drain: Arc<Slot<C>> = Arc::clone(slot);
        Checkpoint {
            place: slot.place(),
            progress: Arc::clone(&slot.progress),
            drain,
        }
    }

    /// Whether all calls before it are processed. Does not wait.
    pub fn is_processed(&self) -> bool {
        self.progress.is_past(self.place)
    }

    /// Waits until all calls before it are processed, and helps. Any thread may wait.
    pub fn wait(&self) {
        if self.is_processed() {
            return;
        }
        Arc::clone(&self.drain).drain();
        while !self.is_processed() {
            if !self.drain.strategy().help() {
                // What is left was begun by others: buffers only come into a queue from their producer, and
                // those before the checkpoint are submitted.
                self.progress.wait(self.place);
            }
        }
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint")
            .field("place", &self.place)
            .field("is_processed", &self.is_processed())
            .finish()
    }
}
