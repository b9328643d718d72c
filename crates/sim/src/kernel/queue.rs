//! A fair queue: EEVDF as `kernel/sched/fair.c` has had it since Linux 6.6 (Stoica and Abdel-Wahab,
//! 1995: "Earliest Eligible Virtual Deadline First").
//!
//! An entity is a thread or, in a CPU's outer queue, a group. Its virtual runtime advances as it runs,
//! the slower the heavier it is. It is *eligible* if it has had no more than its share: if its virtual
//! runtime is not beyond the mean of all (`entity_eligible`). Of those that are eligible, the one with
//! the earliest virtual deadline runs (`pick_eevdf`); it is protected from being replaced until it has
//! used its slice (`RUN_TO_PARITY`). One that leaves takes its lag along (`update_entity_lag`), and gets
//! it back where it comes to next (`place_entity`).
//!
//! The kernel finds the pick in one augmented tree. Here are two ordered maps, those that were eligible
//! when last looked at, by deadline, and the others, by virtual runtime; a pick moves those between that
//! have changed sides. Operations cost the logarithm of the length, over a run of picks.
//!
//! One that goes to sleep with negative lag stays in the queue, and counts in the mean, until it is picked
//! (`DELAY_DEQUEUE`): then it has paid its debt, and leaves. One that wakes up before that is where it was.

use std::collections::BTreeMap;

/// The weight of an ordinary thread (`NICE_0_LOAD`).
pub(super) const USUAL_WEIGHT: u64 = 1024;

/// The scheduling state of a thread or of a group on one CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entity {
    /// Virtual runtime and deadline, in nanoseconds at the usual weight.
    pub(super) vruntime: i64,
    pub(super) deadline: i64,
    /// It is not replaced before its virtual runtime is this.
    pub(super) protected: i64,
    /// What it was owed when it left.
    pub(super) lag: i64,
    pub(super) slice: u64,
    pub(super) weight: u64,
    /// Its deadline counts from its virtual runtime: it moves between queues.
    pub(super) relative: bool,
    /// It sleeps, and leaves the queue when it is picked (`sched_delayed`).
    pub(super) delayed: bool,
}

/// How an entity comes to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    /// It is new.
    New,
    /// It has slept.
    Awake,
    /// It comes from another CPU's queue, or is put back.
    Moved,
}

/// How an entity leaves a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// It does not come to another queue, or back to this one, at once.
    pub(super) sleeps: bool,
    /// The machine's tick.
    pub(super) tick_ns: u64,
}

/// Virtual time that `delta_ns` of running is (`calc_delta_fair`).
pub(super) fn virtual_ns(delta_ns: u64, weight: u64) -> i64 {
    if weight == USUAL_WEIGHT {
        return delta_ns as i64;
    }
    let virtual_ns = u128::from(delta_ns) * u128::from(USUAL_WEIGHT) / u128::from(weight.max(1));
    i64::try_from(virtual_ns).unwrap_or(i64::MAX / 4)
}

/// Nanoseconds of running after which virtual time has advanced by `virtual_ns`.
pub(super) fn real_ns(virtual_ns: i64, weight: u64) -> u64 {
    let virtual_ns = u64::try_from(virtual_ns).unwrap_or(0);
    if weight == USUAL_WEIGHT {
        return virtual_ns;
    }
    let real = (u128::from(virtual_ns) * u128::from(weight)).div_ceil(u128::from(USUAL_WEIGHT));
    u64::try_from(real).unwrap_or(u64::MAX / 4)
}

impl Entity {
    pub(super) fn new(weight: u64, slice: u64) -> Entity {
        Entity {
            vruntime: 0,
            deadline: 0,
            protected: 0,
            lag: 0,
            slice,
            weight,
            relative: false,
            delayed: false,
        }
    }

    fn virtual_slice(&self) -> i64 {
        virtual_ns(self.slice, self.weight)
    }

    /// It has run for `delta_ns` until `now_ns`. At ticks (at multiples of `tick_ns`) the kernel renews a
    /// deadline that has passed (`update_deadline`); it also looks now if `seen`. Whether it saw now
    /// that the slice was used up.
    pub(super) fn ran(&mut self, delta_ns: u64, now_ns: u64, tick_ns: u64, seen: bool) -> bool {
        self.vruntime += virtual_ns(delta_ns, self.weight);
        let since_tick = now_ns % tick_ns;
        if since_tick > 0 && since_tick < delta_ns && self.vruntime >= self.deadline {
            let then = self.vruntime - virtual_ns(since_tick, self.weight);
            if then >= self.deadline {
                self.deadline = then + self.virtual_slice();
            }
        }
        let over = (seen || since_tick == 0) && self.vruntime >= self.deadline;
        if over {
            self.deadline = self.vruntime + self.virtual_slice();
        }
        over
    }

    /// It gives the rest of its slice away (`yield_task_fair`), if it is eligible.
    pub(super) fn forfeit(&mut self) {
        self.vruntime = self.deadline.max(self.vruntime);
        self.deadline = self.vruntime + self.virtual_slice();
    }
}

/// See the module. The one that runs is not in the maps: its state advances, and is handed in.
#[derive(Clone, Debug, Default)]
pub(super) struct FairQueue {
    eligible: BTreeMap<(i64, u32), i64>,
    late: BTreeMap<(i64, u32), i64>,
    /// Near the mean; sums are relative to it.
    zero: i64,
    /// Sum of weight × (virtual runtime − zero) and of weights of those in the maps.
    sum: i128,
    weight: u64,
    /// The one that runs.
    pub(super) running: Option<u32>,
    /// Slices that were set for someone, here or running, and how many have each.
    slices: BTreeMap<u64, u32>,
}

impl FairQueue {
    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.eligible.len() + self.late.len()
    }

    /// Those that wait, in no order that means anything.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        let keys = self.eligible.keys().chain(self.late.keys());
        keys.map(|(_, key)| *key)
    }

    /// Weight of those that wait.
    pub(super) fn waiting_weight(&self) -> u64 {
        self.weight
    }

    fn load(&self, running: Option<&Entity>) -> (i128, u64) {
        match running {
            None => (self.sum, self.weight),
            Some(e) => {
                let ahead = i128::from(e.vruntime - self.zero);
                let sum = self.sum + ahead * i128::from(e.weight);
                (sum, self.weight + e.weight)
            }
        }
    }

    /// The mean virtual runtime (`avg_vruntime`), by weight, with the one that runs.
    pub(super) fn mean(&self, running: Option<&Entity>) -> i64 {
        let (sum, weight) = self.load(running);
        if weight == 0 {
            return self.zero;
        }
        self.zero + divide(sum, weight)
    }

    pub(super) fn is_eligible(&self, entity: &Entity, running: Option<&Entity>) -> bool {
        self.load(running).1 == 0 || entity.vruntime <= self.mean(running)
    }

    pub(super) fn insert(&mut self, key: u32, entity: &Entity) {
        self.late.insert((entity.vruntime, key), entity.deadline);
        self.sum += i128::from(entity.vruntime - self.zero) * i128::from(entity.weight);
        self.weight += entity.weight;
    }

    pub(super) fn remove(&mut self, key: u32, entity: &Entity) {
        let here = self.late.remove(&(entity.vruntime, key)).is_some()
            || self.eligible.remove(&(entity.deadline, key)).is_some();
        debug_assert!(here, "{key} is not in the queue");
        if here {
            self.sum -= i128::from(entity.vruntime - self.zero) * i128::from(entity.weight);
            self.weight -= entity.weight;
        }
    }

    /// Who is to run (`pick_eevdf`): `running`, if it is eligible and protected, or else the eligible one
    /// with the earliest deadline.
    pub(super) fn pick(&mut self, running: Option<(u32, &Entity)>) -> Option<u32> {
        let entity = running.map(|(_, e)| e);
        if self.waiting() == 0 {
            return running.map(|(key, _)| key);
        }
        let mean = self.mean(entity);
        let running = running.filter(|(_, e)| e.vruntime <= mean);
        if let Some((key, e)) = running
            && e.vruntime < e.protected
        {
            return Some(key);
        }
        while let Some(first) = self.late.first_entry() {
            let (vruntime, key) = *first.key();
            if vruntime > mean {
                break;
            }
            let deadline = first.remove();
            self.eligible.insert((deadline, key), vruntime);
        }
        while let Some(first) = self.eligible.first_entry() {
            let (deadline, key) = *first.key();
            if *first.get() > mean {
                let vruntime = first.remove();
                self.late.insert((vruntime, key), deadline);
                continue;
            }
            return match running {
                Some((own, e)) if e.deadline < deadline => Some(own),
                _ => Some(key),
            };
        }
        // The mean is rounded: nobody may be below it.
        let first = self.late.first_key_value().map(|((_, key), _)| *key);
        running.map(|(key, _)| key).or(first)
    }

    /// Gives an entity that comes its place (`place_entity`). It is still to be inserted.
    pub(super) fn place(&mut self, entity: &mut Entity, coming: Coming, running: Option<&Entity>) {
        let (_, load) = self.load(running);
        let mean = self.mean(running);
        if load == 0 {
            self.zero = mean;
        }
        let mut lag = entity.lag;
        if load > 0 && lag != 0 {
            // Its own coming shifts the mean: more, so that it has its lag then.
            let stretched = i128::from(lag) * i128::from(load + entity.weight);
            lag = divide(stretched, load);
        } else {
            lag = 0;
        }
        entity.vruntime = mean - lag;
        if entity.relative {
            entity.deadline += entity.vruntime;
            entity.relative = false;
            return;
        }
        let slice = entity.virtual_slice();
        let slice = if coming == Coming::New {
            slice / 2
        } else {
            slice
        };
        entity.deadline = entity.vruntime + slice;
    }

    /// An entity takes its lag along, and what else it needs to be placed elsewhere; `running` is the one
    /// that runs, itself if it is that. To be called before it is removed.
    pub(super) fn leave(
        &self,
        entity: &mut Entity,
        running: Option<&Entity>,
        sleeps: bool,
        tick_ns: u64,
    ) {
        entity.lag = self.lag(entity, running, tick_ns);
        if !sleeps {
            entity.deadline -= entity.vruntime;
            entity.relative = true;
        }
    }

    /// What an entity is owed (`update_entity_lag`).
    fn lag(&self, entity: &Entity, running: Option<&Entity>, tick_ns: u64) -> i64 {
        let most = virtual_ns((2 * entity.slice).max(tick_ns), entity.weight);
        (self.mean(running) - entity.vruntime).clamp(-most, most)
    }

    /// Takes an entity out, as it stands here; `slice` is its slice, if it is among those that are counted.
    /// What it takes along is in `entity` then.
    pub(super) fn take_out(
        &mut self,
        key: u32,
        entity: &mut Entity,
        running: Option<&Entity>,
        slice: Option<u64>,
        leaving: Leaving,
    ) {
        let before = *entity;
        self.leave(entity, running, leaving.sleeps, leaving.tick_ns);
        if std::mem::take(&mut entity.delayed) {
            // It has paid, and is owed nothing either (`DELAY_ZERO`).
            entity.lag = entity.lag.min(0);
        }
        if self.running == Some(key) {
            self.running = None;
        } else {
            self.remove(key, &before);
        }
        if let Some(slice) = slice {
            self.count_slice(slice, false);
        }
        if self.waiting() == 0 && self.running.is_none() {
            self.became_empty(before.vruntime);
        }
    }

    /// One that goes to sleep stays until it is picked, if it has a debt. Whether it does.
    pub(super) fn delays(
        &mut self,
        key: u32,
        entity: &mut Entity,
        running: Option<&Entity>,
    ) -> bool {
        entity.delayed = !self.is_eligible(entity, running);
        if entity.delayed && self.running == Some(key) {
            self.running = None;
            self.insert(key, entity);
        }
        entity.delayed
    }

    /// One that sleeps and is still here wakes up (`requeue_delayed_entity`): if it has paid its debt, it
    /// is owed nothing.
    pub(super) fn resume(&mut self, key: u32, entity: &mut Entity, running: Option<&Entity>) {
        entity.delayed = false;
        if entity.vruntime >= self.mean(running) {
            return;
        }
        self.remove(key, entity);
        entity.lag = 0;
        self.place(entity, Coming::Awake, running);
        self.insert(key, entity);
    }

    /// The queue is empty, with nobody running.
    fn became_empty(&mut self, mean: i64) {
        self.zero = self.zero.max(mean);
        self.sum = 0;
    }

    /// Somebody has come, or left, whose slice was set.
    pub(super) fn count_slice(&mut self, slice: u64, comes: bool) {
        let count = self.slices.entry(slice).or_insert(0);
        *count = if comes {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.slices.remove(&slice);
        }
    }

    /// The shortest slice of those here (`cfs_rq_min_slice`); `all` of them are here, with the one that
    /// runs.
    pub(super) fn shortest_slice(&self, all: usize, usual: u64) -> u64 {
        let Some((set, _)) = self.slices.first_key_value() else {
            return usual;
        };
        let with_one: u64 = self.slices.values().map(|n| u64::from(*n)).sum();
        if with_one < all as u64 {
            usual.min(*set)
        } else {
            *set
        }
    }
}

/// Rounded down, as the kernel's mean is.
fn divide(sum: i128, weight: u64) -> i64 {
    match i64::try_from(sum) {
        // The common case is a division of 64 bits, which is many times faster.
        Ok(sum) => sum.div_euclid(weight.min(i64::MAX as u64) as i64),
        Err(_) => i64::try_from(sum.div_euclid(i128::from(weight))).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
