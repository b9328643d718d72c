//! What is to happen when. Things that recur (a CPU's next event, a domain's balancing) have a slot of
//! their own with at most one time in it, which can be moved; the rest are one-time events.
//!
//! What is due at the same time happens in the order in which it was put down, so that the same calls
//! give the same events. Every operation costs the logarithm of what is on the agenda.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A slot, whose time is gone from it.
    Slot(usize),
    /// The caller's timer.
    Timer(u64),
    /// A thread's sleep, the so-manieth of that thread.
    Wake(u32, u32),
}

type Key = (u64, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    /// A binary heap of slots that have a time, by key.
    heap: Vec<usize>,
    /// Where a slot is in the heap.
    at: Vec<Option<usize>>,
    key: Vec<Key>,
    once: BinaryHeap<Reverse<(Key, Due)>>,
    count: u64,
}

impl Agenda {
    /// A new slot's number.
    pub(super) fn add_slot(&mut self) -> usize {
        self.at.push(None);
        self.key.push((0, 0));
        self.at.len() - 1
    }

    pub(super) fn put(&mut self, time_ns: u64, what: Due) {
        self.count += 1;
        self.once.push(Reverse(((time_ns, self.count), what)));
    }

    /// When a slot is due.
    pub(super) fn slot(&self, slot: usize) -> Option<u64> {
        self.at[slot].map(|_| self.key[slot].0)
    }

    /// Sets a slot's time, or clears it. A time that does not change keeps its place in the order.
    pub(super) fn set_slot(&mut self, slot: usize, time_ns: Option<u64>) {
        match (self.at[slot], time_ns) {
            (None, None) => {}
            (Some(_), Some(time)) if self.key[slot].0 == time => {}
            (Some(at), None) => self.take(at),
            (Some(at), Some(time)) => {
                self.count += 1;
                let key = (time, self.count);
                let sooner = key < std::mem::replace(&mut self.key[slot], key);
                if sooner { self.up(at) } else { self.down(at) }
            }
            (None, Some(time)) => {
                self.count += 1;
                self.key[slot] = (time, self.count);
                self.heap.push(slot);
                let at = self.heap.len() - 1;
                self.at[slot] = Some(at);
                self.up(at);
            }
        }
    }

    /// When the next thing is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let slot = self.heap.first().map(|slot| self.key[*slot].0);
        let once = self.once.peek().map(|Reverse((key, _))| key.0);
        match (slot, once) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes the next thing.
    pub(super) fn pop(&mut self) -> Option<(u64, Due)> {
        let slot = self.heap.first().map(|slot| self.key[*slot]);
        let once = self.once.peek().map(|Reverse((key, _))| *key);
        let from_once = match (slot, once) {
            (Some(a), Some(b)) => b < a,
            (slot, _) => slot.is_none(),
        };
        if from_once {
            let Reverse((key, what)) = self.once.pop()?;
            return Some((key.0, what));
        }
        let slot = *self.heap.first()?;
        self.take(0);
        Some((self.key[slot].0, Due::Slot(slot)))
    }

    /// What is put down once and still to come.
    pub(super) fn once(&self) -> impl Iterator<Item = Due> + '_ {
        self.once.iter().map(|Reverse((_, what))| *what)
    }

    /// Whether some slot has a time.
    pub(super) fn has_slots(&self) -> bool {
        !self.heap.is_empty()
    }

    fn take(&mut self, at: usize) {
        let last = self.heap.len() - 1;
        self.swap(at, last);
        if let Some(slot) = self.heap.pop() {
            self.at[slot] = None;
        }
        if at < self.heap.len() {
            self.up(at);
            self.down(at);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.at[self.heap[a]] = Some(a);
        self.at[self.heap[b]] = Some(b);
    }

    fn before(&self, a: usize, b: usize) -> bool {
        self.key[self.heap[a]] < self.key[self.heap[b]]
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 && self.before(at, (at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let mut first = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.before(child, first) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.swap(at, first);
            at = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_at_the_same_time_comes_in_the_order_it_was_put_down() {
        let mut agenda = Agenda::default();
        let (a, b) = (agenda.add_slot(), agenda.add_slot());
        agenda.set_slot(b, Some(5));
        agenda.put(5, Due::Timer(9));
        agenda.set_slot(a, Some(5));
        agenda.put(4, Due::Timer(8));
        let order: Vec<_> = std::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!(
            order,
            [
                (4, Due::Timer(8)),
                (5, Due::Slot(b)),
                (5, Due::Timer(9)),
                (5, Due::Slot(a))
            ]
        );
    }

    #[test]
    fn slots_can_be_moved_and_cleared() {
        let mut agenda = Agenda::default();
        let slots: Vec<usize> = (0..50).map(|_| agenda.add_slot()).collect();
        for slot in &slots {
            agenda.set_slot(*slot, Some((*slot as u64 * 37) % 50));
        }
        for slot in slots.iter().filter(|slot| *slot % 3 == 0) {
            agenda.set_slot(*slot, None);
        }
        for slot in slots.iter().filter(|slot| *slot % 3 == 1) {
            agenda.set_slot(*slot, Some(100 - *slot as u64));
        }
        let times: Vec<u64> = std::iter::from_fn(|| agenda.pop()).map(|e| e.0).collect();
        assert_eq!(times.len(), slots.iter().filter(|s| *s % 3 != 0).count());
        assert!(times.is_sorted());
    }
}
