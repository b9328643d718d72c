//! Functions that are interposed: the ones that would have been called.
//!
//! Looking for one may call others that are interposed, which cannot be found then, on the same thread. Other threads
//! look for themselves at the same time: one that had to wait for the first could hold what that one waits for, as a
//! library's constructors do.
//!
//! **Why it is sound.** Names are looked up; nobody calls what is found here.
#![allow(unsafe_code, reason = "see the module's head")]

use super::Quiet;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A function of the next library that has it.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// Threads that look for functions at the same time; further ones wait for one of them to have found its own.
const MOST: usize = 64;

/// The threads that are looking, as the C library names them; 0: none.
static LOOKING: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// A thread is looking for a function, until this is dropped.
struct Looking(&'static AtomicU64);

impl Looking {
    /// `None`: it is already.
    fn begin() -> Option<Looking> {
        // SAFETY: asks who this is.
        let this = unsafe { libc::pthread_self() } as u64;
        loop {
            if LOOKING.iter().any(|at| at.load(Ordering::Relaxed) == this) {
                return None;
            }
            let taken = |at: &&AtomicU64| {
                at.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            };
            if let Some(at) = LOOKING.iter().find(taken) {
                return Some(Looking(at));
            }
            // SAFETY: gives the CPU away.
            unsafe { libc::sched_yield() };
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Next {
    /// The function of this name.
    pub const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// In a forked child: its only thread looks for nothing, whatever its parent's others did.
    pub fn forked() {
        for at in &LOOKING {
            at.store(0, Ordering::Relaxed);
        }
    }

    /// `None`: it is nowhere, or this thread is looking for one already. Costs a load where it was found before.
    #[inline(always)]
    pub fn get(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            self.look()
        } else {
            Some(found)
        }
    }

    #[cold]
    fn look(&self) -> Option<*mut c_void> {
        // First of all: what follows may come here again.
        let _looking = Looking::begin()?;
        // A handler that came meanwhile would find nothing.
        let _quiet = Quiet::now();
        // SAFETY: a name that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        (!found.is_null()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_while_others_are_looking_and_not_while_this_thread_is() {
        let others = LOOKING.iter().take(MOST - 1);
        for (index, at) in others.enumerate() {
            at.store(1 + index as u64, Ordering::Relaxed);
        }
        assert!(Next::new(c"getpid").get().is_some());
        let looking = Looking::begin();
        assert!(looking.is_some());
        assert!(Next::new(c"getpid").get().is_none());
        drop(looking);
        assert!(Next::new(c"getpid").get().is_some());
        assert!(Next::new(c"there is no such function").get().is_none());
        Next::forked();
    }
}
