//! The lock-free parts of a team under every interleaving and every reordering that the memory model
//! allows: the library's own modules, compiled over loom's atomics.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the library's modules, of which this looks at a part"
)]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
}

#[path = "../src/team/places.rs"]
mod places;
#[path = "../src/team/units.rs"]
mod units;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use places::Places;
use units::Units;

#[test]
fn no_more_workers_take_a_place_than_are_granted() {
    loom::model(|| {
        let places = Arc::new(Places::new());
        let taking = (0..2)
            .map(|_| {
                let places = Arc::clone(&places);
                thread::spawn(move || {
                    let taken = places.try_take(1);
                    assert!(places.taken() <= 1);
                    taken
                })
            })
            .collect::<Vec<_>>();
        let own = places.try_take(1);
        let taken = taking.into_iter().map(|t| t.join().unwrap()).chain([own]);
        assert_eq!(taken.filter(|&t| t).count(), 1);
        assert_eq!(places.taken(), 1);
    });
}

#[test]
fn exactly_the_surplus_gives_its_places_back() {
    loom::model(|| {
        let places = Arc::new(Places::new());
        for _ in 0..3 {
            places.force();
        }
        let leaving = (0..2)
            .map(|_| {
                let places = Arc::clone(&places);
                thread::spawn(move || places.leave_if_surplus(1))
            })
            .collect::<Vec<_>>();
        let own = places.leave_if_surplus(1);
        let left = leaving.into_iter().map(|t| t.join().unwrap()).chain([own]);
        assert_eq!(left.filter(|&l| l).count(), 2);
        assert_eq!(places.taken(), 1);
    });
}

#[test]
fn a_place_that_is_taken_by_force_is_given_back_by_one_worker() {
    loom::model(|| {
        let places = Arc::new(Places::new());
        places.force();
        let worker = {
            let places = Arc::clone(&places);
            thread::spawn(move || places.try_take(2) && places.leave_if_surplus(2))
        };
        // A blocked one goes on.
        places.force();
        let gave_back = worker.join().unwrap();
        let surplus = places.leave_if_surplus(2);
        assert!(places.taken() <= 2);
        assert!(!(gave_back && surplus));
    });
}

/// Units that say by whom they were done, without atomics: loom reports any access that is not ordered.
struct Work {
    units: Units,
    done: Vec<UnsafeCell<u32>>,
}

impl Work {
    fn new(units: usize) -> Arc<Work> {
        Arc::new(Work {
            units: Units::new(units),
            done: (0..units).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    /// Whether this one finished the last of all.
    fn take_part(&self) -> bool {
        let mut mine = 0;
        while let Some(unit) = self.units.take() {
            // SAFETY: a unit is taken once; loom checks.
            #[allow(unsafe_code, reason = "what loom is for")]
            self.done[unit].with_mut(|done| unsafe { *done += 1 });
            mine += 1;
        }
        self.units.finish(mine)
    }

    fn assert_done(&self) {
        assert!(self.units.are_finished());
        for done in &self.done {
            // SAFETY: everybody has finished; loom checks.
            #[allow(unsafe_code, reason = "what loom is for")]
            done.with(|done| assert_eq!(unsafe { *done }, 1));
        }
    }
}

#[test]
fn each_unit_is_done_once_and_one_worker_finishes() {
    loom::model(|| {
        let work = Work::new(3);
        let other = {
            let work = Arc::clone(&work);
            thread::spawn(move || work.take_part())
        };
        let last = work.take_part();
        let others_last = other.join().unwrap();
        assert!(last != others_last);
        work.assert_done();
    });
}

#[test]
fn who_sees_that_all_is_finished_sees_what_was_done() {
    loom::model(|| {
        let work = Work::new(2);
        let other = {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                work.take_part();
            })
        };
        work.take_part();
        // Without joining: the counter is all that tells.
        if work.units.are_finished() {
            work.assert_done();
        }
        other.join().unwrap();
        work.assert_done();
    });
}

#[test]
fn closing_finishes_what_nobody_has_taken() {
    loom::model(|| {
        let units = Arc::new(Units::new(3));
        let other = {
            let units = Arc::clone(&units);
            thread::spawn(move || {
                let mut mine = 0;
                while units.take().is_some() {
                    mine += 1;
                }
                units.finish(mine)
            })
        };
        // A panic in the first unit of this one, if it gets one.
        let mine = usize::from(units.take().is_some());
        let closed = units.finish(units.close());
        let last = units.finish(mine);
        let others_last = other.join().unwrap();
        assert!(units.are_finished());
        let finishers = [closed, last, others_last];
        assert_eq!(finishers.iter().filter(|&&f| f).count(), 1);
        assert_eq!(units.take(), None);
    });
}
