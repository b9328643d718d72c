//! The adapter for GCC's OpenMP (libgomp), and for what else answers to its names.
//!
//! **The team of a region.** Every function that begins a region takes the number of threads as its third
//! argument: 0 where the program leaves it to the runtime. Within a claim the region gets the claim's
//! number instead, never more than the runtime would have taken, where it may be changed (see
//! [`listed`](crate::listed)).
//!
//! **Within a region** whose loop has a dynamic schedule, the threads beyond the claim take no more
//! pieces: which thread takes which piece was open anyway. They wait at the end of the loop.
//!
//! Reference: REEact (Wang et al.), section 3: adapting the number of threads; libgomp's ABI is that of
//! GCC 4.9 to 15 (`libgomp.map`, versions GOMP_1.0 to GOMP_5.0).

use crate::link;
use crate::listed::may_change;
use crate::objects::{Object, Objects};
use crate::timing::Timing;
use corewise_abi::reports::adapters;
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// What we ask the runtime.
const MAX_THREADS: usize = 0;
const NUM_THREADS: usize = 1;
const THREAD_NUM: usize = 2;
const LEVEL: usize = 3;
const ACTIVE_LEVEL: usize = 4;

/// The functions that we know, each with its number: the index here.
pub(crate) const NAMES: [&CStr; 31] = [
    c"omp_get_max_threads",
    c"omp_get_num_threads",
    c"omp_get_thread_num",
    c"omp_get_level",
    c"omp_get_active_level",
    // Regions: `entry` has the same numbers.
    c"GOMP_parallel",
    c"GOMP_parallel_start",
    c"GOMP_parallel_reductions",
    c"GOMP_parallel_sections",
    c"GOMP_parallel_sections_start",
    c"GOMP_parallel_loop_static",
    c"GOMP_parallel_loop_static_start",
    c"GOMP_parallel_loop_dynamic",
    c"GOMP_parallel_loop_dynamic_start",
    c"GOMP_parallel_loop_guided",
    c"GOMP_parallel_loop_guided_start",
    c"GOMP_parallel_loop_runtime",
    c"GOMP_parallel_loop_runtime_start",
    c"GOMP_parallel_loop_nonmonotonic_dynamic",
    c"GOMP_parallel_loop_nonmonotonic_guided",
    c"GOMP_parallel_loop_nonmonotonic_runtime",
    c"GOMP_parallel_loop_maybe_nonmonotonic_runtime",
    c"GOMP_teams_reg",
    // Pieces of loops.
    c"GOMP_loop_dynamic_next",
    c"GOMP_loop_guided_next",
    c"GOMP_loop_nonmonotonic_dynamic_next",
    c"GOMP_loop_nonmonotonic_guided_next",
    c"GOMP_loop_ull_dynamic_next",
    c"GOMP_loop_ull_guided_next",
    c"GOMP_loop_ull_nonmonotonic_dynamic_next",
    c"GOMP_loop_ull_nonmonotonic_guided_next",
];

static CALLERS: Objects = Objects::new(&NAMES);

/// Where to go on, and with which number of threads.
#[repr(C)]
pub(crate) struct Jump {
    /// The real function.
    target: *mut c_void,
    /// Its third argument.
    threads: usize,
}

/// As [`region`], for a function that returns when the region has ended: [`region_ends`](crate::timing::region_ends) is called then if
/// `timing` says that it is timed.
pub(crate) extern "C" fn timed_region(
    function: usize,
    body: usize,
    demanded: usize,
    timing: *mut Timing,
) -> Jump {
    let mut now = Timing::NONE;
    let jump = begin(function, body, demanded, Some(&mut now));
    // SAFETY: room on the stack of `entry`, for as long as the region.
    unsafe { timing.write(now) };
    jump
}

/// A region begins: `body` is the function that its threads will run, `demanded` the number of threads
/// that was passed.
///
/// Costs some 20 ns, most of them the questions to the runtime; nothing is asked of it where no page leads.
pub(crate) extern "C" fn region(function: usize, body: usize, demanded: usize) -> Jump {
    begin(function, body, demanded, None)
}

#[inline(always)]
fn begin(function: usize, body: usize, demanded: usize, timing: Option<&mut Timing>) -> Jump {
    let unchanged = |target| Jump {
        target,
        threads: demanded,
    };
    let Some(caller) = CALLERS.of(body) else {
        return unchanged(CALLERS.unkept(function, body));
    };
    let target = caller.function(function);
    // The number is an unsigned int; what is above it in the register means nothing.
    let number = demanded as u32;
    if number == 1 {
        return unchanged(target);
    }
    let Some(report) = link::report() else {
        return unchanged(target);
    };
    let asked = match number {
        0 => ask(caller, MAX_THREADS).unwrap_or(1),
        number => number,
    };
    let bounded = match link::limit() {
        Some(limit) => asked.min(within(caller, limit)),
        None => asked,
    };
    let follows = may_change(caller, number != 0);
    let adapters = &report.adapters;
    if follows && adapters.load(Ordering::Relaxed) & adapters::LIBGOMP == 0 {
        adapters.fetch_or(adapters::LIBGOMP, Ordering::Relaxed);
    }
    if bounded < asked && !follows {
        report.demanded.fetch_add(1, Ordering::Relaxed);
    }
    let mut given = if follows { bounded } else { asked };
    if follows
        && let Some(timing) = timing
        && link::timing().is_some()
        && ask(caller, ACTIVE_LEVEL) == Some(0)
        && let Some(now) = Timing::begin(caller, body, asked)
    {
        given = now.at_most(given);
        *timing = now;
    }
    report.note(asked, given);
    Jump {
        target,
        threads: match given < asked {
            true => given as usize,
            false => demanded,
        },
    }
}

/// A thread asks for the next piece of a loop with a dynamic schedule. Null: there is none for it.
pub(crate) extern "C" fn next_piece(function: usize, caller: usize) -> *mut c_void {
    let Some(object) = CALLERS.of(caller) else {
        return CALLERS.unkept(function, caller);
    };
    let target = object.function(function);
    let Some(limit) = link::limit() else {
        return target;
    };
    let beyond = ask(object, THREAD_NUM).is_some_and(|number| number >= limit.max(1));
    // Of teams within teams the outer ones are what the claim counts.
    match beyond && ask(object, LEVEL) == Some(1) {
        true => null_mut(),
        false => target,
    }
}

/// What a claim of `limit` threads allows a region that the calling thread begins: all of it, or, within
/// another region, its share.
fn within(caller: &Object, limit: u32) -> u32 {
    match ask(caller, ACTIVE_LEVEL) {
        Some(0) | None => limit,
        Some(_) => limit / ask(caller, NUM_THREADS).unwrap_or(1).max(1),
    }
    .max(1)
}

/// Asks the caller's runtime one of `omp_get_...`.
#[inline]
fn ask(caller: &Object, question: usize) -> Option<u32> {
    let function = caller.function(question);
    if function.is_null() {
        return None;
    }
    // SAFETY: functions of these names take nothing and return an int, by OpenMP's own definition.
    let function: extern "C" fn() -> c_int = unsafe { std::mem::transmute(function) };
    u32::try_from(function()).ok()
}

/// What is left to do when a region's function is nowhere to be found: nobody could have called it.
pub(crate) extern "C" fn nowhere() -> ! {
    const WHAT: &[u8] = b"corewise: an OpenMP function was called of which no library is loaded\n";
    // SAFETY: plain bytes; and nothing can be gone on with.
    unsafe {
        libc::write(2, WHAT.as_ptr().cast(), WHAT.len());
        libc::abort()
    }
}
