//! What is kept for an image: its tables, the files that are mapped, and its buffers.
#![allow(unsafe_code, reason = "shared memory; see the head of region.rs")]

use super::{Image, Region};
use crate::table::{Edge, Function, Tables};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that is mapped into a process, as it was entered.
#[repr(C)]
struct ModuleHead {
    next: u64,
    bias: u64,
    start: u64,
    end: u64,
    path_bytes: u64,
}

/// What stands before a buffer.
#[repr(C, align(64))]
struct BufferHead {
    next: u64,
    bytes: u64,
    image: u32,
}

fn edges_of(functions: usize) -> usize {
    functions * 4
}

pub(super) fn tables_bytes(functions: usize) -> usize {
    functions * size_of::<Function>() + edges_of(functions) * size_of::<Edge>()
}

/// A module: a file that is mapped into a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// What is added to the addresses that the file's symbols have.
    pub bias: u64,
    /// Its first address.
    pub start: u64,
    /// Behind its last address.
    pub end: u64,
    /// The file; empty: the program itself, where its name is not known.
    pub path: Vec<u8>,
}

/// An image in its region.
#[derive(Clone, Copy, Debug)]
pub struct Entered<'a> {
    pub(super) region: &'a Region,
    /// Its counters.
    pub image: &'a Image,
    /// Its number.
    pub index: u32,
}

impl<'a> Entered<'a> {
    /// Its tables; `None`: it has none (yet).
    pub fn tables(&self) -> Option<Tables<'a>> {
        let offset = self.image.tables.load(Ordering::Acquire);
        let functions = self.image.functions.load(Ordering::Relaxed) as usize;
        if !functions.is_power_of_two() {
            return None;
        }
        let table = self.region.at::<Function>(offset, functions)?;
        let behind = offset + (functions * size_of::<Function>()) as u64;
        let edges = self.region.at::<Edge>(behind, edges_of(functions))?;
        // SAFETY: both are within the mapping, which lasts as long as the region is borrowed; they are of
        // atomics, of which every value is one.
        let (functions, edges) = unsafe {
            (
                std::slice::from_raw_parts(table.as_ptr(), functions),
                std::slice::from_raw_parts(edges.as_ptr(), edges_of(functions)),
            )
        };
        Some(Tables {
            functions,
            edges,
            lost: &self.image.lost,
        })
    }

    /// Its words, where races are searched for: zero at first, without memory behind them until that is
    /// [reserved](Entered::reserve).
    pub fn words(&self) -> Option<&'a [AtomicU64]> {
        let count = (self.region.wanted().race_mib as usize) << 17;
        let offset = self.image.tables.load(Ordering::Acquire);
        let words = self.region.at::<AtomicU64>(offset, count)?;
        // SAFETY: within the mapping, which lasts as long as the region is borrowed; every value is one of
        // an atomic.
        Some(unsafe { std::slice::from_raw_parts(words.as_ptr(), count) })
    }

    /// Reserves memory for these of its words. False: there is none.
    pub fn reserve(&self, words: std::ops::Range<usize>) -> bool {
        let offset = self.image.tables.load(Ordering::Acquire);
        let at = |word: usize| offset + 8 * word as u64;
        self.region.reserve(at(words.start), at(words.end))
    }

    /// Enters a module. False: there is no room.
    pub fn add_module(&self, module: &Module) -> bool {
        let bytes = size_of::<ModuleHead>() + module.path.len();
        let Some(offset) = self.region.take(bytes) else {
            return false;
        };
        let Some(at) = self.region.at::<u8>(offset, bytes) else {
            return false;
        };
        let newest = &self.image.modules;
        let mut next = newest.load(Ordering::Relaxed);
        loop {
            let head = ModuleHead {
                next,
                bias: module.bias,
                start: module.start,
                end: module.end,
                path_bytes: module.path.len() as u64,
            };
            // SAFETY: a piece that was just taken, and that nobody knows yet.
            unsafe {
                at.cast::<ModuleHead>().write(head);
                let path = at.add(size_of::<ModuleHead>()).as_ptr();
                path.copy_from_nonoverlapping(module.path.as_ptr(), module.path.len());
            }
            match newest.compare_exchange(next, offset, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => next = now,
            }
        }
    }

    /// Its modules, the newest first.
    pub fn modules(&self) -> Vec<Module> {
        let mut modules = Vec::new();
        let mut offset = self.image.modules.load(Ordering::Acquire);
        // More than any program has; a list that a program has bent into a circle ends, too.
        while offset != 0 && modules.len() < 100_000 {
            let Some(head) = self.region.at::<ModuleHead>(offset, 1) else {
                break;
            };
            // SAFETY: within the mapping, aligned, and of plain numbers.
            let head = unsafe { head.read() };
            let path_at = offset + size_of::<ModuleHead>() as u64;
            let path_bytes = usize::try_from(head.path_bytes).unwrap_or(usize::MAX);
            let Some(path) = self.region.at::<u8>(path_at, path_bytes) else {
                break;
            };
            // SAFETY: within the mapping; bytes.
            let path = unsafe { std::slice::from_raw_parts(path.as_ptr(), path_bytes) }.to_vec();
            modules.push(Module {
                bias: head.bias,
                start: head.start,
                end: head.end,
                path,
            });
            offset = head.next;
        }
        modules
    }

    /// How many buffers waited when one was handed over last.
    pub fn queued(&self) -> u64 {
        self.image.queued.load(Ordering::Relaxed)
    }

    /// Says how many buffers wait.
    pub fn set_queued(&self, buffers: usize) {
        self.image.queued.store(buffers as u64, Ordering::Relaxed);
    }

    /// Takes memory for a buffer, which shows in [`Entered::buffers`] from then on.
    pub fn take_buffer(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.align() > 64 {
            return None;
        }
        let bytes = size_of::<BufferHead>() + layout.size();
        let offset = self.region.take(bytes)?;
        let at = self.region.at::<BufferHead>(offset, 1)?;
        let newest = &self.region.head().buffers;
        let mut next = newest.load(Ordering::Relaxed);
        loop {
            let head = BufferHead {
                next,
                bytes: layout.size() as u64,
                image: self.index,
            };
            // SAFETY: a piece that was just taken, and that nobody knows yet.
            unsafe { at.write(head) };
            match newest.compare_exchange(next, offset, Ordering::Release, Ordering::Relaxed) {
                // SAFETY: the piece goes on behind its head.
                Ok(_) => return Some(unsafe { at.add(1) }.cast()),
                Err(now) => next = now,
            }
        }
    }

    /// The memory of its buffers, as addresses and sizes.
    pub fn buffers(&self) -> Vec<(NonNull<u8>, usize)> {
        let mut found = Vec::new();
        let mut offset = self.region.head().buffers.load(Ordering::Acquire);
        for _ in 0..10_000_000 {
            let Some(head) = self.region.at::<BufferHead>(offset, 1) else {
                break;
            };
            // SAFETY: within the mapping, aligned, and of plain numbers.
            let BufferHead { next, bytes, image } = unsafe { head.read() };
            let behind = offset + size_of::<BufferHead>() as u64;
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let memory = self.region.at::<u8>(behind, bytes);
            if let (true, Some(memory)) = (image == self.index, memory) {
                found.push((memory, bytes));
            }
            offset = next;
        }
        found
    }
}
