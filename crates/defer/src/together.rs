//! What waits in the buffers of several threads, moved into one buffer and processed as one.
//!
//! Whoever does that for others holds no lock while bodies run, and waits for what others do so at the same time: when
//! it goes on, all that waited there before is processed, whoever had it in hand.

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
    /// Takes what waits in a slot. The number of what others took there before; 0: nothing.
    fn take(&mut self, slot: &Slot<C>) -> u64 {
        let (core, block) = (self.core, &mut self.block);
        let moved = slot.move_to(|| block.get_or_insert_with(|| core.begin()));
        let number = moved
            .number
            .map(|number| (Arc::clone(&slot.progress), number));
        self.from.extend(number);
        if !moved.is_all {
            self.process();
            // What others took meanwhile came after what is ours now.
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
            slot.progress.wait_for(begun);
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
