//! Where threads run: within the claim while a manager keeps it, and as before otherwise.
//!
//! Each thread's own affinity is remembered before the first change, and put back if what is set then
//! is still ours. A claim never widens where a thread may run: somebody's `taskset` holds.

use crate::mask::Mask;
use crate::shared::{Shared, lock, thread_id};
use crate::sys;
use corewise_abi::message::LocalRule;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thread's affinity before, and what we set.
#[derive(Debug)]
struct Pinned {
    original: Mask,
    applied: Mask,
}

impl Pinned {
    /// Puts the original back if nobody else has set something since.
    fn undo(&self, thread: i32) {
        if sys::affinity(thread).is_ok_and(|now| now == self.applied) {
            let _ = sys::set_affinity(thread, &self.original);
        }
    }
}

/// Confines a thread to what of `target` it may use anyway.
fn pin(thread: i32, original: Mask, target: &Mask) -> Option<Pinned> {
    let applied = original.intersection(target);
    if applied.is_empty() || sys::set_affinity(thread, &applied).is_err() {
        return None;
    }
    Some(Pinned { original, applied })
}

/// The place of one thread that runs a team's work. Undone when dropped.
#[derive(Debug, Default)]
pub(crate) struct ThreadPin {
    pinned: Option<Pinned>,
    /// What it rests on: the claim's generation, the manager's rule, and whether the program wanted its
    /// threads pinned.
    seen: Option<(u64, LocalRule, bool)>,
    thread: i32,
}

impl ThreadPin {
    /// Places the calling thread, the `slot`th of its team, as the manager's rule has it; a CPU each
    /// where only the program wants it. Costs some loads while the claim is the same.
    pub(crate) fn follow(&mut self, shared: &Shared, slot: usize) {
        let wanted = shared.pins.are_wanted();
        let rule = shared.rule();
        let now = (shared.pages.look().generation(), rule, wanted);
        if self.seen == Some(now) {
            return;
        }
        self.undo();
        self.seen = Some(now);
        if !shared.pages.is_managed() {
            return;
        }
        let cpus = match rule {
            LocalRule::Leave if !(wanted && is_invaded(shared)) => return,
            LocalRule::Whole => shared.cpus(),
            LocalRule::Leave | LocalRule::OneEach => shared.cpus().map(|all| nth(&all, slot)),
        };
        let (Some(cpus), Ok(original)) = (cpus, sys::affinity(0)) else {
            return;
        };
        self.thread = thread_id();
        self.pinned = pin(0, original, &cpus);
    }

    fn undo(&mut self) {
        if let Some(pinned) = self.pinned.take() {
            pinned.undo(self.thread);
        }
    }
}

impl Drop for ThreadPin {
    fn drop(&mut self) {
        self.undo();
    }
}

/// The CPU of the `slot`th thread: threads beyond the number of CPUs share from the first one on (the
/// example of section 2.1 of REEact's paper).
fn nth(cpus: &Mask, slot: usize) -> Mask {
    match cpus.count() as usize {
        0 => Mask::default(),
        count => cpus.iter().nth(slot % count).into_iter().collect(),
    }
}

/// A claim that was given back to one thread is not invaded: no pinning by the program's own will
/// (Hollmann & Gerndt, listing 1.1: "free resources, delete pinning").
fn is_invaded(shared: &Shared) -> bool {
    shared.wants.get().max_threads > 1
}

#[derive(Debug, Default)]
struct Pins {
    threads: BTreeMap<i32, Pinned>,
}

/// The places of all threads of the program, whatever runtime made them: within the claim.
#[derive(Debug, Default)]
pub(crate) struct ProcessPins {
    wanted: AtomicBool,
    pins: Mutex<Pins>,
}

impl ProcessPins {
    /// Whether the program's threads are to be kept within its claim.
    pub(crate) fn set_wanted(&self, shared: &Shared, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
        self.follow(shared);
    }

    /// Whether they are.
    pub(crate) fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Brings all threads to where the claim has them now.
    pub(crate) fn follow(&self, shared: &Shared) {
        let mut pins = lock(&self.pins);
        let wanted = self.are_wanted();
        if !wanted && pins.threads.is_empty() {
            return;
        }
        let cpus = match wanted && is_invaded(shared) && shared.pages.is_managed() {
            true => shared.cpus().filter(|cpus| !cpus.is_empty()),
            false => None,
        };
        let Some(cpus) = cpus else {
            pins.undo();
            return;
        };
        let own = shared.own_threads();
        let living = threads_of_process();
        // What threads may have inherited since the last time; before this pass changes it.
        let ours: Vec<Mask> = pins.threads.values().map(|p| p.applied.clone()).collect();
        pins.threads.retain(|thread, _| living.contains(thread));
        for thread in living.into_iter().filter(|t| !own.contains(t)) {
            let original = match pins.threads.remove(&thread) {
                Some(before) => {
                    if !sys::affinity(thread).is_ok_and(|now| now == before.applied) {
                        // Somebody else places this thread now.
                        continue;
                    }
                    before.original
                }
                None => match sys::affinity(thread) {
                    // Started by a pinned thread: what it inherited is not its own.
                    Ok(now) if ours.contains(&now) => shared.base.clone(),
                    Ok(now) => now,
                    Err(_) => continue,
                },
            };
            if let Some(pinned) = pin(thread, original, &cpus) {
                pins.threads.insert(thread, pinned);
            }
        }
    }

    /// Puts every thread back where it was.
    pub(crate) fn undo(&self) {
        lock(&self.pins).undo();
    }

    /// Whether threads are pinned by this.
    pub(crate) fn are_set(&self) -> bool {
        !lock(&self.pins).threads.is_empty()
    }
}

impl Pins {
    fn was_set_by_us(&self, mask: &Mask) -> bool {
        self.threads.values().any(|p| p.applied == *mask)
    }

    fn undo(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        // Threads that started meanwhile inherited what their parents had.
        let original = self.threads.values().next().map(|p| p.original.clone());
        for thread in threads_of_process() {
            match self.threads.get(&thread) {
                Some(pinned) => pinned.undo(thread),
                None => {
                    let inherited = sys::affinity(thread).is_ok_and(|now| self.was_set_by_us(&now));
                    if let (true, Some(original)) = (inherited, &original) {
                        let _ = sys::set_affinity(thread, original);
                    }
                }
            }
        }
        self.threads.clear();
    }
}

fn threads_of_process() -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let names = threads.filter_map(|thread| thread.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_without_a_cpu_of_their_own_share_from_the_first_one_on() {
        let cpus: Mask = (11..16).collect();
        let first = |slot| nth(&cpus, slot).iter().next();
        assert_eq!(first(0), Some(11));
        assert_eq!(first(4), Some(15));
        assert_eq!(first(5), Some(11));
        assert!(nth(&Mask::default(), 3).is_empty());
    }

    #[test]
    fn a_thread_is_put_back_unless_somebody_else_has_placed_it() {
        // In a thread of its own: affinity belongs to threads.
        std::thread::spawn(|| {
            let before = sys::affinity(0).unwrap();
            let one: Mask = before.iter().take(1).collect();
            let pinned = pin(0, before.clone(), &one).unwrap();
            assert_eq!(sys::affinity(0).unwrap(), one);
            pinned.undo(0);
            assert_eq!(sys::affinity(0).unwrap(), before);
            if before.count() < 2 {
                eprintln!("skipped: one CPU only");
                return;
            }
            let other: Mask = before.iter().skip(1).take(1).collect();
            let pinned = pin(0, before, &one).unwrap();
            sys::set_affinity(0, &other).unwrap();
            pinned.undo(0);
            assert_eq!(sys::affinity(0).unwrap(), other);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_claim_never_widens_where_a_thread_may_run() {
        std::thread::spawn(|| {
            let before = sys::affinity(0).unwrap();
            let one: Mask = before.iter().take(1).collect();
            sys::set_affinity(0, &one).unwrap();
            pin(0, one.clone(), &before);
            assert_eq!(sys::affinity(0).unwrap(), one);
            let elsewhere: Mask = [4095].into_iter().collect();
            assert!(pin(0, one.clone(), &elsewhere).is_none());
            assert_eq!(sys::affinity(0).unwrap(), one);
        })
        .join()
        .unwrap();
    }
}
