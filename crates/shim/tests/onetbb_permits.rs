//! How permits are shared out: the part of the adapter for oneTBB that is pure.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "the library uses it all")]
#[path = "../src/onetbb/permits.rs"]
mod permits;
#[allow(dead_code, reason = "the library uses it all")]
#[path = "../src/onetbb/request.rs"]
mod request;
#[path = "../src/onetbb/settle.rs"]
mod settle;
#[allow(dead_code, reason = "the library uses it all")]
#[path = "../src/onetbb/share.rs"]
mod share;

use permits::{Client, Handle, Notice, Permits, State};
use proptest::prelude::*;
use request::{PartRequest, Request};
use share::{Demand, Hold, Mask, Part, divide};

const TBB: Client = Client {
    callback: 1,
    workers_only: true,
};
const OTHER: Client = Client {
    callback: 1,
    workers_only: false,
};

/// The thread that asks where it does not matter which.
const MAIN: u64 = 100;

struct World {
    permits: Permits,
    client: u64,
}

impl World {
    /// A claim of so many threads, on a machine with as many CPUs.
    fn new(client: Client, threads: u32) -> World {
        let mut permits = Permits::new();
        let client = permits.connect(client, threads);
        permits.set_limit(Some(threads));
        World { permits, client }
    }

    fn ask(&mut self, request: Request, handle: Option<Handle>, thread: u64) -> Handle {
        let asked = self
            .permits
            .request(self.client, handle, request, 7, thread);
        asked.unwrap().0
    }

    fn between(&mut self, min: u32, max: u32) -> Handle {
        self.ask(between(min, max), None, MAIN)
    }

    fn given(&self, handle: Handle) -> u32 {
        self.permits.data(handle).unwrap().given.iter().sum()
    }

    fn state(&self, handle: Handle) -> State {
        self.permits.data(handle).unwrap().state
    }
}

fn between(min: u32, max: u32) -> Request {
    Request {
        min: Some(min),
        max: Some(max),
        ..Request::default()
    }
}

fn rigid(min: u32, max: u32) -> Request {
    Request {
        rigid: true,
        ..between(min, max)
    }
}

fn bound_to(mask: &Mask, min: u32, max: u32) -> Request {
    Request {
        parts: vec![PartRequest {
            min: Some(min),
            max: Some(max),
            mask: Some(mask.clone()),
            any: false,
        }],
        ..between(min, max)
    }
}

fn cpus(cpus: std::ops::Range<u32>) -> Mask {
    Mask(vec![cpus.map(|cpu| 1 << cpu).sum()])
}

#[test]
fn arenas_of_different_appetite_get_the_same_up_to_what_they_want() {
    let mut world = World::new(TBB, 11);
    let (small, middle, large) = (
        world.between(0, 2),
        world.between(0, 20),
        world.between(0, 20),
    );
    assert_eq!([small, middle, large].map(|h| world.given(h)), [2, 4, 4]);
}

#[test]
fn each_thread_beside_which_workers_work_is_one_of_the_claims() {
    let mut world = World::new(TBB, 8);
    let arenas = [1, 2, 3].map(|thread| world.ask(between(0, 7), None, thread));
    assert_eq!(arenas.map(|h| world.given(h)), [2, 2, 1]);
    let mut crowded = World::new(TBB, 2);
    let arenas = [1, 2, 3, 4].map(|thread| crowded.ask(between(0, 7), None, thread));
    assert_eq!(arenas.map(|h| crowded.given(h)), [0; 4]);
}

#[test]
fn an_arena_that_is_asked_for_again_from_within_keeps_its_caller() {
    let mut world = World::new(TBB, 4);
    let outer = world.between(0, 7);
    world.permits.register(outer, MAIN);
    world.permits.register(outer, 101);
    world.permits.deactivate(outer).unwrap();
    world.ask(between(0, 7), Some(outer), 101);
    assert_eq!(world.given(outer), 3);
    assert_eq!(world.permits.threads(), (8, 4));
}

#[test]
fn a_thread_that_ended_at_work_for_what_is_gone_is_as_good_as_new() {
    let mut world = World::new(TBB, 4);
    let first = world.between(0, 7);
    world.permits.register(first, 101);
    world.permits.release(first).unwrap();
    let main = world.between(0, 7);
    let other = world.ask(between(0, 7), None, 101);
    assert_eq!([main, other].map(|h| world.given(h)), [1, 1]);
}

#[test]
fn the_higher_priority_is_served_first_but_nobody_is_without_a_minimum() {
    let mut world = World::new(TBB, 6);
    let low = world.between(1, 7);
    let high = Request {
        priority: 3,
        ..between(0, 4)
    };
    let high = world.ask(high, None, MAIN);
    assert_eq!([low, high].map(|h| world.given(h)), [1, 4]);
}

#[test]
fn whoever_changes_is_told_except_who_caused_it() {
    let mut world = World::new(TBB, 5);
    let first = world.between(0, 8);
    let (second, notices) = world
        .permits
        .request(world.client, None, between(0, 8), 7, MAIN)
        .unwrap();
    let changed = Notice {
        handle: first,
        callback: 1,
        new_number: true,
        new_state: false,
    };
    assert_eq!(notices, [changed]);
    assert_eq!(world.permits.release(second).unwrap(), [changed]);
    assert_eq!(world.permits.set_limit(Some(5)), []);
    assert_eq!(world.permits.set_limit(Some(4)), [changed]);
}

#[test]
fn without_a_claim_everybody_has_what_they_want() {
    let mut world = World::new(TBB, 2);
    let (one, two) = (world.between(0, 7), world.between(0, 90));
    world.permits.set_limit(None);
    assert_eq!([one, two].map(|h| world.given(h)), [7, 90]);
}

#[test]
fn an_idle_permit_keeps_what_nobody_wants() {
    let mut world = World::new(OTHER, 6);
    let idle = world.between(1, 4);
    world.permits.idle(idle).unwrap();
    let first = world.between(1, 2);
    assert_eq!((world.given(idle), world.state(idle)), (4, State::Idle));
    world.ask(between(1, 4), Some(first), MAIN);
    assert_eq!((world.given(idle), world.state(idle)), (2, State::Idle));
    world.between(1, 6);
    assert_eq!((world.given(idle), world.state(idle)), (0, State::Inactive));
    world.permits.activate(idle, MAIN).unwrap();
    assert_eq!((world.given(idle), world.state(idle)), (2, State::Active));
}

#[test]
fn a_rigid_permit_is_left_alone_until_it_is_idle() {
    let mut world = World::new(OTHER, 4);
    let rigid = world.ask(rigid(1, 4), None, MAIN);
    let other = world.between(0, 4);
    assert_eq!([rigid, other].map(|h| world.given(h)), [4, 0]);
    world.permits.set_limit(Some(2));
    assert_eq!(world.given(rigid), 4);
    world.permits.idle(rigid).unwrap();
    assert_eq!([rigid, other].map(|h| world.given(h)), [0, 2]);
    assert_eq!(world.state(rigid), State::Inactive);
}

#[test]
fn those_who_wait_come_in_as_soon_as_their_minimum_fits() {
    let mut world = World::new(OTHER, 4);
    let first = world.between(3, 4);
    let (large, small) = (world.between(4, 4), world.between(2, 2));
    assert_eq!([large, small].map(|h| world.state(h)), [State::Pending; 2]);
    world.permits.release(first).unwrap();
    assert_eq!([large, small].map(|h| world.given(h)), [0, 2]);
    world.permits.release(small).unwrap();
    assert_eq!((world.given(large), world.state(large)), (4, State::Active));
    // Nor does anybody wait for what can never be.
    world.permits.set_limit(Some(1));
    world.permits.deactivate(large).unwrap();
    world.permits.activate(large, MAIN).unwrap();
    assert_eq!((world.given(large), world.state(large)), (4, State::Active));
}

#[test]
fn threads_that_are_bound_to_cpus_have_one_each() {
    let mut world = World::new(OTHER, 8);
    let (node, core) = (cpus(0..4), cpus(0..2));
    let on_core = world.ask(bound_to(&core, 0, 2), None, MAIN);
    let on_node = world.ask(bound_to(&node, 1, 4), None, MAIN);
    let too_many = world.ask(bound_to(&core, 2, 2), None, MAIN);
    let anywhere = world.between(0, 8);
    assert_eq!(
        [on_core, on_node, anywhere].map(|h| world.given(h)),
        [0, 2, 4]
    );
    assert_eq!(world.given(too_many), 2);
    let late = world.ask(bound_to(&core, 1, 1), None, MAIN);
    assert_eq!(world.state(late), State::Pending);
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let mut world = World::new(OTHER, 4);
    let part = |min, max| PartRequest {
        min,
        max,
        ..PartRequest::default()
    };
    let parts = |parts: &[PartRequest], min, max| Request {
        min,
        max,
        parts: parts.to_vec(),
        ..Request::default()
    };
    for wrong in [
        between(3, 2),
        between(5, 5),
        parts(&[part(None, None)], None, None),
        parts(&[part(Some(2), Some(1))], None, None),
        parts(&[part(Some(2), Some(2))], Some(1), Some(2)),
        parts(&[part(None, Some(2))], Some(0), Some(3)),
        parts(
            &[part(None, Some(u32::MAX)), part(None, Some(9))],
            None,
            None,
        ),
    ] {
        let refused = world
            .permits
            .request(world.client, None, wrong.clone(), 7, MAIN);
        assert!(refused.is_err(), "{wrong:?}");
    }
}

/// A permit as it is asked for: minimum, more than that, priority, which CPUs, and what it inherits.
type Wish = (u32, u32, i32, u32, u32);

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    prop::collection::vec((0..4u32, 0..12u32, 0..3i32, 0..4u32, 0..2u32), 1..8)
}

fn part(&(min, more, _, place, _): &Wish) -> Part {
    Part {
        min,
        max: min + more,
        mask: [None, Some(cpus(0..2)), Some(cpus(0..6)), Some(cpus(6..8))][place as usize].clone(),
    }
}

proptest! {
    #[test]
    fn shares_are_within_their_bounds_and_the_limit_and_leave_nothing_that_somebody_could_use(
        limit in 0..24u32,
        wishes in wishes(),
    ) {
        let parts: Vec<Part> = wishes.iter().map(part).collect();
        let demands: Vec<Demand> = wishes.iter().zip(&parts).map(|(wish, part)| Demand {
            min: part.min,
            max: part.max,
            priority: wish.2,
            inherits: wish.4,
            hold: Hold::Shares,
            now: &[0],
            parts: std::slice::from_ref(part),
        }).collect();
        let given: Vec<u32> = divide(Some(limit), &demands).into_iter().map(|g| g.unwrap()[0]).collect();
        let least: Vec<u32> = demands.iter().map(|d| d.min.saturating_sub(d.inherits)).collect();
        for ((given, demand), least) in given.iter().zip(&demands).zip(&least) {
            prop_assert!(given >= least);
            prop_assert!(given + demand.inherits <= demand.max.max(demand.inherits));
        }
        prop_assert!(given.iter().sum::<u32>() <= limit.max(least.iter().sum()));
        for set in [cpus(0..2), cpus(0..6), cpus(6..8)] {
            let inside = |part: &Part| {
                part.mask.as_ref().is_some_and(|mask| mask.0[0] & !set.0[0] == 0)
            };
            let sum = |of: &[u32]| -> u32 {
                of.iter().zip(&parts).filter(|(_, part)| inside(part)).map(|(n, _)| *n).sum()
            };
            prop_assert!(sum(&given) <= set.weight().max(sum(&least)));
        }
        let left = limit.saturating_sub(given.iter().sum());
        for ((given, demand), part) in given.iter().zip(&demands).zip(&parts) {
            let satisfied = given + demand.inherits >= demand.max;
            prop_assert!(satisfied || left == 0 || part.mask.is_some());
        }
    }

    #[test]
    fn no_share_could_grow_at_the_cost_of_a_larger_one(limit in 0..24u32, wishes in wishes()) {
        let parts: Vec<Part> = wishes.iter().map(|w| Part { mask: None, ..part(w) }).collect();
        let demands: Vec<Demand> = parts.iter().map(|part| Demand {
            min: part.min,
            max: part.max,
            priority: 0,
            inherits: 0,
            hold: Hold::Shares,
            now: &[0],
            parts: std::slice::from_ref(part),
        }).collect();
        let given: Vec<u32> = divide(Some(limit), &demands).into_iter().map(|g| g.unwrap()[0]).collect();
        for (one, poor) in given.iter().zip(&parts) {
            for (other, rich) in given.iter().zip(&parts) {
                prop_assert!(one + 1 >= *other || *one == poor.max || *other == rich.min);
            }
        }
    }

    #[test]
    fn whatever_happens_the_arenas_permits_keep_their_bounds(
        steps in prop::collection::vec((0..7u8, 0..5usize, 0..2u32, 0..9u32), 1..60),
    ) {
        let mut world = World::new(TBB, 4);
        let mut limit = 4;
        let mut arenas: Vec<Option<(Handle, u32, u32)>> = vec![None; 5];
        for (step, arena, min, max) in steps {
            let max = max.max(min);
            let thread = u64::try_from(arena).unwrap() % 3;
            match (step, arenas[arena]) {
                (0..=2, known) => {
                    let handle = world.ask(between(min, max), known.map(|(h, ..)| h), thread);
                    arenas[arena] = Some((handle, min, max));
                }
                (3, Some((handle, ..))) => {
                    world.permits.deactivate(handle).unwrap();
                }
                (4, Some((handle, ..))) => {
                    world.permits.release(handle).unwrap();
                    arenas[arena] = None;
                }
                (5, _) => {
                    limit = max + 1;
                    world.permits.set_limit(Some(limit));
                }
                (_, Some((handle, ..))) => {
                    world.permits.activate(handle, thread).unwrap();
                }
                _ => {}
            }
            let mut sum = 0;
            let mut minima = 0;
            for (handle, min, max) in arenas.iter().flatten() {
                if world.state(*handle) == State::Inactive {
                    continue;
                }
                prop_assert_eq!(world.state(*handle), State::Active);
                let given = world.given(*handle);
                prop_assert!((*min..=*max).contains(&given));
                sum += given;
                minima += min;
            }
            let (_, threads) = world.permits.threads();
            prop_assert!(sum <= minima.max(limit));
            prop_assert!(threads <= limit.max(minima + 3));
        }
    }
}
