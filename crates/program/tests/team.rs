//! What a team does: everything once, with as many workers as its claim grants, whatever happens.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Ways, runtime, until};
use corewise_program::{Claim, Cpus, Gang, Numa, Team};
use corewise_wire::abi::turn::{Turn, Window};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

/// A team of an unmanaged claim of `threads` threads.
fn team_of(threads: u32) -> Team {
    // A folder in which nobody will ever listen.
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "team");
    claim.invade(Cpus(threads..=threads), Numa::Any);
    Team::new(&claim)
}

/// How many of its callers are inside at the same time.
#[derive(Default)]
struct Crowd {
    now: AtomicU32,
    most: AtomicU32,
}

impl Crowd {
    fn enter(&self) -> impl Drop + '_ {
        struct Leave<'a>(&'a Crowd);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.now.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Leave(self)
    }

    fn now(&self) -> u32 {
        self.now.load(Ordering::SeqCst)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_item_is_done_once(items in 0_usize..300, threads in 1_u32..6) {
        let team = team_of(threads);
        let done: Vec<AtomicU32> = (0..items).map(|_| AtomicU32::new(0)).collect();
        team.for_each(0..items, |item| {
            done[item].fetch_add(1, Ordering::Relaxed);
        });
        prop_assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn pieces_cover_the_range_once(
        start in 0_usize..50,
        length in 0_usize..500,
        grain in 0_usize..70,
        threads in 1_u32..5,
    ) {
        let team = team_of(threads);
        let pieces = Mutex::new(Vec::new());
        team.parallel_for(start..start + length, grain, |piece| {
            pieces.lock().unwrap().push(piece);
        });
        let mut pieces = pieces.into_inner().unwrap();
        pieces.sort_by_key(|piece| piece.start);
        prop_assert!(pieces.iter().all(|p| !p.is_empty() && p.len() <= grain.max(1)));
        let covered: Vec<usize> = pieces.into_iter().flatten().collect();
        prop_assert_eq!(covered, (start..start + length).collect::<Vec<_>>());
    }
}

#[test]
fn the_largest_range_can_be_cut() {
    let team = team_of(1);
    let seen = AtomicUsize::new(0);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        team.parallel_for(0..usize::MAX, 1, |piece| {
            seen.store(piece.len(), Ordering::Relaxed);
            panic!("this panic is part of the test");
        });
    }));
    assert!(ended.is_err());
    assert_eq!(seen.load(Ordering::Relaxed), 3);
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "that is the test")]
fn a_range_that_ends_before_it_begins_is_empty() {
    team_of(2).parallel_for(5..3, 1, |_| panic!("there is nothing to do"));
}

#[test]
fn as_many_workers_run_as_there_are_threads() {
    let team = team_of(3);
    // Nobody gets past this unless three are inside at once.
    let three = Barrier::new(3);
    let crowd = Crowd::default();
    team.for_each(0..3, |_| {
        let _inside = crowd.enter();
        three.wait();
    });
    team.parallel_for(0..300, 1, |_| {
        let _inside = crowd.enter();
        std::thread::yield_now();
    });
    assert_eq!(crowd.most.load(Ordering::SeqCst), 3);
}

#[test]
fn what_is_borrowed_may_be_changed() {
    let team = team_of(4);
    let mut numbers = vec![0_u64; 1000];
    team.for_each(numbers.chunks_mut(10).enumerate(), |(chunk, numbers)| {
        numbers.fill(chunk as u64);
    });
    assert!((0..1000).all(|index| numbers[index] == index as u64 / 10));
}

#[test]
fn a_panic_reaches_the_caller_and_leaves_a_team_that_works() {
    for threads in 1..5 {
        let team = team_of(threads);
        let begun = AtomicUsize::new(0);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            team.for_each(0..1000, |item| {
                begun.fetch_add(1, Ordering::Relaxed);
                assert!(item != 7, "seven, as part of the test");
            });
        }));
        let panic = ended.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"seven, as part of the test"));
        assert!(begun.load(Ordering::Relaxed) >= 1);
        let sum = AtomicUsize::new(0);
        team.for_each(0..100, |item| {
            sum.fetch_add(item, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
    }
}

#[test]
fn work_may_call_for_work() {
    for threads in 1..5 {
        let team = team_of(threads);
        let done = AtomicUsize::new(0);
        team.for_each(0..8, |_| {
            team.for_each(0..8, |_| {
                team.parallel_for(0..8, 3, |piece| {
                    done.fetch_add(piece.len(), Ordering::Relaxed);
                });
            });
        });
        assert_eq!(done.into_inner(), 512);
    }
}

#[test]
fn several_threads_may_call_at_once() {
    let team = team_of(2);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    team.for_each(0..20, |_| {
                        done.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 4000);
}

#[test]
fn a_team_grows_and_shrinks_with_its_claim_while_it_works() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(
        &folder,
        Ways {
            most: 1,
            ..Ways::default()
        },
    );
    let claim = Claim::join_at(&folder, "elastic");
    claim.invade(Cpus(1..=8), Numa::Any);
    let team = Team::new(&claim);
    let crowd = Crowd::default();
    let done = AtomicUsize::new(0);
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            team.parallel_for(0..1_000_000, 1, |_| {
                let _inside = crowd.enter();
                if !enough.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(200));
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        });
        for threads in [1, 4, 2, 6, 1, 3] {
            manager.grant(threads, &[0]);
            until("the manager sees the team's size", || {
                manager.progress().team == threads
            });
            until("so many work", || crowd.now() == threads);
            // From the moment when the surplus is gone, nobody is beyond the claim.
            crowd.most.store(0, Ordering::SeqCst);
            let then = done.load(Ordering::Relaxed);
            until("much is done", || done.load(Ordering::Relaxed) > then + 200);
            assert!(crowd.most.load(Ordering::SeqCst) <= threads);
        }
        enough.store(true, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 1_000_000);
    assert_eq!(manager.progress().progress, 1_000_000);
    // The last worker says so after its last unit.
    until("everybody has left", || {
        let progress = manager.progress();
        (progress.team, progress.could_use) == (0, 1)
    });
}

#[test]
fn a_team_whose_manager_dies_goes_on_with_what_linux_gives() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(
        &folder,
        Ways {
            most: 1,
            ..Ways::default()
        },
    );
    let claim = Claim::join_at(&folder, "survivor");
    claim.invade(Cpus(3..=3), Numa::Any);
    manager.grant(1, &[0]);
    let team = Team::new(&claim);
    let crowd = Crowd::default();
    let done = AtomicUsize::new(0);
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            team.parallel_for(0..100_000, 1, |_| {
                let _inside = crowd.enter();
                if !enough.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(200));
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        });
        until("it works", || done.load(Ordering::Relaxed) > 0);
        drop(manager);
        until("all three work", || crowd.now() == 3);
        enough.store(true, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 100_000);
}

#[test]
fn a_worker_that_blocks_lends_its_place() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "blocker");
    let team = Team::new(&claim);
    assert_eq!(claim.threads(), 1);
    // Each unit waits for the other one: with one thread, without lending, for ever.
    let both = Barrier::new(2);
    let crowd = Crowd::default();
    team.for_each(0..2, |_| {
        Team::blocking(|| both.wait());
        let _inside = crowd.enter();
    });
    until("nobody blocks any more", || manager.progress().blocked == 0);
    // Not on a worker: it just runs.
    assert_eq!(Team::blocking(|| 7), 7);
}

#[test]
fn the_manager_sees_who_blocks() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "blocker");
    let team = Team::new(&claim);
    team.for_each(0..3, |_| {
        Team::blocking(|| {
            // Nested blocking is the same blocking.
            Team::blocking(|| until("it is seen", || manager.progress().blocked >= 1));
        });
    });
    assert_eq!(manager.progress().blocked, 0);
}

#[test]
fn a_panic_while_blocking_takes_the_place_back() {
    let team = team_of(2);
    for _ in 0..10 {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            team.for_each(0..4, |_| {
                Team::blocking(|| panic!("this panic is part of the test"))
            });
        }));
        assert!(ended.is_err());
    }
    let two = Barrier::new(2);
    team.for_each(0..2, |_| {
        two.wait();
    });
}

#[test]
fn a_blocking_without_end_ends_with_its_unit() {
    let team = team_of(1);
    team.for_each(0..3, |_| {
        assert!(!Team::end_blocking());
        Team::begin_blocking();
        Team::begin_blocking();
    });
    assert!(!Team::end_blocking());
    let crowd = Crowd::default();
    team.parallel_for(0..1000, 1, |_| drop(crowd.enter()));
    assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
}

#[test]
fn jobs_in_the_background_give_their_results() {
    for threads in 1..4 {
        let team = team_of(threads);
        let running: Vec<_> = (0..20).map(|n| team.run(move || n * n)).collect();
        let results: Vec<i32> = running.into_iter().map(|r| r.wait()).collect();
        assert_eq!(results, (0..20).map(|n| n * n).collect::<Vec<_>>());
    }
}

#[test]
fn a_job_in_the_background_is_done_without_being_waited_for() {
    let team = team_of(1);
    let running = team.run(|| std::thread::current().id());
    until("it is done", || running.is_done());
    assert_ne!(running.wait(), std::thread::current().id());
}

#[test]
fn a_background_jobs_panic_reaches_who_waits_for_it() {
    let team = team_of(1);
    let running = team.run(|| -> i32 { panic!("this panic is part of the test") });
    assert!(catch_unwind(AssertUnwindSafe(|| running.wait())).is_err());
    drop(team.run(|| panic!("this panic is part of the test")));
    assert_eq!(team.run(|| 3).wait(), 3);
}

#[test]
fn dropping_a_team_does_what_is_queued() {
    let done = std::sync::Arc::new(AtomicUsize::new(0));
    let team = team_of(1);
    for _ in 0..50 {
        let done = std::sync::Arc::clone(&done);
        drop(team.run(move || done.fetch_add(1, Ordering::Relaxed)));
    }
    drop(team);
    assert_eq!(done.load(Ordering::Relaxed), 50);
}

#[test]
fn a_team_may_be_dropped_by_its_own_worker() {
    let team = team_of(2);
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let (last, says) = (team.clone(), std::sync::Arc::clone(&done));
    let (dropped, others) = std::sync::mpsc::channel::<()>();
    let running = team.run(move || {
        others.recv().unwrap_err();
        drop(last);
        says.store(true, Ordering::Relaxed);
    });
    drop(team);
    drop(dropped);
    until("it is done", || done.load(Ordering::Relaxed));
    running.wait();
}

#[test]
fn all_teams_of_a_claim_are_one_pool() {
    let first = team_of(1);
    let second = Team::new(first.claim());
    let own = std::thread::current().id();
    first.for_each(0..10, |_| {
        second.for_each(0..10, |_| {
            // The only place is this thread's.
            assert_eq!(std::thread::current().id(), own);
        });
    });
}

/// A turn whose only window is long over, or not.
fn turn(ours: bool) -> Turn {
    const DAY_NS: u64 = 86_400_000_000_000;
    let window = match ours {
        true => Window {
            begin_ns: 0,
            end_ns: DAY_NS * 1_000,
        },
        false => Window {
            begin_ns: DAY_NS * 1_000 - 1,
            end_ns: DAY_NS * 1_000,
        },
    };
    Turn {
        epoch_ns: 0,
        period_ns: DAY_NS * 1_000,
        windows: vec![window],
    }
}

#[test]
fn workers_of_a_gang_stand_still_out_of_turn_and_go_on_in_turn_and_without_a_manager() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "gang");
    claim.coschedule(Some(Gang::named("job/stage").weighing(200)));
    claim.invade(Cpus(2..=2), Numa::Any);
    until("the manager knows", || {
        manager.with(0, |p| !p.gangs.is_empty())
    });
    let said = manager.with(0, |p| p.gangs[0].clone().unwrap());
    assert_eq!((said.name.as_str(), said.weight), ("job/stage", 200));

    let team = Team::new(&claim);
    let (units, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = || units.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                team.for_each(0..100, |_| {
                    units.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        let works = |what: &str| {
            let before = done();
            until(what, || done() > before + 10);
        };
        works("it works without a turn");
        manager.turn(Some(&turn(false)));
        // Each of the two may be in the middle of a unit, or about to begin one.
        until("it stands still", || {
            let before = done();
            std::thread::sleep(Duration::from_millis(20));
            done() == before
        });
        manager.turn(Some(&turn(true)));
        works("it works in its turn");
        manager.turn(Some(&turn(false)));
        until("it stands still again", || {
            let before = done();
            std::thread::sleep(Duration::from_millis(20));
            done() == before
        });
        drop(manager);
        works("it works when its manager has died");
        ends.store(true, Ordering::SeqCst);
    });
}

#[test]
fn who_is_a_gang_says_so_to_each_manager_and_who_is_none_is_not_kept_by_turns() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "gang");
    claim.coschedule(Some(Gang::named("")));
    claim.coschedule(None);
    until("both were said", || manager.with(0, |p| p.gangs.len() == 2));
    assert!(manager.with(0, |p| p.gangs[0].is_some() && p.gangs[1].is_none()));
    // Whatever is on the page: it keeps no turns.
    manager.turn(Some(&turn(false)));
    let team = Team::new(&claim);
    let units = AtomicUsize::new(0);
    team.for_each(0..10, |_| {
        units.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(units.into_inner(), 10);

    claim.coschedule(Some(Gang::named(&"ü".repeat(40)).keeping_idle()));
    drop(manager);
    let next = Manager::start(&folder, Ways::default());
    until("it has joined the next", || next.joined() == 1);
    until("it was said again", || {
        next.with(0, |p| !p.gangs.is_empty())
    });
    let said = next.with(0, |p| p.gangs[0].clone().unwrap());
    assert_eq!((said.name, said.keeps_idle), ("ü".repeat(32), true));
}
