//! Memory for buffers that outlives the process.
//!
//! **Why it is sound.** Pieces of the region are nobody else's until they are freed here.
#![allow(unsafe_code, reason = "see the module's head")]

use crate::region::Entered;
use corewise_defer::Memory;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Memory of the region: the command processes what is in it when this process cannot any more.
#[derive(Debug)]
pub struct Lasting {
    entered: Entered<'static>,
    free: Mutex<Vec<(Layout, usize)>>,
}

impl Lasting {
    /// Takes it from the region of this image.
    pub fn new(entered: Entered<'static>) -> Lasting {
        Lasting {
            entered,
            free: Mutex::new(Vec::new()),
        }
    }
}

// SAFETY: pieces of the region are nobody else's until they are freed here.
unsafe impl Memory for Lasting {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.iter().position(|(known, _)| *known == layout) {
            let (_, address) = free.swap_remove(index);
            return NonNull::new(address as *mut u8);
        }
        drop(free);
        self.entered.take_buffer(layout)
    }

    unsafe fn free(&self, memory: NonNull<u8>, layout: Layout) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push((layout, memory.as_ptr() as usize));
    }
}
