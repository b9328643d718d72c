//! The capacity of buffers, found while the program runs.
//!
//! What a larger buffer saves is the cost of handing it over: the time that the exchange itself takes its
//! producer. What it costs is memory, and cache that the program would use. So the capacity doubles as long
//! as exchanging takes more than [`WORTH`] of a producer's time, up to [`LARGEST`]. Time in which the
//! producer processes buffers itself, or waits for room, is not the exchange's: a larger buffer would only
//! make it come in larger pieces. (The paper leaves this as future work, section 7; its Table 1 shows the
//! shape: a rise that levels off.)

use std::time::{Duration, Instant};

/// The share of a producer's time that exchanging buffers may take.
const WORTH: f64 = 0.002;
/// Where the search begins, in calls.
pub(crate) const SMALLEST: u32 = 1024;
/// Where it ends.
pub(crate) const LARGEST: u32 = 32_768;
/// Buffers between two decisions, of which the one with the cheapest exchange counts: others were
/// disturbed.
const WATCHED: u32 = 4;

/// How fast one thread fills buffers, and what exchanging them costs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    last: Instant,
    watched: u32,
    share: f64,
}

impl Pace {
    pub(crate) fn begin(now: Instant) -> Pace {
        Pace {
            last: now,
            watched: 0,
            share: f64::INFINITY,
        }
    }

    /// A buffer was exchanged between `began` and `now`; for `others` of that time the producer processed
    /// buffers or waited. A capacity that later buffers should have instead.
    pub(crate) fn exchanged(
        &mut self,
        began: Instant,
        now: Instant,
        others: Duration,
        capacity: u32,
    ) -> Option<u32> {
        let filling = began.saturating_duration_since(self.last);
        let exchanging = now.saturating_duration_since(began).saturating_sub(others);
        self.last = now;
        let share = exchanging.as_secs_f64() / (filling + exchanging).as_secs_f64().max(1e-9);
        self.share = self.share.min(share);
        self.watched += 1;
        if self.watched < WATCHED {
            return None;
        }
        let share = std::mem::replace(&mut self.share, f64::INFINITY);
        self.watched = 0;
        (share > WORTH && capacity < LARGEST).then(|| (capacity * 2).min(LARGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found for a producer that fills a call in `call_ns` and exchanges in `exchange_ns`.
    fn found(call_ns: u64, exchange_ns: u64, others_ns: u64) -> u32 {
        let mut now = Instant::now();
        let mut pace = Pace::begin(now);
        let mut capacity = SMALLEST;
        for _ in 0..1000 {
            let began = now + Duration::from_nanos(call_ns * u64::from(capacity));
            now = began + Duration::from_nanos(exchange_ns + others_ns);
            let others = Duration::from_nanos(others_ns);
            capacity = pace
                .exchanged(began, now, others, capacity)
                .unwrap_or(capacity);
        }
        capacity
    }

    #[test]
    fn a_fast_producer_gets_large_buffers_and_a_slow_one_small_ones() {
        assert_eq!(found(2, 200, 0), LARGEST);
        assert_eq!(found(1000, 500, 0), SMALLEST);
        let between = found(20, 300, 0);
        assert!(SMALLEST < between && between < LARGEST, "{between}");
    }

    #[test]
    fn time_spent_on_processing_makes_no_buffer_larger() {
        assert_eq!(found(1000, 500, 10_000_000), SMALLEST);
    }

    #[test]
    fn one_disturbed_exchange_decides_nothing() {
        let start = Instant::now();
        let mut pace = Pace::begin(start);
        let mut now = start;
        for exchange in [500, 500, 900_000, 500] {
            let began = now + Duration::from_millis(1);
            now = began + Duration::from_nanos(exchange);
            assert_eq!(pace.exchanged(began, now, Duration::ZERO, 1024), None);
        }
    }
}
