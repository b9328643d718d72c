//! What waits in the buffers of several threads, moved into one buffer and processed as one.
//!
//! A thread's buffer is moved under its slot's lock, and no other lock of a slot is held then; none is while bodies
//! run. Whoever moved something processes it before it waits for anything. So waiting for what others took ends, unless
//! one of them was killed in the middle, or only the parent of a forked process has it. Therefore nobody waits long, and
//! what a thread called is not waited for again where that was in vain.

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
const PATIENCE: Duration = Duration::from_secs(1);

/// How often slots are looked at, at most, before what was found there is processed. Where their owners are idle, the
/// second time nothing is new.
const PASSES: usize = 4;

/// One buffer for the calls of several threads.
struct Together<'c, C: Columns> {
    core: &'c Core<C>,
    block: Option<Block<C>>,
    /// Whose calls are in it, and what number theirs have.
    from: Vec<(Arc<Progress>, u64)>,
}

impl<C: Columns> Together<'_, C> {
    fn new(core: &Core<C>) -> Together<'_, C> {
        Together {
            core,
            block: None,
            from: Vec::new(),
        }
    }

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

    /// Takes what waits in slots: the same of each. Of two calls, one may have been made after the other was by another
    /// thread, whose slot was looked at before. So they are looked at again until there is nothing new.
    fn take_all(&mut self, slots: &[Arc<Slot<C>>]) -> Vec<u64> {
        let mut last = Vec::new();
        for _ in 0..PASSES {
            let before = last;
            last = slots.iter().map(|slot| self.take(slot)).collect();
            if self.from.is_empty() || last == before {
                break;
            }
        }
        last
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
        let mut together = Together::new(self);
        together.take_all(slots);
        together.process();
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
        let mut together = Together::new(&self.core);
        let last = together.take_all(&idle);
        if together.block.is_some() {
            // What others called may be newer than what is here.
            together.take(self);
        }
        together.process();
        let began = Instant::now();
        for (slot, last) in idle.iter().zip(last) {
            slot.help(last);
            if slot.is_waited_for() && !slot.progress.is_past(last) {
                let left = PATIENCE.saturating_sub(began.elapsed());
                if !slot.progress.wait_at_most(last, left) {
                    slot.give_up();
                }
            }
        }
    }

    /// Processes what waits in a queue, until this buffer and those before it are processed, or nothing waits there.
    fn help(&self, last: u64) {
        while !self.progress.is_past(last) && self.core.strategy().help() {}
    }
}
