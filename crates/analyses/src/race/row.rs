//! What is remembered of the accesses to a row of granules.
//!
//! FastTrack keeps the last write and the last reads of each variable, since it sees accesses in order. Here
//! they come in any order, so several of each thread are kept: of those that are alike (same thread, same
//! kind) the first segment and the last ones, for each byte. That an access between others made room shows only
//! where one comes late that is ordered with them, and not with it. Within a segment, one access stands for all
//! that race with no more than it does. Of memory that was freed and allocated again, what was before the last
//! time makes room, too.
//!
//! Programs access neighbours from the same place in the code, though not always the same bytes of each: so one
//! *entry* is of all bytes of a row that one place accessed in one segment, a bit each. Where too many places or
//! segments access pieces of a row, each granule gets a list of its own. A list is of nodes, each as large as
//! all before it, so that long ones are found with few steps and short ones take little.

use super::access::{Access, ROW, Run, lives_between};
use super::words::{Counter, Words};

/// Words of an entry of a row's list: segment, thread and kind; life, site and, in a granule's, a mask; and in a
/// row's the bytes, two words. No bytes, or no mask: nothing is kept here. The last bits of the first two say in a
/// node's first entry where the next node is.
const ENTRY: usize = 4;
/// Words of an entry of a granule's list.
const GRANULE_ENTRY: usize = 2;
/// How many bits of where the next node is are in each of the two.
const LINK: [u32; 2] = [17, 12];
/// What the nodes of a list have room for, by their place in it, the last one first: so many entries of a row, or
/// twice as many of a granule.
const NODES: [usize; 7] = [1, 1, 2, 4, 8, 16, 16];
/// What is kept in a list at most.
const MOST: usize = 48;
/// Entries of a part of a row in its list before each granule gets its own.
const MOST_PARTS: usize = 24;
/// Segments of which accesses that are alike are kept, of each byte.
const KEPT_ALIKE: usize = 3;
/// Entries that are alike and looked at together.
const MOST_ALIKE: usize = 8;
/// Threads and kinds whose accesses in the life before are told apart.
const MOST_BEFORE: usize = 8;
/// Lives back that nothing is kept. Of the life before, one access of each thread and kind is.
const LIVES: i32 = 2;
/// In a row's word: it says not where its list is, but where those of the granules are.
const APART: u64 = 1 << 63;
/// Words that are taken from memory at once.
const CHUNK: usize = 1 << 10;

/// Memory of nodes that nobody uses: where they are, in entries of a row.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    free: [Vec<u32>; NODES.len()],
    /// The rest of what was taken last: where it begins, and how many entries.
    rest: (u32, usize),
}

impl Nodes {
    /// An empty node that is the one at this place in its list.
    fn take(&mut self, words: &Words<'_>, place: usize) -> Option<u32> {
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
struct List {
    node: u32,
    nodes: usize,
}

impl List {
    fn of(word: u64) -> List {
        List {
            node: word as u32,
            nodes: ((word >> 32) as usize).min(NODES.len()),
        }
    }

    fn word(self) -> u64 {
        (self.nodes as u64) << 32 | u64::from(self.node)
    }
}

/// Accesses of one thread in one segment from one place in the code, to bytes of a row.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The granule is not said here, and the mask not used.
    access: Access,
    /// A bit for each byte of the row.
    bytes: u128,
}

impl Entry {
    fn of(run: &Run) -> Entry {
        let each = u128::from(run.access.mask) * (u128::MAX / 0xff);
        let (from, granules) = (run.access.granule % ROW, u64::from(run.granules));
        let all = u128::MAX >> (8 * (ROW - granules.clamp(1, ROW - from)));
        Entry {
            access: run.access,
            bytes: each & all << (8 * from),
        }
    }

    fn is_part(&self) -> bool {
        // Some byte of each granule: the bits of each are gathered in its lowest.
        let half = self.bytes | self.bytes >> 4;
        let quarter = half | half >> 2;
        let each = u128::MAX / 0xff;
        (quarter | quarter >> 1) & each != each
    }

    /// The access to the granule with this byte of the row.
    fn at(&self, first: u64, byte: u32) -> Access {
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
enum Of {
    Row,
    Granule(u64),
}

impl Of {
    /// Words of an entry.
    fn entry(self) -> usize {
        match self {
            Of::Row => ENTRY,
            Of::Granule(_) => GRANULE_ENTRY,
        }
    }

    /// Where the entries of a node are, which is the one at this place in its list.
    fn entries(self, node: u32, place: usize) -> impl Iterator<Item = usize> {
        let from = ENTRY * node as usize;
        (from..from + ENTRY * NODES[place]).step_by(self.entry())
    }
}

/// A row, whose share of the memory is locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'w, 'a> {
    words: &'w Words<'a>,
    cell: usize,
    /// Its first granule.
    first: u64,
}

impl<'w, 'a> Row<'w, 'a> {
    /// The row with this granule, whose word is there.
    pub(super) fn new(words: &'w Words<'a>, cell: usize, granule: u64) -> Row<'w, 'a> {
        Row {
            words,
            cell,
            first: granule & !(ROW - 1),
        }
    }

    /// Adds accesses to granules of the row; see [`super::shadow::Shadow::add`].
    pub(super) fn add(
        &self,
        nodes: &mut Nodes,
        run: &Run,
        other: &mut impl FnMut(&Access, &Access),
    ) {
        let word = self.words.get(self.cell);
        if word & APART != 0 {
            let lists = word as u32 as usize;
            for single in run.pieces(1) {
                let granule = single.access.granule % ROW;
                let cell = lists + granule as usize;
                self.add_to(
                    (cell, Of::Granule(granule)),
                    nodes,
                    &Entry::of(&single),
                    other,
                );
            }
            return;
        }
        if self.add_to((self.cell, Of::Row), nodes, &Entry::of(run), other) > MOST_PARTS
            && self.has_parts(MOST_PARTS)
        {
            self.take_apart(nodes);
        }
    }

    /// Gives each granule a list of its own. Without room for that, the row stays as it is.
    #[cold]
    fn take_apart(&self, nodes: &mut Nodes) {
        let lists = self.words.take(ROW as usize);
        let Some(lists) = lists.and_then(|lists| u32::try_from(lists).ok()) else {
            return;
        };
        let list = List::of(self.words.get(self.cell));
        let mut node = list.node;
        for place in (0..list.nodes).rev() {
            for at in Of::Row.entries(node, place) {
                let Some(known) = self.read(at, Of::Row) else {
                    continue;
                };
                for granule in 0..ROW {
                    let bytes = known.bytes & 0xff << (8 * granule);
                    if bytes != 0 {
                        let cell = (u64::from(lists) + granule) as usize;
                        // Nothing is alike in it that is not in this list: one is as good as another.
                        let to = (cell, Of::Granule(granule));
                        self.add_to(to, nodes, &Entry { bytes, ..known }, &mut |_, _| {});
                    }
                }
                self.write_bytes(at, Of::Row, 0);
            }
            let next = self.next(node);
            nodes.free[place].push(node);
            node = next;
        }
        self.words.set(self.cell, APART | u64::from(lists));
    }

    /// Adds to a list. How many entries it now has, unless it has what is new already.
    fn add_to(
        &self,
        (cell, of): (usize, Of),
        nodes: &mut Nodes,
        new: &Entry,
        other: &mut impl FnMut(&Access, &Access),
    ) -> usize {
        let access = &new.access;
        let list = List::of(self.words.get(cell));
        // What is not there yet, where there is room, and an entry that could as well have it.
        let (mut left, mut room, mut same) = (new.bytes, None, None);
        let (mut count, mut shortened) = (0, false);
        let mut alike = Alike::default();
        let mut before = None;
        let (mut last, mut node) = (0, list.node);
        for place in (0..list.nodes).rev() {
            for at in of.entries(node, place) {
                let Some(mut known) = self.read(at, of) else {
                    room = room.or(Some(at));
                    continue;
                };
                let common = known.bytes & new.bytes;
                let is_own = known.access.thread == access.thread;
                let is_now = is_own && known.access.segment == access.segment;
                if common == 0 && !is_now {
                    count += 1;
                    last = at;
                    continue;
                }
                let mut goes = 0;
                let age = lives_between(access.life, known.access.life);
                if is_now && age == 0 {
                    if known.access.kind == access.kind && known.access.site == access.site {
                        same = Some((at, known.bytes));
                    }
                    if known.access.kind_stands_for(access) {
                        left &= !common;
                        // All of it is there, and was compared with the others before.
                        if left == 0 {
                            self.count_shortened(shortened);
                            return 0;
                        }
                    } else if access.kind_stands_for(&known.access) {
                        goes = common;
                    }
                } else {
                    if !is_own {
                        let byte = common.trailing_zeros();
                        other(&new.at(self.first, byte), &known.at(self.first, byte));
                    } else if age == 0 && known.access.kind == access.kind {
                        alike.add(known.access.segment, at);
                    }
                    if age >= LIVES {
                        goes = common;
                    } else if age == LIVES - 1 {
                        let before = before.get_or_insert_with(Before::default);
                        goes = before.seen(&known.access, common);
                    }
                    shortened |= goes != 0;
                }
                if goes != 0 {
                    known.bytes &= !goes;
                    self.write_bytes(at, of, known.bytes);
                }
                if known.bytes == 0 {
                    room = room.or(Some(at));
                } else {
                    count += 1;
                    last = at;
                }
            }
            node = self.next(node);
        }
        if left != 0 && alike.count + 1 > KEPT_ALIKE {
            shortened |= self.shorten(of, &alike, access.segment, &mut left);
        }
        if left != 0 {
            if let Some((at, bytes)) = same {
                self.write_bytes(at, of, bytes | left);
            } else {
                let full = count >= MOST;
                shortened |= full;
                let at = if full { Some(last) } else { room };
                match at.or_else(|| self.push(cell, list, nodes)) {
                    Some(at) => self.write(
                        at,
                        of,
                        &Entry {
                            bytes: left,
                            ..*new
                        },
                    ),
                    None => self.words.add(Counter::NoRoom, 1),
                }
                count += usize::from(!full);
            }
        }
        self.count_shortened(shortened);
        count
    }

    fn count_shortened(&self, shortened: bool) {
        if shortened {
            self.words.add(Counter::Shortened, 1);
        }
    }

    /// Whether more entries of its list than that are of a part of the row.
    #[cold]
    fn has_parts(&self, more_than: usize) -> bool {
        let list = List::of(self.words.get(self.cell));
        let (mut node, mut parts) = (list.node, 0);
        for place in (0..list.nodes).rev() {
            let entries = Of::Row.entries(node, place);
            let known = entries.filter_map(|at| self.read(at, Of::Row));
            parts += known.filter(Entry::is_part).count();
            node = self.next(node);
        }
        parts > more_than
    }

    /// Puts an empty node at the begin of a list: its first entry.
    fn push(&self, cell: usize, list: List, nodes: &mut Nodes) -> Option<usize> {
        if list.nodes >= NODES.len() {
            return None;
        }
        let node = nodes.take(self.words, list.nodes)?;
        let at = ENTRY * node as usize;
        // A node that was another list's before says still where that goes on.
        let (low, high) = (list.node & ((1 << LINK[0]) - 1), list.node >> LINK[0]);
        self.words.set(at, u64::from(low));
        self.words.set(at + 1, u64::from(high));
        let nodes = list.nodes + 1;
        self.words.set(cell, List { node, nodes }.word());
        Some(at)
    }

    /// Of bytes that were accessed in the same way in many segments, keeps the first and the last two, and of what
    /// is new as much. Whether any were left out.
    fn shorten(&self, of: Of, alike: &Alike, segment: u32, new: &mut u128) -> bool {
        let mut all = [(segment, None, *new); MOST_ALIKE + 1];
        for (place, (segment, at)) in all.iter_mut().zip(alike.known()) {
            *place = (segment, Some(at), self.bytes(at, of));
        }
        let all = &mut all[..=alike.count];
        all.sort_unstable_by_key(|(segment, ..)| *segment);
        // Bytes that so many later ones have, and that earlier ones have.
        let (mut once, mut twice, mut earlier) = (0, 0, 0);
        let mut last = [0; MOST_ALIKE + 1];
        for (last, (.., bytes)) in last.iter_mut().zip(&*all).rev() {
            *last = bytes & !twice;
            (once, twice) = (once | bytes, twice | once & bytes);
        }
        let mut any = false;
        for (last, (_, at, bytes)) in last.iter().zip(&*all) {
            let kept = last | bytes & !earlier;
            earlier |= bytes;
            any |= kept != *bytes;
            match at {
                None => *new = kept,
                Some(at) if kept != *bytes => self.write_bytes(*at, of, kept),
                Some(_) => {}
            }
        }
        any
    }

    fn next(&self, node: u32) -> u32 {
        let part = |word: usize| {
            let word = self.words.get(ENTRY * node as usize + word) & link(word);
            word as u32
        };
        part(0) | part(1) << LINK[0]
    }

    fn bytes(&self, at: usize, of: Of) -> u128 {
        match of {
            Of::Row => {
                u128::from(self.words.get(at + 2)) | u128::from(self.words.get(at + 3)) << 64
            }
            Of::Granule(granule) => {
                u128::from((self.words.get(at + 1) >> LINK[1]) as u8) << (8 * granule)
            }
        }
    }

    fn read(&self, at: usize, of: Of) -> Option<Entry> {
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
    fn write(&self, at: usize, of: Of, entry: &Entry) {
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

    fn write_bytes(&self, at: usize, of: Of, bytes: u128) {
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

/// The bits of an entry's first words that say where the next node is.
fn link(word: usize) -> u64 {
    (1 << LINK[word]) - 1
}

/// Entries that are alike: their segments, and where they are.
#[derive(Default)]
struct Alike {
    count: usize,
    all: [(u32, u32); MOST_ALIKE],
}

impl Alike {
    /// Where there are too many, the others stay.
    fn add(&mut self, segment: u32, at: usize) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = (segment, (at / GRANULE_ENTRY) as u32);
            self.count += 1;
        }
    }

    fn known(&self) -> impl Iterator<Item = (u32, usize)> {
        let known = self.all[..self.count].iter();
        known.map(|(segment, entry)| (*segment, GRANULE_ENTRY * *entry as usize))
    }
}

/// The bytes that were seen of the life before, by thread and kind.
#[derive(Default)]
struct Before([Option<(u16, u8, u128)>; MOST_BEFORE]);

impl Before {
    /// Which of these bytes were seen already. Where there are too many threads and kinds: none.
    fn seen(&mut self, access: &Access, bytes: u128) -> u128 {
        for place in &mut self.0 {
            let (thread, kind, seen) = place.get_or_insert((access.thread, access.kind, 0));
            if (*thread, *kind) == (access.thread, access.kind) {
                let known = *seen & bytes;
                *seen |= bytes;
                return known;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests;
