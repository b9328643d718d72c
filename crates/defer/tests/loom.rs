//! What threads hand over, under every interleaving and every reordering that the memory model allows: the
//! library's own modules, compiled over loom's locks and atomics; and the protocol of a slot (see slot.rs) on
//! loom's cells, which notice every access that races.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the library's modules, of which this looks at a part"
)]
#![allow(unsafe_code, reason = "loom's cells")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Loom's own park forgets in some interleavings that it was woken.
    #[derive(Clone)]
    pub(crate) struct Sleeper(loom::sync::Arc<(Mutex<bool>, Condvar)>);

    impl Sleeper {
        pub(crate) fn this() -> Sleeper {
            Sleeper(loom::sync::Arc::new((Mutex::new(false), Condvar::new())))
        }

        pub(crate) fn sleep(&self) {
            let mut woken = lock(&self.0.0);
            while !*woken {
                woken = wait(&self.0.1, woken);
            }
            *woken = false;
        }

        pub(crate) fn wake(&self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condition.wait(guard).unwrap()
    }

    /// Loom has no time.
    pub(crate) fn wait_at_most<'a, T>(
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        _: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        wait(condition, guard)
    }
}

#[path = "../src/gate.rs"]
mod gate;
#[path = "../src/progress.rs"]
mod progress;
#[path = "../src/queue.rs"]
mod queue;

use gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use progress::Progress;
use queue::Queue;
use sync::{AtomicU32, Mutex, Ordering, Sleeper, lock};

/// Every interleaving with at most three switches between threads that could go on.
fn model(what: impl Fn() + Sync + Send + 'static) {
    bounded(3, what);
}

fn bounded(switches: usize, what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(what);
}

#[test]
fn every_item_is_taken_once_and_nobody_sleeps_for_ever() {
    model(|| {
        let queue = Arc::new(Queue::new(1));
        let producer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                queue.push(1).unwrap();
                queue.push(2).unwrap();
                queue.close();
            })
        };
        let consumer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || std::iter::from_fn(|| queue.pop()).sum::<u32>())
        };
        let helped = queue.try_pop().unwrap_or(0);
        producer.join().unwrap();
        assert_eq!(consumer.join().unwrap() + helped, 3);
    });
}

#[test]
fn a_producer_that_waits_for_room_is_let_go_when_the_queue_closes() {
    model(|| {
        let queue = Arc::new(Queue::new(1));
        queue.push(1).unwrap();
        let producer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(2))
        };
        queue.close();
        let refused = producer.join().unwrap();
        assert_eq!((refused, queue.pop(), queue.pop()), (Err(2), Some(1), None));
    });
}

#[test]
fn a_consumer_that_asks_for_a_cpu_is_answered_and_an_open_gate_lets_all_end() {
    bounded(2, || {
        let gate = Arc::new(Gate::new(Sleeper::this()));
        let scout = Sleeper::this();
        let answers = {
            let (gate, scout) = (Arc::clone(&gate), scout.clone());
            thread::spawn(move || gate.scout(&scout))
        };
        let opens = {
            let (gate, scout) = (Arc::clone(&gate), scout.clone());
            thread::spawn(move || gate.open(&scout))
        };
        gate.pass(&scout);
        opens.join().unwrap();
        answers.join().unwrap();
        gate.pass(&scout);
    });
}

#[test]
fn what_waits_in_a_queue_is_seen_without_being_taken() {
    model(|| {
        let queue = Arc::new(Queue::new(2));
        let consumers: Vec<_> = [1, 2]
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let mut sum = 0;
                    while queue.wait() {
                        sum += queue.try_pop().unwrap_or(0);
                    }
                    sum
                })
            })
            .into();
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        queue.close();
        let taken: u32 = consumers.into_iter().map(|c| c.join().unwrap()).sum();
        assert_eq!(taken, 3);
    });
}

#[test]
fn a_waiter_goes_on_when_all_earlier_buffers_are_processed_in_any_order() {
    model(|| {
        let progress = Arc::new(Progress::new());
        let finishers: Vec<_> = [2, 1]
            .map(|buffer| {
                let progress = Arc::clone(&progress);
                thread::spawn(move || progress.finished(buffer))
            })
            .into();
        progress.wait(2);
        assert!(progress.is_past(1) && progress.is_past(2));
        for finisher in finishers {
            finisher.join().unwrap();
        }
    });
}

/// A slot as slot.rs has it: elements, `len`, and behind the lock what was moved out already, and how many
/// buffers there were.
struct Slot {
    elements: [UnsafeCell<u32>; 2],
    len: AtomicU32,
    cold: Mutex<u32>,
    seen: Mutex<Vec<u32>>,
}

// SAFETY: what is tested here; loom checks it.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl Slot {
    /// The owner's.
    fn append(&self, value: u32) {
        let len = self.len.load(Ordering::Relaxed);
        // SAFETY: elements from `len` on are the owner's.
        self.elements[len as usize].with_mut(|element| unsafe { *element = value });
        self.len.store(len + 1, Ordering::Release);
        if len + 1 == 2 {
            self.exchange();
        }
    }

    /// The owner's, too.
    fn exchange(&self) {
        let mut next = lock(&self.cold);
        self.take(&mut next);
        // The empty buffer: here the same one again.
        self.len.store(0, Ordering::Relaxed);
        *next = 0;
    }

    /// Anybody's.
    fn drain(&self) {
        self.take(&mut lock(&self.cold));
    }

    fn take(&self, next: &mut u32) {
        let len = self.len.load(Ordering::Acquire);
        while *next < len {
            // SAFETY: elements below `len` are of whoever holds the lock.
            let value = self.elements[*next as usize].with(|element| unsafe { *element });
            lock(&self.seen).push(value);
            *next += 1;
        }
    }
}

#[test]
fn calls_are_drained_or_exchanged_once_and_whole() {
    model(|| {
        let slot = Arc::new(Slot {
            elements: [UnsafeCell::new(0), UnsafeCell::new(0)],
            len: AtomicU32::new(0),
            cold: Mutex::new(0),
            seen: Mutex::new(Vec::new()),
        });
        let drainer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.drain();
                slot.drain();
            })
        };
        for value in 1..=3 {
            slot.append(value);
        }
        drainer.join().unwrap();
        slot.exchange();
        assert_eq!(*lock(&slot.seen), [1, 2, 3]);
    });
}
