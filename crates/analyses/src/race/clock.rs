//! What happens before what: vector clocks (Fidge; Mattern), with the threads' segments as their epochs, as
//! in Flanagan and Freund, *FastTrack: Efficient and Precise Dynamic Race Detection* (PLDI 2009), section 2.
//!
//! A thread's clock says of each thread up to which segment its work is ordered before. FastTrack compares
//! an access with the clock of the thread at that moment; here accesses are compared later, and in any
//! order. So an access says its segment, and the [`Timelines`] remember which clock a thread had in which
//! segment.

use super::words::Words;
use std::sync::atomic::{Ordering, fence};

/// For each thread the last of its segments that comes before; 0: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<u32>);

impl Clock {
    /// What it says of a thread.
    #[inline]
    pub fn of(&self, thread: u16) -> u32 {
        self.0.get(usize::from(thread)).copied().unwrap_or(0)
    }

    /// Says it of a thread.
    pub fn set(&mut self, thread: u16, segment: u32) {
        let index = usize::from(thread);
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = segment;
    }

    /// Comes after both from now on. Whether anything was new.
    pub fn join(&mut self, other: &Clock) -> bool {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut learned = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            learned |= *theirs > *mine;
            *mine = (*mine).max(*theirs);
        }
        learned
    }

    /// Becomes the same as another, without new memory where it has enough.
    pub fn copy_from(&mut self, other: &Clock) {
        self.0.clone_from(&other.0);
    }

    /// Says nothing any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn components(&self) -> &[u32] {
        &self.0
    }
}

/// What a thread knows of the order of things. Its own segment is the component of its clock for itself.
#[derive(Debug)]
pub struct ThreadClock {
    thread: u16,
    clock: Clock,
}

impl ThreadClock {
    /// A thread that begins after what `before` says, with this segment.
    pub fn begin(thread: u16, segment: u32, before: &Clock) -> ThreadClock {
        let mut clock = before.clone();
        clock.set(thread, segment);
        ThreadClock { thread, clock }
    }

    /// Which thread.
    pub fn thread(&self) -> u16 {
        self.thread
    }

    /// Its segment now.
    #[inline]
    pub fn segment(&self) -> u32 {
        self.clock.of(self.thread)
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What it did so far comes before whatever acquires `from` later. Afterwards it is in another segment.
    pub fn release(&mut self, from: &mut Clock) {
        from.join(&self.clock);
        self.step();
    }

    /// The same, and what `from` said before is forgotten: what a store does.
    pub fn release_alone(&mut self, from: &mut Clock) {
        from.copy_from(&self.clock);
        self.step();
    }

    /// Comes after what was released there. Where that was new, the thread is in another segment, which has
    /// to be [noted](Timelines::note).
    pub fn acquire(&mut self, from: &Clock) -> bool {
        let own = self.segment();
        let learned = self.clock.join(from);
        // Nobody knows more of a thread than itself; what says so is of one that used the number before.
        self.clock.set(self.thread, own.max(self.segment()));
        if learned {
            self.step();
        }
        learned
    }

    /// Ends its segment.
    pub fn step(&mut self) {
        let segment = self.segment().saturating_add(1);
        self.clock.set(self.thread, segment);
    }
}

/// Threads that are told apart.
pub const THREADS: usize = 1024;
/// Clocks of a thread that are remembered. A power of two.
const KEPT: u64 = 1 << 13;
/// Words for them. A power of two.
const WORDS: u64 = 1 << 15;
/// Words of a thread's place in the directory.
const ENTRY: usize = 2;
/// Before a thread's ring: clocks noted, words written, words claimed, and its first clock's place.
const RING_HEAD: usize = 4;

/// Which clock each thread had in which segment. A thread writes its own; anyone may ask at the same time.
///
/// Only the last few thousand changes of a thread's clock are remembered, and the first.
#[derive(Clone, Copy, Debug)]
pub struct Timelines {
    at: usize,
}

/// What is known of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The thread had this in its clock.
    Exactly(u32),
    /// It is forgotten; the thread had this or more.
    AtLeast(u32),
}

impl Timelines {
    /// Words of the directory.
    pub const TABLE: usize = THREADS * ENTRY;

    /// The directory from this word on.
    pub const fn new(at: usize) -> Timelines {
        Timelines { at }
    }

    fn ring(&self, words: &Words<'_>, thread: u16) -> Option<usize> {
        let index = usize::from(thread);
        let at = (index < THREADS).then(|| words.get(self.at + index * ENTRY))?;
        (at != 0).then_some(at as usize)
    }

    /// Notes the clock that a thread has from its present segment on. False: there is no room, and the
    /// thread's order is unknown. Only the thread itself may note.
    pub fn note(&self, words: &Words<'_>, clock: &ThreadClock) -> bool {
        let components = clock.clock().components();
        let need = 1 + components.len().div_ceil(2) as u64;
        if need > WORDS / 4 || usize::from(clock.thread) >= THREADS {
            return false;
        }
        let Some(ring) = self.ring(words, clock.thread).or_else(|| {
            let ring = words.take(RING_HEAD + (KEPT + WORDS) as usize)?;
            words.set(self.at + usize::from(clock.thread) * ENTRY, ring as u64);
            Some(ring)
        }) else {
            return false;
        };
        let (noted, written) = (words.get(ring), words.get(ring + 1));
        if noted == 0
            && let Some(first) = words.take(need as usize)
        {
            store(words, clock.segment(), components, |offset| first + offset);
            words.set(ring + 3, first as u64);
        }
        words.set(ring + 2, written + need);
        fence(Ordering::SeqCst);
        let data = ring + RING_HEAD + KEPT as usize;
        store(words, clock.segment(), components, |offset| {
            data + ((written + offset as u64) & (WORDS - 1)) as usize
        });
        let entry = u64::from(clock.segment()) << 32 | (written & 0xffff_ffff);
        words.set(ring + RING_HEAD + (noted & (KEPT - 1)) as usize, entry);
        words.set(ring + 1, written + need);
        words.set(ring, noted + 1);
        true
    }

    /// What a thread's clock said of another, in a segment of it.
    pub fn said(&self, words: &Words<'_>, thread: u16, segment: u32, of: u16) -> Known {
        let Some(ring) = self.ring(words, thread) else {
            return Known::AtLeast(0);
        };
        let said = look_up(words, ring, segment, |at| component(words, of, at));
        let first = words.get(ring + 3) as usize;
        match said {
            Some(said) => Known::Exactly(said),
            None if first == 0 => Known::AtLeast(0),
            None => Known::AtLeast(component(words, of, &|offset| first + offset)),
        }
    }

    /// The other threads of which a thread's clock, in a segment of it, said more than these bounds. `None`: it is
    /// forgotten.
    pub fn beyond(
        &self,
        words: &Words<'_>,
        thread: u16,
        segment: u32,
        bounds: &[u32],
    ) -> Option<Vec<u16>> {
        let beyond = |at: &dyn Fn(usize) -> usize| {
            let count = words.get(at(0)) as u16;
            let bound = |of: u16| bounds.get(usize::from(of)).copied().unwrap_or(0);
            let others = (0..count).filter(|of| *of != thread);
            others
                .filter(|of| component(words, *of, at) > bound(*of))
                .collect()
        };
        look_up(words, self.ring(words, thread)?, segment, beyond)
    }
}

/// Reads something of the clock that a thread with this ring had in a segment. `None`: it is forgotten.
fn look_up<T>(
    words: &Words<'_>,
    ring: usize,
    segment: u32,
    read: impl FnOnce(&dyn Fn(usize) -> usize) -> T,
) -> Option<T> {
    let noted = words.get(ring);
    // The oldest might just be written over.
    let (mut low, mut high) = (noted.saturating_sub(KEPT - 1), noted);
    let entry = |index: u64| words.get(ring + RING_HEAD + (index & (KEPT - 1)) as usize);
    let oldest = low;
    while low < high {
        let middle = low.midpoint(high);
        match (entry(middle) >> 32) as u32 <= segment {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    if low == oldest {
        return None;
    }
    let found = entry(low - 1);
    if (found >> 32) as u32 > segment {
        return None;
    }
    let written = words.get(ring + 1);
    // The place's upper half is that of the newest, or one less.
    let mut place = written & !0xffff_ffff | found & 0xffff_ffff;
    if place > written {
        place = place.wrapping_sub(1 << 32);
    }
    let data = ring + RING_HEAD + KEPT as usize;
    let value = read(&|offset| data + ((place + offset as u64) & (WORDS - 1)) as usize);
    fence(Ordering::SeqCst);
    let claimed = words.get(ring + 2);
    let again = entry(low - 1) == found && words.get(ring) < low - 1 + KEPT;
    (again && claimed.wrapping_sub(place) <= WORDS).then_some(value)
}

fn store(words: &Words<'_>, segment: u32, components: &[u32], at: impl Fn(usize) -> usize) {
    let head = u64::from(segment) << 32 | components.len() as u64;
    words.word(at(0)).store(head, Ordering::Relaxed);
    for (index, pair) in components.chunks(2).enumerate() {
        let high = pair.get(1).copied().unwrap_or(0);
        let word = u64::from(high) << 32 | u64::from(pair[0]);
        words.word(at(1 + index)).store(word, Ordering::Relaxed);
    }
}

fn component(words: &Words<'_>, of: u16, at: &dyn Fn(usize) -> usize) -> u32 {
    let count = words.get(at(0)) & 0xffff_ffff;
    if u64::from(of) >= count {
        return 0;
    }
    let word = words.get(at(1 + usize::from(of) / 2));
    (word >> (32 * (of % 2))) as u32
}

#[cfg(test)]
mod tests {
    use super::super::words::{HEAD, Reserve};
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_release_and_an_acquire_order_two_threads_and_nothing_else_does() {
        let mut lock = Clock::default();
        let mut one = ThreadClock::begin(0, 1, &Clock::default());
        let mut two = ThreadClock::begin(1, 1, &Clock::default());
        let before = one.segment();
        one.release(&mut lock);
        assert!(one.segment() > before);
        assert!(two.acquire(&lock));
        assert!(two.clock().of(0) >= before && two.clock().of(0) < one.segment());
        assert!(!two.acquire(&lock), "nothing new");
        assert_eq!(one.clock().of(1), 0);
    }

    #[test]
    fn timelines_know_each_segment_until_it_is_forgotten() {
        let all: Vec<AtomicU64> = (0..1 << 17).map(|_| AtomicU64::new(0)).collect();
        let words = Words::new(&all, Reserve::Not, HEAD + Timelines::TABLE).unwrap();
        let timelines = Timelines::new(HEAD);
        let mut clock = ThreadClock::begin(3, 1, &Clock::default());
        clock.clock.set(1, 7);
        assert!(timelines.note(&words, &clock));
        let noted = 3 * KEPT as u32;
        for n in 1..=noted {
            let mut from = Clock::default();
            from.set(1, 7 + n);
            assert!(clock.acquire(&from));
            assert!(timelines.note(&words, &clock));
            clock.step();
            let now = clock.segment();
            assert_eq!(timelines.said(&words, 3, now, 1), Known::Exactly(7 + n));
            assert_eq!(timelines.said(&words, 3, now - 1, 1), Known::Exactly(7 + n));
            assert_eq!(timelines.said(&words, 3, now, 2), Known::Exactly(0));
            if n > 1 && n < 100 {
                assert_eq!(timelines.said(&words, 3, now - 2, 1), Known::Exactly(6 + n));
            }
        }
        assert_eq!(timelines.said(&words, 3, 1, 1), Known::AtLeast(7));
        assert_eq!(timelines.said(&words, 9, 1, 1), Known::AtLeast(0));
    }
}
