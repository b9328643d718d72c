//! How the buffers of a program that is watched are processed, as the command wants it.

use crate::region::{Entered, Manner, Wanted};
use corewise_defer::{Adaptive, Pool, Report, Settings, Synchronous, available};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Wanted {
    /// Settings of an environment whose calls are processed so.
    pub fn settings(&self) -> Settings {
        let or = |number: u32, default: u32| if number == 0 { default } else { number };
        let queue = or(self.queue, 16) as usize;
        let threads = or(self.threads, available());
        let settings = match self.manner {
            Manner::Synchronous => Settings::new(Synchronous),
            Manner::Pool => Settings::new(Pool::new(threads, queue)),
            Manner::LowestPool => Settings::new(Pool::at_lowest_priority(threads, queue)),
            _ => Settings::new(Adaptive::with_queue(queue)),
        };
        match self.capacity {
            0 => settings,
            calls => settings.capacity(calls),
        }
    }
}

impl Entered<'_> {
    /// Adds what an environment says at the end of a process.
    pub fn account(&self, report: &Report) {
        let account = &self.image.account;
        let sums = [
            report.by_producers,
            report.by_consumers,
            report.by_waiters,
            nanoseconds(report.helping),
            nanoseconds(report.waiting),
        ];
        for (total, sum) in account.iter().zip(sums) {
            total.fetch_add(sum, Ordering::Relaxed);
        }
        account[5].fetch_max(report.most_bytes, Ordering::Relaxed);
        // What panicked did so because the program wrote over our memory.
        let lost = report.lost + report.panics;
        self.image.lost.fetch_add(lost, Ordering::Relaxed);
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
