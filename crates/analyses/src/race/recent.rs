//! What one thread accessed in its present segment, so that each access is recorded once, and those to
//! neighbours together.
//!
//! A direct-mapped table has a line for each row of sixteen granules: of each granule which bytes were read
//! and which written. What is new is kept beside it, with where in the code it was, for a smaller number of lines,
//! since that takes more; it comes out when the segment ends, when there are too many such lines, when another row
//! needs the line, or when the same bytes' neighbours in a granule are accessed from elsewhere. Then accesses from
//! one place in the code to granules side by side are one run. What a thread does first in a segment comes out at
//! once: of a process that is killed, that is seen.

use super::access::{Access, ROW, Run, kind};

/// Lines of the table at first, and at most. Powers of two.
const LINES: [usize; 2] = [1 << 7, 1 << 16];
/// Lines of which something is kept that did not come out, at most.
const MOST_NEWS: usize = 1 << 10;
/// Accesses of a segment that come out at once.
const AT_ONCE: u32 = 64;
/// The longest run that comes out.
const LONGEST: u16 = 1 << 15;

/// Words of a line: its row, which bytes of each granule were read and written (a byte a granule), the last eight
/// bits of the granule's life, and which granules have something that did not come out yet. Above the latter are
/// the other bits of the lives (they are the same in a row, or nearly always), and the number of its [`News`].
type Line = [u64; 8];
const READ: usize = 1;
const WRITTEN: usize = 3;
const LIVES: usize = 5;
const KEPT: usize = 7;
/// Granules of a row, a bit each.
const ALL: u64 = 0xffff;
/// The upper bits of the lives.
const HIGH: u64 = 0xffff << 16;

/// What did not come out of a line: for each granule the bytes read and written, and where in the code.
#[derive(Clone, Copy, Debug)]
struct News {
    line: u32,
    bytes: [u64; 4],
    sites: [u32; 32],
}

/// The table. It grows with what a segment accesses, to little more than four megabytes.
#[derive(Debug)]
pub struct Recent {
    lines: Vec<Line>,
    /// Those of lines without any are zero.
    news: Vec<News>,
    /// Which of them no line has.
    free: Vec<u16>,
    /// Lines that are in use.
    used: Vec<u32>,
    at_once: u32,
}

/// Collects runs that go on.
struct Joining<'e, E> {
    open: [Option<Run>; 2],
    emit: &'e mut E,
}

impl<E: FnMut(Run)> Joining<'_, E> {
    fn add(&mut self, which: usize, access: Access) {
        if let Some(run) = &mut self.open[which] {
            let next = Access {
                granule: run.access.granule + u64::from(run.granules),
                ..run.access
            };
            if next == access && run.granules < LONGEST {
                run.granules += 1;
                return;
            }
            (self.emit)(*run);
        }
        self.open[which] = Some(Run {
            access,
            granules: 1,
        });
    }

    fn end(&mut self) {
        for run in self.open.iter_mut().filter_map(Option::take) {
            (self.emit)(run);
        }
    }
}

impl News {
    /// Takes an access, unless bytes of the granule are kept that were accessed so from elsewhere.
    #[inline(always)]
    fn takes(&mut self, access: &Access, writes: usize, index: u64) -> bool {
        let kept = byte(&self.bytes, 2 * writes, index);
        let site = &mut self.sites[16 * writes + index as usize];
        let takes = kept == 0 || *site == access.site;
        if takes {
            *site = access.site;
            set_byte(&mut self.bytes, 2 * writes, index, kept | access.mask);
        }
        takes
    }

    /// Takes out what is kept of a granule, that was accessed as now.
    fn out(&mut self, now: &Access, writes: usize, index: u64) -> Access {
        let mask = byte(&self.bytes, 2 * writes, index);
        set_byte(&mut self.bytes, 2 * writes, index, 0);
        Access {
            mask,
            site: self.sites[16 * writes + index as usize],
            thread: 0,
            segment: 0,
            ..*now
        }
    }
}

impl Default for Recent {
    fn default() -> Recent {
        Recent::with(LINES[0])
    }
}

#[inline(always)]
fn byte(words: &[u64], at: usize, index: u64) -> u8 {
    (words[at + (index >> 3) as usize] >> (8 * (index & 7))) as u8
}

#[inline(always)]
fn set_byte(words: &mut [u64], at: usize, index: u64, value: u8) {
    let shift = 8 * (index & 7);
    let word = &mut words[at + (index >> 3) as usize];
    *word = *word & !(0xff << shift) | u64::from(value) << shift;
}

/// Bytes of a granule are known from now on.
#[inline(always)]
fn see(line: &mut Line, access: &Access, writes: usize, index: u64) {
    let known = READ + 2 * writes;
    let seen = byte(line, known, index) | access.mask;
    set_byte(line, known, index, seen);
}

/// The life of a granule.
#[inline(always)]
fn life(line: &Line, index: u64) -> u32 {
    ((line[KEPT] & HIGH) >> 8) as u32 | u32::from(byte(line, LIVES, index))
}

/// The number of its news, if something is kept.
#[inline(always)]
fn news_of(line: &Line) -> Option<usize> {
    (line[KEPT] & ALL != 0).then_some((line[KEPT] >> 32) as usize)
}

impl Recent {
    fn with(lines: usize) -> Recent {
        Recent {
            lines: vec![[0; 8]; lines],
            news: Vec::new(),
            free: Vec::new(),
            used: Vec::new(),
            at_once: 0,
        }
    }

    #[inline(always)]
    fn line_of(&self, row: u64) -> usize {
        // Stacks and heaps are aligned so that their lowest bits alone would often be the same.
        (row ^ row >> 17) as usize & (self.lines.len() - 1)
    }

    /// Whether the thread accessed these bytes in this segment, in a way that races with as much.
    #[inline(always)]
    pub fn covers(&self, granule: u64, mask: u8, writes: bool) -> bool {
        let (row, index) = (granule / ROW, granule % ROW);
        let Some(line) = self.lines.get(self.line_of(row)) else {
            return false;
        };
        let written = byte(line, WRITTEN, index);
        let known = match writes {
            true => written,
            false => written | byte(line, READ, index),
        };
        line[0] == row && mask & !known == 0
    }

    /// Adds an access that is not covered, neither atomic nor of memory that is freed. What comes out says
    /// neither thread nor segment: they are the present ones.
    pub fn add(&mut self, access: &Access, emit: impl FnMut(Run)) {
        let (row, index) = (access.granule / ROW, access.granule % ROW);
        let slot = self.line_of(row);
        let writes = usize::from(access.kind & kind::WRITE != 0);
        let line = &mut self.lines[slot];
        // The usual case, in which nothing comes out.
        if line[0] == row
            && life(line, index) == access.life
            && let Some(news) = news_of(line).and_then(|news| self.news.get_mut(news))
            && self.at_once == AT_ONCE
            && news.takes(access, writes, index)
        {
            see(line, access, writes, index);
            line[KEPT] |= 1 << index;
        } else {
            self.add_slowly(access, emit);
        }
    }

    #[inline(never)]
    fn add_slowly(&mut self, access: &Access, mut emit: impl FnMut(Run)) {
        let (row, index) = (access.granule / ROW, access.granule % ROW);
        let mut slot = self.line_of(row);
        if self.used.len() > self.lines.len() / 2 && self.lines[slot][0] != row {
            self.grow(&mut emit);
            slot = self.line_of(row);
        }
        let mut joining = Joining {
            open: [None; 2],
            emit: &mut emit,
        };
        let empty = self.lines[slot] == [0; 8];
        if self.lines[slot][0] != row {
            self.come_out(slot, ALL, &mut joining);
            if empty {
                self.used.push(slot as u32);
            }
            self.lines[slot] = [row, 0, 0, 0, 0, 0, 0, 0];
        } else if empty {
            // The row of the address zero.
            self.used.push(slot as u32);
        }
        if life(&self.lines[slot], index) != access.life {
            // Another thread freed the memory and allocated it again.
            let high = u64::from(access.life & !0xff) << 8;
            let other = self.lines[slot][KEPT] & HIGH != high;
            let granules = if other { ALL } else { 1 << index };
            self.forget_in(slot, granules, &mut joining);
            let line = &mut self.lines[slot];
            line[KEPT] = line[KEPT] & !HIGH | high;
            set_byte(line, LIVES, index, access.life as u8);
        }
        let writes = usize::from(access.kind & kind::WRITE != 0);
        see(&mut self.lines[slot], access, writes, index);
        if self.at_once < AT_ONCE {
            self.at_once += 1;
            joining.end();
            emit(Run {
                access: Access {
                    thread: 0,
                    segment: 0,
                    ..*access
                },
                granules: 1,
            });
            return;
        }
        let news = match news_of(&self.lines[slot]) {
            Some(news) => news,
            None => self.take_news(slot, &mut joining),
        };
        let known = &mut self.news[news];
        if !known.takes(access, writes, index) {
            joining.add(writes, known.out(access, writes, index));
            known.takes(access, writes, index);
        }
        let line = &mut self.lines[slot];
        line[KEPT] = line[KEPT] & (HIGH | ALL) | (news as u64) << 32 | 1 << index;
        joining.end();
    }

    /// A place for the news of a line, which has none.
    fn take_news(&mut self, slot: usize, joining: &mut Joining<'_, impl FnMut(Run)>) -> usize {
        if self.free.is_empty() && self.news.len() >= MOST_NEWS {
            self.all_come_out(joining);
        }
        let line = slot as u32;
        if let Some(free) = self.free.pop() {
            let news = usize::from(free);
            self.news[news].line = line;
            return news;
        }
        self.news.push(News {
            line,
            bytes: [0; 4],
            sites: [0; 32],
        });
        self.news.len() - 1
    }

    /// What is kept of all lines.
    fn all_come_out(&mut self, joining: &mut Joining<'_, impl FnMut(Run)>) {
        let news = self.news.iter().map(|news| news.line as usize);
        let mut lines: Vec<_> = news
            .map(|slot| (self.lines[slot][0], slot))
            .filter(|(_, slot)| news_of(&self.lines[*slot]).is_some())
            .collect();
        // Runs go on from row to row.
        lines.sort_unstable();
        for (_, slot) in lines {
            self.come_out(slot, ALL, joining);
        }
    }

    /// Makes the table larger, unless it is as large as it gets. What it said is forgotten.
    #[cold]
    fn grow(&mut self, emit: impl FnMut(Run)) {
        if self.lines.len() < LINES[1] {
            let at_once = self.at_once;
            self.end_segment(emit);
            *self = Recent {
                at_once,
                ..Recent::with(2 * self.lines.len())
            };
        }
    }

    /// The segment ends: everything comes out, and nothing is covered any more.
    pub fn end_segment(&mut self, mut emit: impl FnMut(Run)) {
        self.at_once = 0;
        let mut joining = Joining {
            open: [None; 2],
            emit: &mut emit,
        };
        self.all_come_out(&mut joining);
        joining.end();
        for slot in self.used.drain(..) {
            self.lines[slot as usize] = [0; 8];
        }
    }

    /// Memory is no longer what it was: what is known of it comes out, and is not covered any more.
    pub fn forget(&mut self, address: u64, bytes: u64, mut emit: impl FnMut(Run)) {
        let (first, last) = (address >> 3, address.saturating_add(bytes) >> 3);
        let mut joining = Joining {
            open: [None; 2],
            emit: &mut emit,
        };
        let rows = first / ROW..=last / ROW;
        // In each row, its granules from `first` to `last`.
        let granules = |row: u64| {
            let from = first.max(row * ROW) - row * ROW;
            let to = last.min(row * ROW + ROW - 1) - row * ROW;
            (ALL << from) & (ALL >> (ROW - 1 - to))
        };
        if last / ROW - first / ROW < self.used.len() as u64 {
            for row in rows {
                let slot = self.line_of(row);
                if self.lines[slot][0] == row {
                    self.forget_in(slot, granules(row), &mut joining);
                }
            }
        } else {
            for index in 0..self.used.len() {
                let slot = self.used[index] as usize;
                let row = self.lines[slot][0];
                if rows.contains(&row) {
                    self.forget_in(slot, granules(row), &mut joining);
                }
            }
        }
        joining.end();
    }

    /// The same for granules of a line, a bit each.
    fn forget_in(
        &mut self,
        slot: usize,
        granules: u64,
        joining: &mut Joining<'_, impl FnMut(Run)>,
    ) {
        self.come_out(slot, granules, joining);
        for index in (0..ROW).filter(|index| granules >> index & 1 != 0) {
            set_byte(&mut self.lines[slot], READ, index, 0);
            set_byte(&mut self.lines[slot], WRITTEN, index, 0);
        }
    }

    /// What was kept of granules of a line, a bit each.
    #[inline]
    fn come_out(&mut self, slot: usize, granules: u64, joining: &mut Joining<'_, impl FnMut(Run)>) {
        let line = &mut self.lines[slot];
        let (row, mut left) = (line[0], line[KEPT] & granules);
        let Some(number) = news_of(line).filter(|_| left != 0) else {
            return;
        };
        line[KEPT] &= !granules;
        if news_of(line).is_none() {
            self.free.push(number as u16);
        }
        let News { bytes, sites, .. } = &mut self.news[number];
        while left != 0 {
            let index = u64::from(left.trailing_zeros());
            left &= left - 1;
            let written = byte(bytes, 2, index);
            // Whatever races with a read races with a write of the same bytes.
            let read = byte(bytes, 0, index) & !byte(line, WRITTEN, index);
            for (which, mask, kind) in [(0, read, 0), (1, written, kind::WRITE)] {
                if mask != 0 {
                    let access = Access {
                        granule: row * ROW + index,
                        mask,
                        life: life(line, index),
                        kind,
                        thread: 0,
                        segment: 0,
                        site: sites[16 * which + index as usize],
                    };
                    joining.add(which, access);
                }
            }
            set_byte(bytes, 0, index, 0);
            set_byte(bytes, 2, index, 0);
        }
    }
}

#[cfg(test)]
mod tests;
