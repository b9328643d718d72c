//! How the threads of one claim are divided among the permits of one process. Pure.
//!
//! Problem: several arenas of a program want threads at the same time, each between a minimum and a maximum,
//! some of them on certain CPUs only. Together they get what the claim leaves for workers.
//!
//! Approach: first everybody's minimum, even where that is more than there is (without its minimum a permit
//! would never go on). Then one thread after the other to whoever has the fewest and may have more; the
//! higher priority first, and the older permit where two have the same. That is max-min fairness: nobody
//! could have more without somebody with no more than he getting less. Permits that are idle keep what
//! nobody else wants.
//!
//! A thread that is bound to CPUs needs one of them for itself, as long as the minima allow. That is kept
//! for every set of CPUs that is asked for: those bound to it, or to a part of it, are at most as many as
//! it has CPUs. (Exact where of two sets that overlap one includes the other, as those of a machine's
//! topology do.)

/// A set of CPUs, 64 a word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask(pub(crate) Vec<u64>);

impl Mask {
    /// How many CPUs it has.
    pub(crate) fn weight(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether all its CPUs are `other`'s, too.
    fn is_within(&self, other: &Mask) -> bool {
        let word = |i: usize| other.0.get(i).copied().unwrap_or(0);
        self.0
            .iter()
            .enumerate()
            .all(|(i, own)| own & !word(i) == 0)
    }
}

/// One part of a permit: threads on the same CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// The fewest threads that it can do with.
    pub(crate) min: u32,
    /// The most that it can use.
    pub(crate) max: u32,
    /// Where they must run; `None`: anywhere.
    pub(crate) mask: Option<Mask>,
}

/// What becomes of a permit's threads when others want some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It takes part: it gets its share, and that can change.
    Shares,
    /// It works with a number of threads that cannot change.
    Fixed,
    /// It has nothing to do: it keeps what nobody else wants. With `all`, everything or nothing.
    Idle {
        /// Whether it can do nothing with a part of what it has.
        all: bool,
    },
}

/// A permit, as far as dividing goes.
#[derive(Clone, Debug)]
pub(crate) struct Demand<'a> {
    /// The fewest threads in all; at least the sum of its parts'.
    pub(crate) min: u32,
    /// The most in all.
    pub(crate) max: u32,
    /// Higher ones are served first, once everybody has the minimum.
    pub(crate) priority: i32,
    /// Threads that it has besides those it is given here: they count for its minimum, maximum and share.
    pub(crate) inherits: u32,
    /// What may be done with it.
    pub(crate) hold: Hold,
    /// What each part has now.
    pub(crate) now: &'a [u32],
    /// At least one.
    pub(crate) parts: &'a [Part],
}

impl Demand<'_> {
    fn wanted(&self) -> u32 {
        self.max.saturating_sub(self.inherits)
    }

    fn needed(&self) -> u32 {
        self.min.saturating_sub(self.inherits).min(self.wanted())
    }
}

/// Divides `limit` threads (`None`: as many as anybody wants) among permits, the older ones first in the
/// list. Gives what each part of each gets; `None` for an idle permit that has to give everything back.
///
/// Takes time in proportion to the threads, times the parts, times the sets of CPUs.
pub(crate) fn divide(limit: Option<u32>, demands: &[Demand]) -> Vec<Option<Vec<u32>>> {
    let mut ground = Ground::new(limit, demands);
    let mut given = minima(&mut ground, demands);
    while let Some((i, j)) = next(&ground, demands, &given) {
        let (Some(demand), Some(parts)) = (demands.get(i), given.get_mut(i)) else {
            break;
        };
        let rest = demand.wanted().saturating_sub(sum(parts));
        let (Some(bound), Some(part)) = (demand.parts.get(j), parts.get_mut(j)) else {
            break;
        };
        // Without a limit there is no competition, and no need to go in steps.
        let more = match limit {
            Some(_) => 1,
            None => rest.min(bound.max.saturating_sub(*part)).max(1),
        };
        *part = part.saturating_add(more);
        ground.take(bound, more);
    }
    let idle = |demand: &Demand| matches!(demand.hold, Hold::Idle { .. });
    let mut result = Vec::with_capacity(demands.len());
    for (demand, given) in demands.iter().zip(given) {
        result.push(match idle(demand) {
            true => keep(&mut ground, demand),
            false => Some(given),
        });
    }
    result
}

/// Whether one more permit can have its minimum beside the minima of others, of which idle ones give way.
pub(crate) fn fits(limit: Option<u32>, demands: &[Demand], more: &Demand) -> bool {
    let mut all = demands.to_vec();
    all.push(more.clone());
    let mut ground = Ground::new(limit, &all);
    let given = minima(&mut ground, &all);
    let own = given.last().map_or(0, |parts| sum(parts));
    own >= more.needed() && ground.is_sound()
}

/// Everybody's minimum, and what cannot change.
fn minima(ground: &mut Ground, demands: &[Demand]) -> Vec<Vec<u32>> {
    let mut given: Vec<Vec<u32>> = Vec::with_capacity(demands.len());
    for demand in demands {
        let mut parts = vec![0; demand.parts.len()];
        match demand.hold {
            Hold::Fixed => {
                for (part, (now, bound)) in
                    parts.iter_mut().zip(demand.now.iter().zip(demand.parts))
                {
                    *part = *now;
                    ground.take(bound, *now);
                }
            }
            Hold::Shares => {
                let mut inherited = inherits_at(ground, demand);
                for (i, (part, bound)) in parts.iter_mut().zip(demand.parts).enumerate() {
                    let free = inherited
                        .take_if(|(at, _)| *at == i)
                        .map_or(0, |(_, free)| free);
                    *part = bound.min.saturating_sub(free);
                    ground.take(bound, *part);
                }
                need(ground, demand, &mut parts);
            }
            Hold::Idle { .. } => {}
        }
        given.push(parts);
    }
    given
}

/// The part whose minimum the threads count for that a permit has already: where they do so now, else one
/// that would lack them.
fn inherits_at(ground: &Ground, demand: &Demand) -> Option<(usize, u32)> {
    let parts = || demand.parts.iter();
    let now = parts()
        .zip(demand.now)
        .position(|(part, now)| *now < part.min);
    let at = now
        .filter(|_| sum(demand.now) > 0)
        .or_else(|| parts().position(|part| ground.room(part) < i64::from(part.min)))
        .or_else(|| parts().position(|part| part.min > 0))?;
    Some((at, demand.inherits))
}

/// Brings a permit up to what it needs in all: first where there is room, then wherever it may have more.
fn need(ground: &mut Ground, demand: &Demand, parts: &mut [u32]) {
    let mut missing = demand.needed().saturating_sub(sum(parts));
    for only_where_room in [true, false] {
        for (part, bound) in parts.iter_mut().zip(demand.parts) {
            while missing > 0 && *part < bound.max && (!only_where_room || ground.has_room(bound)) {
                *part += 1;
                ground.take(bound, 1);
                missing -= 1;
            }
        }
    }
}

/// Whose turn it is to have one thread more, and in which part.
fn next(ground: &Ground, demands: &[Demand], given: &[Vec<u32>]) -> Option<(usize, usize)> {
    let mut best: Option<((i64, u64), (usize, usize))> = None;
    for (i, (demand, parts)) in demands.iter().zip(given).enumerate() {
        let has = sum(parts);
        if demand.hold != Hold::Shares || has >= demand.wanted() {
            continue;
        }
        let mut bounds = parts.iter().zip(demand.parts);
        let Some(part) = bounds.position(|(has, bound)| *has < bound.max && ground.has_room(bound))
        else {
            continue;
        };
        let visible = u64::from(has) + u64::from(demand.inherits);
        let turn = (-i64::from(demand.priority), visible);
        if best.is_none_or(|(before, _)| turn < before) {
            best = Some((turn, (i, part)));
        }
    }
    best.map(|(_, who)| who)
}

/// What an idle permit keeps.
fn keep(ground: &mut Ground, demand: &Demand) -> Option<Vec<u32>> {
    let Hold::Idle { all } = demand.hold else {
        return None;
    };
    let mut kept = vec![0; demand.parts.len()];
    let parts = kept.iter_mut().zip(demand.parts).zip(demand.now);
    for ((kept, bound), now) in parts {
        while *kept < *now && ground.has_room(bound) {
            *kept += 1;
            ground.take(bound, 1);
        }
    }
    let enough = sum(&kept) >= demand.needed() && !(all && kept != demand.now);
    if !enough {
        for (kept, bound) in kept.iter().zip(demand.parts) {
            ground.give_back(bound, *kept);
        }
    }
    enough.then_some(kept)
}

fn sum(parts: &[u32]) -> u32 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
}

/// What is left.
struct Ground<'a> {
    /// Threads; below zero where the minima are more than there is. `None`: without a limit.
    threads: Option<i64>,
    /// The sets of CPUs that are asked for, and how many CPUs of each are left.
    sets: Vec<(&'a Mask, i64)>,
}

impl<'a> Ground<'a> {
    fn new(limit: Option<u32>, demands: &[Demand<'a>]) -> Ground<'a> {
        let mut sets: Vec<(&Mask, i64)> = Vec::new();
        // Without a limit nobody stands in anybody's way.
        let masks = demands
            .iter()
            .flat_map(|demand| demand.parts)
            .filter_map(|part| part.mask.as_ref());
        for mask in masks.filter(|_| limit.is_some()) {
            if !sets.iter().any(|(known, _)| *known == mask) {
                sets.push((mask, i64::from(mask.weight())));
            }
        }
        Ground {
            threads: limit.map(i64::from),
            sets,
        }
    }

    /// How many more threads of this part there is room for.
    fn room(&self, part: &Part) -> i64 {
        let sets = self.sets.iter().filter(|(set, _)| takes_from(part, set));
        let left = sets.map(|(_, left)| *left).chain(self.threads);
        left.min().unwrap_or(i64::MAX)
    }

    fn has_room(&self, part: &Part) -> bool {
        self.room(part) > 0
    }

    fn take(&mut self, part: &Part, threads: u32) {
        self.change(part, -i64::from(threads));
    }

    fn give_back(&mut self, part: &Part, threads: u32) {
        self.change(part, i64::from(threads));
    }

    fn change(&mut self, part: &Part, by: i64) {
        if let Some(left) = &mut self.threads {
            *left += by;
        }
        for (_, left) in self
            .sets
            .iter_mut()
            .filter(|(set, _)| takes_from(part, set))
        {
            *left += by;
        }
    }

    /// Whether nothing was taken that was not there.
    fn is_sound(&self) -> bool {
        self.threads.is_none_or(|left| left >= 0) && self.sets.iter().all(|(_, left)| *left >= 0)
    }
}

/// Whether a thread of this part takes one of this set's CPUs, whichever it is.
fn takes_from(part: &Part, set: &Mask) -> bool {
    part.mask.as_ref().is_some_and(|mask| mask.is_within(set))
}
