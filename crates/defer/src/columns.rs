//! The arrays that calls are stored in. `#[deferred]` writes the implementations for a trait;
//! [`dynamic`](crate::dynamic) is one for calls that are declared at run time.
//!
//! **Why it is sound.** A [`Column`] is a pointer into a block of memory that was laid out by
//! [`Places`] for a number of calls. Who puts, takes and discards promises to stay within that number, to
//! put before taking, and to take once; `slot.rs` and `block.rs` keep these promises in one place each.
#![allow(
    unsafe_code,
    reason = "arrays without initialisation; see the module's head"
)]

use std::alloc::Layout;
use std::ptr::NonNull;

/// One array of a buffer: values of one type, one for each call.
pub struct Column<T>(NonNull<T>);

impl<T> Clone for Column<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Column<T> {}

// SAFETY: a column is used like the values that it holds; it hands none of them to two threads.
unsafe impl<T: Send> Send for Column<T> {}

impl<T> Column<T> {
    /// Stores the value of call `index`.
    ///
    /// # Safety
    /// `index` is below the number of calls that the column was placed for, its memory is there, nobody
    /// else uses this element now, and what it holds is not needed any more.
    #[inline(always)]
    pub unsafe fn put(self, index: usize, value: T) {
        // SAFETY: within the column, by the contract.
        unsafe { self.0.as_ptr().add(index).write(value) }
    }

    /// Moves the value of call `index` out.
    ///
    /// # Safety
    /// As for [`Column::put`]; the element was put, and not taken since.
    #[inline(always)]
    pub unsafe fn take(self, index: usize) -> T {
        // SAFETY: within the column and initialised, by the contract.
        unsafe { self.0.as_ptr().add(index).read() }
    }

    /// Drops the value of call `index` where it is.
    ///
    /// # Safety
    /// As for [`Column::take`].
    pub unsafe fn discard(self, index: usize) {
        // SAFETY: as above.
        unsafe { self.0.as_ptr().add(index).drop_in_place() }
    }
}

/// Lays columns out one after the other: first to find out how much memory they take, then in it.
#[derive(Debug)]
pub struct Places {
    base: Option<NonNull<u8>>,
    layout: Layout,
    capacity: usize,
    failed: bool,
}

impl Places {
    pub(crate) fn measuring(head: Layout, capacity: usize) -> Places {
        Places {
            base: None,
            layout: head,
            capacity,
            failed: false,
        }
    }

    /// # Safety
    /// `base` has as much memory as measuring the same columns with the same head and capacity gave.
    pub(crate) unsafe fn within(base: NonNull<u8>, head: Layout, capacity: usize) -> Places {
        Places {
            base: Some(base),
            ..Places::measuring(head, capacity)
        }
    }

    /// The next column.
    pub fn column<T>(&mut self) -> Column<T> {
        let extended = Layout::array::<T>(self.capacity).and_then(|a| self.layout.extend(a));
        let Ok((layout, offset)) = extended else {
            self.failed = true;
            return Column(NonNull::dangling());
        };
        self.layout = layout;
        Column(match self.base {
            // SAFETY: within the memory, by the contract of `within`.
            Some(base) => unsafe { base.add(offset) }.cast(),
            None => NonNull::dangling(),
        })
    }

    /// How much memory the columns take; `None`: more than there can be.
    pub(crate) fn layout(&self) -> Option<Layout> {
        (!self.failed).then(|| self.layout.pad_to_align())
    }
}

/// The arrays for the calls of one trait.
///
/// # Safety
/// `place` places the same columns each time; `relocate` moves the arguments of that call and nothing else,
/// `discard` drops them, each once.
pub unsafe trait Columns: Copy + Send + 'static {
    /// Places the columns.
    fn place(places: &mut Places) -> Self;

    /// Moves a call to another buffer.
    ///
    /// # Safety
    /// The call at `index` was stored, and neither executed, discarded nor moved; in `to`, `to_index` is
    /// within the capacity and free. Nobody else uses either now.
    unsafe fn relocate(&self, index: usize, to: &Self, to_index: usize);

    /// Drops the arguments of a call that is not to be executed.
    ///
    /// # Safety
    /// The call at `index` was stored, and neither executed nor discarded.
    unsafe fn discard(&self, index: usize);
}

/// The loop that executes stored calls on a target.
///
/// # Safety
/// `execute` executes each call from `next` to `len` in order and moves its arguments out of the columns;
/// it counts `next` up *before* it runs the call's body, so that a body that panics is not run again.
pub unsafe trait Execute<T: ?Sized>: Columns {
    /// Executes the calls from `next` up to `len`.
    ///
    /// # Safety
    /// The calls from `next` up to `len` were stored, and neither executed nor discarded.
    unsafe fn execute(&self, next: &mut u32, len: u32, target: &T);
}
