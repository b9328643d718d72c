//! What is remembered of the accesses to a row of granules.
//!
//! FastTrack keeps the last write and the last reads of each variable, since it sees accesses in order. Here
//! they come in any order, so several of each thread are kept: of those that are alike (same thread, same
//! kind) the first segment and the last ones. That an access between others made room shows only where one
//! comes late that is ordered with them, and not with it. Within a segment, one access stands for all that
//! race with no more than it does. Of memory that was freed and allocated again, what was before the last
//! time makes room, too.
//!
//! Programs access neighbours in the same way: so what is kept is of one granule or several, and a row has one
//! list. Where its granules are accessed in too many different ways, each gets a list of its own. A list is of
//! nodes of the size of a cache's line, since most of the time is spent waiting for memory.

use super::access::{Access, Run, lives_between};
use super::words::{Counter, Words};

/// Granules of a row.
pub(super) const ROW: u64 = 16;
/// Words of what is kept of accesses: segment, site, and which granules (0: nothing is kept here); mask, kind,
/// thread and life. The last 16 bits of the second are a half of where the next node is, in a node's first two.
const ENTRY: usize = 2;
/// Entries of a node.
const ENTRIES: usize = 4;
/// Words of a node.
const NODE: usize = ENTRY * ENTRIES;
/// Nodes that are taken from memory at once.
const CHUNK: usize = 64;
/// What is kept in a list.
const MOST: usize = 48;
/// What is kept in a list that is alike.
const MOST_ALIKE: usize = 3;
/// Entries of a part of a row in its list before each granule gets its own.
const MOST_PARTS: usize = 12;
/// Lives back that nothing is kept. Of the life before, one access of each thread and kind is.
const LIVES: i32 = 2;
/// In a row's word: its lower half is not its first node, but where the granules' lists are.
const APART: u64 = 1 << 32;

/// Nodes that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    free: Vec<u32>,
}

impl Nodes {
    /// The number of an empty node.
    fn take(&mut self, words: &Words<'_>) -> Option<u32> {
        if let Some(node) = self.free.pop() {
            return Some(node);
        }
        let first = words.take(CHUNK * NODE + NODE - 1)?.div_ceil(NODE);
        let first = u32::try_from(first).ok()?;
        self.free.extend((first + 1..first + CHUNK as u32).rev());
        Some(first)
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
                let cell = lists + (single.access.granule % ROW) as usize;
                self.add_to(cell, nodes, &single, other);
            }
            return;
        }
        if self.add_to(self.cell, nodes, run, other) > MOST_PARTS {
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
        let mut node = self.words.get(self.cell) as u32;
        for _ in 0..MOST {
            if node == 0 {
                break;
            }
            for at in entries(node) {
                let Some(known) = self.read(at) else {
                    continue;
                };
                for single in known.pieces(1) {
                    let cell = lists as usize + (single.access.granule % ROW) as usize;
                    // Nothing is alike in it that is not in this list: one is as good as another.
                    self.add_to(cell, nodes, &single, &mut |_, _| {});
                }
                self.words.set(at, 0);
            }
            let next = self.next(node);
            nodes.free.push(node);
            node = next;
        }
        self.words.set(self.cell, APART | u64::from(lists));
    }

    /// Adds to a list. How many entries it now has that are of a part of the row.
    fn add_to(
        &self,
        cell: usize,
        nodes: &mut Nodes,
        run: &Run,
        other: &mut impl FnMut(&Access, &Access),
    ) -> usize {
        let access = &run.access;
        let mut node = self.words.get(cell) as u32;
        let mut room = None;
        let (mut count, mut parts, mut gone) = (0, 0, 0);
        let mut alike = Alike::default();
        let mut replaced = false;
        let mut last = 0;
        // Which threads and kinds were seen of the life before: those that are a multiple of 16 threads apart
        // share theirs.
        let mut before = 0_u64;
        // Nobody keeps more than `MOST`; a list that a program bent into a circle ends, too.
        for _ in 0..=MOST / ENTRIES {
            if node == 0 {
                break;
            }
            for at in entries(node) {
                let Some(known) = self.read(at) else {
                    room = room.or(Some(at));
                    continue;
                };
                let whole = run.covers(&known);
                let mut goes = false;
                if known.access.thread != access.thread {
                    if let Some(granule) = run.first_common(&known) {
                        let there = |access: &Access| Access { granule, ..*access };
                        other(&there(access), &there(&known.access));
                    }
                } else if known.access.segment == access.segment {
                    if known.covers(run) && known.access.stands_for(access) {
                        return 0;
                    }
                    goes = whole && access.stands_for(&known.access);
                    if goes && !replaced {
                        replaced = true;
                        goes = false;
                        self.write(at, run);
                    }
                } else if whole
                    && known.access.is_alike(access)
                    && known.access.mask & !access.mask == 0
                {
                    let equal = known.covers(run) && known.access.mask == access.mask;
                    alike.add(known.access.segment, at, equal);
                }
                let age = lives_between(access.life, known.access.life);
                let mut old = whole && age >= LIVES;
                if whole && age == LIVES - 1 {
                    let kind = u64::from(known.access.kind & 3);
                    let bit = 1 << (u64::from(known.access.thread & 15) << 2 | kind);
                    old = before & bit != 0;
                    before |= bit;
                }
                if old || goes {
                    gone += usize::from(old);
                    self.words.set(at, 0);
                    room = room.or(Some(at));
                } else {
                    count += 1;
                    parts += self.is_part(&known);
                    last = at;
                }
            }
            node = self.next(node);
        }
        self.shortened(gone);
        if replaced {
            return parts;
        }
        let mut goes = None;
        if alike.count >= MOST_ALIKE {
            goes = alike.replaced_by(access.segment);
            if goes.is_none() {
                self.shortened(1);
                return parts;
            }
        } else if count >= MOST {
            goes = Some(last);
        }
        if let Some(at) = goes {
            self.shortened(1);
            parts -= self.read(at).map_or(0, |known| self.is_part(&known));
        }
        let Some(at) = goes.or(room).or_else(|| self.push(cell, nodes)) else {
            self.words.add(Counter::NoRoom, 1);
            return parts;
        };
        self.write(at, run);
        parts + self.is_part(run)
    }

    fn is_part(&self, run: &Run) -> usize {
        usize::from(u64::from(run.granules) < ROW)
    }

    fn shortened(&self, by: usize) {
        if by > 0 {
            self.words.add(Counter::Shortened, by as u64);
        }
    }

    /// Puts an empty node at the begin of a list: its first entry.
    fn push(&self, cell: usize, nodes: &mut Nodes) -> Option<usize> {
        let node = nodes.take(self.words)?;
        let at = NODE * node as usize;
        let next = self.words.get(cell) as u32;
        self.words.set(at + 1, u64::from(next as u16));
        self.words.set(at + ENTRY + 1, u64::from(next >> 16));
        self.words.set(cell, u64::from(node));
        Some(at)
    }

    fn next(&self, node: u32) -> u32 {
        let half = |entry: usize| {
            u32::from(self.words.get(NODE * node as usize + ENTRY * entry + 1) as u16)
        };
        half(0) | half(1) << 16
    }

    fn read(&self, at: usize) -> Option<Run> {
        let (first, second) = (self.words.get(at), self.words.get(at + 1));
        if first == 0 {
            return None;
        }
        let (from, to) = (first >> 4 & 15, first & 15);
        let access = Access {
            granule: self.first + from,
            mask: (second >> 56) as u8,
            life: (second >> 16) as u32 & 0xff_ffff,
            kind: (second >> 52) as u8 & 15,
            thread: (second >> 40) as u16 & 0xfff,
            segment: (first >> 32) as u32,
            site: (first >> 8) as u32 & 0xff_ffff,
        };
        let granules = to.saturating_sub(from) as u16 + 1;
        Some(Run { access, granules })
    }

    /// Writes an entry; where the next node is stays.
    fn write(&self, at: usize, run: &Run) {
        let access = &run.access;
        let from = access.granule % ROW;
        let first = u64::from(access.segment) << 32
            | u64::from(access.site & 0xff_ffff) << 8
            | from << 4
            | (from + u64::from(run.granules) - 1) & 15;
        let second = u64::from(access.mask) << 56
            | u64::from(access.kind & 15) << 52
            | u64::from(access.thread & 0xfff) << 40
            | u64::from(access.life & 0xff_ffff) << 16
            | self.words.get(at + 1) & 0xffff;
        self.words.set(at + 1, second);
        self.words.set(at, first);
    }
}

/// Where the entries of a node are.
fn entries(node: u32) -> impl Iterator<Item = usize> {
    (0..ENTRIES).map(move |index| NODE * node as usize + ENTRY * index)
}

/// The segments of entries that are alike, and where these are: the first, the last, and the one before.
#[derive(Default)]
struct Alike {
    count: usize,
    /// Some are of fewer granules or bytes than what is added.
    less: bool,
    first: Option<(u32, usize)>,
    last: Option<(u32, usize)>,
    second: Option<(u32, usize)>,
}

impl Alike {
    fn add(&mut self, segment: u32, at: usize, equal: bool) {
        let this = Some((segment, at));
        self.count += 1;
        self.less |= !equal;
        if self.first.is_none_or(|(first, _)| segment < first) {
            self.first = this;
        }
        if self.last.is_none_or(|(last, _)| segment > last) {
            (self.second, self.last) = (self.last, this);
        } else if self.second.is_none_or(|(second, _)| segment >= second) {
            self.second = this;
        }
    }

    /// Which one makes room: the first stays, and the last ones. `None`: all stay.
    fn replaced_by(&self, segment: u32) -> Option<usize> {
        let ((first, first_at), (second, second_at)) = (self.first?, self.second?);
        match segment > first {
            false => Some(first_at),
            true if segment < second && !self.less => None,
            true => Some(second_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::{LIFE_BITS, kind};
    use super::super::words::{HEAD, Reserve};
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn run(granule: u64, granules: u16, thread: u16, segment: u32, life: u32) -> Run {
        let access = Access {
            granule,
            mask: 0xff,
            life,
            kind: kind::WRITE,
            thread,
            segment,
            site: 1,
        };
        Run { access, granules }
    }

    /// Adds runs to the row of granule 32. What a read of it all by another thread is shown: each granule and
    /// segment.
    fn shown(runs: &[Run]) -> Vec<(u64, u32)> {
        let all: Vec<AtomicU64> = (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
        let words = Words::new(&all, Reserve::Not, HEAD + 1).unwrap();
        let mut nodes = Nodes::default();
        let row = Row::new(&words, HEAD, 32);
        for run in runs {
            row.add(&mut nodes, run, &mut |_, _| {});
        }
        let mut shown = Vec::new();
        for granule in 32..48 {
            row.add(&mut nodes, &run(granule, 1, 9, 1, 0), &mut |_, other| {
                shown.push((other.granule, other.segment));
            });
        }
        shown.sort_unstable();
        shown
    }

    #[test]
    fn of_what_is_alike_the_first_and_the_last_segments_stay_in_any_order() {
        let each: Vec<_> = (32..48)
            .flat_map(|granule| [1, 8, 9].map(|segment| (granule, segment)))
            .collect();
        for order in [
            [1, 5, 3, 8, 9, 2, 7],
            [9, 8, 7, 5, 3, 2, 1],
            [1, 2, 3, 5, 7, 8, 9],
        ] {
            let runs = order.map(|segment| run(32, 16, 1, segment, 0));
            assert_eq!(shown(&runs), each, "{order:?}");
        }
    }

    #[test]
    fn a_row_that_is_accessed_in_many_ways_forgets_nothing() {
        let mut runs: Vec<_> = (0..16)
            .map(|n| run(32 + n, 1, 1, 20 - n as u32, 0))
            .collect();
        runs.push(run(34, 5, 2, 3, 0));
        runs.push(run(32, 16, 3, 4, 0));
        let mut expected: Vec<_> = (0..16).map(|n| (32 + n, 20 - n as u32)).collect();
        expected.extend((34..39).map(|granule| (granule, 3)));
        expected.extend((32..48).map(|granule| (granule, 4)));
        expected.sort_unstable();
        assert_eq!(shown(&runs), expected);
        runs.reverse();
        assert_eq!(shown(&runs), expected);
    }

    #[test]
    fn accesses_of_one_segment_that_stand_for_others_take_their_place() {
        let runs = [
            run(33, 2, 1, 5, 0),
            run(40, 3, 1, 5, 0),
            run(32, 16, 1, 5, 0),
        ];
        let each: Vec<_> = (32..48).map(|granule| (granule, 5)).collect();
        assert_eq!(shown(&runs), each);
        let runs = [run(32, 16, 1, 5, 0), run(33, 2, 1, 5, 0)];
        assert_eq!(shown(&runs), each);
    }

    #[test]
    fn what_was_before_the_last_two_allocations_makes_room() {
        let last = (1 << LIFE_BITS) - 1;
        let runs = [(254, last - 1), (255, last), (0, 0)]
            .map(|(segment, life)| run(32, 16, 1, 1 + segment, life));
        let segments: Vec<_> = shown(&runs)
            .into_iter()
            .map(|(_, segment)| segment)
            .collect();
        assert!(segments.contains(&256) && segments.contains(&1));
        assert!(!segments.contains(&255));
        // One that comes late is kept: what it raced with may come later.
        let runs = [1, 0].map(|life| run(32, 16, 1, 1 + life, life));
        assert_eq!(shown(&runs).len(), 32);
    }
}
