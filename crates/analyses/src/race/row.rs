//! What is remembered of the accesses to a row of granules.
//!
//! FastTrack keeps the last write and the last reads of each variable, since it sees accesses in order. Here
//! they come in any order, but as soon as all is compared that came before an access, it stands for earlier ones of
//! its thread to the same bytes, and in long lists for those of other threads that it comes after: whatever is still
//! to come and races with them races with it, too (see `settled.rs`). Of others that are alike (same thread, same
//! kind) the first segment and the last ones are kept, for each byte. That an access between these made room shows
//! only where one comes late that is ordered with them, and not with it. Within a segment, one access stands for all
//! that race with no more than it does. That memory was freed stands for all that was done with it in segments before.
//! Of memory that was allocated again, what was before the last time makes room, too.
//!
//! Programs access neighbours from the same place in the code, though not always the same bytes of each: so one
//! *entry* is of all bytes of a row that one place accessed in one segment. As long as these can be said in few bits,
//! entries are narrow. Where too many places or segments access pieces of a row, each granule gets a list of its own.

mod alike;
mod blocks;
mod bytes;
mod coming;
mod list;

use super::access::{Access, ROW, Run, kind, lives_between};
use super::words::{Counter, Words};
use alike::{Alike, Before, leave_freed, shorten};
pub(super) use blocks::Blocks;
use bytes::{Compared, Joined};
pub(super) use coming::Coming;
use list::{Form, Known, List, Narrow, Wide, larger, narrowed, when, when_of, widened};

/// What is kept in a list at most.
const MOST: usize = 48;
/// Entries of a part of a row in its list before each granule gets its own.
const MOST_PARTS: usize = 24;
/// Entries that are given less memory than they had, where memory was freed.
const FEW: usize = 2;
/// Segments of which accesses that are alike are kept, of each byte.
const KEPT_ALIKE: usize = 3;
/// Entries of a list from which on accesses of one thread also stand for those of others: who raced first is not
/// found then, but that there was a race is.
const OTHERS_FROM: usize = 3;
/// Lives back that nothing is kept. Of the life before, one access of each thread and kind is.
const LIVES: i32 = 2;
/// In a row's word: it says not where its list is, but where those of the granules are.
const APART: u64 = 1 << 63;

/// What is asked while accesses are added.
pub(super) trait Asks {
    /// Compares a new access with one that is kept of another thread to some of its bytes.
    fn compare(&mut self, new: &Access, kept: &Access);

    /// Whether everything that is still to come and races with a kept access races with the new one, too, which is
    /// to the same bytes in the same life, and of a kind that stands for it.
    fn stands_for(&mut self, new: &Access, kept: &Access) -> bool;
}

/// Compares, and knows nothing of what is still to come.
impl<F: FnMut(&Access, &Access)> Asks for F {
    fn compare(&mut self, new: &Access, kept: &Access) {
        self(new, kept);
    }

    fn stands_for(&mut self, _: &Access, _: &Access) -> bool {
        false
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
    pub(super) fn add(&self, blocks: &mut Blocks, run: &Run, asks: &mut impl Asks) {
        let word = self.words.get(self.cell);
        if word & APART != 0 {
            let lists = word as u32 as usize;
            for single in run.pieces(1) {
                let granule = single.access.granule % ROW;
                let cell = lists + granule as usize;
                // What is of one granule is narrow.
                self.add_to::<Narrow>(cell, blocks, &Known::of(&single), asks);
            }
            return;
        }
        let new = Known::of(run);
        let count = match List::of(word).is_some_and(|list| list.wide) {
            true => self.add_to::<Wide>(self.cell, blocks, &new, asks),
            false => self.add_narrow(blocks, &new, asks),
        };
        if run.access.kind & kind::FREE != 0 && count.is_some_and(|count| count <= FEW) {
            self.narrow(blocks);
        }
        if count.is_some_and(|count| count > MOST_PARTS) && self.has_parts(MOST_PARTS) {
            self.take_apart(blocks);
        }
    }

    /// Adds to a list of narrow entries, which are wide from now on if they have to be.
    #[inline]
    fn add_narrow(&self, blocks: &mut Blocks, new: &Known, asks: &mut impl Asks) -> Option<usize> {
        let count = self.add_to::<Narrow>(self.cell, blocks, new, asks);
        count.or_else(|| {
            self.widen(blocks);
            self.add_to::<Wide>(self.cell, blocks, new, asks)
        })
    }

    /// Has a list's entries be wide. Without room for that, nothing is kept any more.
    #[cold]
    fn widen(&self, blocks: &mut Blocks) {
        let Some(list) = List::of(self.words.get(self.cell)) else {
            return;
        };
        let wide = widened(self.words, list, blocks);
        if wide.is_none() {
            self.words.add(Counter::NoRoom, 1);
        }
        self.words.set(self.cell, wide.map_or(0, List::word));
        blocks.free(self.words, list.unit, list.size);
    }

    /// Of memory that was freed, little is kept: its list takes little.
    #[cold]
    fn narrow(&self, blocks: &mut Blocks) {
        let list = List::of(self.words.get(self.cell));
        let large = list.filter(|list| list.size > 1);
        if let Some(list) = large
            && let Some(narrowed) = narrowed(self.words, list, blocks)
        {
            self.words.set(self.cell, narrowed.word());
            blocks.free(self.words, list.unit, list.size);
        }
    }

    /// Gives each granule a list of its own. Without room for that, the row stays as it is.
    #[cold]
    fn take_apart(&self, blocks: &mut Blocks) {
        let lists = blocks.take_words(self.words, ROW as usize);
        let Some(lists) = lists.and_then(|lists| u32::try_from(lists).ok()) else {
            return;
        };
        let Some(list) = List::of(self.words.get(self.cell)) else {
            return;
        };
        for known in self.known(list) {
            for granule in 0..ROW {
                let bytes = known.bytes & 0xff << (8 * granule);
                if bytes != 0 {
                    let cell = (u64::from(lists) + granule) as usize;
                    // Nothing is alike in it that is not in this list: one is as good as another.
                    let asks = &mut |_: &Access, _: &Access| {};
                    self.add_to::<Narrow>(cell, blocks, &Known { bytes, ..known }, asks);
                }
            }
        }
        self.words.set(self.cell, APART | u64::from(lists));
        blocks.free(self.words, list.unit, list.size);
    }

    /// What is kept in a list.
    fn known(&self, list: List) -> impl Iterator<Item = Known> {
        list.known(self.words).filter(|known| known.bytes != 0)
    }

    /// Adds to a list. How many entries it now has; 0 if it has what is new already. `None`: such entries cannot say
    /// it.
    #[inline]
    fn add_to<F: Form>(
        &self,
        cell: usize,
        blocks: &mut Blocks,
        new: &Known,
        asks: &mut impl Asks,
    ) -> Option<usize> {
        let access = &new.access;
        let list = List::of(self.words.get(cell));
        let block = list.map_or(&[] as &[_], |list| list.block(self.words));
        let mut count = list.map_or(0, |list| list.count.min(block.len() / F::WORDS));
        let before_now = count;
        let (now, compared) = (when(access), Compared::new(new.bytes));
        // What is not there yet, and entries that could as well have it.
        let (mut left, mut same) = (new.bytes, Alike::default());
        let (mut shortened, mut says_all) = (false, true);
        let mut alike = Alike::default();
        let mut before = None;
        // Whether memory was freed by this thread, or used by anybody, in the life before.
        let (mut freed, mut used) = (false, false);
        let mut index = 0;
        while index < count {
            let entry = F::entry(block, index);
            let (meets, any) = F::meets(entry, &compared);
            let is_now = when_of(entry) == now;
            if !meets && any {
                if is_now && F::access(entry).is_alike(access) {
                    same.add(access.segment, index);
                }
                index += 1;
                continue;
            }
            let known = F::read(entry);
            let common = known.bytes & new.bytes;
            let is_own = known.access.thread == access.thread;
            let mut goes = 0;
            let age = lives_between(access.life, known.access.life);
            if is_now && age == 0 {
                if known.access.is_alike(access) {
                    same.add(access.segment, index);
                }
                if known.access.kind_stands_for(access) {
                    left &= !common;
                    // All of it is there, and was compared with the others before.
                    if left == 0 {
                        self.keep_count(cell, list, before_now, count);
                        self.count_shortened(shortened);
                        return Some(0);
                    }
                } else if access.kind_stands_for(&known.access) {
                    goes = common;
                }
            } else if common != 0 {
                let standing = age == 0 && access.later_stands_for(&known.access);
                let mut stood_for = 0;
                if !is_own {
                    let byte = common.trailing_zeros();
                    asks.compare(&new.at(self.first, byte), &known.at(self.first, byte));
                    if standing
                        && before_now > OTHERS_FROM
                        && asks.stands_for(access, &known.access)
                    {
                        stood_for = common;
                        self.words.add(Counter::Replaced, 1);
                    }
                } else if standing && asks.stands_for(access, &known.access) {
                    stood_for = common;
                } else if age == 0 && known.access.kind == access.kind {
                    alike.add(known.access.segment, index);
                }
                if age >= LIVES {
                    goes = common;
                } else if age == LIVES - 1 {
                    match known.access.kind & kind::FREE {
                        0 => used = true,
                        _ => freed |= is_own,
                    }
                    let before = before.get_or_insert_with(Before::default);
                    goes = before.seen(&known.access, common);
                }
                shortened |= goes != 0;
                goes |= stood_for;
            }
            if goes == known.bytes {
                // So it is where it has none. The last one takes its place.
                count -= 1;
                if index < count {
                    F::write(entry, &F::read(F::entry(block, count)));
                }
                continue;
            }
            if goes != 0 {
                says_all &= F::set_bytes(entry, known.bytes & !goes);
            }
            index += 1;
        }
        if left != 0 && alike.count + 1 > KEPT_ALIKE {
            shortened |= shorten::<F>(block, &alike, access.segment, &mut left);
        }
        if left != 0 && same.count > 0 {
            let joined = Joined::new(left);
            let mut places = same.known().map(|(_, at)| F::entry(block, at));
            if places.any(|entry| F::join(entry, &joined)) {
                left = 0;
            }
        }
        self.count_shortened(shortened | (left != 0 && count >= MOST));
        // Many narrow ones would take as much as one that is wide.
        says_all &= F::IS_WIDE || left == 0 || same.count < 2;
        if left == 0 || !says_all {
            self.keep_count(cell, list, before_now, count);
            return says_all.then_some(count);
        }
        let has_room = F::WORDS * (count + 1) <= block.len();
        if freed && used && !has_room {
            let others;
            (count, others) = leave_freed::<F>(&block[..F::WORDS * count], access, asks);
            self.words.add(Counter::Replaced, others);
        }
        let new = Known {
            bytes: left,
            ..*new
        };
        let list = list.map(|list| List { count, ..list });
        self.append::<F>(cell, list, blocks, &new)
    }

    /// Says how many entries a list still has.
    #[inline(always)]
    fn keep_count(&self, cell: usize, list: Option<List>, before: usize, count: usize) {
        if let Some(list) = list
            && count != before
        {
            self.words.set(cell, List { count, ..list }.word());
        }
    }

    /// Adds an entry to a list, which its word may say to be longer than it is. How many it has then. `None`: such
    /// entries cannot say it.
    fn append<F: Form>(
        &self,
        cell: usize,
        list: Option<List>,
        blocks: &mut Blocks,
        new: &Known,
    ) -> Option<usize> {
        // Where there are too many, the first one makes room.
        let count = list.map_or(0, |list| list.count);
        let index = if count >= MOST { 0 } else { count };
        let has_room = |list: &List| F::WORDS * (index + 1) <= list.block(self.words).len();
        let grown = match list.filter(has_room) {
            Some(list) => Some(list),
            None => larger::<F>(self.words, list, blocks),
        };
        let Some(grown) = grown else {
            self.words.add(Counter::NoRoom, 1);
            if let Some(list) = list {
                self.words.set(cell, list.word());
            }
            return Some(count);
        };
        let entry = F::entries(grown.block(self.words)).nth(index);
        let said = entry.is_some_and(|entry| F::write(entry, new));
        let count = match said {
            true => count.max(index + 1),
            false => count,
        };
        self.words.set(cell, List { count, ..grown }.word());
        if let Some(old) = list.filter(|old| old.unit != grown.unit) {
            blocks.free(self.words, old.unit, old.size);
        }
        said.then_some(count)
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
        let known = list.into_iter().flat_map(|list| self.known(list));
        known.filter(Known::is_part).count() > more_than
    }
}

#[cfg(test)]
mod tests;
