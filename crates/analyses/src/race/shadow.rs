//! What is remembered of the accesses to each granule.
//!
//! FastTrack keeps the last write and the last reads, since it sees accesses in order. Here they come in any
//! order, so several of each thread are kept: of those that are alike (same thread, same kind) the first
//! segment and the last ones. That an access between others made room shows only where one comes late that
//! is ordered with them, and not with it. Within a segment, one access stands for all that race with no more
//! than it does.

use super::access::Access;
use super::words::{Counter, Words};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Granules of a page.
const PAGE: u64 = 512;
/// Locks, each for its share of the pages.
pub const SHARDS: usize = 64;
/// Words of an access that is kept: segment and site; mask, life, kind, thread and the next one.
const ENTRY: usize = 2;
/// Such entries that are taken from memory at once.
const CHUNK: usize = 256;
/// Accesses kept of a granule.
const MOST: usize = 48;
/// Accesses kept of a granule that are alike.
const MOST_ALIKE: usize = 3;

/// The accesses to all granules.
#[derive(Debug)]
pub struct Shadow {
    pages_at: usize,
    pages: usize,
    shards: [Mutex<Shard>; SHARDS],
    adding: Mutex<usize>,
}

/// A share of the pages, locked.
#[derive(Debug, Default)]
pub struct Shard {
    free: Vec<u32>,
    last: (u64, usize),
}

/// Which share a granule is in.
#[inline]
pub fn shard_of(granule: u64) -> usize {
    ((granule / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

impl Shadow {
    /// Words of the table of so many pages (a power of two).
    pub const fn table(pages: usize) -> usize {
        2 * pages
    }

    /// With the table of so many pages (a power of two) from this word on.
    pub fn new(pages_at: usize, pages: usize) -> Shadow {
        Shadow {
            pages_at,
            pages,
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

    /// The word of a granule: the number of the first access that is kept.
    fn cell(&self, words: &Words<'_>, shard: &mut Shard, granule: u64) -> Option<usize> {
        let key = granule / PAGE + 1;
        if shard.last.0 != key {
            shard.last = (key, self.page(words, key)?);
        }
        Some(shard.last.1 + (granule % PAGE) as usize)
    }

    fn page(&self, words: &Words<'_>, key: u64) -> Option<usize> {
        match self.find(words, key) {
            Ok(page) => Some(page),
            Err(_) => self.add_page(words, key),
        }
    }

    fn find(&self, words: &Words<'_>, key: u64) -> Result<usize, usize> {
        let mut index = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.pages - 1);
        // A table that the program has written full has no free place to end at.
        for _ in 0..self.pages {
            let at = self.pages_at + 2 * index;
            match words.get(at) {
                known if known == key => return Ok(words.get(at + 1) as usize),
                0 => return Err(at),
                _ => index = (index + 1) & (self.pages - 1),
            }
        }
        Err(self.pages_at)
    }

    #[cold]
    fn add_page(&self, words: &Words<'_>, key: u64) -> Option<usize> {
        let mut used = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        match self.find(words, key) {
            Ok(page) => Some(page),
            Err(_) if *used >= self.pages / 4 * 3 => None,
            Err(at) => {
                let page = words.take(PAGE as usize)?;
                *used += 1;
                words.set(at + 1, page as u64);
                words.set(at, key);
                Some(page)
            }
        }
    }

    /// Adds an access. Those that are kept of other threads are shown to `other`, in no order, unless one is
    /// there already that stands for it.
    pub fn add(
        &self,
        words: &Words<'_>,
        shard: &mut Shard,
        access: &Access,
        mut other: impl FnMut(&Access),
    ) {
        let Some(cell) = self.cell(words, shard, access.granule) else {
            words.add(Counter::NoRoom, 1);
            return;
        };
        let mut at = words.get(cell) as u32;
        let (mut count, mut alike) = (0, 0);
        let (mut least, mut most, mut replaced) = (u32::MAX, 0, None);
        let mut second = 0;
        // Nobody keeps more than `MOST`; a list that a program bent into a circle ends, too.
        while at != 0 && count <= MOST {
            let (known, next) = read(words, at, access.granule);
            if known.thread != access.thread {
                other(&known);
            } else if known.segment == access.segment && known.stands_for(access) {
                return;
            } else if known.segment == access.segment && access.stands_for(&known) {
                replaced = Some((at, next));
            } else if known.is_alike(access) && known.mask & !access.mask == 0 {
                alike += 1;
                least = least.min(known.segment);
                if known.segment > most {
                    second = most;
                    most = known.segment;
                } else {
                    second = second.max(known.segment);
                }
            }
            count += 1;
            at = next;
        }
        if let Some((at, next)) = replaced {
            write(words, at, access, next);
            return;
        }
        let mut goes = None;
        if alike >= MOST_ALIKE {
            // The first stays, and the last ones.
            if access.segment > least && access.segment < second {
                words.add(Counter::Shortened, 1);
                return;
            }
            let segment = if access.segment > least {
                second
            } else {
                least
            };
            goes = self.find_alike(words, cell, access, segment);
        } else if count >= MOST {
            goes = self.last(words, cell, access.granule);
        }
        if let Some((link, at, next)) = goes {
            words.add(Counter::Shortened, 1);
            link.set(words, next);
            shard.free.push(at);
        }
        let Some(at) = entry(words, shard) else {
            words.add(Counter::NoRoom, 1);
            return;
        };
        write(words, at, access, words.get(cell) as u32);
        words.set(cell, u64::from(at));
    }

    fn find_alike(
        &self,
        words: &Words<'_>,
        cell: usize,
        access: &Access,
        segment: u32,
    ) -> Option<(Link, u32, u32)> {
        let mut link = Link::Cell(cell);
        let mut at = words.get(cell) as u32;
        for _ in 0..=MOST {
            if at == 0 {
                break;
            }
            let (known, next) = read(words, at, access.granule);
            if known.is_alike(access) && known.segment == segment {
                return Some((link, at, next));
            }
            link = Link::Entry(at);
            at = next;
        }
        None
    }

    fn last(&self, words: &Words<'_>, cell: usize, granule: u64) -> Option<(Link, u32, u32)> {
        let mut link = Link::Cell(cell);
        let mut at = words.get(cell) as u32;
        for _ in 0..=MOST {
            if at == 0 {
                break;
            }
            let (_, next) = read(words, at, granule);
            if next == 0 {
                return Some((link, at, 0));
            }
            link = Link::Entry(at);
            at = next;
        }
        None
    }
}

/// What leads to an entry.
#[derive(Clone, Copy)]
enum Link {
    Cell(usize),
    Entry(u32),
}

impl Link {
    fn set(self, words: &Words<'_>, next: u32) {
        match self {
            Link::Cell(cell) => words.set(cell, u64::from(next)),
            Link::Entry(at) => {
                let word = ENTRY * at as usize + 1;
                let rest = words.get(word) & !0xffff_ffff;
                words.set(word, rest | u64::from(next));
            }
        }
    }
}

/// A free entry.
fn entry(words: &Words<'_>, shard: &mut Shard) -> Option<u32> {
    if let Some(at) = shard.free.pop() {
        return Some(at);
    }
    let chunk = words.take(CHUNK * ENTRY + 1)?.div_ceil(ENTRY);
    let chunk = u32::try_from(chunk).ok()?;
    shard.free.extend((chunk + 1..chunk + CHUNK as u32).rev());
    Some(chunk)
}

fn read(words: &Words<'_>, at: u32, granule: u64) -> (Access, u32) {
    let at = ENTRY * at as usize;
    let (first, second) = (words.get(at), words.get(at + 1));
    let access = Access {
        granule,
        mask: (second >> 56) as u8,
        life: (second >> 48) as u8,
        kind: (second >> 44) as u8 & 15,
        thread: (second >> 32) as u16 & 0xfff,
        segment: (first >> 32) as u32,
        site: first as u32,
    };
    (access, second as u32)
}

fn write(words: &Words<'_>, at: u32, access: &Access, next: u32) {
    let at = ENTRY * at as usize;
    let second = u64::from(access.mask) << 56
        | u64::from(access.life) << 48
        | u64::from(access.kind & 15) << 44
        | u64::from(access.thread & 0xfff) << 32
        | u64::from(next);
    words.set(at, u64::from(access.segment) << 32 | u64::from(access.site));
    words.set(at + 1, second);
}
