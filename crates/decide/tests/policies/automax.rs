//! `automax`.

use crate::support::waves;
use crate::support::{MS, Made, asked, grants, malleable, rigid};
use corewise_decide::policy::automax::AutoMax;
use corewise_decide::status::{Machine, Request};
use corewise_decide::world::Output;

/// Two malleable programs of one thread each that could have four, on four CPUs.
fn two_small_programs(policy: AutoMax) -> (Made, u64, u64) {
    let mut made = Made::flat(policy, 4);
    let first = made.join(malleable(1, 1));
    let second = made.join(malleable(1, 1));
    made.ask(first, malleable(1, 4));
    made.ask(second, malleable(1, 4));
    // What was free went to the first one that asked.
    assert_eq!(made.has(first), "3 on 0-3");
    assert_eq!(made.has(second), "1 on 0-3");
    (made, first, second)
}

/// Readings every 10 ms until someone is asked.
fn until_asked(made: &mut Made, runnable: u32) -> Output {
    for _ in 0..200 {
        made.now_ns += 10 * MS;
        let outputs = made.read(runnable);
        if let Some(told) = asked(&outputs).first() {
            return (*told).clone();
        }
    }
    panic!("nobody is asked");
}

fn what(told: &Output) -> Request {
    match told {
        Output::Tell { what, .. } => *what,
        _ => panic!("not a request: {told:?}"),
    }
}

#[test]
fn while_cpus_are_free_a_program_is_asked_to_expand_and_gets_a_thread_more() {
    let (mut made, first, second) = two_small_programs(AutoMax::default());
    let told = until_asked(&mut made, 2);
    assert_eq!(what(&told), Request::Expand);
    let program = told.program().unwrap().0;
    let before = made.claim(program).threads;
    let outputs = made.answer(&told, true);
    assert_eq!(grants(&outputs), [(program, before + 1, "0-3".to_owned())]);
    assert_eq!(made.claim(first).threads + made.claim(second).threads, 5);
}

#[test]
fn while_threads_wait_a_program_is_asked_to_shrink_and_gets_a_thread_less() {
    let (mut made, first, _) = two_small_programs(AutoMax::default());
    let told = until_asked(&mut made, 6);
    // The other one has its minimum.
    assert_eq!(
        (told.program().unwrap().0, what(&told)),
        (first, Request::Shrink)
    );
    let outputs = made.answer(&told, true);
    assert_eq!(grants(&outputs), [(first, 2, "0-3".to_owned())]);
}

#[test]
fn within_the_bounds_nothing_is_done() {
    let (mut made, first, _) = two_small_programs(AutoMax::default());
    let outputs = made.run(2_000, &[(first, 3.0)], 1.0);
    assert_eq!(outputs, []);
}

#[test]
fn one_who_refuses_is_followed_by_the_next_and_nobody_is_asked_after_one_has_said_yes() {
    let mut made = Made::flat(AutoMax::default(), 8);
    let programs: Vec<u64> = (0..4).map(|_| made.join(malleable(1, 1))).collect();
    for program in &programs {
        made.ask(*program, malleable(1, 8));
    }
    let mut told = until_asked(&mut made, 1);
    let mut order = vec![told.program().unwrap().0];
    // Three can still grow: the first to ask got all that was free, but not eight.
    for _ in 0..2 {
        let outputs = made.answer(&told, false);
        assert_eq!(grants(&outputs), []);
        told = asked(&outputs)[0].clone();
        order.push(told.program().unwrap().0);
    }
    let outputs = made.answer(&told, true);
    assert_eq!(grants(&outputs).len(), 1);
    assert_eq!(asked(&outputs), Vec::<&Output>::new());
    order.sort_unstable();
    order.dedup();
    assert_eq!(order.len(), 3, "nobody is asked twice in a round");
}

#[test]
fn when_all_refuse_they_are_asked_again_less_and_less_often() {
    let (mut made, _, _) = two_small_programs(AutoMax::default());
    let mut asked_at = Vec::new();
    for _ in 0..400 {
        made.now_ns += 10 * MS;
        let mut outputs = made.read(2);
        while let Some(told) = asked(&outputs).first().map(|o| (*o).clone()) {
            asked_at.push(made.now_ns);
            outputs = made.answer(&told, false);
        }
    }
    // Two programs a round; a round at least every 400 ms and at most every 50.
    let rounds = asked_at.len() / 2;
    assert!((8..=20).contains(&rounds), "{rounds} rounds in 4 s");
}

#[test]
fn different_programs_are_asked_first_and_equal_seeds_ask_the_same() {
    let first_asked = |seed| {
        let policy = AutoMax::new(corewise_decide::policy::automax::Settings::default(), seed);
        let (mut made, _, _) = two_small_programs(policy);
        until_asked(&mut made, 2).program().unwrap().0
    };
    let order: Vec<u64> = (0..20).map(first_asked).collect();
    assert!(order.contains(&1) && order.contains(&2), "{order:?}");
    assert_eq!(order, (0..20).map(first_asked).collect::<Vec<u64>>());
}

#[test]
fn a_program_that_does_not_answer_is_passed_over_and_not_asked_again_until_it_does() {
    let (mut made, _, _) = two_small_programs(AutoMax::default());
    let silent = until_asked(&mut made, 2);
    let next = until_asked(&mut made, 2);
    assert_ne!(silent.program(), next.program());
    made.answer(&next, false);
    let again = until_asked(&mut made, 2);
    assert_eq!(again.program(), next.program());
    made.answer(&again, false);
    // Late, but it says that it has a thread more.
    let outputs = made.answer(&silent, true);
    assert_eq!(grants(&outputs).len(), 1);
}

#[test]
fn a_program_that_leaves_while_it_is_asked_is_followed_by_the_next() {
    let (mut made, first, second) = two_small_programs(AutoMax::default());
    let told = until_asked(&mut made, 2);
    let asked_one = told.program().unwrap().0;
    let outputs = made.leave(asked_one);
    let other = if asked_one == first { second } else { first };
    assert_eq!(asked(&outputs)[0].program().unwrap().0, other);
}

#[test]
fn rigid_programs_have_what_they_want_and_are_not_asked() {
    let mut made = Made::flat(AutoMax::default(), 4);
    let program = made.join(rigid(1, 6));
    assert_eq!(made.has(program), "6 on 0-3");
    assert_eq!(made.run(500, &[(program, 1.0)], 0.0), []);
    assert_eq!(made.run(500, &[(program, 6.0)], 0.0), []);
}

#[test]
fn a_program_on_an_idle_machine_begins_with_all_of_it_and_one_on_a_full_one_with_its_minimum() {
    let mut made = Made::flat(AutoMax::default(), 4);
    let first = made.join(malleable(1, 64));
    let second = made.join(malleable(2, 64));
    assert_eq!(made.has(first), "4 on 0-3");
    assert_eq!(made.has(second), "2 on 0-3");
}

#[test]
fn the_bounds_are_those_of_the_quota() {
    let machine = Machine {
        capacity: 2.0,
        ..Machine::flat(4)
    };
    let mut made = Made::new(AutoMax::default(), machine);
    let program = made.join(malleable(1, 4));
    assert_eq!(made.claim(program).threads, 2);
    made.ask(program, malleable(1, 4));
    assert_eq!(what(&until_asked(&mut made, 3)), Request::Shrink);
}

#[test]
fn the_load_counts_threads_that_wait_and_not_cpu_time() {
    // Both CPUs are busy either way; the third thread waits.
    for (runnable, shrinks) in [(2, false), (3, true)] {
        let mut made = Made::flat(AutoMax::default(), 2);
        made.join(malleable(1, 2));
        let mut all = Vec::new();
        for _ in 0..20 {
            made.now_ns += 10 * MS;
            made.busy_ns += 20 * MS;
            all.extend(made.read(runnable));
        }
        assert_eq!(!asked(&all).is_empty(), shrinks, "{runnable} runnable");
    }
}

#[test]
fn two_crowded_readings_are_enough_to_shrink_and_one_is_not() {
    let asked_after = |crowded: &[u32]| {
        let mut made = Made::flat(AutoMax::default(), 2);
        made.join(malleable(1, 2));
        let mut all = Vec::new();
        for runnable in [2; 20].iter().chain(crowded) {
            made.now_ns += 10 * MS;
            made.busy_ns += 20 * MS;
            all.extend(made.read(*runnable));
        }
        !asked(&all).is_empty()
    };
    assert!(asked_after(&[3, 3]));
    assert!(!asked_after(&[3]));
    assert!(!asked_after(&[3, 2, 3, 2]));
}

#[test]
fn a_program_that_has_not_given_its_thread_up_yet_is_not_asked_for_another() {
    let mut made = Made::flat(AutoMax::default(), 4);
    let program = made.join(malleable(1, 4));
    made.shown.get_mut(&program).unwrap().team = 4;
    let told = until_asked(&mut made, 5);
    made.answer(&told, true);
    // It finishes its work: still four threads.
    for _ in 0..30 {
        made.now_ns += 10 * MS;
        assert_eq!(asked(&made.read(5)), Vec::<&Output>::new());
    }
    made.shown.get_mut(&program).unwrap().team = 3;
    made.now_ns += 10 * MS;
    for _ in 0..100 {
        assert_eq!(made.read(4), []);
        made.now_ns += 10 * MS;
    }
}

#[test]
fn as_in_the_paper_five_seconds_pass_between_rounds() {
    let (mut made, _, _) = two_small_programs(AutoMax::paper());
    let told = until_asked(&mut made, 2);
    made.answer(&told, true);
    let since = made.now_ns;
    let mut outputs = Vec::new();
    while asked(&outputs).is_empty() {
        made.now_ns += 100 * MS;
        outputs = made.read(2);
    }
    let pause = (made.now_ns - since) / MS;
    assert!((5_000..6_000).contains(&pause), "{pause} ms");
}

/// Fig. 5 of the paper, on two CPUs and with jobs of three seconds.
#[test]
fn waves_of_jobs_hardly_cost_the_jobs_nor_the_program_anything() {
    for wave in [
        (1, 5, 0),
        (2, 5, 0),
        (3, 5, 0),
        (1, 40, 7),
        (2, 40, 7),
        (3, 40, 7),
    ] {
        waves::hardly_cost_anything(wave, AutoMax::default(), 1.05);
    }
}
