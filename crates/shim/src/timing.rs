//! Regions that are timed, for live tuning: when one begins and ends, and the number of threads that is to be tried.

use crate::clock::now_ns;
use crate::link;
use crate::objects::Object;
use corewise_abi::regions::{Region, Run};
use std::ptr::null;

/// A region that is timed, or is not, on the stack of the function that begins it.
#[repr(C)]
pub(crate) struct Timing {
    /// Null: it is not.
    region: *const Region,
    began_ns: u64,
    run: Run,
    asked: u32,
}

/// The room that functions in assembly have for it.
pub(crate) const ROOM: usize = 32;
const _: () = assert!(size_of::<Timing>() <= ROOM);

impl Timing {
    /// Of a region that is not timed.
    pub(crate) const NONE: Timing = Timing {
        region: null(),
        began_ns: 0,
        run: Run::NONE,
        asked: 0,
    };

    /// The region whose threads run `body` of `caller` begins, and would have `asked` threads on its own. `None`
    /// where regions are not timed. Two loads then; else some 30 ns.
    #[inline]
    pub(crate) fn begin(caller: &Object, body: usize, asked: u32) -> Option<Timing> {
        let region = link::timing()?.region(caller.key(body))?;
        Some(Timing {
            region,
            run: region.begin(),
            asked,
            began_ns: now_ns(),
        })
    }

    /// Of `threads` threads, as many as are to be tried.
    #[inline]
    pub(crate) fn at_most(&self, threads: u32) -> u32 {
        match u32::from(self.run.threads) {
            0 => threads,
            tried => threads.min(tried),
        }
    }
}

/// A region that may have been timed has ended.
pub(crate) extern "C" fn region_ends(timing: *const Timing) {
    // SAFETY: what was written when the region began, on the stack of the function that calls this.
    let timing = unsafe { timing.read() };
    // SAFETY: regions lie in a page that stays mapped.
    if let Some(region) = unsafe { timing.region.as_ref() } {
        let time = now_ns().saturating_sub(timing.began_ns);
        region.add(timing.run, timing.asked, time);
    }
}
