//! Which thread's work comes before which other's: what threads release at an address, and acquire there.
//! The address is that of a lock, of an atomic variable, or of whatever else orders them.

use crate::thread::Thread;
use corewise_analyses::race::{Clock, Order};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks of the table, each for its share of the addresses.
const SHARDS: usize = 256;

/// What was released at an address.
#[derive(Default)]
pub(crate) struct Released {
    /// By those who write, or have a lock for themselves.
    pub(crate) clock: Clock,
    /// By those who have it with others.
    pub(crate) shared: Clock,
}

/// Everything that was released, and not forgotten.
pub(crate) struct Releases([Mutex<HashMap<u64, Released>>; SHARDS]);

/// What fences leave: a relaxed store behind a release fence releases what the fence did, and an acquire
/// fence acquires what relaxed loads before it could have.
#[derive(Default)]
pub(crate) struct Fences {
    pub(crate) released: Clock,
    pub(crate) acquirable: Clock,
}

impl Releases {
    pub(crate) fn new() -> Releases {
        Releases(std::array::from_fn(|_| Mutex::default()))
    }

    /// The share with this address, locked.
    pub(crate) fn lock(&self, address: u64) -> MutexGuard<'_, HashMap<u64, Released>> {
        let index = ((address >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is at an address is no longer what it was.
    pub(crate) fn forget(&self, address: u64) {
        self.lock(address).remove(&address);
    }
}

impl Thread {
    /// What this thread did comes before what acquires there later.
    pub(crate) fn release(&mut self, address: u64) {
        if self.orders_ignored > 0 {
            return;
        }
        self.quietly(|thread| {
            {
                let mut share = thread.process.releases.lock(address);
                thread
                    .clock
                    .release(&mut share.entry(address).or_default().clock);
            }
            thread.clock_changed(false);
        });
    }

    /// This thread comes after all that was released there.
    pub(crate) fn acquire(&mut self, address: u64) {
        if self.orders_ignored > 0 {
            return;
        }
        self.quietly(|thread| {
            let learned = {
                let share = thread.process.releases.lock(address);
                match share.get(&address) {
                    Some(released) => thread.clock.acquire(&released.clock),
                    None => false,
                }
            };
            thread.clock_changed(learned);
        });
    }

    /// It got a lock; `shared`: with others.
    pub(crate) fn locked(&mut self, lock: u64, shared: bool) {
        if self.orders_ignored > 0 {
            return;
        }
        self.quietly(|thread| {
            let mut learned = false;
            match thread.process.search.order() {
                Order::HappensBefore => {
                    let share = thread.process.releases.lock(lock);
                    if let Some(released) = share.get(&lock) {
                        learned = thread.clock.acquire(&released.clock);
                        if !shared {
                            learned |= thread.clock.acquire(&released.shared);
                        }
                    }
                }
                // Another set of locks needs another segment: what is recorded once in one is so with one.
                Order::Lockset => thread.clock.step(),
            }
            thread.hold(lock, shared);
            thread.clock_changed(learned);
        });
    }

    /// It is about to give a lock back.
    pub(crate) fn unlocks(&mut self, lock: u64) {
        if self.orders_ignored > 0 {
            return;
        }
        self.quietly(|thread| {
            match thread.process.search.order() {
                Order::HappensBefore => {
                    let shared = thread.is_shared(lock);
                    let mut share = thread.process.releases.lock(lock);
                    let released = share.entry(lock).or_default();
                    thread.clock.release(match shared {
                        true => &mut released.shared,
                        false => &mut released.clock,
                    });
                }
                Order::Lockset => thread.clock.step(),
            }
            thread.let_go(lock);
            thread.clock_changed(false);
        });
    }
}
