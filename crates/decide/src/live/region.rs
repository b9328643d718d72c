//! One region's search.

use super::compare::{Comparison, Runs};
use super::order::{Scores, next_to_try};
use super::{Known, Seen, Threads, WORTH, WORTHWHILE};

/// A region is searched when it has run so often.
const RUNS: u64 = 8;
/// What was found is compared again after this time, then after twice as long each time, up to the longest;
/// what is known from an earlier run of the program, after the third of these. In nanoseconds.
const FIRST_WAIT_NS: u64 = 1_000_000_000;
const LONGEST_WAIT_NS: u64 = 60_000_000_000;
const KNOWN_WAIT_NS: u64 = 4_000_000_000;
/// A region whose mean time is by so much another...
const MOVED: f64 = 1.5;
/// ... in so many windows one after the other, each of so many runs and so much time, is compared sooner.
const WINDOWS: u32 = 3;
const WINDOW_RUNS: u64 = 8;
const WINDOW_NS: u64 = 20_000_000;
/// ... after this time, then after twice as long each time that nothing else was found.
const FIRST_MOVED_WAIT_NS: u64 = 500_000_000;

/// One region.
#[derive(Clone, Debug)]
pub(super) struct Region {
    state: State,
    /// What had been seen at the last look.
    last: Seen,
    /// Time that it took in all, in nanoseconds, and since when it is known.
    total_ns: u64,
    since_ns: u64,
    /// When it is compared again, and how long after.
    again_ns: u64,
    wait_ns: u64,
    /// Not before this time because it has moved, and how long after.
    moved_ns: u64,
    moved_wait_ns: u64,
}

#[derive(Clone, Debug)]
enum State {
    /// Not worth a search so far.
    Idle,
    /// Numbers are compared.
    Searching(Search),
    /// It has its number.
    Kept(Kept),
}

#[derive(Clone, Debug)]
struct Search {
    most: u32,
    best: u32,
    /// What is tried against it, or will be when there is room.
    other: u32,
    scores: Scores,
    /// They take turns; `None` while there is no room for that.
    comparison: Option<Comparison>,
    /// What that may lose, in nanoseconds.
    risk_ns: f64,
    mean_ns: Option<f64>,
    /// What it had before, if it had its number.
    before: Option<u32>,
}

#[derive(Clone, Debug)]
struct Kept {
    known: Known,
    /// Whether the region has been given the number.
    given: bool,
    mean_ns: Option<f64>,
    /// How many windows in a row were far from the mean, and where the present one began.
    moved: u32,
    from: Runs,
}

/// What came of a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    /// What the region is to have.
    pub(super) threads: Option<Threads>,
    /// What a comparison that has ended has lost.
    pub(super) lost_ns: u64,
    /// Whether a search should begin, if there is room for it.
    pub(super) wants_search: bool,
}

impl Step {
    fn search(wants_search: bool) -> Step {
        Step {
            wants_search,
            ..Step::default()
        }
    }
}

impl Region {
    pub(super) fn new(now_ns: u64, known: Option<Known>) -> Region {
        let state = known.map_or(State::Idle, |known| State::Kept(Kept::new(known)));
        Region {
            again_ns: now_ns + KNOWN_WAIT_NS,
            state,
            last: Seen::default(),
            total_ns: 0,
            since_ns: now_ns,
            wait_ns: FIRST_WAIT_NS,
            moved_ns: now_ns,
            moved_wait_ns: FIRST_MOVED_WAIT_NS,
        }
    }

    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    pub(super) fn is_searching(&self) -> bool {
        self.comparison().is_some()
    }

    fn comparison(&self) -> Option<&Comparison> {
        match &self.state {
            State::Searching(search) => search.comparison.as_ref(),
            _ => None,
        }
    }

    /// What the comparison that runs seems to have lost, in nanoseconds.
    pub(super) fn losing_ns(&self) -> u64 {
        self.comparison().map_or(0, |c| c.lost_ns(c.so_far()))
    }

    /// What the comparison that runs may lose in all, as far as that can be told, in nanoseconds.
    pub(super) fn may_lose_ns(&self) -> f64 {
        match &self.state {
            State::Searching(search) if search.comparison.is_some() => {
                search.risk_ns.max(self.losing_ns() as f64)
            }
            _ => 0.0,
        }
    }

    pub(super) fn found(&self) -> Option<(Known, Option<f64>)> {
        match &self.state {
            State::Kept(kept) => Some((kept.known, kept.mean_ns)),
            // It is being looked at again.
            State::Searching(search) => {
                let known = Known {
                    threads: search.before?,
                    most: search.most,
                };
                Some((known, None))
            }
            State::Idle => None,
        }
    }

    pub(super) fn look(&mut self, now_ns: u64, most: u32, seen: Seen) -> Step {
        let spent =
            seen.first.since(self.last.first).time_ns + seen.second.since(self.last.second).time_ns;
        self.last = seen;
        let known_ns = now_ns.saturating_sub(self.since_ns);
        // What was before the first look took nobody knows which part of the time.
        self.total_ns += if known_ns > 0 { spent } else { 0 };
        let worthwhile = known_ns > 0 && self.total_ns as f64 >= WORTHWHILE * known_ns as f64;
        match &mut self.state {
            // No run of it has ended yet.
            _ if seen.asked == 0 => Step::default(),
            State::Idle => Step::search(most >= 2 && seen.first.runs >= RUNS && worthwhile),
            State::Searching(search) if search.most != most => {
                // What was measured is of another claim.
                let lost_ns = self.losing_ns();
                self.state = State::Idle;
                Step {
                    threads: Some(self.have(Threads::One(most))),
                    lost_ns,
                    wants_search: false,
                }
            }
            State::Searching(search) => match &mut search.comparison {
                Some(_) => self.compared(now_ns, seen),
                None => Step::search(seen.first.runs > 0),
            },
            State::Kept(kept) if !kept.given => {
                if kept.known.most != most {
                    // Known from before, of another claim.
                    self.state = State::Idle;
                    return Step::default();
                }
                kept.given = true;
                let threads = Threads::One(kept.known.threads);
                Step {
                    threads: Some(self.have(threads)),
                    ..Step::default()
                }
            }
            State::Kept(kept) => {
                let fits = kept.known.threads <= most;
                let other_claim = most > kept.known.most || !fits;
                let moved = fits && kept.has_moved(seen.first);
                let due =
                    now_ns >= self.again_ns || (moved || other_claim) && now_ns >= self.moved_ns;
                Step::search(due && most >= 2 && worthwhile)
            }
        }
    }

    /// Begins a comparison if what it may lose at first, in nanoseconds, is within `room`; gives that, too.
    pub(super) fn begin(&mut self, now_ns: u64, most: u32, room: f64) -> Option<(Threads, f64)> {
        let search = match &self.state {
            State::Searching(search) => search.clone(),
            State::Kept(kept) if most <= kept.known.most => {
                let threads = kept.known.threads;
                Search::new(threads.min(most), most, Some(threads))?
            }
            // There is more to be had than was tried.
            State::Kept(kept) => Search::new(most, most, Some(kept.known.threads))?,
            State::Idle => Search::new(most, most, None)?,
        };
        let (best, other) = (search.best, search.other);
        let mean_ns = self.last.first.mean_ns().or(search.mean_ns)?;
        let log2_runs = turn(best, other, mean_ns);
        // Fewer threads take at most as many times longer as they are fewer; two windows tell.
        let slower = (f64::from(best) / f64::from(other) - 1.0).max(0.5);
        let risk = 2.0 * f64::from(1_u32 << log2_runs) * mean_ns * slower;
        if risk > room {
            return None;
        }
        if !matches!(self.state, State::Searching(_)) {
            self.wait_ns = match search.before {
                Some(_) => (self.wait_ns * 2).min(LONGEST_WAIT_NS),
                None => FIRST_WAIT_NS,
            };
            self.moved_ns = now_ns + self.moved_wait_ns;
        }
        self.state = State::Searching(Search {
            comparison: Some(Comparison::default()),
            risk_ns: risk,
            ..search
        });
        let threads = Threads::Turns {
            numbers: [best, other],
            log2_runs,
        };
        Some((self.have(threads), risk))
    }

    /// Two numbers have been seen for longer.
    fn compared(&mut self, now_ns: u64, seen: Seen) -> Step {
        let State::Searching(search) = &mut self.state else {
            return Step::default();
        };
        let Some((lost_ns, next)) = search.compared(seen) else {
            return Step::default();
        };
        let threads = match next {
            Some(next) => {
                search.other = next;
                Threads::One(search.best)
            }
            None => {
                let known = Known {
                    threads: search.best,
                    most: search.most,
                };
                let (mean_ns, before) = (search.mean_ns, search.before);
                self.keep(now_ns, known, mean_ns, before)
            }
        };
        Step {
            threads: Some(self.have(threads)),
            lost_ns,
            wants_search: false,
        }
    }

    fn keep(
        &mut self,
        now_ns: u64,
        known: Known,
        mean_ns: Option<f64>,
        before: Option<u32>,
    ) -> Threads {
        self.again_ns = now_ns + self.wait_ns;
        self.moved_wait_ns = match before == Some(known.threads) {
            true => (self.moved_wait_ns * 2).min(LONGEST_WAIT_NS),
            false => FIRST_MOVED_WAIT_NS,
        };
        self.moved_ns = now_ns + self.moved_wait_ns;
        self.state = State::Kept(Kept {
            given: true,
            mean_ns,
            ..Kept::new(known)
        });
        Threads::One(known.threads)
    }

    /// It has these from now on; what was seen is of what it had before.
    fn have(&mut self, threads: Threads) -> Threads {
        self.last = Seen::default();
        threads
    }
}

impl Search {
    /// From `best` on, up to `most`; `None` where there is nothing to compare it with.
    fn new(best: u32, most: u32, before: Option<u32>) -> Option<Search> {
        let scores = Scores::from([(best, 0.0)]);
        Some(Search {
            most,
            best,
            other: next_to_try(best, most, &scores)?,
            scores,
            comparison: None,
            risk_ns: 0.0,
            mean_ns: None,
            before,
        })
    }

    /// Two numbers have been seen for longer: when that is enough, what the slower one has lost, and what is
    /// to be tried next, if anything.
    fn compared(&mut self, seen: Seen) -> Option<(u64, Option<u32>)> {
        // More threads have to be worth it.
        let worth = match self.other < self.best {
            true => WORTH.ln(),
            false => -WORTH.ln(),
        };
        let comparison = self.comparison.as_mut()?;
        let difference = comparison.look([seen.first, seen.second], worth)?;
        let lost_ns = comparison.lost_ns(difference);
        let of_best = self.scores.get(&self.best).copied().unwrap_or(0.0);
        self.scores.insert(self.other, of_best + difference);
        let better = difference < worth;
        self.mean_ns = comparison.mean_ns(usize::from(better));
        if better {
            self.best = self.other;
        }
        self.comparison = None;
        Some((lost_ns, next_to_try(self.best, self.most, &self.scores)))
    }
}

impl Kept {
    fn new(known: Known) -> Kept {
        Kept {
            known,
            given: false,
            mean_ns: None,
            moved: 0,
            from: Runs::default(),
        }
    }

    /// Whether its time has been another one for a while. The first window, where nothing is known, is what
    /// the others are compared with.
    fn has_moved(&mut self, seen: Runs) -> bool {
        let window = seen.since(self.from);
        if window.runs < WINDOW_RUNS || window.time_ns < WINDOW_NS {
            return self.moved >= WINDOWS;
        }
        self.from = seen;
        let Some(mean) = window.mean_ns() else {
            return false;
        };
        let usual = *self.mean_ns.get_or_insert(mean);
        let within = (usual / MOVED..=usual * MOVED).contains(&mean);
        self.moved = if within { 0 } else { self.moved + 1 };
        self.moved >= WINDOWS
    }
}

/// Runs of a turn, as a power of two, for a region of that mean time. Turns are short, so that both numbers see
/// the same; but a team of more than one thread that is larger or smaller than the last is made anew, which
/// should not be most of what is done.
fn turn(best: u32, other: u32, mean_ns: f64) -> u8 {
    let cheap = best.min(other) == 1;
    let turn_ns: f64 = if cheap { 1e6 } else { 4e6 };
    let least = match mean_ns {
        long if long >= 20e6 => 1.0,
        long if long >= 2e6 => 2.0,
        _ => 4.0_f64,
    };
    let runs = (turn_ns / mean_ns.max(1.0)).clamp(least, 256.0);
    runs.log2().floor() as u8
}
