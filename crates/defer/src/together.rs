//! What waits in the buffers of several threads, moved into one buffer and processed as one.
//!
//! A thread's buffer is moved under its slot's lock, and no other lock of a slot is held then; none is while bodies
//! run. Whoever moved something processes it before it waits for anything. So waiting for what others took ends,
//! unless one of them was killed in the middle: therefore there is an end to it.

use crate::block::Block;
use crate::columns::Columns;
use crate::environment::Core;
use crate::progress::Progress;
use crate::slot::{Moved, Slot};
use crate::work::By;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long whoever processes what idle threads called waits for what others do of that. Mostly that is over in a
/// thousandth of this.
const PATIENCE: Duration = Duration::from_millis(100);

/// One buffer for the calls of several threads.
struct Together<'c, C: Columns> {
    core: &'c Core<C>,
    block: Option<Block<C>>,
    /// Whose calls are in it, and what number theirs have.
    from: Vec<(Arc<Progress>, u64)>,
}

impl<C: Columns> Together<'_, C> {
    /// Takes what waits in a slot. The number of the last buffer that its owner gave away, or that somebody took.
    fn take(&mut self, slot: &Slot<C>) -> u64 {
        loop {
            if let Some(Moved { last, is_now }) = slot.move_to(&mut self.block) {
                if is_now {
                    self.from.push((Arc::clone(&slot.progress), last));
                }
                return last;
            }
            // The next one is made for it, and has room.
            self.process();
        }
    }

    fn process(&mut self) {
        let Some(mut block) = self.block.take() else {
            return;
        };
        self.core.process(&mut block, By::Waiter);
        self.core.ended(block);
        for (progress, number) in self.from.drain(..) {
            progress.finished(number);
        }
    }
}

impl<C: Columns> Core<C> {
    /// Processes what waits in these slots. For each, the number of the last buffer that its owner gave away before, or
    /// that somebody took: those before it may still be in a queue, or processed by others.
    pub(crate) fn process_together(&self, slots: &[Arc<Slot<C>>]) -> Vec<u64> {
        let mut together = Together {
            core: self,
            block: None,
            from: Vec::new(),
        };
        let last = slots.iter().map(|slot| together.take(slot)).collect();
        together.process();
        last
    }
}

impl<C: Columns> Slot<C> {
    /// See [`Environment::process_idle`](crate::Environment::process_idle). Only the owner calls this.
    #[cold]
    pub(crate) fn process_idle(&self) {
        let since = self.since();
        let mut idle = self.core.slots();
        idle.retain(|slot| slot.is_idle_since(since) && !std::ptr::eq(&raw const **slot, self));
        for slot in &idle {
            slot.help(slot.last());
        }
        let last = self.core.process_together(&idle);
        let began = Instant::now();
        for (slot, last) in idle.iter().zip(last) {
            slot.help(last);
            if !slot.progress.is_past(last) {
                let left = PATIENCE.saturating_sub(began.elapsed());
                slot.progress.wait_at_most(last, left);
            }
        }
    }

    /// Processes what waits in a queue, until this buffer and those before it are processed, or nothing waits there.
    fn help(&self, last: u64) {
        while !self.progress.is_past(last) && self.core.strategy().help() {}
    }
}
