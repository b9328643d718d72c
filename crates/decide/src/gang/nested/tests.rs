//! Sets within sets.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn on(id: u64, cpus: impl IntoIterator<Item = u32>) -> Set {
    let cpus: CpuSet = cpus.into_iter().collect();
    Set {
        id: SetId(id),
        demand: cpus.count(),
        cpus: Where::On(cpus),
        keeps_idle: false,
        sleeps: false,
        weight: 100,
    }
}

fn nested(cpus: u32) -> Nested {
    let mut nested = Nested::default();
    nested.machine(&Machine::flat(cpus));
    nested
}

const A: SetId = SetId(100);
const B: SetId = SetId(101);
const INNER: SetId = SetId(102);

fn runs(nested: &Nested, id: u64, time_ns: u64) -> bool {
    let turn = nested.turn(SetId(id));
    turn.is_none_or(|turn| turn.runs_at(time_ns) != Some(false))
}

/// What each set runs, in thousandths of the time.
fn shares(nested: &Nested, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let share = |id| match nested.turn(SetId(id)) {
        None => 1000,
        Some(turn) => (1000 * turn.runs_ns() + turn.period_ns / 2) / turn.period_ns,
    };
    ids.into_iter().map(share).collect()
}

/// How many of these run at each time of a while, at most.
fn at_once(nested: &Nested, ids: &[u64], from_ns: u64) -> usize {
    let times = (0..4_000).map(|step| from_ns + step * MS / 4);
    let running = times.map(|time| ids.iter().filter(|id| runs(nested, **id, time)).count());
    running.max().unwrap_or(0)
}

#[test]
fn a_group_has_the_share_of_one_set_however_many_sets_are_within() {
    let mut nested = nested(2);
    nested.set(on(1, 0..2), &[A]);
    nested.set(on(2, 0..2), &[A]);
    nested.set(on(3, 0..2), &[A]);
    nested.set(on(4, 0..2), &[]);
    let changes = nested.plan(0);
    assert_eq!(changes.len(), 4);
    assert_eq!(shares(&nested, 1..=4), [167, 167, 167, 500]);
    assert_eq!(at_once(&nested, &[1, 2, 3, 4], 10 * MS), 1);
    for id in 1..=4 {
        assert!(nested.turn(SetId(id)).unwrap().is_valid());
    }
}

#[test]
fn slices_within_a_group_are_as_long_as_without() {
    let mut nested = nested(2);
    nested.set(on(1, 0..2), &[A]);
    nested.set(on(2, 0..2), &[A]);
    nested.set(on(3, 0..2), &[]);
    nested.plan(0);
    let turn = nested.turn(SetId(1)).unwrap();
    assert_eq!((turn.period_ns, turn.windows.len()), (200 * MS, 1));
    assert_eq!(turn.runs_ns(), 50 * MS);
}

#[test]
fn sets_that_fit_side_by_side_within_their_group_share_its_turn() {
    let mut nested = nested(4);
    nested.set(on(1, 0..2), &[A]);
    nested.set(on(2, 2..4), &[A]);
    nested.set(on(3, 0..4), &[]);
    nested.plan(0);
    assert_eq!(shares(&nested, 1..=3), [500; 3]);
    assert_eq!(nested.turn(SetId(1)), nested.turn(SetId(2)));
}

#[test]
fn a_group_that_is_alone_leaves_its_sets_the_turns_that_they_would_have() {
    let mut nested = nested(2);
    nested.set(on(1, 0..2), &[A]);
    nested.set(on(2, 0..2), &[A]);
    nested.plan(0);
    let mut flat = Schedule::new();
    flat.machine(&Machine::flat(2));
    flat.set(on(1, 0..2));
    flat.set(on(2, 0..2));
    flat.plan(0);
    for id in [SetId(1), SetId(2)] {
        assert_eq!(nested.turn(id), flat.turn(id));
    }
}

#[test]
fn groups_within_groups_and_weights_share_out_what_their_group_has() {
    let mut nested = nested(2);
    nested.set(on(1, 0..2), &[A, INNER]);
    nested.set(on(2, 0..2), &[A, INNER]);
    nested.set(on(3, 0..2), &[A]);
    nested.set(on(4, 0..2), &[B]);
    nested.weigh(B, 300);
    nested.plan(0);
    assert_eq!(at_once(&nested, &[1, 2, 3, 4], 10 * MS), 1);
    let shares = shares(&nested, 1..=4);
    for (share, expected) in shares.iter().zip([62, 62, 125, 750]) {
        assert!(share.abs_diff(expected) <= 5, "{shares:?}");
    }
}

#[test]
fn sets_that_leave_their_group_or_come_into_one_are_told() {
    let mut nested = nested(2);
    nested.set(on(1, 0..2), &[A]);
    nested.set(on(2, 0..2), &[A]);
    nested.set(on(3, 0..2), &[]);
    nested.plan(0);
    // Out of the group: three that are alike.
    nested.set(on(2, 0..2), &[]);
    nested.plan(MS);
    assert_eq!(shares(&nested, 1..=3), [333, 333, 333]);
    // Back again, and the last one goes.
    nested.set(on(2, 0..2), &[A]);
    nested.remove(SetId(3));
    let changes = nested.plan(2 * MS);
    let gone: Vec<_> = changes.iter().filter(|c| c.set == SetId(3)).collect();
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].turn, None);
    assert_eq!(shares(&nested, 1..=2), [500, 500]);
    nested.remove(SetId(1));
    nested.remove(SetId(2));
    nested.plan(3 * MS);
    assert_eq!(shares(&nested, 1..=3), [1000; 3]);
    assert!(nested.groups.is_empty());
}

#[test]
fn what_is_not_new_is_told_to_nobody() {
    let mut nested = nested(2);
    for id in 1..=3 {
        nested.set(on(id, 0..2), &[A]);
    }
    nested.set(on(4, 0..2), &[B]);
    nested.plan(0);
    for id in 1..=3 {
        nested.set(on(id, 0..2), &[A]);
    }
    assert_eq!(nested.plan(500 * MS), []);
}

#[derive(Clone, Debug)]
enum Step {
    Set(Set, Vec<SetId>),
    Remove(u64),
    Weigh(SetId, u32),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let groups = prop_oneof![
        Just(vec![]),
        Just(vec![A]),
        Just(vec![B]),
        Just(vec![A, INNER])
    ];
    let cpus = (0..6u32, 1..5u32).prop_map(|(at, n)| Where::On((at..(at + n).min(6)).collect()));
    let cpus = prop_oneof![3 => cpus, 1 => (1..7u32).prop_map(Where::Any)];
    let set = (
        0..8u64,
        cpus,
        0..5u32,
        prop::bool::weighted(0.2),
        50..200u32,
    )
        .prop_map(|(id, cpus, demand, keeps_idle, weight)| Set {
            id: SetId(id),
            cpus,
            demand,
            keeps_idle,
            sleeps: false,
            weight,
        });
    let step = prop_oneof![
        6 => (set, groups).prop_map(|(set, groups)| Step::Set(set, groups)),
        2 => (0..8u64).prop_map(Step::Remove),
        1 => (50..400u32).prop_map(|weight| Step::Weigh(A, weight)),
        2 => (1..300 * MS).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..25)
}

proptest! {
    #[test]
    fn whoever_runs_by_its_turn_runs_within_its_groups_and_beside_those_it_fits_beside(
        steps in steps(),
    ) {
        let mut nested = nested(6);
        let mut time_ns = 0;
        let mut told: BTreeMap<SetId, Option<Turn>> = BTreeMap::new();
        for step in steps.into_iter().chain([Step::Wait(MS)]) {
            match step {
                Step::Set(set, groups) => nested.set(set, &groups),
                Step::Remove(id) => nested.remove(SetId(id)),
                Step::Weigh(group, weight) => nested.weigh(group, weight),
                Step::Wait(ns) => {
                    time_ns += ns;
                    for change in nested.plan(time_ns) {
                        told.insert(change.set, change.turn);
                    }
                }
            }
        }
        for (id, turn) in &told {
            prop_assert!(turn.as_ref().is_none_or(Turn::is_valid));
            prop_assert_eq!(turn.as_ref(), nested.turn(*id));
            prop_assert!(nested.sets.contains_key(id) || turn.is_none());
        }
        // After all epochs.
        let from_ns = time_ns + 2 * MS;
        for time in (0..800).map(|step| from_ns + step * MS) {
            for (id, placed) in &nested.sets {
                let Some(group) = placed.within.and_then(|group| nested.groups.get(&group)) else {
                    continue;
                };
                let outside = group.turn.as_ref();
                let outside = outside.is_none_or(|turn| turn.runs_at(time) != Some(false));
                prop_assert!(outside || !runs(&nested, id.0, time), "{id:?} out of its group's turn");
            }
            // Nobody needs more CPUs at once than all that run have together.
            let running = nested.sets.values().filter(|p| runs(&nested, p.set.id.0, time));
            let (mut needs, mut cpus) = (0, CpuSet::new());
            for placed in running {
                let schedule = match placed.within {
                    None => &nested.top,
                    Some(group) => &nested.groups[&group].inside,
                };
                let own = schedule.cpus(placed.set.id).unwrap();
                needs += match placed.set.keeps_idle {
                    true => own.count(),
                    false => placed.set.demand.clamp(1, own.count().max(1)),
                };
                cpus.extend(own.iter());
            }
            prop_assert!(needs <= cpus.count(), "{needs} threads on {cpus} at {time}");
        }
    }
}

#[test]
fn a_group_that_is_new_within_another_runs_in_the_turns_of_that_one() {
    let mut nested = nested(2);
    nested.set(on(1, 0..2), &[]);
    nested.set(on(2, 0..1), &[A]);
    nested.plan(0);
    nested.set(on(3, 1..2), &[A, INNER]);
    nested.plan(MS);
    assert_eq!(nested.turn(SetId(3)), nested.turn(SetId(2)));
    assert_eq!(at_once(&nested, &[1, 3], 10 * MS), 1);
}
