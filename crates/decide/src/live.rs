//! The number of threads of each parallel region of a program that runs: searched while the region repeats,
//! without starting anything anew.
//!
//! Whoever times regions hands in what it has seen since the last time; what comes back is the number that a
//! region is to try next, or to keep. A region tries numbers from the most that it may have downwards, half as
//! many each time, and then the numbers between the best and its neighbours; a number is kept as long as its
//! mean time is the best, fewer threads where the difference is not worth them. A kept number is watched: when
//! the region's time moves far from what it was, or more threads may be had than were tried, the search begins
//! again. Regions that take a small part of the program's time are left alone: there is nothing to be won.
//!
//! Sources: the oversubscription of the MSEPT proceedings (2012) asks for a number for each phase of a program;
//! Thread Reinforcer (Pusukuri, Gupta, Bhuyan 2011) for one that is found while it runs. Trying halves first
//! bounds the trials by the logarithm of the number of CPUs.

use std::collections::BTreeMap;

/// A number is tried for at least so many runs of the region, and for so long, in nanoseconds...
const RUNS: u64 = 8;
const TIME_NS: u64 = 3_000_000;
/// ... or for so long, with a few runs.
const LONG_NS: u64 = 150_000_000;
const FEW_RUNS: u64 = 3;
/// The first runs with another number are not counted: threads are started, caches are cold.
const WARM_UP: u64 = 2;
/// So many times faster must more threads be to be worth them.
const WORTH: f64 = 1.03;
/// A region is searched when it has taken this part of the time since the last look, or of all time.
const WORTHWHILE: f64 = 0.02;
/// A kept number is searched again when the region's mean time is by so much another.
const MOVED: f64 = 1.5;
/// ... in so many windows one after the other.
const WINDOWS: u32 = 3;
/// A search that was begun again soon after the last one is waited for longer each time, up to this, in
/// nanoseconds.
const LONGEST_WAIT_NS: u64 = 60_000_000_000;
/// ... beginning with this.
const FIRST_WAIT_NS: u64 = 500_000_000;

/// A region: whoever times it says what its key means.
pub type Key = u64;

/// What was seen of a region since it was given its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The number of threads that it would have on its own.
    pub asked: u32,
    /// Runs with the number that it was given last.
    pub runs: u64,
    /// Time of these, in nanoseconds.
    pub time_ns: u64,
}

/// A region is to have another number of threads from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Give {
    /// Which region.
    pub key: Key,
    /// How many threads.
    pub threads: u32,
}

/// The searches of all regions of one program.
#[derive(Clone, Debug, Default)]
pub struct Tuner {
    regions: BTreeMap<Key, Region>,
    /// The time of the last look.
    looked_ns: Option<u64>,
}

/// One region's.
#[derive(Clone, Debug)]
struct Region {
    state: State,
    /// What had been seen at the last look, of the number that it has now.
    last: Seen,
    /// Time that it took in all, in nanoseconds, and since when it is known.
    total_ns: u64,
    since_ns: u64,
    /// Not before this time is it searched again.
    not_before_ns: u64,
    wait_ns: u64,
}

#[derive(Clone, Debug)]
enum State {
    /// Not worth a search so far.
    Idle,
    /// Trying.
    Trying {
        /// The most that it may have.
        most: u32,
        /// What it has now.
        now: u32,
        /// What was seen of `now` when its runs began to count.
        from: Option<Seen>,
        /// Mean times of what was tried, in nanoseconds.
        times: BTreeMap<u32, f64>,
    },
    /// It has its number.
    Kept {
        most: u32,
        threads: u32,
        mean_ns: f64,
        /// How many windows in a row were far from the mean.
        moved: u32,
    },
}

impl Tuner {
    /// Nothing is known yet.
    pub fn new() -> Tuner {
        Tuner::default()
    }

    /// Takes in what was seen of each region at `now_ns`, within a claim of `limit` threads (`None`: no
    /// claim binds). Gives the regions that are to have another number.
    pub fn look(
        &mut self,
        now_ns: u64,
        limit: Option<u32>,
        seen: impl IntoIterator<Item = (Key, Seen)>,
    ) -> Vec<Give> {
        let since = now_ns.saturating_sub(self.looked_ns.unwrap_or(now_ns));
        self.looked_ns = Some(now_ns);
        let mut gives = Vec::new();
        for (key, seen) in seen {
            let region = self
                .regions
                .entry(key)
                .or_insert_with(|| Region::new(now_ns));
            let most = seen.asked.min(limit.unwrap_or(u32::MAX)).max(1);
            if let Some(threads) = region.look(now_ns, since, most, seen) {
                // Counting begins anew with every number.
                region.last = Seen::default();
                gives.push(Give { key, threads });
            }
        }
        gives
    }

    /// Whether any region is being searched: then looks are worth their while.
    pub fn is_searching(&self) -> bool {
        let mut states = self.regions.values().map(|region| &region.state);
        states.any(|state| matches!(state, State::Trying { .. }))
    }

    /// The regions that have found their number, each with that and with its mean time in nanoseconds.
    pub fn kept(&self) -> impl Iterator<Item = (Key, u32, f64)> + '_ {
        self.regions
            .iter()
            .filter_map(|(key, region)| match region.state {
                State::Kept {
                    threads, mean_ns, ..
                } => Some((*key, threads, mean_ns)),
                _ => None,
            })
    }
}

impl Region {
    fn new(now_ns: u64) -> Region {
        Region {
            state: State::Idle,
            last: Seen::default(),
            total_ns: 0,
            since_ns: now_ns,
            not_before_ns: 0,
            wait_ns: FIRST_WAIT_NS,
        }
    }

    /// The number that it is to have from now on, if another one.
    fn look(&mut self, now_ns: u64, since: u64, most: u32, seen: Seen) -> Option<u32> {
        let spent = seen.time_ns.saturating_sub(self.last.time_ns);
        let runs = seen.runs.saturating_sub(self.last.runs);
        self.last = seen;
        self.total_ns += spent;
        match &mut self.state {
            State::Idle => {
                let known = now_ns.saturating_sub(self.since_ns);
                let part = |time: u64, of: u64| of > 0 && time as f64 >= WORTHWHILE * of as f64;
                let worthwhile = part(spent, since) && part(self.total_ns, known);
                if most < 2 || seen.runs < RUNS || !worthwhile || now_ns < self.not_before_ns {
                    return None;
                }
                self.begin(most, now_ns)
            }
            State::Trying {
                most: of,
                now,
                from,
                times,
            } => {
                if *of != most {
                    // What was measured is of another claim.
                    return self.begin(most, now_ns);
                }
                if seen.runs < WARM_UP {
                    return None;
                }
                let from = *from.get_or_insert(seen);
                let runs = seen.runs.saturating_sub(from.runs);
                let time = seen.time_ns.saturating_sub(from.time_ns);
                let enough =
                    (runs >= RUNS && time >= TIME_NS) || (runs >= FEW_RUNS && time >= LONG_NS);
                if !enough {
                    return None;
                }
                times.insert(*now, time as f64 / runs as f64);
                let next = next_to_try(most, times);
                let best = best_of(times);
                match next {
                    Some(next) => {
                        *now = next;
                        self.set_from_none();
                        Some(next)
                    }
                    None => {
                        let mean_ns = times.get(&best).copied().unwrap_or(0.0);
                        self.state = State::Kept {
                            most,
                            threads: best,
                            mean_ns,
                            moved: 0,
                        };
                        Some(best)
                    }
                }
            }
            State::Kept {
                most: of,
                threads,
                mean_ns,
                moved,
            } => {
                if most > *of && now_ns >= self.not_before_ns {
                    return self.begin(most, now_ns);
                }
                if runs < FEW_RUNS || spent < TIME_NS {
                    return None;
                }
                let mean = spent as f64 / runs as f64;
                let within = (*mean_ns / MOVED..=*mean_ns * MOVED).contains(&mean);
                // With fewer threads than it was given, its time says nothing of the number that is kept.
                *moved = if within || most < *threads {
                    0
                } else {
                    *moved + 1
                };
                if *moved >= WINDOWS && now_ns >= self.not_before_ns {
                    return self.begin(most, now_ns);
                }
                None
            }
        }
    }

    /// Begins a search, and waits for the next one ever longer where it comes soon after this.
    fn begin(&mut self, most: u32, now_ns: u64) -> Option<u32> {
        let long_ago = now_ns > self.not_before_ns.saturating_add(LONGEST_WAIT_NS);
        self.wait_ns = match long_ago {
            true => FIRST_WAIT_NS,
            false => (self.wait_ns * 2).min(LONGEST_WAIT_NS),
        };
        self.not_before_ns = now_ns.saturating_add(self.wait_ns);
        self.state = State::Trying {
            most,
            now: most,
            from: None,
            times: BTreeMap::new(),
        };
        Some(most)
    }

    fn set_from_none(&mut self) {
        if let State::Trying { from, .. } = &mut self.state {
            *from = None;
        }
    }
}

/// The number with the best time; of those that are hardly worse, the smallest.
fn best_of(times: &BTreeMap<u32, f64>) -> u32 {
    let fastest = times.values().copied().fold(f64::INFINITY, f64::min);
    let good = times.iter().find(|(_, time)| **time <= fastest * WORTH);
    good.map_or(1, |(threads, _)| *threads)
}

/// What to try next; `None` when enough was tried: halves from the most on while they are not much worse than
/// the best, then the middle between the best and each neighbour that was tried, as long as that can still
/// make a difference.
fn next_to_try(most: u32, times: &BTreeMap<u32, f64>) -> Option<u32> {
    let best = best_of(times);
    let fastest = times.get(&best).copied()?;
    let (&smallest, &time) = times.iter().next()?;
    if smallest > 1 && (time <= fastest * 1.25 || times.len() < 2) {
        return Some(smallest / 2);
    }
    let below = times.range(..best).next_back().map(|(n, _)| *n);
    let above = times.range(best..=most.max(best)).nth(1).map(|(n, _)| *n);
    for neighbour in [above, below].into_iter().flatten() {
        let gap = neighbour.abs_diff(best);
        // A number that is less than an eighth away is hardly another one.
        if gap >= 2 && gap * 8 >= best {
            return Some(neighbour.midpoint(best));
        }
    }
    None
}

#[cfg(test)]
mod tests;
