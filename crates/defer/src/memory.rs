//! Where buffers are kept: on the heap, or in memory that outlives the process.
#![allow(unsafe_code, reason = "allocation; each block says why it is sound")]

use std::alloc::Layout;
use std::ptr::NonNull;

/// Gives the memory of buffers.
///
/// # Safety
/// What `allocate` gives is writable, has the size and alignment asked for, is nobody else's, and stays so
/// until it is given to `free`, even if this object is dropped before.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Memory for a buffer; `None`: there is none left, and the caller makes do with what it has.
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>>;

    /// Takes memory back.
    ///
    /// # Safety
    /// It came from `allocate` with the same layout, and nobody uses it any more.
    unsafe fn free(&self, memory: NonNull<u8>, layout: Layout);
}

/// The global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: passes on what the global allocator promises.
unsafe impl Memory for Heap {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: a buffer always has a head, so that the size is not zero.
        NonNull::new(unsafe { std::alloc::alloc(layout) })
    }

    unsafe fn free(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: by the contract it came from the function above, with this layout.
        unsafe { std::alloc::dealloc(memory.as_ptr(), layout) }
    }
}
