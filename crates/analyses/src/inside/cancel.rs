//! Moments in which a thread of the program is not cancelled: what is ours is left as it was begun.
//!
//! **Why it is sound.** The C library's own switch of the calling thread.
#![allow(unsafe_code, reason = "see the module's head")]

use std::ffi::c_int;
use std::ptr::null_mut;

const DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// From now on the calling thread is not cancelled. What it was before, for [`as_before`]. Costs a few
/// nanoseconds.
pub(super) fn never() -> c_int {
    let mut before = 0;
    // SAFETY: room for what it was; switching off never unwinds.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    before
}

/// It may be cancelled again, if it could be. Where that was asked for meanwhile, and the thread can be cancelled
/// anywhere, it does not return, but unwinds.
pub(super) fn as_before(before: c_int) {
    // SAFETY: what it was.
    unsafe { pthread_setcancelstate(before, null_mut()) };
}
