//! The number of threads of each parallel region of a program that runs: searched while the region repeats,
//! without starting anything anew.
//!
//! **The problem.** A trial costs what it is slower than the best, and a region's time changes by itself: its
//! work differs from run to run, the machine's speed drifts, others come and go. So two numbers are not tried
//! one after the other, but take turns, a few runs each, and only their ratio counts.
//!
//! **The approach.** A region begins with all threads that it may have. The best so far is compared with its
//! half, then with what is next (`order`), by a sequential test (`compare`): a number that is clearly slower
//! is left after milliseconds, numbers that are as good as equal may take longer, since they cost nothing. Fewer
//! threads win where more are not worth `WORTH`. What was found is kept, and compared with its neighbours
//! again from time to time, ever more seldom; sooner where the region's time has moved far from what it was, or
//! more threads may be had.
//!
//! **What it may cost.** The time that slower numbers have lost is bounded by a part of the time since the
//! beginning ([`ASKED_FOR`], [`UNASKED`]) and `ADVANCE_NS`: beyond it no comparison begins. Regions of which a single run could lose much wait
//! until there is room; the largest ones come first. Regions that take a small part of the program's time are left
//! alone.
//!
//! Sources: the oversubscription of the MSEPT proceedings (2012) asks for a number for each phase of a program;
//! Thread Reinforcer (Pusukuri, Gupta, Bhuyan 2011) for one that is found while it runs. Trying halves first
//! bounds the trials by the logarithm of the number of CPUs. Comparing until the answer is clear is Wald's
//! sequential test (1945), here with medians, which a few disturbed windows do not move.

mod compare;
mod order;
mod region;

pub use compare::Runs;
use region::Region;
use std::collections::BTreeMap;

/// So many times faster must more threads be to be worth them.
const WORTH: f64 = 1.02;
/// The part of the time that may be lost to searching that somebody has asked for.
pub const ASKED_FOR: f64 = 0.05;
/// The same where nobody has: a program whose regions gain nothing is not to notice.
pub const UNASKED: f64 = 0.01;
/// What may be lost at once besides, in nanoseconds, so that what is worth a search has it soon.
const ADVANCE_NS: f64 = 5e6;
/// A region is searched when it has taken this part of the time.
const WORTHWHILE: f64 = 0.02;

/// A region: whoever times it says what its key means.
pub type Key = u64;

/// What was seen of a region since it was given its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The number of threads that it would have on its own.
    pub asked: u32,
    /// Runs with the first of its numbers, or with the only one.
    pub first: Runs,
    /// Runs with the second.
    pub second: Runs,
}

/// What a region is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Always so many.
    One(u32),
    /// Two numbers that take turns.
    Turns {
        /// Numbers of threads.
        numbers: [u32; 2],
        /// Each has so many runs one after the other, as a power of two; if more than one, the first of them
        /// is not to be counted: threads wake up, caches are cold.
        log2_runs: u8,
    },
}

/// A region is to have something else from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Give {
    /// Which region.
    pub key: Key,
    /// How many threads.
    pub threads: Threads,
}

/// What is known of a region from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The number of threads that was found.
    pub threads: u32,
    /// The most that it could have had then.
    pub most: u32,
}

/// What was found of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Which region.
    pub key: Key,
    /// The number that it keeps, and the most that it could have.
    pub known: Known,
    /// Its mean time with that number, in nanoseconds, if it has been seen.
    pub mean_ns: Option<f64>,
}

/// The searches of all regions of one program.
#[derive(Clone, Debug)]
pub struct Tuner {
    /// The part of the time that may be lost.
    budget: f64,
    known: BTreeMap<Key, Known>,
    regions: BTreeMap<Key, Region>,
    began_ns: Option<u64>,
    lost_ns: u64,
}

impl Tuner {
    /// Begins with what is known of regions from before; it is not searched again at once. `budget` is the part of
    /// the time, 0 to 1, that may be lost to slower numbers.
    pub fn new(known: BTreeMap<Key, Known>, budget: f64) -> Tuner {
        Tuner {
            budget,
            known,
            regions: BTreeMap::new(),
            began_ns: None,
            lost_ns: 0,
        }
    }

    /// Takes in what was seen of each region at `now_ns`, within a claim of `limit` threads (`None`: no
    /// claim binds). Gives the regions that are to have something else.
    pub fn look(
        &mut self,
        now_ns: u64,
        limit: Option<u32>,
        seen: impl IntoIterator<Item = (Key, Seen)>,
    ) -> Vec<Give> {
        let began = *self.began_ns.get_or_insert(now_ns);
        let elapsed = now_ns.saturating_sub(began);
        let mut gives = Vec::new();
        let mut waiting = Vec::new();
        for (key, seen) in seen {
            let most = seen.asked.min(limit.unwrap_or(u32::MAX)).max(1);
            let known = self.known.get(&key).copied();
            let fresh = || Region::new(now_ns, known);
            let region = self.regions.entry(key).or_insert_with(fresh);
            let step = region.look(now_ns, most, seen);
            self.lost_ns += step.lost_ns;
            gives.extend(step.threads.map(|threads| Give { key, threads }));
            if step.wants_search {
                waiting.push((key, most));
            }
        }
        waiting.sort_by_key(|(key, _)| {
            let total = self.regions.get(key).map_or(0, Region::total_ns);
            std::cmp::Reverse(total)
        });
        // What those that are being compared may lose counts, too.
        let open: f64 = self.regions.values().map(Region::may_lose_ns).sum();
        let mut room = ADVANCE_NS + self.budget * elapsed as f64 - self.lost_ns as f64 - open;
        for (key, most) in waiting {
            if let Some(region) = self.regions.get_mut(&key)
                && let Some((threads, risk)) = region.begin(now_ns, most, room)
            {
                room -= risk;
                gives.push(Give { key, threads });
            }
        }
        gives
    }

    /// Whether any region is being searched: then looks are worth their while.
    pub fn is_searching(&self) -> bool {
        self.regions.values().any(Region::is_searching)
    }

    /// The time that slower numbers have lost so far, in nanoseconds.
    pub fn lost_ns(&self) -> u64 {
        let open: u64 = self.regions.values().map(Region::losing_ns).sum();
        self.lost_ns + open
    }

    /// The regions that have found their number.
    pub fn found(&self) -> impl Iterator<Item = Found> + '_ {
        self.regions.iter().filter_map(|(key, region)| {
            let (known, mean_ns) = region.found()?;
            Some(Found {
                key: *key,
                known,
                mean_ns,
            })
        })
    }
}

#[cfg(test)]
mod tests;
