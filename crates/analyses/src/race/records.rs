//! What reports say beside the accesses: threads, and allocated blocks.

use super::search::{BLOCKS_AT, Search};
use super::words::Counter;
use std::sync::atomic::Ordering;

/// The variable of the runtime whose pieces stand for file descriptors.
pub const DESCRIPTORS: &str = "corewise_descriptors";
/// The size of such a piece in bytes: as much memory as has a life of its own.
pub const DESCRIPTOR_BYTES: u64 = 16;

/// Words of a block's entry.
pub(super) const BLOCK: usize = 4;
/// Blocks that are remembered. A power of two.
pub(super) const BLOCKS: usize = 1 << 15;
/// Words of a thread's record.
const RECORD: usize = 8;

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first address.
    pub start: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The life of its memory.
    pub life: u32,
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

impl Search<'_> {
    /// Remembers a block, in place of one that has the same place in the table.
    pub fn allocated(&self, block: &Block) {
        let at = BLOCKS_AT + BLOCK * ((block.start >> 4) as usize & (BLOCKS - 1));
        self.words.set(at, 0);
        self.words.set(at + 1, block.bytes);
        let who = u64::from(block.thread) << 32 | u64::from(block.site);
        self.words.set(at + 2, who);
        self.words.set(at + 3, u64::from(block.life));
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
                life: self.words.get(at + 3) as u32,
                site: who as u32,
                thread: (who >> 32) as u16,
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
        let mut next = newest.load(Ordering::Relaxed);
        loop {
            self.words.set(at + 5, next);
            match newest.compare_exchange(next, at as u64, Ordering::Release, Ordering::Relaxed) {
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
}
