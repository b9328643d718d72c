//! Functions that are interposed: the ones that would have been called.
//!
//! **Why it is sound.** Names are looked up; nobody calls what is found here.
#![allow(unsafe_code, reason = "see the module's head")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A function of the next library that has it.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

static LOOKING: AtomicBool = AtomicBool::new(false);

impl Next {
    /// The function of this name.
    pub const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// `None`: it is being looked for, or is nowhere.
    #[inline(always)]
    pub fn get(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            self.look()
        } else {
            Some(found)
        }
    }

    /// The same, however many threads look at once. `None`: it is nowhere.
    #[inline(always)]
    pub fn wait(&self) -> Option<*mut c_void> {
        match self.get() {
            None => self.again(),
            found => found,
        }
    }

    #[cold]
    fn again(&self) -> Option<*mut c_void> {
        (0..1000).find_map(|_| {
            // SAFETY: gives the CPU away.
            unsafe { libc::sched_yield() };
            self.get()
        })
    }

    #[cold]
    fn look(&self) -> Option<*mut c_void> {
        if LOOKING.swap(true, Ordering::AcqRel) {
            return None;
        }
        // SAFETY: a name that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        LOOKING.store(false, Ordering::Release);
        self.found.store(found, Ordering::Release);
        (!found.is_null()).then_some(found)
    }
}
