//! Where the threads of a program that nobody changed may run: its claim's CPUs, by the rule that the
//! manager gave.
//!
//! Three masks of CPUs meet in each thread:
//!
//! - the *starting* mask, which the program was started with: the user's `taskset`, or every CPU. A
//!   thread never gets a CPU that is not in it;
//! - a mask that we have *set*. New threads and processes inherit the mask of whoever made them, so
//!   that a thread may have one of ours without our doing;
//! - any other is the program's *own* wish (a pinning runtime, a `taskset` in a script): such a thread
//!   is left where it is.
//!
//! Where the claim holds the whole starting mask, no thread is confined, but those that are *tied*: they get a CPU each.

use corewise_decide::cpus::CpuSet;
use corewise_decide::local::place;
use corewise_decide::status::LocalRule;
use std::collections::{BTreeMap, HashSet};

/// A thread of a process, as /proc numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Thread {
    pub(super) pid: i32,
    pub(super) tid: i32,
}

/// Masks of threads, read and set.
pub(super) trait Masks {
    /// Where a thread may run; `None` if that cannot be read, as when it has ended.
    fn of(&mut self, thread: Thread) -> Option<CpuSet>;

    /// Notes that a thread has the mask `now` by our doing, and that `original` is to be put back.
    fn note(&mut self, thread: Thread, original: &CpuSet, now: &CpuSet);

    /// Confines a thread, having noted what is to be put back: what was noted of it before, else the
    /// mask that it has. Gives the mask that it has now; `None` if it could not be confined.
    fn confine(&mut self, thread: Thread, cpus: &CpuSet) -> Option<CpuSet>;

    /// Puts back everything that was noted, and forgets it.
    fn put_all_back(&mut self);

    /// Forgets threads that have ended.
    fn forget_ended(&mut self);
}

/// Keeps the threads of one program within its claim.
#[derive(Debug)]
pub(super) struct Placing<M> {
    masks: M,
    starting: CpuSet,
    /// The masks that we have set so far.
    ours: HashSet<CpuSet>,
    /// The threads that we have confined, and to what.
    confined: BTreeMap<Thread, CpuSet>,
    /// The living threads, oldest first.
    order: Vec<Thread>,
    /// Numbers of threads that are to have a CPU each, ascending.
    tied: Vec<i32>,
}

impl<M: Masks> Placing<M> {
    /// Nothing is confined yet.
    pub(super) fn new(masks: M, starting: CpuSet) -> Placing<M> {
        Placing {
            masks,
            starting,
            ours: HashSet::new(),
            confined: BTreeMap::new(),
            order: Vec::new(),
            tied: Vec::new(),
        }
    }

    /// From the next placing on these threads, by number, ascending, have a CPU each, as long as there are enough.
    /// False if it is as before.
    pub(super) fn tie(&mut self, tids: &[i32]) -> bool {
        let new = self.tied != tids;
        self.tied = tids.to_vec();
        new
    }

    /// Takes in which threads live now. False if they are the same as before.
    pub(super) fn threads(&mut self, living: &HashSet<Thread>) -> bool {
        let before = self.order.len();
        self.order.retain(|thread| living.contains(thread));
        let mut changed = self.order.len() != before;
        let known: HashSet<Thread> = self.order.iter().copied().collect();
        let mut new: Vec<Thread> = living.difference(&known).copied().collect();
        // Among those that are seen for the first time together the lower number is mostly older.
        new.sort_unstable_by_key(|thread| thread.tid);
        changed |= !new.is_empty();
        self.order.extend(new);
        let confined = self.confined.len();
        self.confined.retain(|thread, _| living.contains(thread));
        if self.confined.len() != confined {
            self.masks.forget_ended();
        }
        changed
    }

    /// How many threads live.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.order.len()).unwrap_or(u32::MAX)
    }

    /// Brings every thread to where `rule` wants it within `claim`. Costs a system call for each
    /// thread, and some more for each that must move.
    pub(super) fn place(&mut self, rule: LocalRule, claim: &CpuSet) {
        let cpus = claim.intersection(&self.starting);
        let places = match cpus == self.starting {
            true => None,
            false => place(rule, &cpus, self.order.len()),
        };
        let places = self.with_tied(places, &cpus);
        let Some(places) = places else {
            // The whole, or nothing of what the user allows, or a rule that leaves threads alone.
            self.put_all_back();
            return;
        };
        for (thread, cpus) in self.order.clone().into_iter().zip(places) {
            self.confine(thread, cpus);
        }
    }

    /// The same places, but for threads that are tied: whoever has a CPU alone already keeps it.
    fn with_tied(&self, places: Option<Vec<CpuSet>>, cpus: &CpuSet) -> Option<Vec<CpuSet>> {
        let is_tied = |thread: &Thread| self.tied.binary_search(&thread.tid).is_ok();
        let count = self.order.iter().filter(|thread| is_tied(thread)).count();
        if count == 0 || count > cpus.count() as usize {
            return places;
        }
        let mut left = cpus.clone();
        let mut own: BTreeMap<Thread, CpuSet> = BTreeMap::new();
        for thread in self.order.iter().filter(|thread| is_tied(thread)) {
            let known = self.confined.get(thread).filter(|known| known.count() == 1);
            if let Some(known) = known.filter(|known| known.is_subset(&left)) {
                left = left.difference(known);
                own.insert(*thread, known.clone());
            }
        }
        let without = self.order.iter().filter(|thread| is_tied(thread));
        let without: Vec<Thread> = without.filter(|t| !own.contains_key(t)).copied().collect();
        for (thread, cpu) in without.into_iter().zip(left.iter()) {
            own.insert(thread, CpuSet::from_iter([cpu]));
        }
        let all = places.unwrap_or_else(|| vec![cpus.clone(); self.order.len()]);
        let mut both = Vec::with_capacity(all.len());
        for (thread, place) in self.order.iter().zip(all) {
            both.push(own.remove(thread).unwrap_or(place));
        }
        Some(both)
    }

    /// Puts back every mask that is still ours.
    pub(super) fn put_all_back(&mut self) {
        if self.ours.is_empty() {
            return;
        }
        let were_confined = !self.confined.is_empty();
        let mut heirs = 0;
        for thread in self.order.clone() {
            if !self.confined.contains_key(&thread) && self.note_if_ours(thread) {
                heirs += 1;
            }
        }
        self.masks.put_all_back();
        self.confined.clear();
        if !were_confined && heirs == 0 {
            // Nobody is left who could hand one of our masks on.
            self.ours.clear();
        }
    }

    /// Whether masks were put back so lately that threads may still appear that have inherited one.
    pub(super) fn is_settling(&self) -> bool {
        self.confined.is_empty() && !self.ours.is_empty()
    }

    /// Whether an unknown thread has a mask of ours; then it is noted what is to be put back.
    fn note_if_ours(&mut self, thread: Thread) -> bool {
        let now = self.masks.of(thread);
        let Some(now) = now.filter(|now| *now != self.starting && self.ours.contains(now)) else {
            return false;
        };
        self.masks.note(thread, &self.starting, &now);
        true
    }

    fn confine(&mut self, thread: Thread, cpus: CpuSet) {
        let Some(now) = self.masks.of(thread) else {
            return;
        };
        let known = self.confined.get(&thread);
        if now == cpus && (known == Some(&now) || known.is_none() && now == self.starting) {
            return;
        }
        if now != self.starting && !self.ours.contains(&now) {
            // Its own wish, or that of whoever made it.
            self.confined.remove(&thread);
            return;
        }
        if known.is_none() && now != self.starting {
            // Born with it. Also where it is just the mask that is wanted.
            self.masks.note(thread, &self.starting, &now);
        }
        if let Some(set) = self.masks.confine(thread, &cpus) {
            self.ours.insert(set.clone());
            self.confined.insert(thread, set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads of a made program: their masks, and what would be put back if we died.
    #[derive(Debug, Default)]
    struct Made {
        masks: BTreeMap<Thread, CpuSet>,
        noted: BTreeMap<Thread, (CpuSet, CpuSet)>,
    }

    impl Masks for Made {
        fn of(&mut self, thread: Thread) -> Option<CpuSet> {
            self.masks.get(&thread).cloned()
        }

        fn note(&mut self, thread: Thread, original: &CpuSet, now: &CpuSet) {
            assert_eq!(self.masks.get(&thread), Some(now));
            let note = (original.clone(), now.clone());
            assert_eq!(self.noted.insert(thread, note), None);
        }

        fn confine(&mut self, thread: Thread, cpus: &CpuSet) -> Option<CpuSet> {
            let now = self.masks.get_mut(&thread)?;
            let note = (now.clone(), cpus.clone());
            self.noted.entry(thread).or_insert(note).1 = cpus.clone();
            now.clone_from(cpus);
            Some(cpus.clone())
        }

        fn put_all_back(&mut self) {
            for (thread, (original, ours)) in std::mem::take(&mut self.noted) {
                match self.masks.get_mut(&thread) {
                    Some(now) if *now == ours => *now = original,
                    _ => {}
                }
            }
        }

        fn forget_ended(&mut self) {
            self.noted
                .retain(|thread, _| self.masks.contains_key(thread));
        }
    }

    fn set(cpus: &[u32]) -> CpuSet {
        cpus.iter().copied().collect()
    }

    fn thread(tid: i32) -> Thread {
        Thread { pid: 100, tid }
    }

    /// A program whose threads all have the mask that it was started with.
    fn program(starting: &[u32], tids: &[i32]) -> Placing<Made> {
        let mut placing = Placing::new(Made::default(), set(starting));
        for tid in tids {
            born(&mut placing, *tid, starting);
        }
        placing
    }

    /// A thread appears with this mask.
    fn born(placing: &mut Placing<Made>, tid: i32, mask: &[u32]) {
        placing.masks.masks.insert(thread(tid), set(mask));
        let living: HashSet<Thread> = placing.masks.masks.keys().copied().collect();
        assert!(placing.threads(&living));
    }

    fn mask_of(placing: &Placing<Made>, tid: i32) -> String {
        placing.masks.masks[&thread(tid)].to_string()
    }

    #[test]
    fn every_thread_may_run_on_the_whole_claim_and_gets_its_mask_back() {
        let mut placing = program(&[0, 1, 2, 3], &[100, 101]);
        placing.place(LocalRule::Whole, &set(&[1, 2]));
        assert_eq!(mask_of(&placing, 100), "1-2");
        assert_eq!(mask_of(&placing, 101), "1-2");
        placing.put_all_back();
        assert_eq!(mask_of(&placing, 100), "0-3");
        assert_eq!(mask_of(&placing, 101), "0-3");
        assert!(placing.masks.noted.is_empty());
    }

    #[test]
    fn one_cpu_each_goes_to_the_oldest_first_even_if_numbers_wrap_around() {
        let mut placing = program(&[0, 1, 2, 3], &[900, 901]);
        born(&mut placing, 105, &[0, 1, 2, 3]);
        placing.place(LocalRule::OneEach, &set(&[1, 2]));
        assert_eq!(mask_of(&placing, 900), "1");
        assert_eq!(mask_of(&placing, 901), "2");
        assert_eq!(mask_of(&placing, 105), "1");
    }

    #[test]
    fn a_claim_of_everything_confines_nobody_and_undoes_an_earlier_one() {
        let mut placing = program(&[0, 1], &[100]);
        placing.place(LocalRule::OneEach, &set(&[0, 1, 2]));
        assert!(placing.masks.noted.is_empty());
        placing.place(LocalRule::OneEach, &set(&[1]));
        assert_eq!(mask_of(&placing, 100), "1");
        placing.place(LocalRule::OneEach, &set(&[0, 1]));
        assert_eq!(mask_of(&placing, 100), "0-1");
        assert!(placing.masks.noted.is_empty());
    }

    #[test]
    fn no_thread_gets_a_cpu_that_its_user_did_not_allow() {
        let mut placing = program(&[2, 3], &[100]);
        placing.place(LocalRule::Whole, &set(&[1, 2]));
        assert_eq!(mask_of(&placing, 100), "2");
        // Nothing in common: as the user wanted it.
        placing.place(LocalRule::Whole, &set(&[0, 1]));
        assert_eq!(mask_of(&placing, 100), "2-3");
    }

    #[test]
    fn a_thread_that_was_pinned_by_its_program_is_left_alone() {
        let mut placing = program(&[0, 1, 2, 3], &[100]);
        born(&mut placing, 101, &[3]);
        placing.place(LocalRule::Whole, &set(&[0, 1]));
        assert_eq!(mask_of(&placing, 101), "3");
        // This one pins itself only after we have confined it.
        placing.masks.masks.insert(thread(100), set(&[2]));
        placing.place(LocalRule::Whole, &set(&[0]));
        assert_eq!(mask_of(&placing, 100), "2");
        placing.put_all_back();
        assert_eq!(mask_of(&placing, 100), "2");
        assert_eq!(mask_of(&placing, 101), "3");
        assert!(placing.masks.noted.is_empty());
    }

    #[test]
    fn a_thread_born_confined_is_noted_and_put_back_too() {
        let mut placing = program(&[0, 1, 2, 3], &[100]);
        placing.place(LocalRule::Whole, &set(&[0, 1]));
        born(&mut placing, 101, &[0, 1]);
        placing.place(LocalRule::Whole, &set(&[0, 1]));
        assert_eq!(placing.masks.noted[&thread(101)].0, set(&[0, 1, 2, 3]));
        born(&mut placing, 102, &[0, 1]);
        placing.put_all_back();
        // Made by one of them just before.
        assert!(placing.is_settling());
        born(&mut placing, 103, &[0, 1]);
        placing.put_all_back();
        for tid in [100, 101, 102, 103] {
            assert_eq!(mask_of(&placing, tid), "0-3");
        }
        placing.put_all_back();
        assert!(!placing.is_settling());
        // From here on it is the program's own.
        born(&mut placing, 104, &[0, 1]);
        placing.put_all_back();
        assert_eq!(mask_of(&placing, 104), "0-1");
    }

    #[test]
    fn threads_that_are_tied_have_a_cpu_each_and_keep_it() {
        let mut placing = program(&[0, 1], &[100, 101, 102]);
        let all = set(&[0, 1]);
        assert!(placing.tie(&[101, 102]));
        placing.place(LocalRule::Whole, &all);
        let masks = |placing: &Placing<Made>| [100, 101, 102].map(|tid| mask_of(placing, tid));
        assert_eq!(masks(&placing), ["0-1", "0", "1"]);
        // One of them goes to sleep, another one wakes up.
        assert!(placing.tie(&[100, 102]) && !placing.tie(&[100, 102]));
        placing.place(LocalRule::Whole, &all);
        assert_eq!(masks(&placing), ["0", "0-1", "1"]);
        // One more than there are CPUs: Linux shares them out.
        placing.tie(&[100, 101, 102]);
        placing.place(LocalRule::Whole, &all);
        assert_eq!(masks(&placing), ["0-1", "0-1", "0-1"]);
        placing.tie(&[100, 101]);
        placing.place(LocalRule::Whole, &all);
        placing.tie(&[]);
        placing.place(LocalRule::Whole, &all);
        assert_eq!(masks(&placing), ["0-1", "0-1", "0-1"]);
        assert!(placing.masks.noted.is_empty());
    }

    #[test]
    fn threads_are_tied_within_their_claim() {
        let mut placing = program(&[0, 1, 2, 3], &[100, 101, 102]);
        placing.tie(&[100, 102]);
        placing.place(LocalRule::Whole, &set(&[2, 3]));
        assert_eq!(mask_of(&placing, 100), "2");
        assert_eq!(mask_of(&placing, 101), "2-3");
        assert_eq!(mask_of(&placing, 102), "3");
        // One that a tied thread makes may go where the others may.
        born(&mut placing, 103, &[2]);
        placing.place(LocalRule::Whole, &set(&[2, 3]));
        assert_eq!(mask_of(&placing, 103), "2-3");
    }

    #[test]
    fn a_thread_that_has_ended_is_forgotten() {
        let mut placing = program(&[0, 1], &[100, 101]);
        placing.place(LocalRule::Whole, &set(&[0]));
        placing.masks.masks.remove(&thread(101));
        assert!(placing.threads(&HashSet::from([thread(100)])));
        assert_eq!(placing.count(), 1);
        assert!(!placing.masks.noted.contains_key(&thread(101)));
        assert!(!placing.threads(&HashSet::from([thread(100)])));
    }
}
