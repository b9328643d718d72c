//! How the entries of a row's lists are laid out in words.
//!
//! A list is of nodes, each as large as all before it, so that long ones are found with few steps and short ones
//! take little.

use super::super::access::{Access, ROW, Run};
use super::super::words::Words;
use super::Row;

/// Words of an entry of a row's list: segment, thread and kind; life, site and, in a granule's, a mask; and in a
/// row's the bytes, two words. No bytes, or no mask: nothing is kept here. The last bits of the first two say in a
/// node's first entry where the next node is.
const ENTRY: usize = 4;
/// Words of an entry of a granule's list.
pub(super) const GRANULE_ENTRY: usize = 2;
/// How many bits of where the next node is are in each of the two.
const LINK: [u32; 2] = [17, 12];
/// What the nodes of a list have room for, by their place in it, the last one first: so many entries of a row, or
/// twice as many of a granule.
pub(super) const NODES: [usize; 7] = [1, 1, 2, 4, 8, 16, 16];
/// Words that are taken from memory at once.
const CHUNK: usize = 1 << 10;

/// Memory of nodes that nobody uses: where they are, in entries of a row.
#[derive(Debug, Default)]
pub(in super::super) struct Nodes {
    pub(super) free: [Vec<u32>; NODES.len()],
    /// The rest of what was taken last: where it begins, and how many entries.
    rest: (u32, usize),
}

impl Nodes {
    /// An empty node that is the one at this place in its list.
    pub(super) fn take(&mut self, words: &Words<'_>, place: usize) -> Option<u32> {
        if let Some(node) = self.free[place].pop() {
            return Some(node);
        }
        let entries = NODES[place];
        if self.rest.1 < entries {
            // Aligned to a cache's line.
            let first = words.take(CHUNK + 7)?.next_multiple_of(8) / ENTRY;
            let (rest, count) = (u32::try_from(first).ok()?, CHUNK / ENTRY);
            let (left, single) = (self.rest, &mut self.free[0]);
            single.extend(left.0..left.0 + left.1 as u32);
            self.rest = (rest, count);
        }
        let node = self.rest.0;
        if u64::from(node) >> (LINK[0] + LINK[1]) != 0 {
            return None;
        }
        self.rest = (node + entries as u32, self.rest.1 - entries);
        Some(node)
    }
}

/// A list in a row's or granule's word: where its first node is, and how many nodes there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) node: u32,
    pub(super) nodes: usize,
}

impl List {
    pub(super) fn of(word: u64) -> List {
        List {
            node: word as u32,
            nodes: ((word >> 32) as usize).min(NODES.len()),
        }
    }

    pub(super) fn word(self) -> u64 {
        (self.nodes as u64) << 32 | u64::from(self.node)
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
    pub(super) fn at(&self, first: u64, byte: u32) -> Access {
        let granule = byte / 8;
        Access {
            granule: first + u64::from(granule),
            mask: (self.bytes >> (8 * granule)) as u8,
            ..self.access
        }
    }
}

/// What a list is of: the whole row, or this granule of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Row,
    Granule(u64),
}

impl Of {
    /// Words of an entry.
    pub(super) fn entry(self) -> usize {
        match self {
            Of::Row => ENTRY,
            Of::Granule(_) => GRANULE_ENTRY,
        }
    }

    /// Where the entries of a node are, which is the one at this place in its list.
    pub(super) fn entries(self, node: u32, place: usize) -> impl Iterator<Item = usize> {
        let from = entries_at(node);
        (from..from + ENTRY * NODES[place]).step_by(self.entry())
    }
}

impl Row<'_, '_> {
    /// Puts an empty node at the begin of a list: its first entry.
    pub(super) fn push(&self, cell: usize, list: List, nodes: &mut Nodes) -> Option<usize> {
        if list.nodes >= NODES.len() {
            return None;
        }
        let node = nodes.take(self.words, list.nodes)?;
        let at = entries_at(node);
        // A node that was another list's before says still where that goes on.
        let (low, high) = (list.node & ((1 << LINK[0]) - 1), list.node >> LINK[0]);
        self.words.set(at, u64::from(low));
        self.words.set(at + 1, u64::from(high));
        let nodes = list.nodes + 1;
        self.words.set(cell, List { node, nodes }.word());
        Some(at)
    }

    pub(super) fn bytes(&self, at: usize, of: Of) -> u128 {
        match of {
            Of::Row => {
                u128::from(self.words.get(at + 2)) | u128::from(self.words.get(at + 3)) << 64
            }
            Of::Granule(granule) => {
                u128::from((self.words.get(at + 1) >> LINK[1]) as u8) << (8 * granule)
            }
        }
    }

    pub(super) fn read(&self, at: usize, of: Of) -> Option<Entry> {
        let bytes = self.bytes(at, of);
        if bytes == 0 {
            return None;
        }
        let (first, second) = (self.words.get(at), self.words.get(at + 1));
        let access = Access {
            granule: self.first,
            mask: 0,
            life: (second >> 40) as u32,
            kind: (first >> LINK[0]) as u8 & 7,
            thread: (first >> 20) as u16 & 0xfff,
            segment: (first >> 32) as u32,
            site: (second >> 20) as u32 & 0xf_ffff,
        };
        Some(Entry { access, bytes })
    }

    /// Writes an entry; where the next node is stays.
    pub(super) fn write(&self, at: usize, of: Of, entry: &Entry) {
        let access = &entry.access;
        let first = u64::from(access.segment) << 32
            | u64::from(access.thread & 0xfff) << 20
            | u64::from(access.kind & 7) << LINK[0];
        let second = u64::from(access.life) << 40 | u64::from(access.site & 0xf_ffff) << 20;
        // Whoever reads it after a kill in between finds nothing there.
        self.write_bytes(at, of, 0);
        for (word, value) in [(0, first), (1, second)] {
            let linked = self.words.get(at + word) & link(word);
            self.words.set(at + word, value | linked);
        }
        self.write_bytes(at, of, entry.bytes);
    }

    pub(super) fn write_bytes(&self, at: usize, of: Of, bytes: u128) {
        match of {
            Of::Row => {
                self.words.set(at + 2, bytes as u64);
                self.words.set(at + 3, (bytes >> 64) as u64);
            }
            Of::Granule(granule) => {
                let mask = (bytes >> (8 * granule)) as u8;
                let others = self.words.get(at + 1) & !(0xff << LINK[1]);
                self.words.set(at + 1, others | u64::from(mask) << LINK[1]);
            }
        }
    }
}

/// Where the entries of a node begin.
pub(super) fn entries_at(node: u32) -> usize {
    ENTRY * node as usize
}

/// The node behind this one in its list.
pub(super) fn next(words: &Words<'_>, node: u32) -> u32 {
    let part = |word: usize| {
        let word = words.get(entries_at(node) + word) & link(word);
        word as u32
    };
    part(0) | part(1) << LINK[0]
}

/// The bits of an entry's first words that say where the next node is.
fn link(word: usize) -> u64 {
    (1 << LINK[word]) - 1
}
