//! Scenarios of the gang schedule.

use super::*;
use crate::status::CpuPlace;

const MS: u64 = 1_000_000;

fn on(id: u64, cpus: impl IntoIterator<Item = u32>, demand: u32) -> Set {
    Set {
        id: SetId(id),
        cpus: Where::On(cpus.into_iter().collect()),
        demand,
        keeps_idle: false,
        sleeps: false,
        weight: 100,
    }
}

fn any(id: u64, cpus: u32) -> Set {
    Set {
        cpus: Where::Any(cpus),
        ..on(id, [], cpus)
    }
}

fn schedule(cpus: u32) -> Schedule {
    let mut schedule = Schedule::new();
    schedule.machine(&Machine::flat(cpus));
    schedule
}

/// Two packages of two L3 caches of four CPUs, two to an L2.
fn sixteen() -> Schedule {
    let places = (0..16).map(|cpu| CpuPlace {
        cpu,
        core: cpu,
        l2: cpu / 2,
        l3: cpu / 4,
        node: cpu / 8,
        package: cpu / 8,
    });
    let mut schedule = Schedule::new();
    schedule.machine(&Machine {
        places: places.collect(),
        ..Machine::flat(16)
    });
    schedule
}

/// What each set runs of a period, in percent; 100 without a turn.
fn share(schedule: &Schedule, id: u64) -> u64 {
    let turn = schedule.turn(SetId(id));
    turn.map_or(100, |t| (100 * t.runs_ns() + t.period_ns / 2) / t.period_ns)
}

fn shares(schedule: &Schedule, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
    ids.into_iter().map(|id| share(schedule, id)).collect()
}

#[test]
fn a_set_alone_runs_always() {
    let mut s = schedule(4);
    s.set(on(1, 0..4, 4));
    assert_eq!(s.plan(0), []);
}

#[test]
fn two_whole_sets_take_turns_with_slices_of_50_ms() {
    let mut s = schedule(2);
    s.set(on(1, 0..2, 2));
    s.set(on(2, 0..2, 2));
    let changes = s.plan(7);
    assert_eq!(changes.len(), 2);
    let turns: Vec<Turn> = changes.into_iter().map(|c| c.turn.unwrap()).collect();
    assert!(
        turns
            .iter()
            .all(|t| t.epoch_ns == 7 + LEAD_NS && t.period_ns == 100 * MS)
    );
    for time in [LEAD_NS + 7, LEAD_NS + 60 * MS] {
        assert_ne!(turns[0].runs_at(time), turns[1].runs_at(time));
    }
}

#[test]
fn sets_that_fit_side_by_side_run_always() {
    let mut s = schedule(4);
    s.set(on(1, 0..4, 2));
    s.set(on(2, 0..4, 1));
    s.set(on(3, 0..2, 1));
    assert_eq!(s.plan(0), []);
}

#[test]
fn a_partial_set_leaves_the_rest_of_its_cpus_to_others() {
    let mut s = schedule(4);
    (1..=8).for_each(|id| s.set(on(id, 0..4, 2)));
    s.plan(0);
    assert_eq!(shares(&s, 1..=8), [25; 8]);
}

#[test]
fn sets_whose_threads_sleep_while_they_wait_take_turns_only_beside_others() {
    let mut s = schedule(2);
    let asleep = |id| Set {
        sleeps: true,
        ..on(id, 0..2, 2)
    };
    s.set(asleep(1));
    s.set(asleep(2));
    assert_eq!(s.plan(0), []);
    s.set(on(3, 0..2, 2));
    s.plan(MS);
    assert_eq!(shares(&s, 1..=3), [33; 3]);
    s.set(asleep(3));
    assert_eq!(s.plan(2 * MS).len(), 3);
    assert_eq!(shares(&s, 1..=3), [100; 3]);
    // Who wants nobody on its CPUs has them to itself all the same.
    s.set(Set {
        keeps_idle: true,
        ..asleep(2)
    });
    s.plan(3 * MS);
    assert_eq!(shares(&s, 1..=3), [33; 3]);
}

#[test]
fn a_set_that_keeps_idle_cpus_is_alone_on_them() {
    let mut s = schedule(4);
    s.set(Set {
        keeps_idle: true,
        ..on(1, 0..4, 2)
    });
    s.set(on(2, 0..4, 2));
    s.set(on(3, 0..4, 2));
    s.plan(0);
    assert_eq!(shares(&s, 1..=3), [50; 3]);
}

#[test]
fn three_halves_get_two_thirds_each() {
    let mut s = schedule(4);
    (1..=3).for_each(|id| s.set(on(id, 0..4, 2)));
    s.plan(0);
    assert_eq!(shares(&s, 1..=3), [67; 3]);
}

#[test]
fn what_a_large_set_leaves_over_is_filled_with_small_ones() {
    let mut s = schedule(4);
    s.set(on(1, 0..4, 3));
    s.set(on(2, 0..4, 3));
    (3..=4).for_each(|id| s.set(on(id, 0..4, 1)));
    s.plan(0);
    assert_eq!(shares(&s, 1..=4), [50; 4]);
}

#[test]
fn shares_follow_weights() {
    let mut s = schedule(2);
    for (id, weight) in [(1, 100), (2, 300), (3, 600)] {
        s.set(Set {
            weight,
            ..on(id, 0..2, 2)
        });
    }
    s.plan(0);
    assert_eq!(shares(&s, 1..=3), [10, 30, 60]);
}

#[test]
fn a_very_light_set_still_runs_in_every_period() {
    let mut s = schedule(2);
    for (id, weight) in [(1, 10_000), (2, 100)] {
        s.set(Set {
            weight,
            ..on(id, 0..2, 2)
        });
    }
    s.plan(0);
    assert_eq!(shares(&s, 1..=2), [99, 1]);
}

#[test]
fn sets_on_other_cpus_are_not_touched() {
    let mut s = schedule(4);
    s.set(on(1, 0..2, 2));
    s.set(on(2, 0..2, 2));
    s.set(on(3, 2..4, 2));
    s.set(on(4, 2..4, 2));
    s.plan(0);
    s.set(on(5, 2..4, 2));
    let changed: Vec<u64> = s.plan(MS).iter().map(|c| c.set.0).collect();
    assert_eq!(changed, [3, 4, 5]);
}

#[test]
fn a_set_across_two_rings_makes_them_one_until_it_leaves() {
    let mut s = schedule(4);
    s.set(on(1, 0..2, 2));
    s.set(on(2, 2..4, 2));
    s.plan(0);
    s.set(on(3, 1..3, 2));
    assert_eq!(s.plan(MS).len(), 3);
    assert_eq!(shares(&s, 1..=3), [50; 3]);
    s.remove(SetId(3));
    let changes = s.plan(2 * MS);
    assert!(changes.iter().all(|c| c.turn.is_none()) && changes.len() == 3);
}

#[test]
fn what_changes_nothing_is_not_told() {
    let mut s = schedule(4);
    s.set(on(1, 0..4, 3));
    s.set(on(2, 0..4, 3));
    s.plan(0);
    s.set(on(2, 0..4, 4));
    assert_eq!(s.plan(5 * MS), []);
    s.remove(SetId(2));
    s.set(on(2, 0..4, 4));
    assert_eq!(s.plan(6 * MS), []);
}

#[test]
fn who_has_waited_longest_is_first_after_a_change() {
    let mut s = schedule(2);
    s.set(on(1, 0..2, 2));
    s.set(on(2, 0..2, 2));
    s.plan(0);
    // In the middle of the first slice.
    s.set(on(3, 0..2, 2));
    s.plan(20 * MS);
    let second = s.turn(SetId(2)).unwrap();
    assert_eq!(second.runs_at(20 * MS + LEAD_NS), Some(true));
}

#[test]
fn however_often_the_plan_changes_everyone_gets_its_share() {
    let mut s = schedule(2);
    let mut ran = [0; 3];
    (1..=3).for_each(|id| s.set(on(id, 0..2, 2)));
    s.plan(0);
    for step in 1..1_000 {
        // A fourth comes and goes, never in time with a slice.
        match step % 2 {
            0 => s.remove(SetId(4)),
            _ => s.set(on(4, 0..2, 2)),
        }
        let (from, to) = ((step - 1) * 37 * MS, step * 37 * MS);
        for (id, ran) in (1..).zip(&mut ran) {
            *ran += ran_ns(s.turn(SetId(id)).unwrap(), from, to);
        }
        s.plan(to);
    }
    let (least, most) = (ran.iter().min().unwrap(), ran.iter().max().unwrap());
    assert!(most - least <= LONGEST_SLICE_NS, "{ran:?}");
}

#[test]
fn relocatable_sets_go_to_the_smallest_free_unit_that_holds_them() {
    let mut s = sixteen();
    (1..=2).for_each(|id| s.set(any(id, 2)));
    s.set(any(3, 4));
    s.set(any(4, 8));
    let changes = s.plan(0);
    let places: Vec<String> = changes
        .iter()
        .map(|c| c.cpus.as_ref().unwrap().to_string())
        .collect();
    assert_eq!(places, ["0-1", "2-3", "4-7", "8-15"]);
    assert!(changes.iter().all(|c| c.turn.is_none()));
}

#[test]
fn a_partial_relocatable_set_leaves_room_for_another() {
    let mut s = sixteen();
    for id in 1..=8 {
        s.set(Set {
            demand: 2,
            ..any(id, 4)
        });
    }
    assert!(s.plan(0).iter().all(|c| c.turn.is_none()));
}

#[test]
fn a_relocatable_set_moves_to_where_it_need_not_wait() {
    let mut s = sixteen();
    (1..=5).for_each(|id| s.set(any(id, 4)));
    s.plan(0);
    assert_eq!(s.cpus(SetId(5)), s.cpus(SetId(1)));
    s.remove(SetId(3));
    let changes = s.plan(MS);
    let moved: Vec<&Change> = changes.iter().filter(|c| c.cpus.is_some()).collect();
    assert_eq!(moved.len(), 1);
    assert_eq!(moved[0].cpus.as_ref().unwrap().to_string(), "8-11");
    assert!((1..=5).all(|id| s.turn(SetId(id)).is_none()));
}

#[test]
fn without_its_cpus_a_set_is_not_scheduled() {
    let mut s = schedule(2);
    s.set(on(1, 0..2, 2));
    s.set(on(2, 0..2, 2));
    s.set(on(3, 5..7, 2));
    assert_eq!(s.plan(0).len(), 2);
    let mut other = Machine::flat(4);
    other.allowed = (2..4).collect();
    s.machine(&other);
    assert!(s.plan(MS).iter().all(|c| c.turn.is_none()));
    s.machine(&Machine::flat(8));
    s.plan(2 * MS);
    assert_eq!(shares(&s, 1..=3), [50, 50, 100]);
}

#[test]
fn a_schedule_of_no_sets_says_nothing() {
    assert_eq!(schedule(1_024).plan(0), []);
    assert_eq!(Schedule::new().plan(0), []);
}
