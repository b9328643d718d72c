//! How the entries of a row's lists are laid out in words.
//!
//! A list is one block of memory, so that all of it can be fetched at once; a larger one takes its place when it is
//! full.

use super::super::access::{Access, ROW, Run};
use super::super::words::Words;
use super::blocks::{Blocks, UNIT, units, words_at};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where an entry's second word has a granule's mask.
const MASK: u32 = 12;

/// A list in a row's or granule's word: its block, the block's size, and how many entries there are, the first of
/// which may be of no bytes. Size and number are one more than 0 is.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) unit: u32,
    pub(super) size: usize,
    pub(super) count: usize,
}

impl List {
    /// `None`: it is empty, and has no block.
    pub(super) fn of(word: u64) -> Option<List> {
        (word != 0).then_some(List {
            unit: word as u32,
            size: (word >> 32) as usize & 0xff,
            count: (word >> 40) as usize & 0xff,
        })
    }

    pub(super) fn word(self) -> u64 {
        (self.count as u64) << 40 | (self.size as u64) << 32 | u64::from(self.unit)
    }

    /// Its words, with those of entries that it has room for.
    #[inline(always)]
    pub(super) fn block<'w>(self, words: &'w Words<'_>) -> &'w [AtomicU64] {
        words.piece(words_at(self.unit), UNIT * units(self.size.min(16)))
    }
}

/// Accesses of one thread in one segment from one place in the code, to bytes of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The granule is not said here, and the mask not used.
    pub(super) access: Access,
    /// A bit for each byte of the row.
    pub(super) bytes: u128,
}

impl Entry {
    pub(super) fn of(run: &Run) -> Entry {
        let each = u128::from(run.access.mask) * (u128::MAX / 0xff);
        let (from, granules) = (run.access.granule % ROW, u64::from(run.granules));
        let all = u128::MAX >> (8 * (ROW - granules.clamp(1, ROW - from)));
        Entry {
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

    /// Segment, thread and kind.
    fn first_word(&self) -> u64 {
        let access = &self.access;
        u64::from(access.segment) << 32
            | u64::from(access.thread & 0xfff) << 20
            | u64::from(access.kind & 7) << 17
    }

    /// Life and site.
    fn second_word(&self) -> u64 {
        u64::from(self.access.life) << 40 | u64::from(self.access.site & 0xf_ffff) << 20
    }
}

/// Whose segment an entry is of: what its first word begins with.
#[inline(always)]
pub(super) fn when(access: &Access) -> u64 {
    u64::from(access.segment) << 12 | u64::from(access.thread & 0xfff)
}

/// The same of an entry in its words.
#[inline(always)]
pub(super) fn when_of(entry: &[AtomicU64]) -> u64 {
    get(entry, 0) >> 20
}

#[inline(always)]
fn get(entry: &[AtomicU64], word: usize) -> u64 {
    entry[word].load(Ordering::Acquire)
}

#[inline(always)]
fn set(entry: &[AtomicU64], word: usize, value: u64) {
    entry[word].store(value, Ordering::Release);
}

/// What a list is of, and so how its entries are laid out: the whole row, or a granule of it.
pub(super) trait Part: Copy {
    /// Words of an entry.
    const ENTRY: usize;

    /// The bytes of the row that an entry is of; 0: it is empty.
    fn bytes(self, entry: &[AtomicU64]) -> u128;

    /// Sets them.
    fn set_bytes(self, entry: &[AtomicU64], bytes: u128);

    /// An entry that is not empty.
    #[inline(always)]
    fn read(self, entry: &[AtomicU64], bytes: u128) -> Entry {
        let (first, second) = (get(entry, 0), get(entry, 1));
        let access = Access {
            granule: 0,
            mask: 0,
            life: (second >> 40) as u32,
            kind: (first >> 17) as u8 & 7,
            thread: (first >> 20) as u16 & 0xfff,
            segment: (first >> 32) as u32,
            site: (second >> 20) as u32 & 0xf_ffff,
        };
        Entry { access, bytes }
    }

    /// Writes one.
    #[inline]
    fn write(self, entry: &[AtomicU64], new: &Entry) {
        // Whoever reads it after a kill in between finds nothing there.
        self.set_bytes(entry, 0);
        set(entry, 0, new.first_word());
        set(entry, 1, new.second_word());
        self.set_bytes(entry, new.bytes);
    }
}

/// Segment, thread and kind; life and site; and the bytes, two words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole;

impl Part for Whole {
    const ENTRY: usize = 4;

    #[inline(always)]
    fn bytes(self, entry: &[AtomicU64]) -> u128 {
        u128::from(get(entry, 2)) | u128::from(get(entry, 3)) << 64
    }

    #[inline(always)]
    fn set_bytes(self, entry: &[AtomicU64], bytes: u128) {
        set(entry, 2, bytes as u64);
        set(entry, 3, (bytes >> 64) as u64);
    }
}

/// The granule of this number: segment, thread and kind; life, site and the mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granule(pub(super) u64);

impl Part for Granule {
    const ENTRY: usize = 2;

    #[inline(always)]
    fn bytes(self, entry: &[AtomicU64]) -> u128 {
        u128::from((get(entry, 1) >> MASK) as u8) << (8 * self.0)
    }

    #[inline(always)]
    fn set_bytes(self, entry: &[AtomicU64], bytes: u128) {
        let mask = (bytes >> (8 * self.0)) as u8;
        let others = get(entry, 1) & !(0xff << MASK);
        set(entry, 1, others | u64::from(mask) << MASK);
    }
}

/// Copies an entry: the one that it overwrites is not needed any more.
#[inline]
pub(super) fn copy<P: Part>(part: P, from: &[AtomicU64], to: &[AtomicU64]) {
    let bytes = part.bytes(from);
    let entry = part.read(from, bytes);
    part.write(to, &entry);
}

/// A block for a list with room for one entry more, into which its entries are copied. `None`: there is no room.
/// The old block is still the list's.
pub(super) fn larger<P: Part>(
    part: P,
    words: &Words<'_>,
    list: Option<List>,
    blocks: &mut Blocks,
) -> Option<List> {
    let size = list.map_or(0, |list| list.size + 1);
    let grown = List {
        unit: blocks.take(words, size)?,
        size,
        count: list.map_or(0, |list| list.count),
    };
    if let Some(list) = list {
        let (from, to) = (list.block(words), grown.block(words));
        let entries = from.chunks_exact(P::ENTRY).zip(to.chunks_exact(P::ENTRY));
        for (from, to) in entries.take(list.count) {
            copy(part, from, to);
        }
    }
    Some(grown)
}
