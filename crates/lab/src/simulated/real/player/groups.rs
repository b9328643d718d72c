//! Groups of threads that do steps.

use super::Hand;
use super::script::{Group, Step};

/// All groups at the same time, until the last of them has ended.
pub(super) fn play_groups(leader: &Hand<'_>, groups: &[Group]) {
    let stage = leader.stage;
    std::thread::scope(|scope| {
        for group in groups {
            for _ in 0..group.threads {
                scope.spawn(|| member(&Hand::new(stage), group));
            }
        }
    });
}

fn member(hand: &Hand<'_>, group: &Group) {
    let stage = hand.stage;
    for _ in 0..group.repeat {
        for step in &group.steps {
            match *step {
                Step::Work(ns) => hand.work(ns),
                Step::Lock(lock) => stage.locks[lock].take(stage.looks_per_us),
                Step::Unlock(lock) => stage.locks[lock].give_back(),
                Step::Wait(semaphore) => stage.semaphores[semaphore].wait(),
                Step::Post(semaphore) => stage.semaphores[semaphore].post(),
                Step::Pause(ns) => hand.pause(ns),
            }
        }
        hand.count(1);
    }
}
