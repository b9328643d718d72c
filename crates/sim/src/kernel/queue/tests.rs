use super::*;
use proptest::prelude::*;

fn entity(vruntime: i64, deadline: i64, weight: u64) -> Entity {
    Entity {
        vruntime,
        deadline,
        ..Entity::new(weight, 1_000_000)
    }
}

/// EEVDF by its definition.
fn defined(all: &[(u32, Entity)]) -> u32 {
    let weight: i128 = all.iter().map(|(_, e)| i128::from(e.weight)).sum();
    let sum = |v: i64| -> i128 {
        let lag = |e: &Entity| i128::from(e.vruntime - v) * i128::from(e.weight);
        all.iter().map(|(_, e)| lag(e)).sum()
    };
    assert!(weight > 0);
    let eligible = all.iter().filter(|(_, e)| sum(e.vruntime) >= 0);
    eligible
        .min_by_key(|(key, e)| (e.deadline, *key))
        .unwrap()
        .0
}

proptest! {
    #[test]
    fn the_pick_is_the_eligible_one_with_the_earliest_deadline(
        all in prop::collection::vec((-50..50_i64, 1..60_i64, 1..4_u64), 1..20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..40_i64), 0..30),
    ) {
        let mut queue = FairQueue::default();
        let mut entities: Vec<(u32, Entity)> = (0..)
            .zip(&all)
            .map(|(key, (v, slice, weight))| (key, entity(*v, v + slice, weight * 512)))
            .collect();
        for (key, e) in &entities {
            queue.insert(*key, e);
        }
        prop_assert_eq!(queue.pick(None), Some(defined(&entities)));
        // Those that are picked run and come back, as do others now and then.
        for (index, by) in changes {
            let key = queue.pick(None).unwrap();
            for at in [key as usize, index.index(entities.len())] {
                let (key, e) = entities[at];
                queue.remove(key, &e);
                let e = entity(e.vruntime + by, e.deadline + by, e.weight);
                queue.insert(key, &e);
                entities[at].1 = e;
            }
            prop_assert_eq!(queue.pick(None), Some(defined(&entities)));
        }
    }

    #[test]
    fn one_that_leaves_and_comes_back_is_owed_what_it_was(
        others in prop::collection::vec((-1000..1000_i64, 1..4_u64), 1..10),
        own in -1000..1000_i64,
    ) {
        let mut queue = FairQueue::default();
        for (key, (v, weight)) in (0..).zip(&others) {
            queue.insert(key, &entity(*v, v + 5, weight * 1024));
        }
        let mut e = entity(own, own + 5, 1024);
        queue.insert(99, &e);
        let before = queue.mean(None) - e.vruntime;
        let left = e;
        queue.leave(&mut e, None, false, 4_000_000);
        queue.remove(99, &left);
        queue.place(&mut e, Coming::Moved, None);
        queue.insert(99, &e);
        let after = queue.mean(None) - e.vruntime;
        prop_assert!((before - after).abs() <= 3, "{} {}", before, after);
        prop_assert_eq!(e.deadline - e.vruntime, 5);
    }
}

#[test]
fn one_that_runs_is_protected_until_its_slice_is_used_up() {
    let mut queue = FairQueue::default();
    queue.insert(1, &entity(0, 10, 1024));
    let mut running = entity(0, 50, 1024);
    running.protected = 50;
    assert_eq!(queue.pick(Some((2, &running))), Some(2));
    running.protected = 0;
    assert_eq!(queue.pick(Some((2, &running))), Some(1));
    running.protected = 50;
    running.vruntime = 1;
    assert_eq!(
        queue.pick(Some((2, &running))),
        Some(1),
        "it is not eligible"
    );
}

#[test]
fn one_with_a_debt_sleeps_in_the_queue_until_it_is_picked() {
    let mut queue = FairQueue::default();
    let mut other = entity(0, 10, 1024);
    let mut e = entity(100, 110, 1024);
    queue.insert(1, &other);
    queue.running = Some(2);
    let itself = e;
    assert!(queue.delays(2, &mut e, Some(&itself)));
    assert_eq!((queue.running, queue.mean(None)), (None, 50));
    assert_eq!(queue.pick(None), Some(1));
    queue.remove(1, &other);
    other = entity(300, 310, 1024);
    queue.insert(1, &other);
    assert_eq!(queue.pick(None), Some(2), "it has paid");
    let leaving = Leaving {
        sleeps: true,
        tick_ns: 4_000_000,
    };
    queue.take_out(2, &mut e, None, None, leaving);
    assert_eq!((e.lag, e.delayed), (0, false), "and is owed nothing");
    assert_eq!(queue.mean(None), 300);
}

#[test]
fn one_that_has_not_more_than_its_share_leaves_at_once() {
    let mut queue = FairQueue::default();
    queue.insert(1, &entity(100, 110, 1024));
    let mut e = entity(0, 10, 1024);
    queue.running = Some(2);
    let itself = e;
    assert!(!queue.delays(2, &mut e, Some(&itself)));
    assert_eq!(queue.running, Some(2));
}

#[test]
fn one_that_wakes_up_with_a_debt_is_where_it_was() {
    for (other, expected) in [(0, 100), (300, 300)] {
        let mut queue = FairQueue::default();
        let mut e = entity(100, 110, 1024);
        e.delayed = true;
        queue.insert(2, &e);
        queue.insert(1, &entity(other, other + 10, 1024));
        queue.resume(2, &mut e, None);
        assert_eq!((e.vruntime, e.delayed), (expected, false));
        assert_eq!(queue.waiting(), 2);
    }
}

#[test]
fn deadlines_are_renewed_at_ticks_although_nobody_looks() {
    let mut e = entity(0, 1_000_000, 1024);
    // It ran alone from 0 to 9 ms; ticks at 4 and 8 ms.
    assert!(!e.ran(9_000_000, 9_000_000, 4_000_000, false));
    assert_eq!(e.deadline, 9_000_000);
    assert!(e.ran(0, 9_000_000, 4_000_000, true));
    assert_eq!(e.deadline, 10_000_000);
}
