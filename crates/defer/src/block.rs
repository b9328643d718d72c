//! One buffer: a block of memory with a head and the columns, and which of its calls are still to be
//! executed.
//!
//! **Why it is sound.** The calls from `next` to the head's `len` are stored and were not executed; whoever
//! owns the block (or, while it is being filled, holds its slot's lock) executes or discards them, each
//! once. A block that is dropped discards what is left.
#![allow(unsafe_code, reason = "see the module's head")]

use crate::columns::{Columns, Execute, Places};
use crate::memory::Memory;
use crate::sync::{AtomicU32, Ordering};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

/// What stands before the columns. Memory that outlives the process shows from outside how far a buffer
/// was filled and processed.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Head {
    /// Calls that are stored whole.
    pub len: AtomicU32,
    /// Calls of which nothing has to be done any more: their buffer's processing has ended, with what its
    /// hooks merge.
    pub done: AtomicU32,
    /// Not 0: the effects of the calls that are not done are on their way to where they last
    /// ([`Pending::merging`](crate::Pending::merging)).
    pub merging: AtomicU32,
    /// Calls that the columns were placed for.
    pub capacity: AtomicU32,
}

/// A buffer.
pub(crate) struct Block<C: Columns> {
    head: NonNull<Head>,
    columns: C,
    next: u32,
    capacity: u32,
    layout: Layout,
    memory: Arc<dyn Memory>,
}

// SAFETY: a block owns its memory, and the values in it are `Send` (`Columns` requires it).
unsafe impl<C: Columns> Send for Block<C> {}

impl<C: Columns> Block<C> {
    /// Makes an empty buffer; `None`: there is no memory for it.
    pub(crate) fn new(memory: &Arc<dyn Memory>, capacity: u32) -> Option<Block<C>> {
        let before = Layout::new::<Head>();
        let mut places = Places::measuring(before, capacity as usize);
        C::place(&mut places);
        let layout = places.layout()?;
        let base = memory.allocate(layout)?;
        let head = base.cast::<Head>();
        // SAFETY: the memory is ours and begins with room for the head; the columns are placed with the
        // same head and capacity as they were measured with.
        let columns = unsafe {
            head.write(Head {
                len: AtomicU32::new(0),
                done: AtomicU32::new(0),
                merging: AtomicU32::new(0),
                capacity: AtomicU32::new(capacity),
            });
            C::place(&mut Places::within(base, before, capacity as usize))
        };
        Some(Block {
            head,
            columns,
            next: 0,
            capacity,
            layout,
            memory: Arc::clone(memory),
        })
    }

    pub(crate) fn head(&self) -> &Head {
        // SAFETY: it was initialised with the block, and lives as long.
        unsafe { self.head.as_ref() }
    }

    pub(crate) fn head_pointer(&self) -> NonNull<Head> {
        self.head
    }

    pub(crate) fn columns(&self) -> C {
        self.columns
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Calls that are neither executed nor discarded.
    pub(crate) fn left(&self) -> u32 {
        self.head().len.load(Ordering::Acquire) - self.next
    }

    /// How many more it can store, where nobody else does.
    pub(crate) fn room(&self) -> u32 {
        self.capacity - self.head().len.load(Ordering::Acquire)
    }

    /// Moves what is stored at this moment behind what another block has, as far as there is room for it. Nothing was
    /// taken out of that one yet.
    pub(crate) fn move_to(&mut self, other: &mut Block<C>) {
        assert_eq!(other.next, 0, "nothing was taken out of it");
        let mut at = other.left();
        let end = self.next + self.left().min(other.room());
        while self.next < end {
            // SAFETY: what is between `next` and the head's `len` is stored and ours; the other has room (above).
            unsafe {
                self.columns
                    .relocate(self.next as usize, &other.columns, at as usize);
            }
            self.next += 1;
            at += 1;
        }
        // For a moment both have them; seen from outside, the other has.
        self.mark_merging();
        other.head().len.store(at, Ordering::Release);
        self.mark_done();
    }

    /// Executes what is stored at this moment. After a panic the calls behind the one that panicked are
    /// left.
    pub(crate) fn execute<T: ?Sized>(&mut self, target: &T)
    where
        C: Execute<T>,
    {
        let len = self.head().len.load(Ordering::Acquire);
        // SAFETY: what `next` promises (see the module's head); `execute` keeps it.
        unsafe { self.columns.execute(&mut self.next, len, target) }
    }

    /// Drops the arguments of what is stored at this moment. How many calls that were.
    pub(crate) fn discard(&mut self) -> u32 {
        let len = self.head().len.load(Ordering::Acquire);
        let lost = len - self.next;
        while self.next < len {
            let index = self.next as usize;
            // A destructor may panic, and is not called again then.
            self.next += 1;
            // SAFETY: as above.
            unsafe { self.columns.discard(index) }
        }
        lost
    }

    /// Says in the head that processing has ended for what was taken.
    pub(crate) fn mark_done(&self) {
        self.head().done.store(self.next, Ordering::Release);
        self.head().merging.store(0, Ordering::Release);
    }

    /// Says in the head that what was taken is being merged.
    pub(crate) fn mark_merging(&self) {
        self.head().merging.store(1, Ordering::SeqCst);
    }

    /// Makes it an empty buffer again. Nothing may be left in it.
    pub(crate) fn reset(&mut self) {
        debug_assert_eq!(self.left(), 0);
        self.discard();
        // `len` first: from outside it never looks as if something was still to be done.
        self.head().len.store(0, Ordering::Release);
        self.head().done.store(0, Ordering::Release);
        self.head().merging.store(0, Ordering::Release);
        self.next = 0;
    }
}

impl<C: Columns> Drop for Block<C> {
    fn drop(&mut self) {
        self.discard();
        // SAFETY: it came from there with this layout, and nobody else uses it.
        unsafe { self.memory.free(self.head.cast(), self.layout) }
    }
}

/// What a buffer still held whose process is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Calls that were executed now.
    pub executed: u32,
    /// Calls that were not: their effects were just being merged when the process died
    /// ([`Pending::merging`](crate::Pending::merging)), so that some have had theirs and others have not.
    pub in_doubt: u32,
}

/// Executes what a buffer still holds whose process is gone, in memory that outlived it
/// ([`Memory`](crate::Memory)). Nothing where the memory holds no buffer of this kind.
///
/// Calls of which processing had begun, and not ended, are executed again, unless their effects were being
/// merged.
///
/// # Safety
/// A buffer of these columns was made in the memory, or it is zero; nobody else uses it now. The arguments
/// mean something in this process: they hold no pointers of the one that is gone.
pub unsafe fn execute_left<C: Execute<T>, T: ?Sized>(
    memory: NonNull<u8>,
    bytes: usize,
    target: &T,
) -> Left {
    if bytes < size_of::<Head>() {
        return Left::default();
    }
    // SAFETY: a head is of atomics, and there is room for one.
    let head = unsafe { memory.cast::<Head>().as_ref() };
    let capacity = head.capacity.load(Ordering::Acquire);
    let before = Layout::new::<Head>();
    let mut places = Places::measuring(before, capacity as usize);
    C::place(&mut places);
    let fits = places.layout().is_some_and(|layout| layout.size() <= bytes);
    let len = head.len.load(Ordering::Acquire);
    let done = head.done.load(Ordering::Acquire);
    if !fits || len > capacity || done >= len {
        return Left::default();
    }
    if head.merging.load(Ordering::Acquire) != 0 {
        head.done.store(len, Ordering::Release);
        return Left {
            executed: 0,
            in_doubt: len - done,
        };
    }
    // SAFETY: the block has room for them (above); what is below `len` was stored.
    let executed = unsafe {
        let columns = C::place(&mut Places::within(memory, before, capacity as usize));
        let mut next = done;
        columns.execute(&mut next, len, target);
        next - done
    };
    head.done.store(len, Ordering::Release);
    Left {
        executed,
        in_doubt: 0,
    }
}
