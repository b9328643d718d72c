//! How the accesses of a buffer are compared with what is remembered.

use super::access::{Access, Accesses, Run};
use super::asked::Asked;
use super::row::Coming;
use super::search::Search;
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

fn thread_of((_, _, _, extent): &Told) -> u32 {
    extent >> 20
}

fn life_of(&(place, segment, site, extent): &Told) -> u32 {
    Access::unpacked(place, segment, site, extent).access.life
}

/// Accesses of a buffer, none of which is to more than a page, and how many are in each share of the memory.
#[derive(Debug)]
pub(super) struct Sorted {
    all: Vec<Told>,
    counts: [u32; SHARDS],
    /// Places in `all`, share by share.
    order: Vec<u32>,
    /// Whether they are of several threads.
    mixed: bool,
}

impl Sorted {
    fn new() -> Sorted {
        Sorted {
            all: Vec::new(),
            counts: [0; SHARDS],
            order: Vec::new(),
            mixed: false,
        }
    }

    fn push(&mut self, run: &Run) {
        self.counts[shard_of(run.access.granule)] += 1;
        let told = run.access.packed(run.granules);
        self.mixed |= self
            .all
            .last()
            .is_some_and(|last| thread_of(last) != thread_of(&told));
        self.all.push(told);
    }

    /// Sorts them: those of each share are from its number on to the next one's, by the order in which they came. Where
    /// they are of several threads, which used the same memory in many lives, they are in the order of its lives: what
    /// one thread did in a late life would else push out what another did in an early one.
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
        if self.mixed {
            for share in ends.windows(2) {
                let places = &mut self.order[share[0] as usize..share[1] as usize];
                places.sort_by_key(|index| life_of(&self.all[*index as usize]));
            }
        }
        ends
    }

    fn clear(&mut self) {
        self.all.clear();
        self.counts = [0; SHARDS];
        self.mixed = false;
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
