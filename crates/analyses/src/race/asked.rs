//! What is asked of the order of accesses while those of a buffer are compared.

use super::access::Access;
use super::clock::Known;
use super::row::Asks;
use super::search::{Order, Search};

/// Answers that are remembered, of questions with a number above zero.
type Answers = [(u64, u32); 16];

/// What was asked last: accesses of a segment come together.
pub(super) struct Asked<'s, 'a> {
    search: &'s Search<'a>,
    /// Of two threads and a segment, up to where the one's work comes before.
    orders: Answers,
    /// Whose segments are settled up to the first of these two, and not from the second on.
    thread: u16,
    settled: (u32, u32),
    /// For each thread, up to where it was compared.
    bounds: Vec<u32>,
    /// A segment, and the others who may have done something before it that was not compared. `None`: it is
    /// forgotten who.
    late: (u32, Option<Vec<u16>>),
    /// Of that segment and a thread, up to where all that may still come before it comes after that thread.
    passed: Answers,
}

impl<'s, 'a> Asked<'s, 'a> {
    pub(super) fn nothing(search: &'s Search<'a>) -> Asked<'s, 'a> {
        Asked {
            search,
            orders: Answers::default(),
            thread: u16::MAX,
            settled: (0, u32::MAX),
            bounds: Vec::new(),
            late: (0, None),
            passed: Answers::default(),
        }
    }

    /// Up to where the work of a thread comes before a segment of another. At least: it may be forgotten.
    fn order(&self, of: u16, thread: u16, segment: u32) -> u32 {
        let search = self.search;
        let timelines = search.timelines();
        let (Known::Exactly(known) | Known::AtLeast(known)) =
            timelines.said(&search.words, thread, segment, of);
        known
    }

    /// Whether an access comes before another.
    #[inline]
    fn known_before(&mut self, before: &Access, after: &Access) -> bool {
        let key = 1 << 63
            | u64::from(after.thread) << 44
            | u64::from(before.thread) << 32
            | u64::from(after.segment);
        let at = usize::from(before.thread) & 15;
        if self.orders[at].0 != key {
            self.orders[at] = (key, self.order(before.thread, after.thread, after.segment));
        }
        before.segment <= self.orders[at].1
    }

    /// Whether everything that other threads did before an access was compared already.
    #[inline]
    fn is_settled(&mut self, access: &Access) -> bool {
        let (settled, not) = self.settled;
        match self.thread == access.thread {
            true if access.segment <= settled => true,
            true if access.segment >= not => false,
            _ => self.look(access),
        }
    }

    /// The last segment of a thread that was compared with all before it.
    fn bound_of(&self, thread: u16) -> u32 {
        let bound = self.bounds.get(usize::from(thread));
        bound.copied().unwrap_or(0)
    }

    /// Whether everything was compared that its own thread did before an access.
    fn is_next(&self, access: &Access) -> bool {
        self.bound_of(access.thread).saturating_add(1) >= access.segment
    }

    #[cold]
    fn look(&mut self, access: &Access) -> bool {
        if self.thread != access.thread {
            (self.thread, self.settled) = (access.thread, (0, u32::MAX));
            self.late = (0, None);
            self.search.settled().bounds(&mut self.bounds);
        }
        if self.search.order() == Order::Lockset {
            // An earlier access could have been made with other locks.
            self.settled = (0, 1);
            return false;
        }
        self.look_who_is_late(access.segment);
        let is_settled = self.late.1.as_ref().is_some_and(Vec::is_empty);
        // A clock only grows.
        match is_settled {
            true => self.settled.0 = access.segment,
            false => self.settled.1 = access.segment,
        }
        is_settled
    }

    #[cold]
    fn look_who_is_late(&mut self, segment: u32) {
        let (search, bounds) = (self.search, &self.bounds);
        let timelines = search.timelines();
        let late = timelines.beyond(&search.words, self.thread, segment, bounds);
        self.late = (segment, late);
        self.passed = Answers::default();
    }

    /// Whether another access, which comes before this one, comes before all that may still come before this one.
    fn is_passed(&mut self, kept: &Access, new: &Access) -> bool {
        if self.search.order() == Order::Lockset {
            return false;
        }
        // Those who are late for a segment are late for later ones. More are, but they are seldom asked for.
        if new.segment > self.late.0 {
            self.look_who_is_late(new.segment);
        }
        let own = new.thread != kept.thread && !self.is_next(new);
        let key = 1 << 17 | u64::from(own) << 16 | u64::from(kept.thread);
        let at = usize::from(kept.thread & 7) << 1 | usize::from(own);
        if self.passed[at].0 != key {
            self.passed[at] = (key, self.passed(kept.thread, own));
        }
        kept.segment <= self.passed[at].1
    }

    /// Up to where all that may still come comes after a thread: of those who are late, and of the one whose access is
    /// compared, if that is asked.
    #[cold]
    fn passed(&self, thread: u16, own: bool) -> u32 {
        let Some(late) = &self.late.1 else { return 0 };
        let late = late.iter().filter(|late| **late != thread);
        let all = late.copied().chain(own.then_some(self.thread));
        let next = |other| self.order(thread, other, self.bound_of(other).saturating_add(1));
        all.map(next).min().unwrap_or(u32::MAX)
    }
}

impl Asks for Asked<'_, '_> {
    #[inline]
    fn compare(&mut self, new: &Access, kept: &Access) {
        if new.conflicts(kept) && !self.known_before(kept, new) {
            self.search.judge(new, kept);
        }
    }

    #[inline]
    fn stands_for(&mut self, new: &Access, kept: &Access) -> bool {
        if new.thread == kept.thread {
            return kept.segment < new.segment
                && (self.is_settled(new) || self.is_passed(kept, new));
        }
        // What its own thread did before could come before it, and not after the other.
        self.known_before(kept, new)
            && (self.is_settled(new) && self.is_next(new) || self.is_passed(kept, new))
    }
}
