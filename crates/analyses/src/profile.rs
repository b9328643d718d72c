//! The blueprint profiler (the paper's Figures 2 and 4): for each function its callees with counts, and the
//! allocations while it was the innermost one.
//!
//! [`Profile`] is the analysis. Sequentially, each call of a program is an operation on the tables that all
//! threads share. Deferred, the same calls come in buffers, and [`Coalesced`] counts those of a buffer
//! together before it goes to the tables (the paper's hooks, section 3).

use crate::table::Tables;
use corewise_defer::{Pending, Process, deferred};
use std::cell::{Cell, RefCell};

/// What a program does that is profiled. Functions are addresses; 0 is outside of all.
#[deferred]
pub trait Calls {
    /// A function was called.
    fn call(&self, caller: u64, callee: u64);
    /// The same for two functions of one [`Window`], as [`Window::pair`] packs them.
    fn near(&self, pair: u64);
    /// Memory was allocated.
    fn allocated(&self, function: u64, bytes: u64);
}

/// The 4 GiB of addresses that a program's own functions are in, nearly always: a call between two of them is one
/// word. Half as much is written by who calls, and crosses to the CPU that executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u64);

impl Window {
    /// The one that an address is in.
    pub fn around(address: u64) -> Window {
        Window(address >> 32 << 32)
    }

    /// Its first address.
    pub fn start(self) -> u64 {
        self.0
    }

    /// A call in one word; `None`: one of the two is elsewhere.
    #[inline(always)]
    pub fn pair(self, caller: u64, callee: u64) -> Option<u64> {
        let elsewhere = ((caller ^ self.0) | (callee ^ self.0)) >> 32;
        (elsewhere == 0).then_some(caller << 32 | callee & 0xffff_ffff)
    }

    /// The caller and the callee again.
    #[inline(always)]
    pub fn apart(self, pair: u64) -> (u64, u64) {
        (self.0 | pair >> 32, self.0 | pair & 0xffff_ffff)
    }
}

/// The profile of one program, in its tables.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    /// Where it is counted.
    pub tables: Tables<'a>,
    /// Where the program's own functions are.
    pub window: Window,
}

impl Calls for Profile<'_> {
    #[inline]
    fn call(&self, caller: u64, callee: u64) {
        self.tables.call(caller, callee, 1);
    }

    #[inline]
    fn near(&self, pair: u64) {
        let (caller, callee) = self.window.apart(pair);
        self.call(caller, callee);
    }

    #[inline]
    fn allocated(&self, function: u64, bytes: u64) {
        self.tables.allocated(function, 1, bytes);
    }
}

/// The same for deferred calls: those of one buffer are counted together first.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced(pub Profile<'static>);

impl Process<CallsBuffer> for Coalesced {
    fn process(&self, calls: &mut Pending<'_, CallsBuffer>) {
        let recent = Recent::new(self.0);
        calls.execute(&recent);
        calls.merging();
        recent.merge();
    }
}

/// Pairs that are counted apart from the tables. A power of two: 12 KiB stay in the nearest cache.
const PAIRS: usize = 512;
/// Functions whose allocations are.
const ALLOCATORS: usize = 64;

/// The counts of one buffer. A pair that comes where another is sends that one away, to be merged with the
/// rest: the tables hold all of a buffer or nothing, unless the process dies while it is merged.
struct Recent<'a> {
    profile: Profile<'a>,
    pairs: [Cell<Counted>; PAIRS],
    sent_away: RefCell<Vec<Counted>>,
    allocators: RefCell<[(u64, u64, u64); ALLOCATORS]>,
    allocators_sent_away: RefCell<Vec<(u64, u64, u64)>>,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    caller: u64,
    callee: u64,
    calls: u64,
}

impl<'a> Recent<'a> {
    fn new(profile: Profile<'a>) -> Recent<'a> {
        Recent {
            profile,
            pairs: std::array::from_fn(|_| Cell::default()),
            sent_away: RefCell::default(),
            allocators: RefCell::new([(0, 0, 0); ALLOCATORS]),
            allocators_sent_away: RefCell::default(),
        }
    }

    fn merge(&self) {
        let tables = self.profile.tables;
        let pairs = self.pairs.iter().map(Cell::get);
        for counted in pairs.chain(self.sent_away.borrow().iter().copied()) {
            if counted.calls > 0 {
                tables.call(counted.caller, counted.callee, counted.calls);
            }
        }
        let kept = self.allocators.borrow();
        let sent_away = self.allocators_sent_away.borrow();
        for &(function, count, bytes) in kept.iter().chain(sent_away.iter()) {
            if count > 0 {
                tables.allocated(function, count, bytes);
            }
        }
    }
}

fn place(key: u64, of: usize) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % of
}

impl Calls for Recent<'_> {
    #[inline]
    fn call(&self, caller: u64, callee: u64) {
        let cell = &self.pairs[place(caller.rotate_left(17) ^ callee, PAIRS)];
        let mut counted = cell.get();
        if counted.caller != caller || counted.callee != callee {
            if counted.calls > 0 {
                self.sent_away.borrow_mut().push(counted);
            }
            counted = Counted {
                caller,
                callee,
                calls: 0,
            };
        }
        counted.calls += 1;
        cell.set(counted);
    }

    #[inline]
    fn near(&self, pair: u64) {
        let (caller, callee) = self.profile.window.apart(pair);
        self.call(caller, callee);
    }

    fn allocated(&self, function: u64, bytes: u64) {
        let mut allocators = self.allocators.borrow_mut();
        let entry = &mut allocators[place(function, ALLOCATORS)];
        if entry.0 != function {
            if entry.1 > 0 {
                self.allocators_sent_away.borrow_mut().push(*entry);
            }
            *entry = (function, 0, 0);
        }
        entry.1 += 1;
        entry.2 += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_call_within_a_window_comes_apart_again(at: u64, caller: u32, callee: u32) {
            let window = Window::around(at);
            let (caller, callee) = (window.start() | u64::from(caller), window.start() | u64::from(callee));
            let pair = window.pair(caller, callee);
            prop_assert_eq!(pair.map(|pair| window.apart(pair)), Some((caller, callee)));
        }

        #[test]
        fn a_call_that_leaves_the_window_is_no_pair(at: u64, within: u32, elsewhere: u64) {
            let window = Window::around(at);
            prop_assume!(Window::around(elsewhere) != window);
            let within = window.start() | u64::from(within);
            prop_assert_eq!(window.pair(within, elsewhere), None);
            prop_assert_eq!(window.pair(elsewhere, within), None);
        }
    }
}
