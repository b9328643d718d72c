//! Blocking, waking, and waiting in a loop.

use super::support::*;
use corewise_sim::kernel::{
    Demand, Event, GroupId, Kernel, ProcessId, ThreadId, ThreadSpec, ThreadState, Why,
};
use corewise_sim::machine::SimMachine;

fn spawn(k: &mut Kernel) -> ThreadId {
    k.spawn(ThreadSpec {
        process: ProcessId(0),
        group: GroupId::ROOT,
        allowed: corewise_decide::cpus::CpuSet::first(64),
        parent: None,
        demand: Demand::default(),
    })
}

#[test]
fn a_blocked_thread_is_ready_when_it_is_woken() {
    let mut k = Kernel::new(&free(SimMachine::flat(1)), 1);
    let t = spawn(&mut k);
    assert_eq!(k.next(S), Some(Event::Ready(t)));
    k.block(t, Why::Futex);
    assert_eq!(k.next(3 * MS), None);
    assert_eq!(k.now(), 3 * MS);
    assert_eq!(k.thread(t).state, Some(ThreadState::Blocked(Why::Futex)));
    k.wake(t, None);
    assert_eq!(k.next(S), Some(Event::Ready(t)));
    let used = k.thread(t);
    assert_eq!((used.lock_ns, used.voluntary), (3 * MS, 1));
    assert_eq!(k.now(), 3 * MS);
}

#[test]
fn a_thread_that_is_told_nothing_blocks() {
    let mut k = Kernel::new(&SimMachine::flat(1), 1);
    let t = spawn(&mut k);
    assert_eq!(k.next(S), Some(Event::Ready(t)));
    assert_eq!(k.next(S), None);
    assert_eq!(k.thread(t).state, Some(ThreadState::Blocked(Why::Sleep)));
}

#[test]
fn nothing_left_to_happen_leaves_the_time_alone() {
    let mut k = Kernel::new(&SimMachine::flat(2), 1);
    let t = spawn(&mut k);
    assert_eq!(k.next(u64::MAX), Some(Event::Ready(t)));
    k.run(t, MS);
    assert!(!k.is_idle());
    assert_eq!(k.next(u64::MAX), Some(Event::Ready(t)));
    k.exit(t);
    let now = k.now();
    assert_eq!(k.next(u64::MAX), None);
    assert_eq!(k.now(), now);
    assert!(k.is_idle());
}

#[test]
fn a_sleep_ends_by_itself_or_by_a_wake_up_but_not_twice() {
    let mut k = Kernel::new(&free(SimMachine::flat(1)), 1);
    let t = spawn(&mut k);
    k.next(S);
    k.sleep(t, 10 * MS, Why::Io);
    assert_eq!(k.next(4 * MS), None);
    k.wake(t, None);
    assert_eq!(k.next(S), Some(Event::Ready(t)));
    assert_eq!(k.now(), 4 * MS);
    k.block(t, Why::Futex);
    assert_eq!(k.next(S), None, "the old sleep's end is void");
    assert_eq!(k.thread(t).io_ns, 4 * MS);
}

#[test]
fn a_released_spinner_is_ready_after_the_cache_line_has_come() {
    let machine = SimMachine::flat(2);
    let mut k = Kernel::new(&machine, 1);
    let (a, b) = (spawn(&mut k), spawn(&mut k));
    for _ in 0..2 {
        match k.next(S) {
            Some(Event::Ready(t)) if t == a => k.run(a, 5 * MS),
            Some(Event::Ready(t)) => k.spin(t, None, false),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(k.next(S), Some(Event::Ready(a)));
    let released = k.now();
    k.release(b);
    k.run(a, MS);
    assert_eq!(k.next(S), Some(Event::Ready(b)));
    assert_eq!(k.now(), released + machine.costs.line_l3_ns);
    assert!(k.was_released(b));
    assert!(near(k.thread(b).spin_ns, 5 * MS, 1));
    k.spin(b, Some(2 * MS), false);
    assert_eq!(k.next(S), Some(Event::Ready(a)));
    k.block(a, Why::Futex);
    assert_eq!(k.next(S), Some(Event::Ready(b)));
    assert!(!k.was_released(b), "its limit ended it");
    assert_eq!(k.now(), released + machine.costs.line_l3_ns + 2 * MS);
}

#[test]
fn a_spinner_beside_the_one_it_waits_for_wastes_its_slices() {
    // Two on one CPU: one works for 20 ms, the other waits for it in a loop.
    let mut k = Kernel::new(&free(SimMachine::flat(1)), 1);
    let (a, b) = (spawn(&mut k), spawn(&mut k));
    let mut done = 0;
    while done == 0 {
        match k.next(S) {
            Some(Event::Ready(t)) if t == a && k.thread(a).work_ns == 0 => k.run(a, 20 * MS),
            Some(Event::Ready(t)) if t == a => done = k.now(),
            Some(Event::Ready(_)) => k.spin(b, None, false),
            other => panic!("{other:?}"),
        }
    }
    assert!(done >= 36 * MS, "{done}");
}

#[test]
fn waking_costs_the_waker_and_an_idle_cpu_takes_a_while() {
    let machine = SimMachine::flat(2);
    let mut k = Kernel::new(&machine, 1);
    let (a, b) = (spawn(&mut k), spawn(&mut k));
    for _ in 0..2 {
        let Some(Event::Ready(t)) = k.next(S) else {
            panic!()
        };
        if t == a {
            k.run(a, MS)
        } else {
            k.block(b, Why::Futex)
        }
    }
    assert_eq!(k.next(S), Some(Event::Ready(a)));
    let woken = k.now();
    k.wake(b, Some(a));
    k.run(a, MS);
    assert_eq!(k.next(S), Some(Event::Ready(b)));
    assert_eq!(k.now(), woken + machine.costs.idle_wake_ns);
    k.block(b, Why::Futex);
    assert_eq!(k.next(S), Some(Event::Ready(a)));
    assert_eq!(k.now(), woken + MS + machine.costs.wake_ns);
}

#[test]
fn a_cpu_that_has_napped_is_awake_sooner_and_its_interrupt_costs_the_waker() {
    let mut machine = SimMachine::flat(2);
    machine.costs.idle_wake_ns = 50_000;
    machine.costs.nap_wake_ns = 8_000;
    machine.costs.nap_ns = MS;
    machine.costs.idle_ipi_ns = 7_000;
    for (idle_ns, latency_ns) in [(MS / 2, 8_000), (2 * MS, 50_000)] {
        let mut k = Kernel::new(&machine, 1);
        let (a, b) = (spawn(&mut k), spawn(&mut k));
        for _ in 0..2 {
            match k.next(S) {
                Some(Event::Ready(t)) if t == a => k.run(a, idle_ns),
                _ => k.block(b, Why::Futex),
            }
        }
        assert_eq!(k.next(S), Some(Event::Ready(a)));
        let woken = k.now();
        k.wake(b, Some(a));
        k.run(a, MS);
        assert_eq!(k.next(S), Some(Event::Ready(b)));
        assert_eq!(k.now(), woken + latency_ns);
        k.block(b, Why::Futex);
        assert_eq!(k.next(S), Some(Event::Ready(a)));
        assert_eq!(k.now(), woken + MS + machine.costs.wake_ns + 7_000);
    }
}

#[test]
fn a_wake_up_finds_an_idle_cpu_of_the_same_cache() {
    let machine = free(synthetic("package:2 [numa] l3:1 core:2 pu:1", ""));
    let mut play = Play::on(&machine);
    let hog = play.add_to(Does::Hog, GroupId::ROOT, &cpus(&[0]));
    let t = play.add_to(Does::Rests(MS, 5 * MS), GroupId::ROOT, &cpus(&[0]));
    play.until(20 * MS);
    play.k.set_allowed(t, &cpus(&[0, 1, 2, 3]));
    play.until(S);
    let used = play.of(t);
    assert!(used.migrations >= 1 && used.migrations <= 2, "{used:?}");
    assert!(used.wait_ns < 50 * MS, "{used:?}");
    assert!(play.of(hog).wait_ns < 50 * MS);
}

#[test]
fn timers_fire_in_order_and_at_their_time() {
    let mut play = Play::flat(1);
    play.k.at(5 * MS, 2);
    play.k.at(3 * MS, 1);
    play.k.at(5 * MS, 3);
    play.until(4 * MS);
    assert_eq!(play.timers, [1]);
    play.until(6 * MS);
    assert_eq!(play.timers, [1, 2, 3]);
}

/// Two on one CPU: `debtor` has had more than its share, and blocks; then the other one runs.
fn with_a_debtor(machine: &SimMachine) -> (Kernel, ThreadId, ThreadId) {
    let mut k = Kernel::new(machine, 1);
    let (debtor, other) = (spawn(&mut k), spawn(&mut k));
    let pinned: corewise_decide::cpus::CpuSet = [0].into_iter().collect();
    for t in [debtor, other] {
        k.set_allowed(t, &pinned);
    }
    loop {
        match k.next(S) {
            Some(Event::Ready(t)) if t == debtor && k.thread(t).work_ns == 0 => k.run(t, 3 * MS),
            Some(Event::Ready(t)) if t == debtor => k.block(t, Why::Futex),
            Some(Event::Ready(t)) => break k.run(t, 50 * MS),
            other => panic!("{other:?}"),
        }
    }
    for t in [debtor, other] {
        k.set_allowed(t, &corewise_decide::cpus::CpuSet::first(2));
    }
    (k, debtor, other)
}

#[test]
fn a_sleeper_with_a_debt_wakes_up_where_it_was_although_another_cpu_is_idle() {
    let (mut k, debtor, other) = with_a_debtor(&free(SimMachine::flat(2)));
    k.wake(debtor, Some(other));
    let used = k.thread(debtor);
    assert_eq!(
        (used.state, used.migrations),
        (Some(ThreadState::Waiting), 0)
    );
    assert_eq!(used.lock_ns, 0);
}

#[test]
fn a_sleeper_that_has_paid_its_debt_wakes_up_on_an_idle_cpu() {
    let (mut k, debtor, other) = with_a_debtor(&free(SimMachine::flat(2)));
    assert_eq!(k.next(k.now() + 20 * MS), None);
    k.wake(debtor, Some(other));
    assert_eq!(k.next(S), Some(Event::Ready(debtor)));
    assert_eq!(
        (k.thread(debtor).cpu, k.thread(other).cpu),
        (Some(1), Some(0))
    );
}

#[test]
fn a_debtor_that_may_not_be_where_it_sleeps_goes_elsewhere() {
    let (mut k, debtor, other) = with_a_debtor(&free(SimMachine::flat(2)));
    k.set_allowed(debtor, &[1].into_iter().collect());
    k.wake(debtor, Some(other));
    assert_eq!(k.next(S), Some(Event::Ready(debtor)));
    assert_eq!(k.thread(debtor).cpu, Some(1));
}
