//! Where what is remembered of the accesses to memory is found: pages of rows (`row.rs`), in groups of pages side by
//! side, in a table by address; with a lock for each share of the pages.

use super::access::{ROW, Run};
use super::row::{Asks, Blocks, Coming, Row};
use super::words::{Counter, Words};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Granules of a page.
pub const PAGE: u64 = 512;
/// Rows of a page, a word each.
const ROWS: usize = (PAGE / ROW) as usize;
/// Pages of a group: a word each.
const GROUP: u64 = 64;
/// Locks, each for its share of the pages.
pub const SHARDS: usize = 64;

/// The accesses to all granules.
#[derive(Debug)]
pub struct Shadow {
    groups_at: usize,
    groups: usize,
    shards: [Mutex<Shard>; SHARDS],
    adding: Mutex<usize>,
}

/// A share of the pages, locked.
#[derive(Debug, Default)]
pub struct Shard {
    blocks: Blocks,
    last: (u64, usize),
}

/// Which share a granule is in.
#[inline]
pub fn shard_of(granule: u64) -> usize {
    ((granule / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

impl Shadow {
    /// Words of the table of so many groups (a power of two).
    pub const fn table(groups: usize) -> usize {
        2 * groups
    }

    /// With the table of so many groups (a power of two) from this word on.
    pub fn new(groups_at: usize, groups: usize) -> Shadow {
        Shadow {
            groups_at,
            groups,
            shards: std::array::from_fn(|_| Mutex::default()),
            adding: Mutex::new(0),
        }
    }

    /// Locks a share.
    pub fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless somebody else has it.
    pub fn try_lock(&self, shard: usize) -> Option<MutexGuard<'_, Shard>> {
        match self.shards[shard].try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The first row's word of the page of a granule.
    fn page_of(&self, words: &Words<'_>, shard: &mut Shard, granule: u64) -> Option<usize> {
        let key = granule / PAGE + 1;
        if shard.last.0 != key {
            shard.last = (key, self.page(words, &mut shard.blocks, key)?);
        }
        Some(shard.last.1)
    }

    /// The page with this key: its number, and one.
    fn page(&self, words: &Words<'_>, blocks: &mut Blocks, key: u64) -> Option<usize> {
        let group = match self.find(words, key / GROUP + 1) {
            Ok(group) => group,
            Err(_) => self.add_group(words, key / GROUP + 1)?,
        };
        // Its share is locked, and a page belongs to one.
        let at = group + (key % GROUP) as usize;
        match words.get(at) as usize {
            0 => {
                let page = blocks.take_words(words, ROWS)?;
                words.set(at, page as u64);
                Some(page)
            }
            page => Some(page),
        }
    }

    fn find(&self, words: &Words<'_>, key: u64) -> Result<usize, usize> {
        let mut index =
            (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.groups - 1);
        // A table that the program has written full has no free place to end at.
        for _ in 0..self.groups {
            let at = self.groups_at + 2 * index;
            match words.get(at) {
                known if known == key => return Ok(words.get(at + 1) as usize),
                0 => return Err(at),
                _ => index = (index + 1) & (self.groups - 1),
            }
        }
        Err(self.groups_at)
    }

    #[cold]
    fn add_group(&self, words: &Words<'_>, key: u64) -> Option<usize> {
        let mut used = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        match self.find(words, key) {
            Ok(group) => Some(group),
            Err(_) if *used >= self.groups / 4 * 3 => None,
            Err(at) => {
                let group = words.take(GROUP as usize)?;
                *used += 1;
                words.set(at + 1, group as u64);
                words.set(at, key);
                Some(group)
            }
        }
    }

    /// The word of the row with a granule, whose share is locked. `None`, and counted: there is no room.
    pub(super) fn row_of(
        &self,
        words: &Words<'_>,
        shard: &mut Shard,
        granule: u64,
    ) -> Option<usize> {
        let page = self.page_of(words, shard, granule);
        if page.is_none() {
            words.add(Counter::NoRoom, 1);
        }
        page.map(|page| page + (granule % PAGE / ROW) as usize)
    }

    /// Adds accesses to granules of one page, whose share is locked; `at` is where the first granule's row is. Those
    /// that are kept of other threads to any of these granules are compared with the new ones, each at the first of
    /// the granules that both accessed, in no order, unless one is there already that stands for the new one.
    pub(super) fn add(
        words: &Words<'_>,
        shard: &mut Shard,
        at: usize,
        run: &Run,
        asks: &mut impl Asks,
    ) {
        // What is kept of the row behind the next one is on its way meanwhile.
        let last = ((run.access.granule % ROW + u64::from(run.granules)) / ROW) as usize;
        for (index, run) in run.pieces(ROW).enumerate() {
            if index + 2 <= last {
                Coming::list(words, at + index + 2);
            }
            let row = Row::new(words, at + index, run.access.granule);
            row.add(&mut shard.blocks, &run, asks);
        }
    }
}
