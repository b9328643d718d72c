//! Up to where the accesses of each thread were compared, whichever buffers were processed first.
//!
//! FastTrack (Flanagan and Freund, PLDI 2009, section 3) forgets an access when a later one comes, since it sees
//! them in order. Here an access A can be forgotten when B of the same thread comes later and races with as much, and
//! all that comes before B is compared already. For what is still to come and races with A races with B: were it
//! ordered before B, it would have been compared; were it ordered after B, it would be after A. The same holds where B
//! is another thread's and comes after A, if its own thread is compared up to its segment: something of that thread
//! could come before B, and not after A.
//!
//! Of a thread that is late, and may still come before B, it is as good if all of it that is to come is after A: its clock
//! knew of A when it began what was not compared yet. An access that everybody knows of is forgotten so, as soon as
//! another one comes to the same bytes.
//!
//! What comes before B is of segments that B's clock has. So it is enough to know up to which segment each thread is
//! compared: threads say now and then where in their buffers their present segment begins ([`Settled::recorded`]).

use super::clock::THREADS;
use corewise_defer::Checkpoint;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What each thread said, by its number. Whoever has no memory for it, as the command after the process died, knows
/// of nothing that was compared.
#[derive(Debug, Default)]
pub struct Settled(Mutex<Vec<Own>>);

/// What one thread said.
#[derive(Debug, Default)]
struct Own {
    /// All segments before this one were compared.
    compared: u32,
    /// Segments, and what has to be processed before all those before them are. Never more than a few.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    segment: u32,
    /// Tells those apart that use the thread's number one after the other.
    first: u32,
    behind: Checkpoint,
}

impl Own {
    fn look(&mut self) -> u32 {
        while let Some(oldest) = self.waiting.front()
            && oldest.behind.is_processed()
        {
            self.compared = self.compared.max(oldest.segment);
            self.waiting.pop_front();
        }
        self.compared
    }
}

impl Settled {
    fn lock(&self) -> MutexGuard<'_, Vec<Own>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread whose first segment was `first` accessed in segments before `segment` is in its buffers before
    /// this place.
    pub fn recorded(&self, thread: u16, first: u32, segment: u32, behind: Checkpoint) {
        self.with(thread, |own| {
            own.look();
            // The oldest will be processed, and the newest says the most.
            if own.waiting.len() > 1 && own.waiting.back().is_some_and(|w| w.first == first) {
                own.waiting.pop_back();
            }
            own.waiting.push_back(Waiting {
                segment,
                first,
                behind,
            });
        });
    }

    /// What a thread accessed in segments before this one was compared.
    pub fn compared(&self, thread: u16, segment: u32) {
        self.with(thread, |own| own.compared = own.compared.max(segment));
    }

    fn with(&self, thread: u16, say: impl FnOnce(&mut Own)) {
        let index = usize::from(thread);
        let mut threads = self.lock();
        if threads.len() <= index && index < THREADS {
            threads.resize_with(index + 1, Own::default);
        }
        if let Some(own) = threads.get_mut(index) {
            say(own);
        }
    }

    /// Writes for each thread its last segment that was compared with all before it; 0: none.
    pub fn bounds(&self, bounds: &mut Vec<u32>) {
        let mut threads = self.lock();
        bounds.clear();
        bounds.extend(threads.iter_mut().map(|own| own.look().saturating_sub(1)));
    }
}
