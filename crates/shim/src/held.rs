//! A claim that the program holds itself: it links libcorewise, and this library before its OpenMP runtime,
//! and asks that its regions follow (`corewise_follow_openmp`). Nobody stands beside it, and no variable
//! leads anywhere: libcorewise, which is in the same process, hands over where its claim stands.
//!
//! Safety: what is handed over is read as long as the process lives, and so must stay. libcorewise's claim
//! pages are never unmapped; see `corewise_page()` in its header.

use crate::loaded::Library;
use crate::{link, objects};
use corewise_abi::VERSION;
use corewise_abi::claim::ClaimPage;
use corewise_abi::reports::Report;
use libc::c_int;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where the address of the claim page to be read now stands, two steps down.
pub(crate) type Slot = AtomicPtr<AtomicPtr<ClaimPage>>;

/// Functions of each runtime that are interposed.
const INTERPOSED: [&CStr; 2] = [c"GOMP_parallel", c"__kmpc_fork_call"];

/// Follows the claim of a library in this process from now on. `report` is where to tell what is followed,
/// if nobody else has said where.
///
/// 1 if the program's regions will follow. 0, and nothing is changed: the OpenMP runtime's functions come
/// before those of this library, or the other side is of another version. May be called again.
///
/// # Safety
/// `slot` and what it leads to, and `report`, are valid for as long as the process lives.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn corewise_shim_follow(
    version: u32,
    slot: *const Slot,
    report: *const Report,
) -> c_int {
    if version != u32::from(VERSION) || slot.is_null() || report.is_null() || !comes_first() {
        return 0;
    }
    // SAFETY: not null, and valid as the caller says.
    let (slot, report) = unsafe { (&*slot, &*report) };
    link::hold(slot, report);
    // What was found of the program while it held nothing may be something else now.
    objects::forget();
    1
}

/// Whether what the program calls is found here before it is found in a runtime.
fn comes_first() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let Some(own) = Library::at(comes_first as *const () as usize) else {
        return false;
    };
    INTERPOSED.iter().all(|name| {
        // SAFETY: a string that ends with a zero.
        let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        Library::at(first as usize).is_some_and(|found| found.start() == own.start())
    })
}

/// The claim page to be read now.
#[inline]
pub(crate) fn page(slot: &'static Slot) -> *mut ClaimPage {
    // SAFETY: see the module; null is checked for.
    match unsafe { slot.load(Ordering::Acquire).as_ref() } {
        Some(place) => place.load(Ordering::Acquire),
        None => std::ptr::null_mut(),
    }
}
