//! A search for races: everything that it knows, in words, and the comparison of accesses by what happens
//! before what.

use super::access::{Access, Accesses, AccessesBuffer, kind};
use super::clock::{Known, Timelines};
use super::compare::Sorted;
use super::found::{Found, Race};
use super::interned::Interned;
use super::lockset;
use super::records::{BLOCK, BLOCKS};
use super::settled::Settled;
use super::shadow::Shadow;
use super::words::{Counter, HEAD, Reserve, Words};
use corewise_defer::{Pending, Process};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

const CONTEXTS: usize = 1 << 17;
const SITES: usize = 1 << 17;
const LOCKS: usize = 1 << 14;
const RACES: usize = 1 << 12;

const TIMELINES_AT: usize = HEAD;
const CONTEXTS_AT: usize = TIMELINES_AT + Timelines::TABLE;
const SITES_AT: usize = CONTEXTS_AT + Interned::words(CONTEXTS);
const LOCKS_AT: usize = SITES_AT + Interned::words(SITES);
const RACES_AT: usize = LOCKS_AT + Interned::words(LOCKS);
pub(super) const BLOCKS_AT: usize = RACES_AT + Found::table(RACES);
const GROUPS_AT: usize = BLOCKS_AT + BLOCK * BLOCKS;

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
    pub(super) shadow: Shadow,
    order: Order,
    settled: Settled,
    /// For the next buffer that is processed.
    pub(super) sorted: Mutex<Vec<Sorted>>,
}

impl<'a> Search<'a> {
    /// A search in these words, which are zero, or were those of another search that goes on. `None`: they
    /// are too few.
    pub fn new(all: &'a [AtomicU64], reserve: Reserve<'a>, order: Order) -> Option<Search<'a>> {
        // What is remembered of a page of the program takes two to three times its own size: there is room for more
        // groups than there is memory for what would be remembered of their pages, unless most have few.
        let groups = (all.len() >> 14).next_power_of_two().max(64);
        let words = Words::new(all, reserve, GROUPS_AT + Shadow::table(groups))?;
        Some(Search {
            words,
            timelines: Timelines::new(TIMELINES_AT),
            contexts: Interned::new(CONTEXTS_AT, CONTEXTS),
            sites: Interned::new(SITES_AT, SITES),
            locks: Interned::new(LOCKS_AT, LOCKS),
            found: Found::new(RACES_AT, RACES),
            shadow: Shadow::new(GROUPS_AT, groups),
            order,
            settled: Settled::default(),
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

    /// Up to where each thread was compared.
    pub fn settled(&self) -> &Settled {
        &self.settled
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

    /// The races that were found, in no order.
    pub fn races(&self) -> Vec<Race> {
        self.found.all(&self.words)
    }

    pub(super) fn judge(&self, one: &Access, other: &Access) {
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
