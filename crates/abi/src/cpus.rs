//! A set of CPUs as the claim page has it: words of 64 CPUs behind a sequence lock.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};
use crate::{MAX_CPUS, READ_TRIES};

const WORDS: usize = MAX_CPUS as usize / 64;

/// The set, the generation that it belongs to, and the lock. One writer, any number of readers.
///
/// The protocol (a sequence lock): the writer makes `sequence` odd, writes, and makes it even again. A
/// reader that saw the same even number before and after has read what was written together.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LockedCpus {
    sequence: AtomicU32,
    generation: AtomicU32,
    words: AtomicU32,
    _reserved: AtomicU32,
    cpus: [AtomicU64; WORDS],
}

impl LockedCpus {
    /// Offsets of the fields within the lock, in bytes.
    pub(crate) const LAYOUT: [(&'static str, usize); 4] = [
        ("sequence", core::mem::offset_of!(LockedCpus, sequence)),
        (
            "cpus_generation",
            core::mem::offset_of!(LockedCpus, generation),
        ),
        ("words", core::mem::offset_of!(LockedCpus, words)),
        ("cpus", core::mem::offset_of!(LockedCpus, cpus)),
    ];

    /// The empty set of generation 0.
    pub(crate) fn new() -> LockedCpus {
        LockedCpus {
            sequence: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            words: AtomicU32::new(0),
            _reserved: AtomicU32::new(0),
            cpus: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Replaces the set. CPUs from [`MAX_CPUS`] on are left out. Only the one writer may call this.
    pub(crate) fn write(&self, generation: u32, cpus: impl IntoIterator<Item = u32>) {
        // A predecessor may have died in the middle: odd either way from here on.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for word in &self.cpus {
            word.store(0, Ordering::Relaxed);
        }
        let mut words = 0;
        for cpu in cpus.into_iter().filter(|&cpu| cpu < MAX_CPUS) {
            let index = cpu as usize / 64;
            let word = self.cpus[index].load(Ordering::Relaxed);
            self.cpus[index].store(word | 1 << (cpu % 64), Ordering::Relaxed);
            words = words.max(cpu / 64 + 1);
        }
        self.words.store(words, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Relaxed);
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// Copies the set into `into` (a word for each 64 CPUs; what does not fit is left out) and gives
    /// its generation. `None` if no consistent set could be read.
    pub(crate) fn read(&self, into: &mut [u64]) -> Option<u32> {
        for _ in 0..READ_TRIES {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 1 {
                spin_loop();
                continue;
            }
            let words = (self.words.load(Ordering::Relaxed) as usize).min(WORDS);
            for (index, word) in into.iter_mut().enumerate() {
                *word = if index < words {
                    self.cpus[index].load(Ordering::Relaxed)
                } else {
                    0
                };
            }
            let generation = self.generation.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == before {
                return Some(generation);
            }
        }
        None
    }
}
