//! Where a thread records its accesses.

use crate::lives;
use crate::process::Process;
use corewise_analyses::inside::Quiet;
use corewise_analyses::race::{
    Access, Accesses as _, AccessesBuffer, Counter, Present, Run, Search,
};
use corewise_defer::Producer;
use std::sync::Arc;

/// Where accesses are recorded.
pub(crate) enum Front {
    /// In a buffer.
    Deferred(Producer<AccessesBuffer>),
    /// They are compared at once.
    Sequential(&'static Search<'static>),
    /// Nowhere.
    Nothing,
}

/// Records the accesses of one thread.
pub(crate) struct Recorder {
    front: Front,
    process: &'static Process,
    thread: u16,
    /// The thread's first segment.
    first: u32,
    /// The segment that the thread is in.
    segment: u32,
    /// The segment before which everything is known to be in buffers.
    known: u32,
    /// Where others see which segment the thread is in.
    present: Option<Arc<Present>>,
    /// Accesses recorded and not yet counted.
    recorded: u64,
    /// What [`lives::begun`] said last.
    lives: u32,
}

impl Recorder {
    pub(crate) fn new(
        front: Front,
        process: &'static Process,
        thread: u16,
        segment: u32,
    ) -> Recorder {
        let settled = process.search.settled();
        let present = match &front {
            Front::Deferred(producer) => Some(settled.begin(thread, segment, producer.watch())),
            Front::Sequential(_) | Front::Nothing => None,
        };
        Recorder {
            front,
            present,
            process,
            thread,
            first: segment,
            segment,
            known: segment,
            recorded: 0,
            lives: lives::begun(),
        }
    }

    /// Records accesses, which this thread made in its present segment.
    pub(crate) fn record(&mut self, run: Run) {
        let access = Access {
            thread: self.thread,
            segment: self.segment,
            ..run.access
        };
        let (place, segment, site, extent) = access.packed(run.granules);
        self.recorded += u64::from(run.granules);
        match &self.front {
            Front::Deferred(producer) if producer.is_nearly_full() => {
                self.record_last(place, segment, site, extent);
            }
            Front::Deferred(producer) => producer.access(place, segment, site, extent),
            Front::Sequential(search) => search.access(place, segment, site, extent),
            Front::Nothing => {}
        }
    }

    /// Records what fills the buffer, which is given away.
    #[cold]
    #[inline(never)]
    fn record_last(&mut self, place: u64, segment: u32, site: u32, extent: u32) {
        let Front::Deferred(producer) = &self.front else {
            return;
        };
        let _quiet = Quiet::now();
        self.process.at_exchange(self.recorded);
        self.recorded = 0;
        after_others(producer, &mut self.lives);
        for late in self.process.search.settled().at_exchange() {
            late.process();
        }
        producer.access(place, segment, site, extent);
        self.tell(segment);
    }

    /// The segment that the thread is in.
    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }

    /// Gives what is recorded away.
    pub(crate) fn hand_over(&mut self) {
        let recorded = std::mem::take(&mut self.recorded);
        self.process.search.words.add(Counter::Recorded, recorded);
        if let Front::Deferred(producer) = &self.front
            && recorded > 0
        {
            let _quiet = Quiet::now();
            after_others(producer, &mut self.lives);
            producer.process_current();
        }
        self.tell(self.segment);
    }

    /// The thread, which has given all away, ends: its last segment does, too.
    pub(crate) fn end(&mut self) {
        self.tell(self.segment.saturating_add(1));
        self.present = None;
        self.process.search.settled().end(self.thread, self.first);
    }

    /// Says from where in its buffers on what the thread accesses is of this segment, or later ones.
    fn tell(&mut self, segment: u32) {
        if segment == self.known {
            return;
        }
        self.known = segment;
        let settled = self.process.search.settled();
        match &self.front {
            Front::Deferred(producer) => {
                let _quiet = Quiet::now();
                settled.recorded(self.thread, self.first, segment, producer.checkpoint());
            }
            Front::Sequential(_) => settled.compared(self.thread, segment),
            Front::Nothing => {}
        }
    }

    /// The thread is in another segment; what it accessed in those before was recorded.
    pub(crate) fn begin_segment(&mut self, segment: u32) {
        self.segment = segment;
        if let Some(present) = &self.present {
            present.set(segment);
        }
        // What is compared at once is known at once; buffers tell when they are exchanged.
        if let Front::Sequential(_) = self.front {
            self.tell(segment);
        }
    }

    /// Takes what the thread had out of its parent's hands, in a forked child: its buffer is the parent's.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.front, Front::Nothing));
    }
}

/// A buffer is about to be given away. Where memory began another life since the one before was, what others
/// accessed is compared first: of a life before the last, nothing is kept that it could be compared with.
fn after_others(producer: &Producer<AccessesBuffer>, known: &mut u32) {
    let begun = lives::begun();
    if std::mem::replace(known, begun) != begun {
        producer.process_idle();
    }
}
