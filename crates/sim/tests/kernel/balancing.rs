//! Threads are spread over CPUs.

use super::support::*;
use corewise_decide::cpus::CpuSet;
use corewise_sim::kernel::GroupId;
use corewise_sim::machine::SimMachine;

#[test]
fn new_threads_go_to_idle_cpus() {
    let mut play = Play::on(&free(synthetic(
        "package:2 [numa] l3:1 core:4 pu:2",
        "smt = 0.6",
    )));
    let threads: Vec<_> = (0..8).map(|_| play.add(Does::Hog)).collect();
    play.until(MS);
    let mut cores: Vec<u32> = threads
        .iter()
        .map(|t| play.of(*t).cpu.unwrap() / 2)
        .collect();
    cores.sort_unstable();
    cores.dedup();
    assert_eq!(cores.len(), 8, "one on each core before any has two");
}

#[test]
fn a_pile_of_threads_is_spread() {
    let mut play = Play::flat(8);
    let threads: Vec<_> = (0..8)
        .map(|_| play.add_to(Does::Hog, GroupId::ROOT, &cpus(&[0])))
        .collect();
    play.until(20 * MS);
    for t in &threads {
        play.k.set_allowed(*t, &CpuSet::first(8));
    }
    play.until(500 * MS);
    let before = play.k.pressure_ns();
    play.until(S);
    assert_eq!(play.k.pressure_ns(), before, "nobody waits any more");
}

#[test]
fn three_on_two_cpus_all_get_on() {
    let mut play = Play::flat(2);
    let threads: Vec<_> = (0..3).map(|_| play.add(Does::Hog)).collect();
    play.until(20 * S);
    for t in threads {
        let share = play.of(t).run_ns as f64 / (20 * S) as f64;
        assert!((0.55..0.80).contains(&share), "{share}");
    }
}

#[test]
fn three_of_one_session_on_two_cpus_all_get_on() {
    // One has a CPU for itself, where no tick does anything: its session's share there must follow all
    // the same.
    let mut play = Play::flat(2);
    let session = play.k.add_group(1024, None);
    let all = CpuSet::first(2);
    let threads: Vec<_> = (0..3)
        .map(|_| play.add_to(Does::Hog, session, &all))
        .collect();
    play.until(20 * S);
    for t in threads {
        let share = play.of(t).run_ns as f64 / (20 * S) as f64;
        assert!((0.60..0.73).contains(&share), "{share}");
    }
}

#[test]
fn smt_siblings_slow_each_other_and_are_avoided() {
    let machine = free(synthetic("[numa] package:1 l3:1 core:2 pu:2", "smt = 0.6"));
    let mut play = Play::on(&machine);
    let a = play.add_to(Does::Once(6 * MS), GroupId::ROOT, &cpus(&[0]));
    let b = play.add_to(Does::Once(12 * MS), GroupId::ROOT, &cpus(&[1]));
    play.until(S);
    // 10 ms together, then the other alone: 6 of its 12 ms are left.
    assert_eq!(play.ended[0], Some(10 * MS));
    assert_eq!(play.ended[1], Some(16 * MS));
    assert_eq!((play.of(a).work_ns, play.of(b).work_ns), (6 * MS, 12 * MS));

    let mut play = Play::on(&machine);
    let crowd = [play.add_to(Does::Hog, GroupId::ROOT, &cpus(&[0])), {
        play.add_to(Does::Hog, GroupId::ROOT, &cpus(&[1]))
    }];
    play.until(10 * MS);
    crowd
        .iter()
        .for_each(|t| play.k.set_allowed(*t, &CpuSet::first(4)));
    play.until(S);
    let cores = crowd.map(|t| play.of(t).cpu.unwrap() / 2);
    assert_ne!(
        cores[0], cores[1],
        "a running thread is moved to the idle core"
    );
}

#[test]
fn affinity_is_followed_at_once() {
    let mut play = Play::flat(4);
    let t = play.add(Does::Hog);
    for cpu in [3, 0, 2, 1] {
        play.k.set_allowed(t, &cpus(&[cpu]));
        play.until(play.k.now() + 5 * MS);
        assert_eq!(play.of(t).cpu, Some(cpu));
    }
    play.k.set_allowed(t, &CpuSet::new());
    play.until(play.k.now() + 5 * MS);
    assert!(play.of(t).cpu.is_some(), "no CPU at all means any");
}

#[test]
fn a_migration_costs_the_working_set_by_distance() {
    let machine = synthetic(
        "package:2 [numa] l3:1 l2:2 core:2 pu:1",
        "l2_bytes = 1048576",
    );
    let cost = |to: u32| {
        let mut play = Play::on(&machine);
        let demand = corewise_sim::kernel::Demand {
            working_set_bytes: 1 << 20,
            ..Default::default()
        };
        let process = corewise_sim::kernel::ProcessId(0);
        let t = play.add_with(Does::Hog, GroupId::ROOT, &cpus(&[0]), process, demand);
        play.until(10 * MS);
        let before = play.of(t).stall_ns;
        play.k.set_allowed(t, &cpus(&[to]));
        play.until(100 * MS);
        play.of(t).stall_ns - before
    };
    let costs = [cost(1), cost(2), cost(4)];
    assert!(costs[0] < 10_000, "{costs:?}");
    assert!(
        near(costs[1], 1024 * machine.costs.refill_l3_ns_per_kib, 20),
        "{costs:?}"
    );
    assert!(costs[2] > costs[1] * 2, "{costs:?}");
}

#[test]
fn two_halves_of_a_big_machine_are_balanced() {
    let machine = free(synthetic("package:4 [numa] l3:1 core:6 pu:1", ""));
    let mut play = Play::on(&machine);
    let first: CpuSet = (0..6).collect();
    let threads: Vec<_> = (0..48)
        .map(|_| play.add_to(Does::Hog, GroupId::ROOT, &first))
        .collect();
    play.until(50 * MS);
    threads
        .iter()
        .for_each(|t| play.k.set_allowed(*t, &CpuSet::first(24)));
    play.until(10 * S);
    let before: Vec<u64> = threads.iter().map(|t| play.of(*t).run_ns).collect();
    play.until(20 * S);
    for (t, before) in threads.iter().zip(before) {
        let share = (play.of(*t).run_ns - before) as f64 / (10 * S) as f64;
        assert!((0.33..0.75).contains(&share), "{t:?} {share}");
    }
}

#[test]
fn a_flat_machine_has_no_pressure_when_there_is_room() {
    let mut play = Play::on(&SimMachine::flat(16));
    for _ in 0..8 {
        play.add(Does::Rests(MS, MS));
    }
    play.until(2 * S);
    assert!(
        play.k.pressure_ns() < 2 * S / 100,
        "{}",
        play.k.pressure_ns()
    );
}

#[test]
fn balancing_lengthens_nobodys_slice() {
    // Two on each CPU: balancing looks every so often, at a tick, and finds nothing to do.
    let mut play = Play::flat(2);
    let session = play.k.add_group(1024, None);
    let all = CpuSet::first(2);
    let threads: Vec<_> = (0..4)
        .map(|_| play.add_to(Does::Hog, session, &all))
        .collect();
    play.until(4 * S);
    for t in threads {
        let used = play.of(t);
        assert!(near(used.run_ns, 2 * S, 3), "{used:?}");
        assert!((480..=505).contains(&used.involuntary), "{used:?}");
    }
}

#[test]
fn a_cpu_with_one_thread_less_pulls_one_after_it_has_failed_twice() {
    // Half of a thread's load is missing: it is moved when the second failure has halved it, or, as it has
    // only just left its CPU, when the third has shown that there is nothing colder. Each failure makes the
    // next look come sooner: 60 ms or less, then 28, then 28 again.
    for seed in 0..8 {
        let mut play = Play::seeded(&free(SimMachine::flat(2)), seed);
        let session = play.k.add_group(1024, None);
        let all = CpuSet::first(2);
        let threads: Vec<_> = (0..3)
            .map(|_| play.add_to(Does::Hog, session, &all))
            .collect();
        play.until(10 * S);
        let moved: u64 = threads.iter().map(|t| play.of(*t).migrations).sum();
        assert!((65..=165).contains(&moved), "{moved}");
    }
}

#[test]
fn groups_of_the_same_weight_with_a_cpu_each_are_left_alone() {
    let mut play = Play::flat(2);
    let (one, other) = (play.k.add_group(1024, None), play.k.add_group(1024, None));
    let hog = play.add_to(Does::Hog, one, &cpus(&[0]));
    let pair = [(); 2].map(|()| play.add_to(Does::Hog, other, &cpus(&[1])));
    play.until(S);
    for t in [hog, pair[0], pair[1]] {
        play.k.set_allowed(t, &CpuSet::first(2));
    }
    play.until(6 * S);
    assert_eq!(pair.map(|t| play.of(t).migrations), [0, 0]);
}
