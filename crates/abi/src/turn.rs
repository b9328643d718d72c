//! When a program runs: its turn in the schedule of gangs (programs that are stopped and continued as a
//! whole, so that their threads run at the same time).
//!
//! A turn is told once and holds until the next one is told: nobody sends a message at every switch. Everyone
//! who keeps a turn reads the same monotonic clock, so that one program's threads stop when another's go on.

use crate::READ_TRIES;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Windows that one turn can have.
pub const MOST_WINDOWS: usize = 8;

/// A part of a turn's period, as offsets from its beginning in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// When the program may run again.
    pub begin_ns: u64,
    /// When it stops, after `begin_ns` and at most the period.
    pub end_ns: u64,
}

/// When a program runs, again and again. A program without a turn runs always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// When the first period begins, on the monotonic clock (CLOCK_MONOTONIC, or the simulated one), in
    /// nanoseconds. Until then everything stays as it is.
    pub epoch_ns: u64,
    /// Length of a period, in nanoseconds.
    pub period_ns: u64,
    /// When the program runs in each period: 1 to [`MOST_WINDOWS`], in order, none touching the next.
    pub windows: Vec<Window>,
}

impl Turn {
    /// Whether it says something that can be kept: who reads it from elsewhere asks first.
    pub fn is_valid(&self) -> bool {
        let in_order = self.windows.windows(2).all(|w| w[0].end_ns < w[1].begin_ns);
        let each = self.windows.iter().all(|w| w.begin_ns < w.end_ns);
        let last = self.windows.last().map_or(0, |w| w.end_ns);
        self.period_ns > 0
            && (1..=MOST_WINDOWS).contains(&self.windows.len())
            && in_order
            && each
            && last <= self.period_ns
    }

    /// Whether the program runs at a time. `None`: not before the epoch, as before.
    pub fn runs_at(&self, time_ns: u64) -> Option<bool> {
        let offset = time_ns.checked_sub(self.epoch_ns)? % self.period_ns.max(1);
        Some(
            self.windows
                .iter()
                .any(|w| (w.begin_ns..w.end_ns).contains(&offset)),
        )
    }

    /// The first time after `time_ns` at which the program may have to be stopped or continued.
    pub fn next_change(&self, time_ns: u64) -> u64 {
        let Some(since) = time_ns.checked_sub(self.epoch_ns) else {
            return self.epoch_ns;
        };
        let period = self.period_ns.max(1);
        let offset = since % period;
        let edges = self.windows.iter().flat_map(|w| [w.begin_ns, w.end_ns]);
        // An end at the period's end is where the next one begins.
        let next = edges.filter(|edge| *edge > offset).min();
        let next = next.unwrap_or_else(|| {
            let first = self.windows.first().map_or(0, |w| w.begin_ns);
            period + first
        });
        time_ns.saturating_add(next - offset)
    }

    /// How long the program runs in each period, in nanoseconds.
    pub fn runs_ns(&self) -> u64 {
        self.windows
            .iter()
            .map(|w| w.end_ns.saturating_sub(w.begin_ns))
            .sum()
    }
}

/// A turn on a page. One writer, any number of readers; the protocol is that of the set of CPUs.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LockedTurn {
    sequence: AtomicU32,
    /// How many windows; 0: no turn.
    count: AtomicU32,
    epoch_ns: AtomicU64,
    period_ns: AtomicU64,
    /// Begin and end of each window.
    windows: [[AtomicU64; 2]; MOST_WINDOWS],
}

impl LockedTurn {
    /// Offsets of the fields, in bytes.
    pub(crate) const LAYOUT: [(&'static str, usize); 5] = [
        ("turn_sequence", core::mem::offset_of!(LockedTurn, sequence)),
        ("turn_windows", core::mem::offset_of!(LockedTurn, count)),
        ("turn_epoch_ns", core::mem::offset_of!(LockedTurn, epoch_ns)),
        (
            "turn_period_ns",
            core::mem::offset_of!(LockedTurn, period_ns),
        ),
        ("turn_window", core::mem::offset_of!(LockedTurn, windows)),
    ];

    pub(crate) fn new() -> LockedTurn {
        LockedTurn {
            sequence: AtomicU32::new(0),
            count: AtomicU32::new(0),
            epoch_ns: AtomicU64::new(0),
            period_ns: AtomicU64::new(0),
            windows: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    /// Replaces the turn. One that is not valid is none. Only the one writer may call this.
    pub(crate) fn write(&self, turn: Option<&Turn>) {
        let turn = turn.filter(|turn| turn.is_valid());
        // A predecessor may have died in the middle: odd either way from here on.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        let windows = turn.map_or(&[][..], |turn| &turn.windows);
        self.count.store(windows.len() as u32, Ordering::Relaxed);
        let epoch = turn.map_or(0, |turn| turn.epoch_ns);
        self.epoch_ns.store(epoch, Ordering::Relaxed);
        let period = turn.map_or(0, |turn| turn.period_ns);
        self.period_ns.store(period, Ordering::Relaxed);
        for (place, window) in self.windows.iter().zip(windows) {
            place[0].store(window.begin_ns, Ordering::Relaxed);
            place[1].store(window.end_ns, Ordering::Relaxed);
        }
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// The turn; `None` where there is none, or none that can be read whole: then the program runs.
    pub(crate) fn read(&self) -> Option<Turn> {
        for _ in 0..READ_TRIES {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 1 {
                spin_loop();
                continue;
            }
            let count = self.count.load(Ordering::Relaxed) as usize;
            let read = |at: &AtomicU64| at.load(Ordering::Relaxed);
            let turn = Turn {
                epoch_ns: read(&self.epoch_ns),
                period_ns: read(&self.period_ns),
                windows: self
                    .windows
                    .iter()
                    .take(count)
                    .map(|[begin, end]| Window {
                        begin_ns: read(begin),
                        end_ns: read(end),
                    })
                    .collect(),
            };
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == before {
                return Some(turn).filter(Turn::is_valid);
            }
        }
        None
    }
}
