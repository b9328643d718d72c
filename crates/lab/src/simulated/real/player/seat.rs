//! Waiting: seats, locks and semaphores on futexes, with a thread that first looks again and again, or
//! sleeps at once, by the policy.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use corewise_sim::program::WaitPolicy;
use rustix::thread::futex::{self, Flags};

/// Nobody waits here, and nobody has been called.
const EMPTY: u32 = 0;
/// Its thread sleeps.
const ASLEEP: u32 = 1;
/// Its thread may go on, now or when it comes to wait.
const CALLED: u32 = 2;

/// Where one thread waits to be called, once for each call.
#[derive(Debug, Default)]
pub(super) struct Seat(AtomicU32);

fn sleep(word: &AtomicU32, while_it_is: u32) {
    // An error means that the word has changed, or a signal came: it is looked at again.
    let _ = futex::wait(word, Flags::PRIVATE, while_it_is, None);
}

fn wake_one(word: &AtomicU32) {
    // It fails only for an address that is none.
    let _ = futex::wake(word, Flags::PRIVATE, 1);
}

impl Seat {
    /// Waits until it is called, or goes on at once if it has been.
    pub(super) fn wait(&self, policy: WaitPolicy, looks_per_us: f64) {
        let free = || {
            let taken = self.0.load(Ordering::Relaxed) == CALLED;
            taken.then(|| self.0.store(EMPTY, Ordering::Relaxed))
        };
        if spins_until(policy, looks_per_us, free) {
            std::sync::atomic::fence(Ordering::Acquire);
            return;
        }
        while self
            .0
            .compare_exchange(CALLED, EMPTY, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            let asleep =
                self.0
                    .compare_exchange(EMPTY, ASLEEP, Ordering::Relaxed, Ordering::Relaxed);
            if asleep != Err(CALLED) {
                sleep(&self.0, ASLEEP);
            }
        }
    }

    /// Lets its thread go on.
    pub(super) fn call(&self) {
        if self.0.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            wake_one(&self.0);
        }
    }
}

/// Looks until `free` gives something, as long as the policy allows. Whether it did.
fn spins_until(
    policy: WaitPolicy,
    looks_per_us: f64,
    mut free: impl FnMut() -> Option<()>,
) -> bool {
    if free().is_some() {
        return true;
    }
    let most = match policy.spin_ns {
        Some(0) => 0,
        Some(ns) if !policy.yields => (ns as f64 / 1000.0 * looks_per_us) as u64,
        _ => u64::MAX,
    };
    // How long a yield takes depends on who else is there: that is timed.
    let until = policy.spin_ns.filter(|_| policy.yields && most > 0);
    let until = until.map(|ns| Instant::now() + Duration::from_nanos(ns));
    for look in 1..=most {
        if policy.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        if free().is_some() {
            return true;
        }
        if look.is_multiple_of(16) && until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
    }
    false
}

/// How often in a microsecond a spinning thread looks: the best of some tries.
pub(super) fn looks_per_us() -> f64 {
    const LOOKS: u64 = 20_000;
    let word = AtomicU32::new(EMPTY);
    let took = (0..7).map(|_| {
        let began = Instant::now();
        let mut looks = 0;
        while looks < LOOKS && word.load(Ordering::Relaxed) != CALLED {
            std::hint::spin_loop();
            looks += 1;
        }
        began.elapsed()
    });
    let best = took.min().unwrap_or(Duration::from_millis(1));
    LOOKS as f64 / (best.as_secs_f64() * 1e6).max(1e-3)
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_AWAITED: u32 = 2;

/// A lock: whoever gives it back lets one that waits try again, and another one may be faster.
#[derive(Debug)]
pub(super) struct Lock {
    word: AtomicU32,
    wait: WaitPolicy,
}

impl Lock {
    pub(super) fn new(wait: WaitPolicy) -> Lock {
        Lock {
            word: AtomicU32::new(FREE),
            wait,
        }
    }

    pub(super) fn take(&self, looks_per_us: f64) {
        let free = || {
            let seen = self.word.load(Ordering::Relaxed) == FREE;
            let taken = seen
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            taken.then_some(())
        };
        if spins_until(self.wait, looks_per_us, free) {
            return;
        }
        while self.word.swap(HELD_AND_AWAITED, Ordering::Acquire) != FREE {
            sleep(&self.word, HELD_AND_AWAITED);
        }
    }

    pub(super) fn give_back(&self) {
        if self.word.swap(FREE, Ordering::Release) == HELD_AND_AWAITED {
            wake_one(&self.word);
        }
    }
}

/// Counts what was posted and not yet waited for.
#[derive(Debug, Default)]
pub(super) struct Semaphore {
    posted: AtomicU32,
    waiting: AtomicU32,
}

impl Semaphore {
    pub(super) fn wait(&self) {
        loop {
            let taken = self
                .posted
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if taken.is_ok() {
                return;
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            sleep(&self.posted, 0);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn post(&self) {
        self.posted.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            wake_one(&self.posted);
        }
    }
}
