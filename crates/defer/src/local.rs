//! Which end of which environment belongs to this thread.
//!
//! A thread-local table without a destructor remembers the ends that were used last, by the environment's
//! number; a full list hangs on a key of the C library, whose destructor submits the buffers at the thread's
//! end. So calls that are deferred by the destructors of other thread-locals (Rust's and C++'s run earlier)
//! are kept, too. Keys have destructors as well, in any order: ours asks to be called again until the round
//! before the last.
//!
//! **Why it is sound.** The table's pointers are of slots that this thread's list holds; both end with the
//! thread. A pointer is only used for the environment whose number stands beside it, numbers are never used
//! twice, and an environment has one type of columns.
#![allow(unsafe_code, reason = "see the module's head")]

use crate::columns::Columns;
use crate::environment::{Core, Environment};
use crate::slot::Slot;
use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Environments that a thread can use in turn without the list. A power of two.
const REMEMBERED: usize = 8;
/// The C library calls destructors of keys up to so many times (`PTHREAD_DESTRUCTOR_ITERATIONS`).
const ROUNDS: u32 = 4;

thread_local! {
    static RECENT: [Cell<(u64, *const ())>; REMEMBERED] =
        const { [const { Cell::new((0, std::ptr::null())) }; REMEMBERED] };
}

/// One end of an environment, of whichever type.
trait End: Any + Send + Sync {
    fn submit(&self);
}

impl<C: Columns> End for Slot<C> {
    fn submit(&self) {
        self.exchange();
    }
}

struct Ends {
    list: Vec<(u64, Arc<dyn End>)>,
    round: u32,
}

impl<C: Columns> Environment<C> {
    /// Appends a call to this thread's buffer; what `#[deferred]` writes calls this.
    ///
    /// # Safety
    /// `store` stores one whole call at the index that it is given, and runs no other code.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn append(&self, store: impl FnOnce(C, usize)) {
        let id = self.core.id;
        let (known, end) = RECENT.with(|recent| recent[id as usize % REMEMBERED].get());
        let slot = match NonNull::new(end.cast_mut()) {
            Some(end) if known == id => end.cast::<Slot<C>>(),
            _ => looked_up(&self.core),
        };
        // SAFETY: the slot is this thread's own, and there as long as the thread; the rest is the
        // caller's promise.
        unsafe { slot.as_ref().append(store) }
    }
}

#[cold]
#[inline(never)]
fn looked_up<C: Columns>(core: &Arc<Core<C>>) -> NonNull<Slot<C>> {
    let slot = NonNull::from(&*owned(core));
    RECENT
        .with(|recent| recent[core.id as usize % REMEMBERED].set((core.id, slot.as_ptr().cast())));
    slot
}

/// This thread's end of an environment, as one of its owners.
pub(crate) fn owned<C: Columns>(core: &Arc<Core<C>>) -> Arc<Slot<C>> {
    let key = key();
    // SAFETY: the value is null or the list that was set below, which is this thread's own. Making a slot
    // does not come back here.
    let ends = unsafe {
        let mut ends = libc::pthread_getspecific(key).cast::<Ends>();
        if ends.is_null() {
            ends = Box::into_raw(Box::new(Ends {
                list: Vec::new(),
                round: 0,
            }));
            libc::pthread_setspecific(key, ends.cast());
        }
        &mut *ends
    };
    let known = ends.list.iter().find(|(number, _)| *number == core.id);
    let known = known.map(|(_, end)| Arc::clone(end) as Arc<dyn Any + Send + Sync>);
    if let Some(Ok(slot)) = known.map(Arc::downcast) {
        return slot;
    }
    let slot = core.slot();
    ends.list.push((core.id, Arc::clone(&slot) as Arc<dyn End>));
    slot
}

fn key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the destructor is a function of this library, for the values that are set above.
        // Without a free key (there are 1,024) the key is 0, which may be another's: better to stop.
        let result = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
        assert_eq!(
            result, 0,
            "no key of the C library is free for deferred calls"
        );
        key
    })
}

unsafe extern "C" fn thread_ends(ends: *mut c_void) {
    // SAFETY: the C library gives back the list of this thread, once.
    let mut ends = unsafe { Box::from_raw(ends.cast::<Ends>()) };
    ends.round += 1;
    if ends.round + 1 < ROUNDS {
        // SAFETY: as in `owned`.
        unsafe {
            libc::pthread_setspecific(key(), Box::into_raw(ends).cast());
        }
        return;
    }
    // What the bodies below defer begins a new list, which the last round gets.
    RECENT.with(|recent| {
        for remembered in recent {
            remembered.set((0, std::ptr::null()));
        }
    });
    for (_, end) in ends.list {
        end.submit();
    }
}
