//! Which team's place the calling thread has, or has lent while it blocks.
//!
//! Safety: a pool's pointer is set by [`Place::enter`], which borrows the pool for as long as the place is
//! held, and taken back when that place is dropped, on the same thread; [`lend`] and [`take_back`] only
//! move it to and fro within that time. It is never seen outside of it. A constant thread-local without
//! a destructor costs one load, and nothing at the thread's end.
#![allow(unsafe_code)]

use super::pool::Pool;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// The place that the thread has lent: whose it is (null: it had none), and how many times it has begun
/// to block without having ended that.
#[derive(Clone, Copy)]
struct Lent {
    pool: *const Pool,
    depth: u32,
}

const NOTHING_LENT: Lent = Lent {
    pool: std::ptr::null(),
    depth: 0,
};

thread_local! {
    static POOL: Cell<*const Pool> = const { Cell::new(std::ptr::null()) };
    static LENT: Cell<Lent> = const { Cell::new(NOTHING_LENT) };
}

/// The calling thread is in a place of a pool (or in none) until this is dropped.
pub(super) struct Place<'a> {
    before: *const Pool,
    lent_before: Lent,
    _pool: PhantomData<&'a Arc<Pool>>,
}

impl<'a> Place<'a> {
    pub(super) fn enter(pool: Option<&'a Arc<Pool>>) -> Place<'a> {
        let pool = pool.map_or(std::ptr::null(), Arc::as_ptr);
        Place {
            before: POOL.replace(pool),
            lent_before: LENT.replace(NOTHING_LENT),
            _pool: PhantomData,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        LENT.set(self.lent_before);
        POOL.set(self.before);
    }
}

/// Whether the calling thread is in a place of `pool`.
pub(super) fn is_in(pool: &Pool) -> bool {
    std::ptr::eq(POOL.get(), pool)
}

/// The pool in whose place the calling thread is.
fn pool() -> Option<Arc<Pool>> {
    // SAFETY: not null only while `Place` keeps an `Arc` of it borrowed, from which the pointer was made.
    unsafe { shared(POOL.get()) }
}

/// The calling thread begins to block: it is in no place until [`take_back`]. Gives the pool whose place
/// is lent; `None` if it has none to lend.
pub(super) fn lend() -> Option<Arc<Pool>> {
    let lent = LENT.get();
    let mut next = Lent {
        depth: lent.depth.saturating_add(1),
        ..lent
    };
    let pool = if lent.depth == 0 { pool() } else { None };
    if lent.depth == 0 {
        next.pool = POOL.replace(std::ptr::null());
    }
    LENT.set(next);
    pool
}

/// The calling thread goes on. Gives the pool whose place it has again; `Err` if it had not begun to
/// block.
pub(super) fn take_back() -> Result<Option<Arc<Pool>>, ()> {
    let lent = LENT.get();
    match lent.depth {
        0 => Err(()),
        1 => {
            LENT.set(NOTHING_LENT);
            POOL.set(lent.pool);
            Ok(pool())
        }
        depth => {
            LENT.set(Lent {
                depth: depth - 1,
                ..lent
            });
            Ok(None)
        }
    }
}

/// A unit of work has ended: what it has lent and not taken back is taken back. Gives the pool, if there
/// was something. Costs a load otherwise.
#[inline]
pub(super) fn settle() -> Option<Arc<Pool>> {
    let lent = LENT.get();
    if lent.depth == 0 {
        return None;
    }
    LENT.set(NOTHING_LENT);
    POOL.set(lent.pool);
    pool()
}

/// Another owner of what an `Arc` owns.
///
/// # Safety
/// `pool` is null, or was made by `Arc::as_ptr` of an `Arc` that is alive during this call.
unsafe fn shared(pool: *const Pool) -> Option<Arc<Pool>> {
    if pool.is_null() {
        return None;
    }
    // SAFETY: by this function's own rule.
    unsafe {
        Arc::increment_strong_count(pool);
        Some(Arc::from_raw(pool))
    }
}
