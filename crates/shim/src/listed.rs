//! Which numbers of threads of OpenMP regions may be changed.
//!
//! One that the program demands (a `num_threads` clause) stays as it is, and so do all in a library that
//! keeps data of its own in each thread: OpenMP promises that threadprivate data lives on from region to
//! region if their numbers of threads are the same. Excepted are the libraries on a list: of each it is
//! proven, by a test that compares what a program computes, that it gives the same result. And the user
//! may want all changed, but for libraries of which it is known that they then compute something else.

use crate::objects::Object;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A part of the path of a library, and why it is safe.
const LISTED: [(&[u8], &str); 4] = [
    (
        b"/lib_lightgbm.so",
        "asks for omp_get_max_threads() on every region; loops over rows and features",
    ),
    (
        b"/sklearn/",
        "Cython's prange with num_threads: a loop, whoever runs it; sums in each thread's buffer",
    ),
    (
        b"/libMagickCore-",
        "a clause on every loop over rows; what threads keep is indexed by their number in the team",
    ),
    (
        b"/numba/np/ufunc/omppool.",
        "a loop over the pieces of a generalised ufunc, cut before the region begins",
    ),
];

/// A part of the path of a library, and what happens when fewer threads come than it demanded.
const RELYING: [(&[u8], &str); 1] = [(
    b"/libmkl_",
    "cuts its work before the region: dgesv gives another result (oneMKL 2026)",
)];

/// What is known of a library: [`CHANGEABLE`], [`FIXED`], or nothing (0).
pub(crate) fn known(path: &[u8]) -> u32 {
    let contains = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    if LISTED.iter().any(|(part, _)| contains(part)) {
        CHANGEABLE
    } else if RELYING.iter().any(|(part, _)| contains(part)) {
        FIXED
    } else {
        0
    }
}

/// The library's numbers may be changed also where it demands them.
const CHANGEABLE: u32 = 1;
/// None of the library's numbers may ever be changed.
const FIXED: u32 = 2;

/// Whether the number of threads of a region in the library `caller`, which the program has `demanded` or
/// left to the runtime, may be changed.
#[inline]
pub(crate) fn may_change(caller: &Object, demanded: bool) -> bool {
    match caller.listed.load(Ordering::Relaxed) {
        CHANGEABLE => true,
        FIXED => false,
        _ => {
            let safe = !demanded && caller.keeps_thread_data.load(Ordering::Relaxed) == 0;
            safe || OVERRIDE.load(Ordering::Relaxed) != 0
        }
    }
}

/// Whether the user wants numbers changed that programs demand; read when the process begins.
static OVERRIDE: AtomicU32 = AtomicU32::new(0);

/// The variable by which the local manager hands the user's wish on.
const OVERRIDE_VARIABLE: &CStr = c"COREWISE_OVERRIDE_CLAUSES";

#[used]
#[unsafe(link_section = ".init_array")]
static READ: extern "C" fn() = read_wish;

extern "C" fn read_wish() {
    // SAFETY: a string that ends with a zero; the program has not begun.
    let wish = unsafe { libc::getenv(OVERRIDE_VARIABLE.as_ptr()) };
    OVERRIDE.store(u32::from(!wish.is_null()), Ordering::Relaxed);
}
