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
//! Those that do little, or nothing any more, say that seldom. So others may look which segment a thread is in
//! ([`Settled::begin`]).

use super::clock::THREADS;
use corewise_defer::{Checkpoint, Watch};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often buffers are given away before it is looked again whose accesses wait for longer.
const OFTEN: u32 = 64;

/// What each thread said, by its number. Whoever has no memory for it, as the command after the process died, knows
/// of nothing that was compared.
#[derive(Debug, Default)]
pub struct Settled {
    threads: Mutex<Vec<Own>>,
    given_away: AtomicU32,
}

/// The segment that a thread is in. Its own line in the cache, since each of its segments writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Present(AtomicU32);

impl Present {
    /// The thread is in this segment. What it accessed in those before is in its buffers.
    #[inline]
    pub fn set(&self, segment: u32) {
        self.0.store(segment, Ordering::Release);
    }
}

/// What one thread said.
#[derive(Debug, Default)]
struct Own {
    /// All segments before this one were compared.
    compared: u32,
    /// Segments, and what has to be processed before all those before them are. Never more than a few.
    waiting: VecDeque<Waiting>,
    /// While it lives: its first segment, the present one, and where what it accessed before that is.
    living: Option<(u32, Arc<Present>, Watch)>,
    /// The segment that was waited for when it was looked who is late.
    late: u32,
}

#[derive(Debug)]
struct Waiting {
    segment: u32,
    /// Tells those apart that use the thread's number one after the other.
    first: u32,
    behind: Checkpoint,
}

impl Own {
    /// Adds where its present segment begins, if that says more than what is waited for.
    fn look_where_it_is(&mut self) {
        if let Some((first, present, watch)) = &self.living
            && self.waiting.len() < 2
        {
            let segment = present.0.load(Ordering::Acquire);
            let known = self.waiting.back().map_or(self.compared, |w| w.segment);
            if segment > known
                && let Some(behind) = watch.checkpoint()
            {
                let first = *first;
                self.waiting.push_back(Waiting {
                    segment,
                    first,
                    behind,
                });
            }
        }
    }

    /// If something waits that waited the last time, too.
    fn late(&mut self) -> Option<Watch> {
        self.look();
        let waited_for = self.waiting.front().map_or(0, |oldest| oldest.segment);
        let is_late = std::mem::replace(&mut self.late, waited_for) == waited_for;
        let (.., watch) = self.living.as_ref()?;
        (is_late && waited_for != 0).then(|| watch.clone())
    }

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
        let threads = self.threads.lock();
        threads.unwrap_or_else(PoisonError::into_inner)
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

    /// A thread begins, with this segment: says where it says which segment it is in.
    pub fn begin(&self, thread: u16, first: u32, watch: Watch) -> Arc<Present> {
        let present = Arc::new(Present::default());
        let living = (first, Arc::clone(&present), watch);
        self.with(thread, |own| own.living = Some(living));
        present
    }

    /// The thread whose first segment was `first` says nothing more.
    pub fn end(&self, thread: u16, first: u32) {
        self.with(thread, |own| {
            own.living.take_if(|(living, ..)| *living == first);
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

    /// Somebody gives a buffer away: now and then the threads whose accesses wait for longer than others need to give away
    /// theirs. What these have should be processed, so that others know what they know.
    pub fn at_exchange(&self) -> Vec<Watch> {
        let count = self.given_away.fetch_add(1, Ordering::Relaxed);
        if count % OFTEN != OFTEN - 1 {
            return Vec::new();
        }
        let mut threads = self.lock();
        threads.iter_mut().filter_map(Own::late).collect()
    }

    /// Writes for each thread its last segment that was compared with all before it; 0: none.
    pub fn bounds(&self, bounds: &mut Vec<u32>) {
        let mut threads = self.lock();
        bounds.clear();
        bounds.extend(threads.iter_mut().map(|own| {
            own.look();
            own.look_where_it_is();
            own.look().saturating_sub(1)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::{Accesses as _, AccessesBuffer};
    use super::*;
    use corewise_defer::{Pending, Process, Settings, Synchronous};

    struct Nothing;

    impl Process<AccessesBuffer> for Nothing {
        fn process(&self, _: &mut Pending<'_, AccessesBuffer>) {}
    }

    #[test]
    fn a_thread_that_does_nothing_more_is_late_and_compared_when_what_it_has_is_processed() {
        let environment = Settings::new(Synchronous).environment_around(Nothing);
        let producer = environment.producer();
        let settled = Settled::default();
        let bound = |thread: usize| {
            let mut bounds = Vec::new();
            settled.bounds(&mut bounds);
            bounds.get(thread).copied().unwrap_or(0)
        };
        let late = || {
            (0..OFTEN)
                .flat_map(|_| settled.at_exchange())
                .collect::<Vec<_>>()
        };
        let present = settled.begin(3, 5, producer.watch());
        assert!(bound(3) == 0 && late().is_empty());
        producer.access(8, 5, 1, 1);
        present.set(9);
        assert_eq!(bound(3), 0, "what it has is not processed");
        // What waits for the first time may be given away soon.
        assert!(late().is_empty());
        for watch in late() {
            watch.process();
        }
        assert_eq!(bound(3), 8);
        assert!(late().is_empty());
        // It goes on, and nothing waits.
        present.set(11);
        assert_eq!(bound(3), 10);
        settled.end(3, 4);
        present.set(12);
        assert_eq!(bound(3), 11, "another one has ended");
        settled.end(3, 5);
        present.set(13);
        assert_eq!(bound(3), 11);
    }
}
