//! Which sets run side by side: a ring's sets in slots.
//!
//! Problem: every set wants some of the ring's CPUs for some share of the time. Whoever runs must have a CPU
//! for each of its threads, or its threads wait for each other. What is left over beside a set should be of
//! use to others. And shares should follow weights.
//!
//! Approach: slots of equal length are filled one after the other. Each takes sets in the order of what they
//! have received for their weight, the least first (stride scheduling, Waldspurger and Weihl 1995), those that
//! need many CPUs before those that need few (first fit decreasing), as long as they fit. So whoever has waited
//! longest runs in the next slot, and what it leaves goes to those who fit beside it. How many slots make a
//! period is chosen afterwards: the number with which the worst-served set fares best. At last slots become
//! longer or shorter where that brings shares nearer to weights.
//!
//! A set's threads are given CPUs that few other sets want first; so sets that can only run in one place find
//! that place free. A fit that this misses costs idle time, never a promise that cannot be kept.

use super::mask::Mask;
use corewise_abi::turn::MOST_WINDOWS;
use std::collections::BTreeSet;
use std::rc::Rc;

/// After so many sets in a row that did not fit, a slot is taken to be full.
const MISSES: u32 = 64;

/// Among fewer slots than this the best number for a period is looked for; more where weights differ, since
/// then it takes more to express them.
const SLOTS: usize = 16;
const SLOTS_FOR_WEIGHTS: usize = 64;

/// Slots are at most this much shorter, and the inverse longer, than the usual one.
pub(super) const SHORTEST: f64 = 0.5;

/// A pass of weight 1.
const SCALE: u64 = 1_000_000_000_000;

/// One set, as far as its slots depend on it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its CPUs, numbered within the ring by how many sets want them, the least wanted first.
    pub(super) cpus: Rc<Mask>,
    /// CPUs that it needs when it runs, at most those that it has; all of them if it keeps idle ones.
    pub(super) needs: u32,
    /// Above 0.
    pub(super) weight: u32,
}

/// Who runs together, and for how long relative to each other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slots {
    /// The sets of each slot, by their index among the items, ascending.
    pub(super) members: Vec<Vec<usize>>,
    /// Relative lengths, [`SHORTEST`] to its inverse.
    pub(super) lengths: Vec<f64>,
}

/// Packs `items`, which share `cpus` CPUs. One slot: all fit side by side. Every item is in at least one slot.
/// O(n log n) for n items, times the words of a set of CPUs.
pub(super) fn pack(items: &[Item], cpus: usize) -> Slots {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(items[i].needs), i));
    if fit_all(items, &order, cpus) {
        return Slots {
            members: vec![(0..items.len()).collect()],
            lengths: vec![1.0],
        };
    }
    let members = Filling::new(items, &order, cpus).fill();
    let lengths = lengths(items, &members);
    Slots { members, lengths }
}

fn fit_all(items: &[Item], order: &[usize], cpus: usize) -> bool {
    let mut free = Mask::first(cpus);
    let total: u64 = items.iter().map(|i| u64::from(i.needs)).sum();
    total <= cpus as u64
        && order.iter().all(|&i| {
            let fits = free.common(&items[i].cpus) >= items[i].needs;
            free.take(&items[i].cpus, items[i].needs);
            fits
        })
}

/// One who waits for a slot: what it has received for its weight, its place in the order of needs, itself.
type Waiting = (u64, usize, usize);

struct Filling<'a> {
    items: &'a [Item],
    /// All CPUs, and how many; those that are still free in a slot that is being filled.
    all: Mask,
    cpus: u32,
    free: Mask,
    queue: BTreeSet<Waiting>,
    least_need: u32,
    /// How often each has begun to run, and the slot after the last in which it ran.
    begun: Vec<usize>,
    ran_until: Vec<usize>,
    not_yet: usize,
    slots: Vec<Vec<usize>>,
    /// CPUs in use, summed over slots.
    used: u64,
}

impl<'a> Filling<'a> {
    fn new(items: &'a [Item], order: &[usize], cpus: usize) -> Filling<'a> {
        Filling {
            items,
            all: Mask::first(cpus),
            cpus: cpus as u32,
            free: Mask::default(),
            queue: order
                .iter()
                .zip(0..)
                .map(|(&i, rank)| (0, rank, i))
                .collect(),
            least_need: items.iter().map(|i| i.needs).min().unwrap_or(1),
            begun: vec![0; items.len()],
            ran_until: vec![0; items.len()],
            not_yet: items.len(),
            slots: Vec::new(),
            used: 0,
        }
    }

    /// Slots, as many as serve the worst-served set best.
    fn fill(mut self) -> Vec<Vec<usize>> {
        while self.not_yet > 0 {
            self.next_slot();
        }
        let weights = self.items.iter().map(|i| i.weight);
        let limit = match weights.clone().min() == weights.max() {
            true => SLOTS,
            false => SLOTS_FOR_WEIGHTS.max(2 * self.slots.len()),
        };
        let (mut best, mut count) = (self.worth(), self.slots.len());
        while self.slots.len() < limit {
            self.next_slot();
            let (share, used) = self.worth();
            let fairer = share > best.0 * 1.01;
            let fuller = share > best.0 * 0.999 && used > best.1 * 1.02;
            if fairer || fuller {
                (best, count) = ((share, used), self.slots.len());
            }
        }
        self.slots.truncate(count);
        self.slots
    }

    /// The smallest share for its weight, and the CPUs in use on average.
    fn worth(&self) -> (f64, f64) {
        let slots = self.slots.len() as f64;
        let least = self.queue.first().map_or(0, |(pass, _, _)| *pass);
        (least as f64 / slots, self.used as f64 / slots)
    }

    fn next_slot(&mut self) {
        let now = self.slots.len();
        self.free.clone_from(&self.all);
        let mut left = self.cpus;
        let mut misses = 0;
        let mut chosen: Vec<Waiting> = Vec::new();
        for waiting in &self.queue {
            let (_, _, i) = *waiting;
            let item = &self.items[i];
            let continues = self.ran_until[i] == now && now > 0;
            let spent = self.begun[i] >= MOST_WINDOWS && !continues;
            if spent || left < item.needs || self.free.common(&item.cpus) < item.needs {
                misses += 1;
                if misses >= MISSES {
                    break;
                }
                continue;
            }
            misses = 0;
            self.free.take(&item.cpus, item.needs);
            left -= item.needs;
            chosen.push(*waiting);
            if left < self.least_need {
                break;
            }
        }
        let mut members = Vec::with_capacity(chosen.len());
        for waiting in chosen {
            let (pass, rank, i) = waiting;
            self.queue.remove(&waiting);
            let step = SCALE / u64::from(self.items[i].weight.max(1));
            self.queue.insert((pass + step, rank, i));
            self.not_yet -= usize::from(self.begun[i] == 0);
            self.begun[i] += usize::from(self.ran_until[i] != now || now == 0);
            self.ran_until[i] = now + 1;
            self.used += u64::from(self.items[i].needs);
            members.push(i);
        }
        members.sort_unstable();
        self.slots.push(members);
    }
}

/// Lengths with which the worst-served set fares best, as far as a few steps of proportional fitting find
/// them: a slot grows as its worst-served set is short of the mean.
fn lengths(items: &[Item], slots: &[Vec<usize>]) -> Vec<f64> {
    let mut lengths = vec![1.0; slots.len()];
    let mut best = lengths.clone();
    let mut best_share = 0.0;
    for _ in 0..8 {
        let mut served = vec![0.0; items.len()];
        for (members, length) in slots.iter().zip(&lengths) {
            for &i in members {
                served[i] += length / f64::from(items[i].weight);
            }
        }
        let total: f64 = lengths.iter().sum();
        let least = served.iter().copied().fold(f64::INFINITY, f64::min);
        if least / total > best_share * 1.0001 {
            best_share = least / total;
            best.clone_from(&lengths);
        }
        let worst = |members: &Vec<usize>| {
            let served = members.iter().map(|&i| served[i]);
            served.fold(f64::INFINITY, f64::min)
        };
        let worsts: Vec<f64> = slots.iter().map(worst).collect();
        let mean = worsts.iter().sum::<f64>() / worsts.len().max(1) as f64;
        for (length, worst) in lengths.iter_mut().zip(&worsts) {
            *length *= mean / worst;
        }
        let mean = lengths.iter().sum::<f64>() / lengths.len().max(1) as f64;
        for length in &mut lengths {
            *length = (*length / mean).clamp(SHORTEST, 1.0 / SHORTEST);
        }
    }
    best
}
