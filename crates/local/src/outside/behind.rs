//! Whether a program whose runtimes follow has come down to its claim yet.
//!
//! A runtime follows when its next parallel region begins. Until then more threads run than the claim
//! allows; if they were confined to the claim's CPUs at once, they would stand in each other's way, and
//! wait for each other spinning. And a program in one very long region does not follow at all until that
//! is over: for as long, it is rigid, and is to be treated as such.

use std::time::{Duration, Instant};

/// A program that has not followed for so long is rigid until its next region begins.
const PATIENCE: Duration = Duration::from_secs(1);

/// One that is found rigid again and again (some of its regions never follow) is so for ever longer, up to
/// this time.
const LONGEST: Duration = Duration::from_secs(60);

/// How far a program has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It runs no more threads than its claim allows.
    Follows,
    /// It will, when its next region begins.
    Behind,
    /// It is in a region that lasts.
    Stuck,
}

/// Keeps track of one program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Behind {
    since: Option<Instant>,
    stuck: Option<Stuck>,
    /// How long it was stuck the last time, at least.
    held: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Stuck {
    /// The count of occasions to follow at which it was.
    occasions: u64,
    until: Instant,
}

impl Behind {
    /// How far it is, at `now`: its runtimes `run` so many threads in the region that began last, which was
    /// the `occasions`th; the claim allows `allowed`.
    pub(super) fn next(
        &mut self,
        now: Instant,
        run: u32,
        allowed: u32,
        occasions: u64,
    ) -> Progress {
        if let Some(stuck) = self.stuck {
            if stuck.occasions == occasions || now < stuck.until {
                return Progress::Stuck;
            }
            self.stuck = None;
        }
        if run <= allowed {
            self.since = None;
            return Progress::Follows;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < PATIENCE {
            return Progress::Behind;
        }
        self.held = (self.held * 2).clamp(PATIENCE, LONGEST);
        self.since = None;
        self.stuck = Some(Stuck {
            occasions,
            until: now + self.held,
        });
        Progress::Stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, milliseconds: u64) -> Instant {
        start + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_program_follows_when_its_next_region_begins() {
        let (mut behind, start) = (Behind::default(), Instant::now());
        assert_eq!(behind.next(start, 4, 4, 10), Progress::Follows);
        assert_eq!(behind.next(start, 4, 2, 10), Progress::Behind);
        assert_eq!(behind.next(after(start, 20), 2, 2, 11), Progress::Follows);
    }

    #[test]
    fn one_in_a_long_region_is_stuck_until_the_next_whatever_it_is_allowed_meanwhile() {
        let (mut behind, start) = (Behind::default(), Instant::now());
        assert_eq!(behind.next(start, 4, 2, 10), Progress::Behind);
        assert_eq!(behind.next(after(start, 1000), 4, 2, 10), Progress::Stuck);
        assert_eq!(behind.next(after(start, 1100), 4, 4, 10), Progress::Stuck);
        assert_eq!(behind.next(after(start, 9000), 4, 2, 10), Progress::Stuck);
        assert_eq!(behind.next(after(start, 9100), 2, 2, 11), Progress::Follows);
    }

    #[test]
    fn one_with_regions_that_never_follow_is_asked_ever_more_seldom() {
        let (mut behind, start) = (Behind::default(), Instant::now());
        let mut tries = 0;
        for step in 0..3000 {
            // A region begins every 100 ms, always with four threads.
            let progress = behind.next(after(start, step * 100), 4, 2, step);
            tries += u32::from(progress == Progress::Behind);
        }
        // Five minutes, of which it is waited for ten seconds or so.
        assert!((50..200).contains(&tries), "{tries}");
    }

    #[test]
    fn many_regions_before_the_claim_is_met_are_time_to_follow_not_to_be_stuck() {
        // Two processes: one has followed, the other has not yet.
        let (mut behind, start) = (Behind::default(), Instant::now());
        assert_eq!(behind.next(start, 4, 2, 10), Progress::Behind);
        assert_eq!(behind.next(after(start, 500), 4, 2, 90), Progress::Behind);
        assert_eq!(behind.next(after(start, 600), 2, 2, 91), Progress::Follows);
        assert_eq!(behind.next(after(start, 700), 4, 2, 91), Progress::Behind);
    }
}
