//! How the accesses of a buffer are compared with what is remembered.

use super::access::{Access, Accesses, Run};
use super::clock::Known;
use super::row::{Asks, Coming};
use super::search::{Order, Search};
use super::shadow::{PAGE, SHARDS, Shadow, Shard, shard_of};
use super::words::Counter;
use std::cell::RefCell;
use std::sync::PoisonError;

/// Accesses that what is kept of others is brought into the cache for, and how many there are between one thing that
/// is brought for an access and the next.
const AHEAD: usize = 16;
const STEP: usize = 4;

/// What [`Accesses::access`] is told.
type Told = (u64, u32, u32, u32);

/// Accesses of a buffer, none of which is to more than a page, and how many are in each share of the memory.
#[derive(Debug)]
pub(super) struct Sorted {
    all: Vec<Told>,
    counts: [u32; SHARDS],
    /// Places in `all`, share by share.
    order: Vec<u32>,
}

impl Sorted {
    fn new() -> Sorted {
        Sorted {
            all: Vec::new(),
            counts: [0; SHARDS],
            order: Vec::new(),
        }
    }

    fn push(&mut self, run: &Run) {
        self.counts[shard_of(run.access.granule)] += 1;
        self.all.push(run.access.packed(run.granules));
    }

    /// Sorts them: those of each share are from its number on to the next one's, by the order in which they came.
    fn sort(&mut self) -> [u32; SHARDS + 1] {
        let mut ends = [0; SHARDS + 1];
        for (shard, count) in self.counts.iter().enumerate() {
            ends[shard + 1] = ends[shard] + count;
        }
        let mut next = ends;
        self.order.clear();
        self.order.resize(self.all.len(), 0);
        for (index, (place, ..)) in self.all.iter().enumerate() {
            let at = &mut next[shard_of(Access::granule_of(*place))];
            self.order[*at as usize] = index as u32;
            *at += 1;
        }
        ends
    }

    fn clear(&mut self) {
        self.all.clear();
        self.counts = [0; SHARDS];
    }
}

/// What was asked last of the order of accesses: those of a segment come together.
struct Asked<'s, 'a> {
    search: &'s Search<'a>,
    /// Pairs of threads and a segment, and up to where the one's work comes before.
    orders: [(u64, u64); 16],
    /// Whose segments are settled up to the first of these two, and not from the second on.
    thread: u16,
    settled: (u32, u32),
    /// For each thread, up to where it was compared.
    bounds: Vec<u32>,
}

impl<'s, 'a> Asked<'s, 'a> {
    fn nothing(search: &'s Search<'a>) -> Asked<'s, 'a> {
        Asked {
            search,
            orders: [(0, 0); 16],
            thread: u16::MAX,
            settled: (0, u32::MAX),
            bounds: Vec::new(),
        }
    }

    /// Whether an access comes before another.
    #[inline]
    fn known_before(&mut self, before: &Access, after: &Access) -> bool {
        let key = 1 << 63
            | u64::from(after.thread) << 44
            | u64::from(before.thread) << 32
            | u64::from(after.segment);
        let known = &mut self.orders[usize::from(before.thread) & 15];
        if known.0 != key {
            let search = self.search;
            let said =
                search
                    .timelines()
                    .said(&search.words, after.thread, after.segment, before.thread);
            let (Known::Exactly(segment) | Known::AtLeast(segment)) = said;
            *known = (key, u64::from(segment));
        }
        u64::from(before.segment) <= known.1
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

    #[cold]
    fn look(&mut self, access: &Access) -> bool {
        let (thread, segment, search) = (access.thread, access.segment, self.search);
        if self.thread != thread {
            (self.thread, self.settled) = (thread, (0, u32::MAX));
            search.settled().bounds(&mut self.bounds);
        }
        if search.order() == Order::Lockset {
            // An earlier access could have been made with other locks.
            self.settled = (0, 1);
            return false;
        }
        let timelines = search.timelines();
        let is_settled = timelines.is_within(&search.words, thread, segment, &self.bounds);
        // A clock only grows.
        match is_settled {
            true => self.settled.0 = segment,
            false => self.settled.1 = segment,
        }
        is_settled
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
        match new.thread == kept.thread {
            true => kept.segment < new.segment && self.is_settled(new),
            // What its own thread did before could come before it, and not after the other.
            false => {
                self.known_before(kept, new)
                    && self.is_settled(new)
                    && self.bound_of(new.thread) + 1 >= new.segment
            }
        }
    }
}

/// Takes the accesses of a buffer apart by shares of the memory.
#[derive(Debug)]
pub struct Sorting<'s>(RefCell<&'s mut Sorted>);

impl Accesses for Sorting<'_> {
    #[inline]
    fn access(&self, place: u64, segment: u32, site: u32, extent: u32) {
        let run = Access::unpacked(place, segment, site, extent);
        let mut sorted = self.0.borrow_mut();
        for run in run.pieces(PAGE) {
            sorted.push(&run);
        }
    }
}

impl Search<'_> {
    fn scratch(&self) -> Sorted {
        let mut kept = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        kept.pop().unwrap_or_else(Sorted::new)
    }

    fn keep_scratch(&self, sorted: Sorted) {
        let mut kept = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < 4 {
            kept.push(sorted);
        }
    }

    /// Executes calls on what takes accesses apart, and compares those.
    pub fn sorting(&self, execute: impl FnOnce(&Sorting<'_>)) {
        let mut sorted = self.scratch();
        execute(&Sorting(RefCell::new(&mut sorted)));
        self.compare(&mut sorted);
        self.keep_scratch(sorted);
    }

    /// Compares accesses with all that were compared before.
    fn compare(&self, sorted: &mut Sorted) {
        let (mut compared, mut asked) = (0, Asked::nothing(self));
        let ends = sorted.sort();
        let mut left = sorted.counts.map(|count| count > 0);
        // First the shares that nobody has: who has one may wait for a CPU.
        for waits in [false, true] {
            for (index, left) in left.iter_mut().enumerate().filter(|(_, left)| **left) {
                let shard = match waits {
                    true => Some(self.shadow.lock(index)),
                    false => self.shadow.try_lock(index),
                };
                if let Some(mut shard) = shard {
                    *left = false;
                    let order = &sorted.order[ends[index] as usize..ends[index + 1] as usize];
                    let access = |index: usize| sorted.all[order[index] as usize];
                    compared += self.compare_share(&mut shard, order.len(), access, &mut asked);
                }
            }
        }
        sorted.clear();
        self.words.add(Counter::Compared, compared);
    }

    /// How many granules' accesses it compared.
    fn compare_share(
        &self,
        shard: &mut Shard,
        count: usize,
        access: impl Fn(usize) -> Told,
        asked: &mut Asked<'_, '_>,
    ) -> u64 {
        let words = &self.words;
        let mut compared = 0;
        let mut coming = [(None, Coming::default()); AHEAD];
        // While one access is compared, what is kept of those behind it is on its way.
        for ahead in 0..count + AHEAD {
            if let Some(index) = ahead.checked_sub(AHEAD) {
                let (place, segment, site, extent) = access(index);
                let run = Access::unpacked(place, segment, site, extent);
                compared += u64::from(run.granules);
                if let (Some(at), _) = coming[index % AHEAD] {
                    Shadow::add(words, shard, at, &run, asked);
                }
            }
            for step in 1..AHEAD / STEP {
                if let Some(index) = ahead.checked_sub(step * STEP).filter(|i| *i < count) {
                    coming[index % AHEAD].1.step(words);
                }
            }
            if ahead < count {
                let granule = Access::granule_of(access(ahead).0);
                let at = self.shadow.row_of(words, shard, granule);
                let brings = at.map(|at| Coming::to(words, at, granule));
                coming[ahead % AHEAD] = (at, brings.unwrap_or_default());
            }
        }
        compared
    }
}
