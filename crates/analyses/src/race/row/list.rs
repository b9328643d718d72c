//! How the entries of a row's lists are laid out in words.
//!
//! A list is one block of memory, so that all of it can be fetched at once; a larger one takes its place when it is
//! full.

use super::super::access::{Access, ROW, Run};
use super::super::words::Words;
use super::blocks::{Blocks, SIZES, UNIT, smallest, units, words_at};
use super::bytes::{Bytes, Compared, Joined};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where things are in an entry's first two words: segment, thread, kind and the low bits of the site; life and the rest
/// of the site. The rest says its bytes: see [`Form`].
const SEGMENT: u32 = 32;
const THREAD: u32 = 20;
const KIND: u32 = 17;
const QUADS: u64 = 1 << 16;
const QUARTER: u32 = 14;
const SITE: u64 = (1 << QUARTER) - 1;
const BITS: u32 = 32;
const LIFE: u32 = 8;
/// In a list's word: its entries are wide.
const WIDE: u64 = 1 << 48;

/// A list in a row's or granule's word: its block, the block's size, and how many of its entries are used. Of those,
/// some may be of no bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) unit: u32,
    pub(super) size: usize,
    pub(super) count: usize,
    /// Whether its entries say any bytes.
    pub(super) wide: bool,
}

impl List {
    /// `None`: it is empty, and has no block.
    pub(super) fn of(word: u64) -> Option<List> {
        (word != 0).then_some(List {
            unit: word as u32,
            size: (word >> 32) as usize & 0xff,
            count: (word >> 40) as usize & 0xff,
            wide: word & WIDE != 0,
        })
    }

    pub(super) fn word(self) -> u64 {
        let wide = if self.wide { WIDE } else { 0 };
        wide | (self.count as u64) << 40 | (self.size as u64) << 32 | u64::from(self.unit)
    }

    /// What its entries say.
    pub(super) fn known(self, words: &Words<'_>) -> impl Iterator<Item = Known> {
        let block = self.block(words);
        let (narrow, wide) = match self.wide {
            true => (0, self.count),
            false => (self.count, 0),
        };
        let narrow = Narrow::entries(block).take(narrow).map(Narrow::read);
        narrow.chain(Wide::entries(block).take(wide).map(Wide::read))
    }

    /// Its words, with those of entries that it has room for.
    #[inline(always)]
    pub(super) fn block<'w>(self, words: &'w Words<'_>) -> &'w [AtomicU64] {
        words.piece(words_at(self.unit), UNIT * units(self.size.min(SIZES - 1)))
    }
}

/// Accesses of one thread in one segment from one place in the code, to bytes of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The granule is not said here, and the mask not used.
    pub(super) access: Access,
    /// A bit for each byte of the row.
    pub(super) bytes: u128,
}

impl Known {
    pub(super) fn of(run: &Run) -> Known {
        let each = u128::from(run.access.mask) * (u128::MAX / 0xff);
        let (from, granules) = (run.access.granule % ROW, u64::from(run.granules));
        let all = u128::MAX >> (8 * (ROW - granules.clamp(1, ROW - from)));
        Known {
            access: run.access,
            bytes: each & all << (8 * from),
        }
    }

    pub(super) fn is_part(&self) -> bool {
        // Some byte of each granule: the bits of each are gathered in its lowest.
        let half = self.bytes | self.bytes >> 4;
        let quarter = half | half >> 2;
        let each = u128::MAX / 0xff;
        (quarter | quarter >> 1) & each != each
    }

    /// The access to the granule with this byte of the row.
    #[inline]
    pub(super) fn at(&self, first: u64, byte: u32) -> Access {
        let granule = byte / 8;
        Access {
            granule: first + u64::from(granule),
            mask: (self.bytes >> (8 * granule)) as u8,
            ..self.access
        }
    }
}

/// Whose segment an access is of: what its entry's first word begins with.
#[inline(always)]
pub(super) fn when(access: &Access) -> u64 {
    u64::from(access.segment) << (SEGMENT - THREAD) | u64::from(access.thread & 0xfff)
}

#[inline(always)]
fn get(entry: &[AtomicU64], word: usize) -> u64 {
    entry[word].load(Ordering::Acquire)
}

#[inline(always)]
fn set(entry: &[AtomicU64], word: usize, value: u64) {
    entry[word].store(value, Ordering::Release);
}

/// The same of an entry in its words.
#[inline(always)]
pub(super) fn when_of(entry: &[AtomicU64]) -> u64 {
    get(entry, 0) >> THREAD
}

/// How entries say which bytes of the row they are of.
pub(super) trait Form {
    /// Words of an entry.
    const WORDS: usize;
    /// Whether lists of such entries are [wide](List::wide).
    const IS_WIDE: bool;

    /// Whether an entry is of some of these bytes, and whether it is of any.
    fn meets(entry: &[AtomicU64], bytes: &Compared) -> (bool, bool);

    /// A bit for each byte of the row.
    fn bytes(entry: &[AtomicU64]) -> u128;

    /// Has an entry be of these bytes. False: it cannot say them, and stays as it is.
    fn set_bytes(entry: &[AtomicU64], bytes: u128) -> bool;

    /// Has an entry be of these bytes, too. False: it cannot say that, and stays as it is.
    fn join(entry: &[AtomicU64], bytes: &Joined) -> bool;

    /// Entries of a block.
    #[inline(always)]
    fn entries(block: &[AtomicU64]) -> std::slice::ChunksExact<'_, AtomicU64> {
        block.chunks_exact(Self::WORDS)
    }

    /// One of them.
    #[inline(always)]
    fn entry(block: &[AtomicU64], index: usize) -> &[AtomicU64] {
        &block[Self::WORDS * index..Self::WORDS * (index + 1)]
    }

    /// All that an entry says.
    #[inline(always)]
    fn read(entry: &[AtomicU64]) -> Known {
        Known {
            access: Self::access(entry),
            bytes: Self::bytes(entry),
        }
    }

    /// The same but for its bytes.
    #[inline(always)]
    fn access(entry: &[AtomicU64]) -> Access {
        let (first, second) = (get(entry, 0), get(entry, 1));
        Access {
            granule: 0,
            mask: 0,
            life: (second >> LIFE) as u32 & 0xff_ffff,
            kind: (first >> KIND) as u8 & 7,
            thread: (first >> THREAD) as u16 & 0xfff,
            segment: (first >> SEGMENT) as u32,
            site: (first & SITE) as u32 | (second as u32 & 0x3f) << QUARTER,
        }
    }

    /// Writes an entry. False: it cannot say these bytes, and nothing is kept there.
    #[inline]
    fn write(entry: &[AtomicU64], known: &Known) -> bool {
        let access = &known.access;
        // Whoever reads it after a kill in between finds nothing there.
        Self::set_bytes(entry, 0);
        let kind = u64::from(access.kind & 7) << KIND;
        let site = u64::from(access.site);
        set(entry, 0, when(access) << THREAD | kind | site & SITE);
        let life = u64::from(access.life & 0xff_ffff) << LIFE;
        set(entry, 1, life | site >> QUARTER & 0x3f);
        Self::set_bytes(entry, known.bytes)
    }
}

/// In two words, if they are whole quads or of one quarter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narrow;

impl Narrow {
    #[inline(always)]
    fn said(entry: &[AtomicU64]) -> Bytes {
        let first = get(entry, 0);
        Bytes {
            quarter: (first & QUADS == 0).then_some((first >> QUARTER) as u8 & 3),
            bits: (get(entry, 1) >> BITS) as u32,
        }
    }

    fn clear(entry: &[AtomicU64]) {
        set(entry, 1, get(entry, 1) & ((1 << BITS) - 1));
    }

    /// Whoever reads it after a kill in between finds nothing there.
    #[inline]
    fn say(entry: &[AtomicU64], bytes: Bytes) {
        let part = match bytes.quarter {
            None => QUADS,
            Some(quarter) => u64::from(quarter) << QUARTER,
        };
        let (first, others) = (get(entry, 0), get(entry, 1) & ((1 << BITS) - 1));
        if first & (QUADS | 3 << QUARTER) != part {
            Narrow::clear(entry);
            set(entry, 0, first & !(QUADS | 3 << QUARTER) | part);
        }
        set(entry, 1, others | u64::from(bytes.bits) << BITS);
    }
}

impl Form for Narrow {
    const WORDS: usize = 2;
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn meets(entry: &[AtomicU64], bytes: &Compared) -> (bool, bool) {
        let said = Narrow::said(entry);
        (bytes.meets(said), said.bits != 0)
    }

    #[inline(always)]
    fn bytes(entry: &[AtomicU64]) -> u128 {
        Narrow::said(entry).all()
    }

    #[inline]
    fn set_bytes(entry: &[AtomicU64], bytes: u128) -> bool {
        match Bytes::of(bytes) {
            Some(said) => Narrow::say(entry, said),
            None if bytes == 0 => Narrow::clear(entry),
            None => return false,
        }
        true
    }

    #[inline]
    fn join(entry: &[AtomicU64], bytes: &Joined) -> bool {
        let both = bytes.with(Narrow::said(entry));
        if let Some(both) = both {
            Narrow::say(entry, both);
        }
        both.is_some()
    }
}

/// In two words more, any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide;

impl Form for Wide {
    const WORDS: usize = 4;
    const IS_WIDE: bool = true;

    #[inline(always)]
    fn meets(entry: &[AtomicU64], bytes: &Compared) -> (bool, bool) {
        let own = Wide::bytes(entry);
        (own & bytes.bytes != 0, own != 0)
    }

    #[inline(always)]
    fn bytes(entry: &[AtomicU64]) -> u128 {
        u128::from(get(entry, 2)) | u128::from(get(entry, 3)) << 64
    }

    #[inline(always)]
    fn set_bytes(entry: &[AtomicU64], bytes: u128) -> bool {
        set(entry, 2, bytes as u64);
        set(entry, 3, (bytes >> 64) as u64);
        true
    }

    #[inline]
    fn join(entry: &[AtomicU64], bytes: &Joined) -> bool {
        Wide::set_bytes(entry, Wide::bytes(entry) | bytes.bytes)
    }
}

/// A list with room for one entry more and the same entries, in another block if need be. `None`: there is no room.
/// The old block is still there.
pub(super) fn larger<F: Form>(
    words: &Words<'_>,
    list: Option<List>,
    blocks: &mut Blocks,
) -> Option<List> {
    let Some(list) = list else {
        let list = List {
            unit: blocks.take(words, 0)?,
            size: 0,
            count: 0,
            wide: F::IS_WIDE,
        };
        return Some(list);
    };
    let size = list.size + 1;
    if blocks.grow(words, list.unit, list.size) {
        return Some(List { size, ..list });
    }
    let unit = blocks.take(words, size)?;
    let grown = List { unit, size, ..list };
    let entries = F::entries(list.block(words)).take(list.count);
    for (from, to) in entries.zip(F::entries(grown.block(words))) {
        F::write(to, &F::read(from));
    }
    Some(grown)
}

/// The same entries as wide ones. `None`: there is no room. The old block is still there.
#[cold]
pub(super) fn widened(words: &Words<'_>, list: List, blocks: &mut Blocks) -> Option<List> {
    let mut all: Vec<Known> = Vec::with_capacity(list.count);
    for known in list.known(words) {
        // What several had to say is said by one.
        match all.iter_mut().find(|other| other.access == known.access) {
            Some(other) => other.bytes |= known.bytes,
            None => all.push(known),
        }
    }
    let size = smallest((Wide::WORDS * all.len()).div_ceil(UNIT));
    let widened = List {
        unit: blocks.take(words, size)?,
        size,
        count: all.len(),
        wide: true,
    };
    for (entry, known) in Wide::entries(widened.block(words)).zip(&all) {
        Wide::write(entry, known);
    }
    Some(widened)
}

/// The same entries in no more memory than they need, if narrow ones can say them. The old block is still there.
#[cold]
pub(super) fn narrowed(words: &Words<'_>, list: List, blocks: &mut Blocks) -> Option<List> {
    let needed = (Narrow::WORDS * list.count).div_ceil(UNIT);
    let size = smallest(needed);
    let narrowed = List {
        unit: blocks.take(words, size)?,
        size,
        wide: false,
        ..list
    };
    let mut places = Narrow::entries(narrowed.block(words)).zip(list.known(words));
    let said = places.all(|(entry, known)| Narrow::write(entry, &known));
    if !said {
        blocks.free(words, narrowed.unit, narrowed.size);
    }
    said.then_some(narrowed)
}
