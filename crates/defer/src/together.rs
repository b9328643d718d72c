//! What waits in the buffers of several threads, moved into one buffer and processed as one.
//!
//! Whoever does that holds no lock while bodies run. Then it waits for buffers that those threads gave away before, or
//! that others took from them: when it goes on, all that they had called is processed, whoever had it in hand. That
//! ends, since those who process something wait for nothing. Only of a thread that has a buffer in hand itself, to give
//! it away or to process it, that buffer is not waited for: it may come into a queue from which nobody takes it.

use crate::block::Block;
use crate::columns::Columns;
use crate::environment::Core;
use crate::progress::Progress;
use crate::slot::Slot;
use crate::work::By;
use std::sync::Arc;

/// One buffer for the calls of several threads.
struct Together<'c, C: Columns> {
    core: &'c Core<C>,
    block: Option<Block<C>>,
    /// Whose calls are in it, and what number theirs have.
    from: Vec<(Arc<Progress>, u64)>,
}

impl<C: Columns> Together<'_, C> {
    /// Takes what waits in a slot. The number of the last buffer of that thread that is in a queue, or that somebody
    /// else processes; 0: that is not known.
    fn take(&mut self, slot: &Slot<C>) -> u64 {
        let (core, block) = (self.core, &mut self.block);
        let moved = slot.move_to(|| block.get_or_insert_with(|| core.begin()));
        let number = moved
            .number
            .map(|number| (Arc::clone(&slot.progress), number));
        self.from.extend(number);
        if !moved.is_all {
            self.process();
            // What others take meanwhile comes after what was ours.
            self.take(slot);
        }
        moved.begun
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
    /// Processes what waits in these slots.
    pub(crate) fn process_together(&self, slots: &[Arc<Slot<C>>]) {
        let mut together = Together {
            core: self,
            block: None,
            from: Vec::new(),
        };
        let begun: Vec<u64> = slots.iter().map(|slot| together.take(slot)).collect();
        together.process();
        for (slot, begun) in slots.iter().zip(begun) {
            while !slot.progress.is_past(begun) {
                if !self.strategy().help() {
                    slot.progress.wait(begun);
                }
            }
        }
    }
}

impl<C: Columns> Slot<C> {
    /// See [`Environment::process_idle`](crate::Environment::process_idle). Only the owner calls this.
    #[cold]
    pub(crate) fn process_idle(&self) {
        while self.core.strategy().help() {}
        let since = self.since();
        let mut idle = self.core.slots();
        idle.retain(|slot| slot.is_idle_since(since) && !std::ptr::eq(&raw const **slot, self));
        self.core.process_together(&idle);
    }
}
