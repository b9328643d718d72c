//! One CPU is shared fairly.

use super::support::*;
use corewise_sim::kernel::{GroupId, ThreadState};
use corewise_sim::machine::SimMachine;

#[test]
fn one_thread_has_the_cpu_for_itself() {
    let mut play = Play::flat(1);
    let t = play.add(Does::Once(5 * MS));
    play.until(S);
    assert_eq!(play.ended[0], Some(5 * MS));
    let used = play.of(t);
    assert_eq!(
        (used.run_ns, used.wait_ns, used.work_ns),
        (5 * MS, 0, 5 * MS)
    );
    assert_eq!(used.state, Some(ThreadState::Exited));
    assert_eq!(play.k.cpu(0).busy_ns, 5 * MS);
    assert_eq!(play.k.cpu(0).idle_ns, S - 5 * MS);
    assert!(play.k.is_idle());
}

#[test]
fn equal_threads_are_never_apart_by_more_than_a_slice_or_two() {
    for n in [2, 3, 7, 20] {
        let mut play = Play::flat(1);
        let threads: Vec<_> = (0..n).map(|_| play.add(Does::Hog)).collect();
        for step in 1..40 {
            play.until(step * 50 * MS);
            let ran = threads.iter().map(|t| play.of(*t).run_ns);
            let (least, most) = (ran.clone().min().unwrap(), ran.max().unwrap());
            // A slice ends at the first tick after it.
            assert!(most - least <= 2 * 4 * MS, "{n}: {least} {most}");
        }
    }
}

#[test]
fn slices_end_at_ticks() {
    let mut play = Play::flat(1);
    let a = play.add(Does::Hog);
    let b = play.add(Does::Hog);
    play.until(S);
    let switches = play.of(a).involuntary + play.of(b).involuntary;
    assert!((240..=251).contains(&switches), "{switches} in 250 ticks");
}

#[test]
fn a_sleeper_is_served_soon_beside_a_hog() {
    let mut play = Play::flat(1);
    let hog = play.add(Does::Hog);
    let sleeper = play.add(Does::Rests(100_000, 20 * MS));
    play.until(10 * S);
    let used = play.of(sleeper);
    let turns = used.voluntary;
    assert!(turns > 450, "{turns}");
    assert!(used.wait_ns / turns < MS, "{} each", used.wait_ns / turns);
    assert!(near(play.of(hog).run_ns, 10 * S - used.run_ns, 1));
}

#[test]
fn a_light_user_gets_all_that_it_asks_for() {
    let mut play = Play::flat(1);
    let light = play.add(Does::Rests(2 * MS, 8 * MS));
    let _hogs = [play.add(Does::Hog), play.add(Does::Hog)];
    play.until(10 * S);
    // It wants a fifth, and a third is its share.
    let share = play.of(light).run_ns as f64 / (10 * S) as f64;
    assert!(share > 0.13, "{share}");
}

#[test]
fn a_shorter_slice_has_its_turns_more_often() {
    let turns = |slice: u64| {
        let mut play = Play::flat(1);
        let threads: Vec<_> = (0..4).map(|_| play.add(Does::Hog)).collect();
        threads.iter().for_each(|t| play.k.set_slice(*t, 24 * MS));
        play.k.set_slice(threads[0], slice);
        play.until(5 * S);
        assert!(near(play.of(threads[0]).run_ns, 5 * S / 4, 3));
        play.of(threads[0]).involuntary
    };
    let (short, long) = (turns(0), turns(24 * MS));
    assert!(short > 2 * long, "{short} {long}");
}

#[test]
fn a_long_slice_switches_less() {
    let switches = |slice: u64| {
        let mut play = Play::flat(1);
        let threads: Vec<_> = (0..3).map(|_| play.add(Does::Hog)).collect();
        threads.iter().for_each(|t| play.k.set_slice(*t, slice));
        play.until(5 * S);
        threads.iter().map(|t| play.of(*t).involuntary).sum::<u64>()
    };
    assert!(switches(50 * MS) * 5 < switches(0));
}

#[test]
fn one_that_yields_leaves_the_cpu_to_one_that_works() {
    let mut play = Play::flat(1);
    let spinner = play.add(Does::SpinsYielding);
    let hog = play.add(Does::Hog);
    play.until(5 * S);
    assert!(play.of(spinner).run_ns < play.of(hog).run_ns / 10);
    assert!(play.of(spinner).spin_ns > 0);
}

#[test]
fn yielding_does_not_help_a_neighbour_in_another_group() {
    let mut play = Play::flat(1);
    let group = play.k.add_group(1024, None);
    let spinner = play.add_to(Does::SpinsYielding, group, &cpus(&[0]));
    let hog = play.add_to(Does::Hog, GroupId::ROOT, &cpus(&[0]));
    play.until(5 * S);
    assert!(near(play.of(spinner).run_ns, play.of(hog).run_ns, 3));
}

#[test]
fn those_who_only_yield_take_turns_and_time_passes() {
    let mut play = Play::flat(1);
    let a = play.add(Does::SpinsYielding);
    let b = play.add(Does::SpinsYielding);
    let c = play.add(Does::Yields(1));
    play.until(100 * MS);
    let ran: u64 = [a, b, c].iter().map(|t| play.of(*t).run_ns).sum();
    assert_eq!(ran, 100 * MS);
    assert!(play.k.events() < 400_000, "{}", play.k.events());
}

#[test]
fn a_switch_costs_those_who_switch() {
    let machine = SimMachine::flat(1);
    let mut play = Play::on(&machine);
    let threads = [play.add(Does::Hog), play.add(Does::Hog)];
    play.until(S);
    let stalls: u64 = threads.iter().map(|t| play.of(*t).stall_ns).sum();
    let switches: u64 = threads.iter().map(|t| play.of(*t).involuntary).sum();
    assert!(
        near(stalls, switches * machine.costs.switch_ns, 3),
        "{stalls} {switches}"
    );
    for t in threads {
        let used = play.of(t);
        assert!(near(used.work_ns + used.stall_ns, used.run_ns, 1));
    }
}
