//! Where threads run. In a process of its own, one test after the other: affinity belongs to everybody
//! in it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Ways, runtime, until};
use corewise_program::{Claim, Cpus, Mask, Numa, Team};
use corewise_wire::abi::message::LocalRule;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex, mpsc};

static ALONE: Mutex<()> = Mutex::new(());

fn affinity(thread: Option<Pid>) -> Mask {
    let set = sched_getaffinity(thread).unwrap();
    (0..1024).filter(|&cpu| set.is_set(cpu as usize)).collect()
}

/// The CPUs to play with; `None` where there is one only.
fn cpus() -> Option<Vec<u32>> {
    let cpus: Vec<u32> = affinity(None).iter().collect();
    if cpus.len() < 2 {
        eprintln!("skipped: one CPU only");
        return None;
    }
    Some(cpus)
}

fn one(cpu: u32) -> Mask {
    [cpu].into_iter().collect()
}

#[test]
fn workers_have_a_cpu_each_and_callers_are_put_back() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let before = affinity(None);
    let (_runtime, folder) = runtime();
    let ways = Ways {
        rule: LocalRule::OneEach,
        ..Ways::default()
    };
    let manager = Manager::start(&folder, ways);
    let claim = Claim::join_at(&folder, "pinned");
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[..2]);
    let team = Team::new(&claim);
    let two = Barrier::new(2);
    let seen = Mutex::new(BTreeSet::new());
    team.for_each(0..2, |_| {
        two.wait();
        seen.lock().unwrap().extend(affinity(None).iter());
        assert_eq!(affinity(None).count(), 1);
    });
    assert_eq!(
        seen.into_inner().unwrap(),
        cpus[..2].iter().copied().collect()
    );
    assert_eq!(affinity(None), before);

    // The worker follows the claim while it sleeps, and when nobody manages any more.
    let workers = Mutex::new(Vec::new());
    team.for_each(0..2, |_| {
        two.wait();
        workers.lock().unwrap().push(gettid());
    });
    let own = gettid();
    let mut workers = workers.into_inner().unwrap();
    workers.retain(|&thread| thread != own);
    assert_eq!(workers.len(), 1);
    manager.grant(2, &cpus[1..2]);
    until("it has moved", || {
        affinity(Some(workers[0])) == one(cpus[1])
    });
    drop(manager);
    until("it is where it was", || {
        affinity(Some(workers[0])) == before
    });
}

#[test]
fn what_linux_gives_is_read_again_while_the_program_runs() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "confined");
    assert!(claim.threads() > 1);
    let mut set = CpuSet::new();
    set.set(cpus[0] as usize);
    until("the claim follows", || {
        // As `taskset --all-tasks` does it, to every thread; repeated, because a thread has its name
        // only when it runs.
        for thread in std::fs::read_dir("/proc/self/task").unwrap() {
            let thread = thread.unwrap();
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            if name == "corewise\n" {
                let number = thread.file_name().to_string_lossy().parse().unwrap();
                let _ = sched_setaffinity(Pid::from_raw(number), &set);
            }
        }
        claim.threads() == 1 && claim.cpus() == one(cpus[0])
    });
}

#[test]
fn the_whole_claim_is_everybodys_where_the_rule_says_so() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let (_runtime, folder) = runtime();
    let ways = Ways {
        rule: LocalRule::Whole,
        ..Ways::default()
    };
    let manager = Manager::start(&folder, ways);
    let claim = Claim::join_at(&folder, "whole");
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[1..2]);
    let two = Barrier::new(2);
    Team::new(&claim).for_each(0..2, |_| {
        two.wait();
        assert_eq!(affinity(None), one(cpus[1]));
    });
}

#[test]
fn another_rule_places_workers_anew_also_those_that_sleep() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let before = affinity(None);
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "told");
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[1..2]);
    let generation = claim.generation();
    let team = Team::new(&claim);
    let two = Barrier::new(2);
    let workers = Mutex::new(Vec::new());
    team.for_each(0..2, |_| {
        two.wait();
        workers.lock().unwrap().push(gettid());
        assert_eq!(affinity(None), before);
    });
    let own = gettid();
    let mut workers = workers.into_inner().unwrap();
    workers.retain(|&thread| thread != own);
    // No unit is done meanwhile: it is the sleeping worker that is placed.
    let placed = |mask: &Mask| affinity(Some(workers[0])) == *mask;
    manager.rule(LocalRule::Whole);
    until("it is confined to the claim", || placed(&one(cpus[1])));
    team.for_each(0..2, |_| {
        two.wait();
        assert_eq!(affinity(None), one(cpus[1]));
    });
    manager.rule(LocalRule::Leave);
    until("it is where it was", || placed(&before));
    manager.rule(LocalRule::OneEach);
    until("it is confined again", || placed(&one(cpus[1])));
    assert_eq!(claim.generation(), generation, "the claim is the same");
}

#[test]
fn nobody_is_placed_where_the_rule_is_to_leave_them() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let before = affinity(None);
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "free");
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[1..2]);
    let two = Barrier::new(2);
    Team::new(&claim).for_each(0..2, |_| {
        two.wait();
        assert_eq!(affinity(None), before);
    });
}

#[test]
fn workers_are_placed_where_only_the_program_wants_it() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let before = affinity(None);
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "willing");
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[1..2]);
    let team = Team::new(&claim);
    let two = Barrier::new(2);
    let all_on = |mask: &Mask| {
        team.for_each(0..2, |_| {
            two.wait();
            assert_eq!(affinity(None), *mask);
        });
    };
    all_on(&before);
    claim.pin_threads(true);
    all_on(&one(cpus[1]));
    claim.pin_threads(false);
    all_on(&before);
}

#[test]
fn all_threads_stay_within_the_claim_until_it_is_given_back() {
    let _alone = ALONE.lock();
    let Some(cpus) = cpus() else { return };
    let before = affinity(None);
    // A thread of the program's, of which the library knows nothing.
    let (says, hears) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        says.send(gettid()).unwrap();
        let _ = ended.recv();
    });
    let thread = Some(hears.recv().unwrap());

    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "openmp");
    claim.pin_threads(true);
    assert_eq!(affinity(thread), before);
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[1..2]);
    until("all are moved", || {
        affinity(thread) == one(cpus[1]) && affinity(None) == one(cpus[1])
    });
    // Who is born meanwhile inherits its place, and is put back like the others.
    let (born, birth) = mpsc::channel();
    let (end_child, ended) = mpsc::channel::<()>();
    let child = std::thread::spawn(move || {
        born.send(gettid()).unwrap();
        let _ = ended.recv();
    });
    let child_thread = Some(birth.recv().unwrap());
    manager.grant(2, &cpus[..1]);
    until("all follow", || {
        affinity(thread) == one(cpus[0]) && affinity(child_thread) == one(cpus[0])
    });
    claim.retreat(1);
    for thread in [None, thread, child_thread] {
        assert_eq!(affinity(thread), before);
    }
    // Invaded again, and then nobody manages any more.
    claim.invade(Cpus(1..=2), Numa::Any);
    manager.grant(2, &cpus[1..2]);
    until("all are moved", || affinity(thread) == one(cpus[1]));
    drop(manager);
    for thread in [None, thread, child_thread] {
        until("all are back", || affinity(thread) == before);
    }
    drop((end, end_child));
    other.join().unwrap();
    child.join().unwrap();
}
