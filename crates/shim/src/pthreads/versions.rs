//! Which version of a function a caller means. The C library keeps an old `pthread_cond_wait`, for condition
//! variables of another layout, beside the one of today; a library says in its own tables which it was linked
//! with. Ours stands for both, and what initialises and wakes goes past us: so they must be told apart.

use super::{COND_TIMEDWAIT, COND_WAIT, COUNT, FUNCTIONS};
use crate::loaded::Library;
use crate::objects::epoch;
use libc::c_void;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const OLD: &CStr = c"GLIBC_2.2.5";
const CURRENT: &CStr = c"GLIBC_2.3.2";

/// The old functions, by number; null: there are none.
static OLD_ONES: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];

/// Addresses that called, each at one place; a power of two. Address, epoch and answer (1: the current one, 2:
/// the old one) in one word.
static KEPT: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

const EPOCH_BITS: u32 = 10;
const ANSWER_BITS: u32 = 2;

pub(super) fn prepare() {
    for number in [COND_WAIT, COND_TIMEDWAIT] {
        let name = FUNCTIONS[number].name;
        let current = current(name);
        // Another library that stands for both, such as a sanitizer's, gets the calls of all.
        if current == version(name, CURRENT) {
            OLD_ONES[number].store(version(name, OLD), Ordering::Release);
        }
    }
}

/// The function of today: what comes next, but for the old one, which early versions of the loader give.
pub(super) fn current(name: &CStr) -> *mut c_void {
    let found = super::next(name);
    match found == version(name, OLD) {
        true => version(name, CURRENT),
        false => found,
    }
}

/// The C library's own function of that version; null: it has none. Skips libraries without versions.
fn version(name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: strings that end with a zero.
    unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
}

/// The old function, where the library that will be returned to at `caller` means that one. Who jumped to us
/// from another library counts as who is returned to.
pub(super) fn meant(number: usize, caller: usize) -> Option<*mut c_void> {
    let epoch = epoch() & ((1 << EPOCH_BITS) - 1);
    let known = (caller as u64) << EPOCH_BITS | epoch;
    let spread = caller.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KEPT.len().trailing_zeros());
    let site = KEPT.get(spread)?;
    let kept = site.load(Ordering::Relaxed);
    let is_old = match kept >> ANSWER_BITS == known {
        true => kept & 2 != 0,
        false => {
            let name = FUNCTIONS.get(number)?.name;
            let library = Library::at(caller);
            let version = library.as_ref().and_then(|l| l.version_of(name));
            // Without a version the loader binds to the oldest.
            let is_old = version.is_some_and(|version| version.is_none_or(|v| v == OLD));
            let answer = if is_old { 2 } else { 1 };
            site.store(known << ANSWER_BITS | answer, Ordering::Relaxed);
            is_old
        }
    };
    let old = OLD_ONES.get(number)?.load(Ordering::Acquire);
    (is_old && !old.is_null()).then_some(old)
}
