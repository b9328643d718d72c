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
//! list. Where its granules are accessed in too many different ways, each gets a list of its own.

use super::access::{Access, Run};
use super::words::{Counter, Words};

/// Granules of a row.
pub(super) const ROW: u64 = 16;
/// Words of what is kept of accesses: segment, site, and which granules; mask, life, kind, thread and the
/// next one.
const ENTRY: usize = 2;
/// Such entries that are taken from memory at once.
const CHUNK: usize = 256;
/// What is kept in a list.
const MOST: usize = 48;
/// What is kept in a list that is alike.
const MOST_ALIKE: usize = 3;
/// Entries of single granules in a row's list before each granule gets its own.
const MOST_PARTS: usize = 12;
/// Lives back that nothing is kept. Of the life before, one access of each thread and kind is.
const LIVES: i8 = 2;
/// In a row's word: its lower half is not its first entry, but where the granules' lists are.
const APART: u64 = 1 << 32;

/// Entries that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Entries {
    free: Vec<u32>,
}

impl Entries {
    fn take(&mut self, words: &Words<'_>) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            return Some(at);
        }
        let chunk = words.take(CHUNK * ENTRY + 1)?.div_ceil(ENTRY);
        let chunk = u32::try_from(chunk).ok()?;
        self.free.extend((chunk + 1..chunk + CHUNK as u32).rev());
        Some(chunk)
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

/// What leads to an entry.
#[derive(Clone, Copy)]
enum Link {
    Cell(usize),
    Entry(u32),
}

/// An entry, and what leads to it.
type Place = Option<(Link, u32)>;

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
        entries: &mut Entries,
        run: &Run,
        other: &mut impl FnMut(&Access, &Access),
    ) {
        let word = self.words.get(self.cell);
        if word & APART != 0 {
            let lists = word as u32 as usize;
            for single in run.pieces(1) {
                let cell = lists + (single.access.granule % ROW) as usize;
                self.add_to(cell, entries, &single, other);
            }
            return;
        }
        if self.add_to(self.cell, entries, run, other) > MOST_PARTS {
            self.take_apart(entries);
        }
    }

    /// Gives each granule a list of its own. Without room for that, the row stays as it is.
    #[cold]
    fn take_apart(&self, entries: &mut Entries) {
        let Some(lists) = self.words.take(ROW as usize) else {
            return;
        };
        let Ok(lists) = u32::try_from(lists) else {
            return;
        };
        let mut at = self.words.get(self.cell) as u32;
        for _ in 0..=MOST {
            if at == 0 {
                break;
            }
            let (known, next) = self.read(at);
            for single in known.pieces(1) {
                let cell = lists as usize + (single.access.granule % ROW) as usize;
                self.push(cell, entries, &single);
            }
            entries.free.push(at);
            at = next;
        }
        self.words.set(self.cell, APART | u64::from(lists));
    }

    /// Adds to a list. How many entries it now has that are of a part of the row.
    fn add_to(
        &self,
        cell: usize,
        entries: &mut Entries,
        run: &Run,
        other: &mut impl FnMut(&Access, &Access),
    ) -> usize {
        let access = &run.access;
        let mut link = Link::Cell(cell);
        let mut at = self.words.get(cell) as u32;
        let (mut count, mut parts, mut gone) = (0, 0, 0);
        let (mut alike, mut equal) = (0, 0);
        let (mut least, mut most, mut second) = (u32::MAX, 0, 0);
        let mut places: [Place; 3] = [None; 3];
        let mut replaced = false;
        // Which threads and kinds were seen of the life before: those that are a multiple of 16 threads apart
        // share theirs.
        let mut before = 0_u64;
        // Nobody keeps more than `MOST`; a list that a program bent into a circle ends, too.
        while at != 0 && count <= MOST {
            let (known, next) = self.read(at);
            count += 1;
            let whole = run.covers(&known);
            let mut goes = false;
            if known.access.thread != access.thread {
                if let Some(granule) = run.first_common(&known) {
                    other(
                        &Access { granule, ..*access },
                        &Access {
                            granule,
                            ..known.access
                        },
                    );
                }
            } else if known.access.segment == access.segment {
                if known.covers(run) && known.access.stands_for(access) {
                    return 0;
                }
                goes = whole && access.stands_for(&known.access);
                if goes && !replaced {
                    // Its place in the list is as good as another.
                    replaced = true;
                    goes = false;
                    self.write(at, run, next);
                }
            } else if whole
                && known.access.is_alike(access)
                && known.access.mask & !access.mask == 0
            {
                let segment = known.access.segment;
                let place = Some((link, at));
                alike += 1;
                equal += usize::from(known.covers(run) && known.access.mask == access.mask);
                if segment < least {
                    (least, places[0]) = (segment, place);
                }
                if segment > most {
                    (second, places[1]) = (most, places[2]);
                    (most, places[2]) = (segment, place);
                } else if segment >= second {
                    (second, places[1]) = (segment, place);
                }
            }
            let age = access.life.wrapping_sub(known.access.life) as i8;
            let mut old = whole && age >= LIVES;
            if whole && age == LIVES - 1 {
                let kind = u64::from(known.access.kind & 3);
                let bit = 1 << (u64::from(known.access.thread & 15) << 2 | kind);
                old = before & bit != 0;
                before |= bit;
            }
            if old || goes {
                gone += usize::from(old);
                self.set_next(link, next);
                entries.free.push(at);
            } else {
                parts += usize::from(u64::from(known.granules) < ROW);
                link = Link::Entry(at);
            }
            at = next;
        }
        self.shortened(gone);
        if replaced {
            return parts;
        }
        let mut goes = None;
        if alike >= MOST_ALIKE {
            // The first stays, and the last ones.
            let between = access.segment > least && access.segment < second;
            if between && equal == alike {
                self.shortened(1);
                return parts;
            }
            goes = match access.segment > least {
                true => places[1],
                false => places[0],
            };
        } else if count - gone >= MOST {
            goes = self.last(cell);
        }
        if let Some((link, at)) = goes {
            self.shortened(1);
            let (known, next) = self.read(at);
            parts -= usize::from(u64::from(known.granules) < ROW).min(parts);
            self.set_next(link, next);
            entries.free.push(at);
        }
        self.push(cell, entries, run);
        parts + usize::from(u64::from(run.granules) < ROW)
    }

    fn shortened(&self, by: usize) {
        if by > 0 {
            self.words.add(Counter::Shortened, by as u64);
        }
    }

    fn push(&self, cell: usize, entries: &mut Entries, run: &Run) {
        let Some(at) = entries.take(self.words) else {
            self.words.add(Counter::NoRoom, 1);
            return;
        };
        self.write(at, run, self.words.get(cell) as u32);
        self.words.set(cell, u64::from(at));
    }

    /// The entry that was added first.
    fn last(&self, cell: usize) -> Place {
        let mut link = Link::Cell(cell);
        let mut at = self.words.get(cell) as u32;
        for _ in 0..=MOST {
            if at == 0 {
                break;
            }
            let (_, next) = self.read(at);
            if next == 0 {
                return Some((link, at));
            }
            link = Link::Entry(at);
            at = next;
        }
        None
    }

    fn set_next(&self, link: Link, next: u32) {
        match link {
            Link::Cell(cell) => self.words.set(cell, u64::from(next)),
            Link::Entry(at) => {
                let word = ENTRY * at as usize + 1;
                let rest = self.words.get(word) & !0xffff_ffff;
                self.words.set(word, rest | u64::from(next));
            }
        }
    }

    fn read(&self, at: u32) -> (Run, u32) {
        let at = ENTRY * at as usize;
        let (first, second) = (self.words.get(at), self.words.get(at + 1));
        let (from, to) = (first >> 4 & 15, first & 15);
        let access = Access {
            granule: self.first + from,
            mask: (second >> 56) as u8,
            life: (second >> 48) as u8,
            kind: (second >> 44) as u8 & 15,
            thread: (second >> 32) as u16 & 0xfff,
            segment: (first >> 32) as u32,
            site: (first >> 8) as u32 & 0xff_ffff,
        };
        let granules = to.saturating_sub(from) as u16 + 1;
        (Run { access, granules }, second as u32)
    }

    fn write(&self, at: u32, run: &Run, next: u32) {
        let at = ENTRY * at as usize;
        let access = &run.access;
        let from = access.granule % ROW;
        let first = u64::from(access.segment) << 32
            | u64::from(access.site & 0xff_ffff) << 8
            | from << 4
            | (from + u64::from(run.granules) - 1) & 15;
        let second = u64::from(access.mask) << 56
            | u64::from(access.life) << 48
            | u64::from(access.kind & 15) << 44
            | u64::from(access.thread & 0xfff) << 32
            | u64::from(next);
        self.words.set(at, first);
        self.words.set(at + 1, second);
    }
}
