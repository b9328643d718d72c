//! Places: how many workers run at the same time.
//!
//! A worker takes a place before it works and gives it back afterwards. Taking never brings the number
//! above the threads granted, and giving back as surplus never below, whatever others do meanwhile: both
//! compare and exchange. Only the program's own threads, which must go on, take a place by force; a
//! worker in surplus then gives one back after its unit.

use super::sync::{AtomicU32, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicU32,
}

impl Places {
    pub(crate) fn new() -> Places {
        Places {
            taken: AtomicU32::new(0),
        }
    }

    /// Workers that have a place.
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Takes a place if fewer than `threads` are taken.
    pub(crate) fn try_take(&self, threads: u32) -> bool {
        self.change(|taken| (taken < threads).then_some(taken + 1))
    }

    /// Takes a place, granted or not.
    pub(crate) fn force(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives one's place back.
    pub(crate) fn leave(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
    }

    /// Gives one's place back if more than `threads` are taken; whether it was given back. Costs a
    /// load if not.
    pub(crate) fn leave_if_surplus(&self, threads: u32) -> bool {
        self.change(|taken| (taken > threads).then(|| taken - 1))
    }

    fn change(&self, to: impl Fn(u32) -> Option<u32>) -> bool {
        let mut taken = self.taken.load(Ordering::Relaxed);
        while let Some(next) = to(taken) {
            let changed =
                self.taken
                    .compare_exchange(taken, next, Ordering::SeqCst, Ordering::Relaxed);
            match changed {
                Ok(_) => return true,
                Err(other) => taken = other,
            }
        }
        false
    }
}
