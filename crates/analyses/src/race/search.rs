//! A search for races: everything that it knows, in words, and the comparison of accesses by what happens
//! before what.

use super::access::{Access, Accesses, AccessesBuffer, kind};
use super::clock::{Known, Timelines};
use super::found::{Found, Race};
use super::interned::Interned;
use super::lockset;
use super::shadow::{Keep, SHARDS, Shadow, shard_of};
use super::words::{Counter, HEAD, Reserve, Words};
use corewise_defer::{Pending, Process};
use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

const CONTEXTS: usize = 1 << 17;
const SITES: usize = 1 << 17;
const LOCKS: usize = 1 << 14;
const RACES: usize = 1 << 12;
/// Words of a block's entry, and how many entries there are (a power of two).
const BLOCK: usize = 4;
const BLOCKS: usize = 1 << 15;

const TIMELINES_AT: usize = HEAD;
const CONTEXTS_AT: usize = TIMELINES_AT + Timelines::TABLE;
const SITES_AT: usize = CONTEXTS_AT + Interned::words(CONTEXTS);
const LOCKS_AT: usize = SITES_AT + Interned::words(SITES);
const RACES_AT: usize = LOCKS_AT + Interned::words(LOCKS);
const BLOCKS_AT: usize = RACES_AT + Found::table(RACES);
const PAGES_AT: usize = BLOCKS_AT + BLOCK * BLOCKS;
/// Words of a thread's record.
const RECORD: usize = 8;

/// How accesses that race are told from those that are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// Nothing that happened says that one comes before the other (FastTrack's question): every report is of
    /// two accesses that could have come at the same time.
    #[default]
    HappensBefore = 0,
    /// No lock is held at every access (Eraser's question, with Racer's refinements): also finds what did
    /// not show in this run, and asks for a locking discipline.
    Lockset = 1,
}

impl Order {
    /// All, with the names that people use.
    pub const ALL: [(&'static str, Order); 2] = [
        ("happens-before", Order::HappensBefore),
        ("lockset", Order::Lockset),
    ];

    /// The one with this number; the default, where there is none.
    pub fn of(number: u32) -> Order {
        match number {
            1 => Order::Lockset,
            _ => Order::HappensBefore,
        }
    }
}

/// A place in the code, with how the thread came there and what it held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The address behind the instruction, as a return address is.
    pub code: u64,
    /// The callers: a number of [`Search::context`].
    pub context: u32,
    /// The locks that were held: a number of [`Search::locks`].
    pub locks: u32,
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first address.
    pub start: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The life of its memory.
    pub life: u8,
    /// Where it was allocated.
    pub site: u32,
    /// The thread that did.
    pub thread: u16,
}

/// A thread that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRecord {
    /// Its number in what is recorded. Threads that are gone leave theirs to others.
    pub thread: u16,
    /// Its first segment.
    pub first: u32,
    /// The system's number.
    pub tid: u32,
    /// Counted from 0, the main thread.
    pub index: u32,
    /// The index of the thread that created it.
    pub parent: u32,
    /// Where it was created; 0: unknown.
    pub site: u32,
    /// Its name; empty: it has none of its own.
    pub name: String,
}

/// A search.
#[derive(Debug)]
pub struct Search<'a> {
    /// What everything is kept in.
    pub words: Words<'a>,
    timelines: Timelines,
    contexts: Interned,
    sites: Interned,
    locks: Interned,
    found: Found,
    shadow: Shadow,
    order: Order,
    /// For the next buffer that is processed.
    sorted: Mutex<Vec<Sorted>>,
}

/// Pairs of threads and a segment, and up to where the one's work comes before.
type Asked = [(u64, u64); 16];

type Sorted = [Vec<(u64, u32, u32, u32)>; SHARDS];

impl<'a> Search<'a> {
    /// A search in these words, which are zero, or were those of another search that goes on. `None`: they
    /// are too few.
    pub fn new(all: &'a [AtomicU64], reserve: Reserve<'a>, order: Order) -> Option<Search<'a>> {
        // A page of the program that is used well takes some eight times its own size.
        let pages = (all.len() / 4096).next_power_of_two().max(64);
        let words = Words::new(all, reserve, PAGES_AT + Shadow::table(pages))?;
        Some(Search {
            words,
            timelines: Timelines::new(TIMELINES_AT),
            contexts: Interned::new(CONTEXTS_AT, CONTEXTS),
            sites: Interned::new(SITES_AT, SITES),
            locks: Interned::new(LOCKS_AT, LOCKS),
            found: Found::new(RACES_AT, RACES),
            shadow: Shadow::new(PAGES_AT, pages),
            order,
            sorted: Mutex::new(Vec::new()),
        })
    }

    /// How accesses are compared.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The clocks of threads.
    pub fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// The number of a function called from `code`, by way of what `outer` says.
    pub fn called(&self, code: u64, outer: u32) -> u32 {
        self.contexts.number(&self.words, code, u64::from(outer))
    }

    /// The number of a place in the code.
    pub fn site(&self, site: Site) -> u32 {
        let second = u64::from(site.context) << 32 | u64::from(site.locks);
        self.sites.number(&self.words, site.code.max(1), second)
    }

    /// The place in the code of a number.
    pub fn site_of(&self, number: u32) -> Site {
        let (code, second) = self.sites.pair(&self.words, number);
        Site {
            code,
            context: (second >> 32) as u32,
            locks: second as u32,
        }
    }

    /// Where calls came from, the innermost first.
    pub fn context(&self, number: u32) -> Vec<u64> {
        self.chain(&self.contexts, number)
    }

    /// The number of a set of locks, each once: addresses, and the lowest bit for one that is only held for
    /// reading.
    pub fn locks(&self, held: &[u64]) -> u32 {
        let mut sorted = held.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.iter().fold(0, |rest, lock| {
            self.locks.number(&self.words, *lock, u64::from(rest))
        })
    }

    /// The locks of a set, the highest address first.
    pub fn locks_of(&self, number: u32) -> Vec<u64> {
        self.chain(&self.locks, number)
    }

    fn chain(&self, table: &Interned, mut number: u32) -> Vec<u64> {
        let mut chain = Vec::new();
        while number != 0 && chain.len() < 4096 {
            let (first, rest) = table.pair(&self.words, number);
            if first == 0 {
                break;
            }
            chain.push(first);
            number = rest as u32;
        }
        chain
    }

    /// Remembers a block, in place of one that has the same place in the table.
    pub fn allocated(&self, block: &Block) {
        let at = BLOCKS_AT + BLOCK * ((block.start >> 4) as usize & (BLOCKS - 1));
        self.words.set(at, 0);
        self.words.set(at + 1, block.bytes);
        let who = u64::from(block.thread) << 40 | u64::from(block.life) << 32;
        self.words.set(at + 2, who | u64::from(block.site));
        self.words.set(at, block.start);
    }

    /// The block that an address was in, as far as it is remembered.
    pub fn block_of(&self, address: u64) -> Option<Block> {
        let granule = address >> 4;
        (0..(BLOCKS as u64).min(granule)).find_map(|back| {
            let at = BLOCKS_AT + BLOCK * ((granule - back) as usize & (BLOCKS - 1));
            let start = self.words.get(at);
            let (bytes, who) = (self.words.get(at + 1), self.words.get(at + 2));
            let block = Block {
                start,
                bytes,
                life: (who >> 32) as u8,
                site: who as u32,
                thread: (who >> 40) as u16,
            };
            let within = start >> 4 == granule - back && address.wrapping_sub(start) < bytes;
            within.then_some(block)
        })
    }

    /// Enters a thread. Where it was entered: see [`Search::name_thread`].
    pub fn thread(&self, record: &ThreadRecord) -> Option<usize> {
        let at = self.words.take(RECORD)?;
        let number = u64::from(record.thread) << 32 | u64::from(record.first);
        self.words.set(at, number);
        let system = u64::from(record.tid) << 32 | u64::from(record.index);
        self.words.set(at + 1, system);
        let creation = u64::from(record.parent) << 32 | u64::from(record.site);
        self.words.set(at + 2, creation);
        self.name_thread(at, record.name.as_bytes());
        let newest = self.words.word(Counter::Threads as usize);
        let mut next = newest.load(std::sync::atomic::Ordering::Relaxed);
        loop {
            self.words.set(at + 5, next);
            use std::sync::atomic::Ordering::{Relaxed, Release};
            match newest.compare_exchange(next, at as u64, Release, Relaxed) {
                Ok(_) => return Some(at),
                Err(now) => next = now,
            }
        }
    }

    /// Says the name of a thread that was entered there, of which sixteen bytes are kept.
    pub fn name_thread(&self, at: usize, name: &[u8]) {
        let mut bytes = [0; 16];
        let len = name.len().min(16);
        bytes[..len].copy_from_slice(&name[..len]);
        let (low, high) = bytes.split_at(8);
        for (place, half) in [(at + 3, low), (at + 4, high)] {
            let half = half.try_into().map_or(0, u64::from_le_bytes);
            self.words.set(place, half);
        }
    }

    /// All threads that were entered, the newest first.
    pub fn threads(&self) -> Vec<ThreadRecord> {
        let mut at = self.words.count(Counter::Threads) as usize;
        let mut threads = Vec::new();
        while at != 0 && threads.len() < 1_000_000 {
            let get = |offset: usize| self.words.get(at + offset);
            let bytes: Vec<u8> = [get(3), get(4)]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
            let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            threads.push(ThreadRecord {
                thread: (get(0) >> 32) as u16,
                first: get(0) as u32,
                tid: (get(1) >> 32) as u32,
                index: get(1) as u32,
                parent: (get(2) >> 32) as u32,
                site: get(2) as u32,
                name: String::from_utf8_lossy(name).into_owned(),
            });
            at = get(5) as usize;
        }
        threads
    }

    /// The races that were found, in no order.
    pub fn races(&self) -> Vec<Race> {
        self.found.all(&self.words)
    }

    /// Compares accesses with all that were compared before.
    fn compare(&self, sorted: &mut Sorted) {
        let mut compared = 0;
        for (index, accesses) in sorted.iter_mut().enumerate() {
            if accesses.is_empty() {
                continue;
            }
            let mut shard = self.shadow.lock(index);
            // What was asked last: accesses of a segment come together.
            let mut asked = [(0_u64, 0_u64); 16];
            for (place, segment, site, extent) in accesses.drain(..) {
                let (access, _) = Access::unpacked(place, segment, site, extent);
                compared += 1;
                self.shadow.add(&self.words, &mut shard, &access, |other| {
                    if access.conflicts(other) && !self.known_before(other, &access, &mut asked) {
                        self.judge(&access, other);
                    }
                    Keep::Yes
                });
            }
        }
        self.words.add(Counter::Compared, compared);
    }

    /// Whether an access comes before another, by what was asked last, or is asked now.
    #[inline]
    fn known_before(&self, before: &Access, after: &Access, asked: &mut Asked) -> bool {
        let key = 1 << 63
            | u64::from(after.thread) << 44
            | u64::from(before.thread) << 32
            | u64::from(after.segment);
        let known = &mut asked[usize::from(before.thread) & 15];
        if known.0 != key {
            let said = self
                .timelines
                .said(&self.words, after.thread, after.segment, before.thread);
            let (Known::Exactly(segment) | Known::AtLeast(segment)) = said;
            *known = (key, u64::from(segment));
        }
        u64::from(before.segment) <= known.1
    }

    fn judge(&self, one: &Access, other: &Access) {
        let races = match self.order {
            Order::HappensBefore => !self.ordered(one, other),
            Order::Lockset => lockset::race(self, one, other),
        };
        if races {
            let code = |access: &Access| self.site_of(access.site).code;
            self.found
                .add(&self.words, (one, code(one)), (other, code(other)));
        }
    }

    /// Whether one of two accesses of different threads comes before the other, or that is forgotten.
    pub(super) fn ordered(&self, one: &Access, other: &Access) -> bool {
        let mut forgotten = false;
        for (before, after) in [(other, one), (one, other)] {
            let said = self
                .timelines
                .said(&self.words, after.thread, after.segment, before.thread);
            match said {
                Known::Exactly(segment) | Known::AtLeast(segment) if before.segment <= segment => {
                    return true;
                }
                Known::Exactly(_) => {}
                Known::AtLeast(_) => forgotten = true,
            }
        }
        if forgotten {
            self.words.add(Counter::Forgotten, 1);
        }
        forgotten
    }
}

/// Takes the accesses of a buffer apart by shares of the memory.
#[derive(Debug)]
pub struct Sorting<'s>(RefCell<&'s mut Sorted>);

impl Accesses for Sorting<'_> {
    #[inline]
    fn access(&self, place: u64, segment: u32, site: u32, extent: u32) {
        let (access, granules) = Access::unpacked(place, segment, site, extent);
        let mut sorted = self.0.borrow_mut();
        for granule in access.granule..access.granule + u64::from(granules) {
            let (place, extent) = Access { granule, ..access }.packed(1);
            sorted[shard_of(granule)].push((place, segment, site, extent));
        }
    }
}

impl Search<'_> {
    fn scratch(&self) -> Sorted {
        let mut kept = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        kept.pop()
            .unwrap_or_else(|| std::array::from_fn(|_| Vec::new()))
    }

    fn keep_scratch(&self, sorted: Sorted) {
        let mut kept = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < 4 {
            kept.push(sorted);
        }
    }

    /// Executes calls on what takes accesses apart, and compares those.
    pub fn sorting(&self, execute: impl FnOnce(&Sorting<'_>)) {
        let mut sorted = self.scratch();
        execute(&Sorting(RefCell::new(&mut sorted)));
        self.compare(&mut sorted);
        self.keep_scratch(sorted);
    }
}

/// Compared at once: what is said of a search without buffers.
impl Accesses for Search<'_> {
    fn access(&self, place: u64, segment: u32, site: u32, extent: u32) {
        self.sorting(|sorting| sorting.access(place, segment, site, extent));
    }
}

/// A search by deferred calls: the accesses of a buffer are taken apart first, so that each share of the
/// memory is locked once.
#[derive(Clone, Copy, Debug)]
pub struct Deferred(pub &'static Search<'static>);

impl Process<AccessesBuffer> for Deferred {
    fn process(&self, calls: &mut Pending<'_, AccessesBuffer>) {
        // Adding an access again changes nothing: if the process dies meanwhile, all are added once more.
        self.0.sorting(|sorting| calls.execute(sorting));
    }
}

/// The access of memory that is freed.
pub const FREED: u8 = kind::WRITE | kind::FREE;
