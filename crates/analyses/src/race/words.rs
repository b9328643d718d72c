//! The memory that a search for races keeps everything in: words of the region, or of a test. Pieces are
//! taken from its end, and it is bounded: where it is used up, what finds no room is counted.
//!
//! Everything is atomic words and numbers of words, so that a process that dies at any moment leaves
//! something that can be read, and nothing that a program scribbles over it does harm.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Memory is reserved in steps of so many words.
const STEP: usize = 1 << 15;

/// Counters, and where things are: the first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Where the next piece begins.
    Next = 0,
    /// Accesses that threads recorded.
    Recorded = 1,
    /// Accesses that were compared.
    Compared = 2,
    /// Earlier accesses that made room for later ones of the same code and thread.
    Shortened = 3,
    /// Pairs that could not be compared: when the accesses were is forgotten.
    Forgotten = 4,
    /// Accesses that there was no room for.
    NoRoom = 5,
    /// Stacks, places in the code and sets of locks that there was no room for.
    NoNames = 6,
    /// Races that there was no room for.
    RacesLost = 7,
    /// The newest thread's record.
    Threads = 8,
    /// Threads that were seen.
    ThreadCount = 9,
    /// Threads that there was no room for.
    ThreadsLost = 10,
    /// Accesses in signal handlers that came in the middle of another's being recorded.
    Interrupted = 11,
    /// Accesses that made room for one of another thread, which races with all that is still to come and races with
    /// them.
    Replaced = 12,
}

/// Words before the tables.
pub const HEAD: usize = 64;

/// The words.
#[derive(Debug)]
pub struct Words<'a> {
    all: &'a [AtomicU64],
    reserved: Mutex<usize>,
    reserve: Reserve<'a>,
}

/// Puts memory behind words; false: there is none.
#[derive(Clone, Copy, Debug)]
pub enum Reserve<'a> {
    /// It is there already.
    Not,
    /// The region's.
    Region(crate::region::Entered<'a>),
}

impl<'a> Words<'a> {
    /// Words that are zero, or were used before. `None`: not even the tables have room.
    pub fn new(all: &'a [AtomicU64], reserve: Reserve<'a>, tables: usize) -> Option<Words<'a>> {
        let words = Words {
            all,
            reserved: Mutex::new(0),
            reserve,
        };
        let next = all.first()?;
        let known = usize::try_from(next.load(Ordering::Acquire)).ok()?;
        let used = known.max(tables);
        if used > all.len() || !words.reserve(used) {
            return None;
        }
        let _ = next.compare_exchange(0, used as u64, Ordering::AcqRel, Ordering::Relaxed);
        Some(words)
    }

    fn reserve(&self, to: usize) -> bool {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if to <= *reserved {
            return true;
        }
        let end = to.next_multiple_of(STEP).min(self.all.len());
        let done = match &self.reserve {
            Reserve::Not => true,
            Reserve::Region(entered) => entered.reserve(*reserved..end),
        };
        if done {
            *reserved = end;
        }
        done
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Words that are used by now.
    pub fn used(&self) -> usize {
        self.count(Counter::Next) as usize
    }

    /// One word; one beyond the end is the last.
    #[inline(always)]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        &self.all[at.min(self.all.len() - 1)]
    }

    /// Reads one.
    #[inline(always)]
    pub fn get(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Writes one.
    #[inline(always)]
    pub fn set(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// Takes zeroed words. `None`: the bound is reached.
    pub fn take(&self, count: usize) -> Option<usize> {
        self.take_from(count, 1)
    }

    /// The same for so many (a power of two) whose place is a multiple of their number.
    pub fn take_aligned(&self, count: usize) -> Option<usize> {
        self.take_from(count, count as u64)
    }

    fn take_from(&self, count: usize, multiple: u64) -> Option<usize> {
        let next = self.word(Counter::Next as usize);
        let mut known = next.load(Ordering::Relaxed);
        loop {
            let at = known.checked_next_multiple_of(multiple)?;
            let end = at.checked_add(count as u64)?;
            if end > self.all.len() as u64 || !self.reserve(end as usize) {
                return None;
            }
            match next.compare_exchange_weak(known, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(at as usize),
                Err(now) => known = now,
            }
        }
    }

    /// So many words from one on; none, where they are not all there.
    #[inline(always)]
    pub fn piece(&self, at: usize, count: usize) -> &[AtomicU64] {
        let end = at.saturating_add(count);
        self.all.get(at..end).unwrap_or_default()
    }

    /// What a counter says.
    pub fn count(&self, counter: Counter) -> u64 {
        self.get(counter as usize)
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, by: u64) {
        self.word(counter as usize).fetch_add(by, Ordering::Relaxed);
    }
}
