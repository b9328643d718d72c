//! One thread's end of an environment: the buffer that it fills now.
//!
//! **The protocol.** The owner appends without a lock: it writes the arguments behind the head's `len`, then
//! stores `len` with release ordering. When the buffer is full it locks the slot, exchanges the buffer for an
//! empty one, unlocks, and gives the full one to the strategy. Any other thread may *drain* the slot at any
//! moment: it locks the slot, loads `len` with acquire ordering, moves the calls below it into a buffer of
//! their own, unlocks, and processes that. It changes nothing that the owner reads without the lock; the
//! block remembers how far it was emptied, and the owner sees that when it exchanges it. No lock is held
//! while bodies run: they may defer calls themselves. (`tests/loom.rs` checks this.)
//!
//! **Why it is sound.** `hot` is read and written by the owner alone (a [`Producer`] is not `Sync`, and the
//! slots of `local.rs` belong to one thread). What it points to is the block in `cold`, which is only
//! exchanged by the owner. Elements of the columns from `len` on are the owner's; those below are of whoever
//! holds the lock.
#![allow(unsafe_code, reason = "see the module's head")]

use crate::block::{Block, Head};
use crate::columns::Columns;
use crate::environment::Core;
use crate::progress::Progress;
use crate::sizing::Pace;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::work::By;
use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// One thread's end of an environment.
pub(crate) struct Slot<C: Columns> {
    hot: UnsafeCell<Hot<C>>,
    /// How fast this thread fills buffers. The owner's own.
    pace: Cell<Pace>,
    /// The environment's number of exchanges at this slot's last, or when it was made. The owner's own.
    since: Cell<u64>,
    /// The same for others; 0: nothing was exchanged here.
    exchanged: AtomicU64,
    /// Somebody waited in vain for what others had in hand of this thread.
    given_up: AtomicBool,
    cold: Mutex<Cold<C>>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) core: Arc<Core<C>>,
}

/// What appending needs.
#[derive(Clone, Copy)]
struct Hot<C> {
    head: NonNull<Head>,
    columns: C,
    capacity: u32,
}

struct Cold<C: Columns> {
    block: Block<C>,
    /// The number of this buffer among the thread's, from 1; another one after each drain.
    number: u64,
}

impl<C: Columns> Cold<C> {
    /// The number of the buffer that has the last call made so far.
    fn place(&self) -> u64 {
        match self.block.left() {
            0 => self.number - 1,
            _ => self.number,
        }
    }
}

/// What is said of a slot when what was in its buffer is in another one, with what others had in theirs.
pub(crate) struct Moved {
    /// The number of the last buffer that the slot's owner gave away, or that somebody took.
    pub(crate) last: u64,
    /// Whether that is what was moved now. Else there was nothing.
    pub(crate) is_now: bool,
}

// SAFETY: see the module's head: `hot`, `pace` and `since` are only used by the owner, everything else is behind a
// lock or made for several threads.
unsafe impl<C: Columns> Send for Slot<C> {}
// SAFETY: as above.
unsafe impl<C: Columns> Sync for Slot<C> {}

impl<C: Columns> Slot<C> {
    pub(crate) fn new(core: Arc<Core<C>>, block: Block<C>) -> Slot<C> {
        Slot {
            hot: UnsafeCell::new(hot(&block)),
            pace: Cell::new(Pace::begin(Instant::now())),
            since: Cell::new(core.exchanges()),
            exchanged: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            cold: Mutex::new(Cold { block, number: 1 }),
            progress: Arc::new(Progress::new()),
            core,
        }
    }

    /// Appends a call.
    ///
    /// # Safety
    /// Only the owner calls this, and `store` stores one whole call at the index it is given, without
    /// running code of others.
    #[inline(always)]
    pub(crate) unsafe fn append(&self, store: impl FnOnce(C, usize)) {
        // SAFETY: the owner's.
        let hot = unsafe { *self.hot.get() };
        // SAFETY: the block lives until the owner exchanges it.
        let head = unsafe { hot.head.as_ref() };
        let len = head.len.load(Ordering::Relaxed);
        store(hot.columns, len as usize);
        head.len.store(len + 1, Ordering::Release);
        if len + 1 >= hot.capacity {
            self.exchange();
        }
    }

    /// Whether the next call fills the buffer. Only the owner asks.
    #[inline(always)]
    pub(crate) fn is_nearly_full(&self) -> bool {
        // SAFETY: the owner's, and the block lives until the owner exchanges it.
        let (head, capacity) = unsafe {
            let hot = &*self.hot.get();
            (hot.head.as_ref(), hot.capacity)
        };
        head.len.load(Ordering::Relaxed) + 1 >= capacity
    }

    /// Gives the buffer to the strategy, if anything is in it, and goes on with an empty one. Only the
    /// owner calls this.
    #[cold]
    #[inline(never)]
    pub(crate) fn exchange(&self) {
        let began = Instant::now();
        self.since.set(self.core.count_exchange());
        self.exchanged.store(self.since.get(), Ordering::Relaxed);
        let mut cold = lock(&self.cold);
        if cold.block.left() == 0 {
            // Nothing was called, or somebody drained it: it is as good as an empty one.
            cold.block.reset();
            return;
        }
        let (fresh, short) = self.core.fresh();
        // SAFETY: the owner's.
        unsafe { *self.hot.get() = hot(&fresh) };
        let full = std::mem::replace(&mut cold.block, fresh);
        let number = cold.number;
        cold.number += 1;
        // Before the lock is free: whoever finds nothing here waits for it.
        let work = self.core.wrap(full, number, Arc::clone(&self.progress));
        drop(cold);
        // With memory short, no more of it is handed about.
        let others = match short {
            true => self.core.process_here(work),
            false => self.core.submit(work),
        };
        let mut pace = self.pace.get();
        if let Some(capacity) = pace.exchanged(began, Instant::now(), others, self.core.capacity())
        {
            self.core.found_capacity(capacity);
        }
        self.pace.set(pace);
    }

    /// Processes what is in the buffer now, without taking it from its owner. Any thread may call this.
    pub(crate) fn drain(self: &Arc<Self>) {
        self.drain_locked(lock(&self.cold));
    }

    /// The same, unless somebody has the buffer in hand.
    pub(crate) fn drain_if_free(self: &Arc<Self>) {
        if let Ok(cold) = self.cold.try_lock() {
            self.drain_locked(cold);
        }
    }

    /// Whether its owner has not exchanged a buffer after the environment's exchange of this number.
    pub(crate) fn is_idle_since(&self, exchange: u64) -> bool {
        self.exchanged.load(Ordering::Relaxed) <= exchange
    }

    /// The environment's number of exchanges at this slot's last. Only the owner asks.
    pub(crate) fn since(&self) -> u64 {
        self.since.get()
    }

    /// Whether what others have in hand of this thread is worth waiting for, where only order is gained.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed)
    }

    /// It is not any more.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// The number of the last buffer that its owner gave away, or that somebody took.
    pub(crate) fn last(&self) -> u64 {
        lock(&self.cold).number - 1
    }

    /// Moves what is in the buffer now, if anything is, behind what others had in theirs, or into a buffer that is made
    /// now. `None`: there is no room for it. Any thread may call this.
    pub(crate) fn move_to(&self, together: &mut Option<Block<C>>) -> Option<Moved> {
        let mut cold = lock(&self.cold);
        let left = cold.block.left();
        let is_now = left > 0;
        if is_now {
            match together {
                Some(block) if block.room() < left => return None,
                Some(block) => cold.block.move_to(block),
                None => {
                    self.core.begins();
                    // With room for some of others, too.
                    let capacity = self.core.capacity().max(left).saturating_mul(2);
                    *together = Some(self.core.moved(&mut cold.block, capacity));
                }
            }
            cold.number += 1;
        }
        Some(Moved {
            last: cold.number - 1,
            is_now,
        })
    }

    fn drain_locked(self: &Arc<Self>, mut cold: MutexGuard<'_, Cold<C>>) {
        if cold.block.left() == 0 {
            return;
        }
        let left = cold.block.left();
        let moved = self.core.moved(&mut cold.block, left);
        let number = cold.number;
        cold.number += 1;
        let work = self.core.wrap(moved, number, Arc::clone(&self.progress));
        drop(cold);
        work.run(By::Waiter);
    }

    /// The number of the buffer that has the last call made so far.
    pub(crate) fn place(&self) -> u64 {
        lock(&self.cold).place()
    }

    /// The same, unless somebody has the buffer in hand.
    pub(crate) fn place_if_free(&self) -> Option<u64> {
        Some(self.cold.try_lock().ok()?.place())
    }
}

fn hot<C: Columns>(block: &Block<C>) -> Hot<C> {
    Hot {
        head: block.head_pointer(),
        columns: block.columns(),
        capacity: block.capacity(),
    }
}

/// An end of an environment that is held in hand: it appends to its own buffer, without a look at what
/// belongs to the thread. Dropping it submits its buffer.
pub struct Producer<C: Columns> {
    slot: Arc<Slot<C>>,
    /// Not `Sync`: one thread at a time appends.
    _one: std::marker::PhantomData<Cell<()>>,
}

impl<C: Columns> Producer<C> {
    pub(crate) fn new(slot: Arc<Slot<C>>) -> Producer<C> {
        Producer {
            slot,
            _one: std::marker::PhantomData,
        }
    }

    /// Appends a call; what `#[deferred]` writes calls this.
    ///
    /// # Safety
    /// `store` stores one whole call at the index that it is given, and runs no other code.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn append(&self, store: impl FnOnce(C, usize)) {
        // SAFETY: this is the owner; the rest is the caller's promise.
        unsafe { self.slot.append(store) }
    }

    /// Whether the next call fills the buffer, so that this thread hands it over, or processes it.
    #[inline(always)]
    pub fn is_nearly_full(&self) -> bool {
        self.slot.is_nearly_full()
    }

    /// Submits the buffer now, however full it is, and goes on with an empty one. What happens to it is the
    /// strategy's affair.
    pub fn process_current(&self) {
        self.slot.exchange();
    }

    /// Processes, on the calling thread, what waits in a queue, and in the buffers of threads that are idle; see
    /// [`Environment::process_idle`](crate::Environment::process_idle).
    pub fn process_idle(&self) {
        self.slot.process_idle();
    }

    /// A checkpoint behind the calls made so far with this producer.
    pub fn checkpoint(&self) -> crate::Checkpoint {
        crate::Checkpoint::behind(&self.slot)
    }

    /// For other threads, to ask for checkpoints behind the calls made with this producer.
    pub fn watch(&self) -> crate::Watch {
        crate::Watch::of(&self.slot)
    }
}

impl<C: Columns> Drop for Producer<C> {
    fn drop(&mut self) {
        self.slot.exchange();
    }
}

impl<C: Columns> std::fmt::Debug for Producer<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}
