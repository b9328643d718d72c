//! What a region holds when the program is gone: first what its threads had stored and nobody had processed
//! is processed, then the tables are read.
#![allow(
    unsafe_code,
    reason = "buffers of processes that are gone; see `settle`"
)]

use crate::profile::{CallsBuffer, Profile, Window};
use crate::region::{Entered, Module, Region};
use crate::table::OUTSIDE;
use corewise_defer::execute_left;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// What one image did.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The process that entered it.
    pub pid: u32,
    /// Its files, those that were entered last first.
    pub modules: Vec<Module>,
    /// Functions that allocated: address (0: outside of all), allocations, bytes.
    pub allocations: Vec<(u64, u64, u64)>,
    /// Caller (0: outside of all), callee, calls.
    pub calls: Vec<(u64, u64, u64)>,
    /// Calls and allocations that were not counted.
    pub losses: Losses,
    /// Calls that the program's threads had stored and nobody had processed when it ended.
    pub left: u64,
    /// How its buffers were processed, as far as its processes ended in order.
    pub account: Account,
}

/// What was not counted, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The tables had no room.
    pub no_room: u64,
    /// They came in signal handlers, in the middle of another's being recorded.
    pub interrupted: u64,
    /// What was stored was not to be understood: the program wrote over it.
    pub unreadable: u64,
    /// A process died at the moment at which they were added to the tables: some are counted.
    pub in_doubt: u64,
}

/// Who processed buffers, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Buffers processed by the threads that filled them.
    pub by_producers: u64,
    /// Buffers processed by consumers.
    pub by_consumers: u64,
    /// Buffers processed at the end, or early, by threads that waited.
    pub by_waiters: u64,
    /// Time in which producers processed buffers, in ns.
    pub helping_ns: u64,
    /// Time in which producers waited, in ns.
    pub waiting_ns: u64,
    /// The most memory of buffers that a process had, in bytes.
    pub most_bytes: u64,
}

/// Reads what is there. The program's processes have to be gone.
pub fn read(region: &Region) -> Vec<Found> {
    region.images().map(image).collect()
}

fn image(entered: Entered<'_>) -> Found {
    let mut found = Found {
        pid: entered.image.pid.load(Ordering::Relaxed),
        modules: entered.modules(),
        ..Found::default()
    };
    let Some(tables) = entered.tables() else {
        return found;
    };
    let window = Window::around(entered.image.window.load(Ordering::Relaxed));
    settle(&entered, &Profile { tables, window }, &mut found);
    let address = |place: u64| match place {
        0 => Some(0),
        place => {
            let function = tables.functions.get(usize::try_from(place - 1).ok()?)?;
            Some(function.address.load(Ordering::Relaxed))
        }
    };
    for edge in tables.edges {
        let pair = edge.pair.load(Ordering::Relaxed);
        let calls = edge.calls.load(Ordering::Relaxed);
        let (caller, callee) = (address(pair >> 32), address(pair & 0xffff_ffff));
        match (pair, caller, callee) {
            (0, ..) => {}
            (_, Some(caller), Some(callee)) => found.calls.push((caller, callee, calls)),
            _ => found.losses.unreadable += calls,
        }
    }
    for function in tables.functions {
        let allocations = function.allocations.load(Ordering::Relaxed);
        if allocations > 0 {
            let address = match function.address.load(Ordering::Relaxed) {
                OUTSIDE => 0,
                address => address,
            };
            let bytes = function.bytes.load(Ordering::Relaxed);
            found.allocations.push((address, allocations, bytes));
        }
    }
    found.losses.no_room = entered.image.lost.load(Ordering::Relaxed);
    found.losses.interrupted = entered.image.interrupted.load(Ordering::Relaxed);
    let [
        by_producers,
        by_consumers,
        by_waiters,
        helping_ns,
        waiting_ns,
        most_bytes,
    ] = entered
        .image
        .account
        .each_ref()
        .map(|counter| counter.load(Ordering::Relaxed));
    found.account = Account {
        by_producers,
        by_consumers,
        by_waiters,
        helping_ns,
        waiting_ns,
        most_bytes,
    };
    found
}

/// Executes what is left in the image's buffers.
fn settle(entered: &Entered<'_>, profile: &Profile<'_>, found: &mut Found) {
    for (memory, bytes) in entered.buffers() {
        // SAFETY: the hooks take this memory for buffers of `CallsBuffer` alone, whose arguments are
        // numbers; their processes are gone. What a program scribbled over is caught as a panic.
        let left = catch_unwind(AssertUnwindSafe(|| unsafe {
            execute_left::<CallsBuffer, _>(memory, bytes, profile)
        }));
        match left {
            Ok(left) => {
                found.left += u64::from(left.executed);
                found.losses.in_doubt += u64::from(left.in_doubt);
            }
            Err(_) => found.losses.unreadable += 1,
        }
    }
}
