//! The workers.
//!
//! Safety: `work` and `data` may be used by several threads at the same time until
//! corewise_parallel_for() returns, as corewise.h says; `work` is a C function that does not unwind.
#![allow(unsafe_code)]

use crate::answer::{INVALID, number};
use crate::process::{Process, in_child};
use corewise_program::Team;
use std::ffi::{c_int, c_void};

type Work = extern "C" fn(usize, usize, *mut c_void);

/// A pointer of C's, which it allows to be used by every worker.
#[derive(Clone, Copy)]
struct Data(*mut c_void);

// SAFETY: see the module.
unsafe impl Sync for Data {}

impl Data {
    /// Borrows the whole, so that closures take it along as `Data` and not as a bare pointer.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Parts for each thread where the library chooses their length: few enough to cost nothing, enough
/// that those who are done sooner find more.
const PARTS_A_THREAD: usize = 16;

#[unsafe(no_mangle)]
extern "C" fn corewise_parallel_for(
    begin: usize,
    end: usize,
    grain: usize,
    work: Option<Work>,
    data: *mut c_void,
) -> c_int {
    number(|| {
        let work = work.ok_or(INVALID)?;
        let length = end.checked_sub(begin).ok_or(INVALID)?;
        let data = Data(data);
        let process = Process::get();
        let grain = match grain {
            0 => {
                let threads = process.claim.threads() as usize;
                length
                    .div_ceil(threads.saturating_mul(PARTS_A_THREAD))
                    .max(1)
            }
            grain => grain,
        };
        if in_child() {
            // The parent's workers are not here.
            let mut from = begin;
            while from < end {
                let to = from.saturating_add(grain).min(end);
                work(from, to, data.get());
                from = to;
            }
            return Ok(0);
        }
        let parts = |part: std::ops::Range<usize>| work(part.start, part.end, data.get());
        process.team().parallel_for(begin..end, grain, parts);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_blocking_begin() -> c_int {
    number(|| {
        Team::begin_blocking();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_blocking_end() -> c_int {
    number(|| match Team::end_blocking() {
        true => Ok(0),
        false => Err(INVALID),
    })
}
