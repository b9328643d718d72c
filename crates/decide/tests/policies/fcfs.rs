//! `fcfs`.

use crate::support::{Made, grants, malleable, rigid, set};
use corewise_decide::cpus::CpuSet;
use corewise_decide::local::place;
use corewise_decide::policy::Policy;
use corewise_decide::policy::fcfs::Fcfs;
use corewise_decide::status::{LocalRule, Machine};

/// A program that creates one thread after the other; what it has after each.
fn arrives(made: &mut Made, threads: u32) -> (u64, Vec<String>) {
    let program = made.join(rigid(1, 64));
    let mut has = vec![made.has(program)];
    for count in 1..=threads {
        made.threads(program, count);
        has.push(made.has(program));
    }
    (program, has)
}

/// Section 2.1 of REEact's paper, Fig. 2.
#[test]
fn the_papers_example_step_by_step() {
    let mut made = Made::flat(Fcfs::default(), 16);
    let (app1, steps) = arrives(&mut made, 5);
    assert_eq!(
        steps,
        [
            "1 on 0, alone",
            "1 on 0, alone",
            "2 on 0-1, alone",
            "3 on 0-2, alone",
            "4 on 0-3, alone",
            "5 on 0-4, alone"
        ]
    );
    let (app2, _) = arrives(&mut made, 6);
    let (app3, _) = arrives(&mut made, 7);
    assert_eq!(made.has(app1), "5 on 0-4, alone");
    assert_eq!(made.has(app2), "6 on 5-10, alone");
    assert_eq!(made.has(app3), "7 on 11-15, alone");
    assert_eq!(threads_on(&made, app3), [11, 12, 13, 14, 15, 11, 12]);

    // A thread of the first ends: its CPU is offered to the third, whose sixth thread takes it.
    let outputs = made.threads(app1, 4);
    assert_eq!(
        grants(&outputs),
        [(app1, 4, "0-3".to_owned()), (app3, 7, "4,11-15".to_owned())]
    );
    let mut on = threads_on(&made, app3);
    on.sort_unstable();
    assert_eq!(on, [4, 4, 11, 12, 13, 14, 15]);
}

/// The CPU of each of a program's threads by its local manager's rule.
fn threads_on(made: &Made, program: u64) -> Vec<u32> {
    let threads = made.program(program).threads as usize;
    assert_eq!(Fcfs::default().local_rule(), LocalRule::OneEach);
    let places = place(LocalRule::OneEach, &made.claim(program).cpus, threads).unwrap();
    places.iter().flat_map(CpuSet::iter).collect()
}

#[test]
fn a_program_that_asks_gets_as_many_cpus_as_it_wants_threads_and_runs_as_many() {
    let mut made = Made::flat(Fcfs::default(), 8);
    let first = made.join(malleable(1, 5));
    let second = made.join(malleable(1, 5));
    assert_eq!(made.has(first), "5 on 0-4, alone");
    assert_eq!(made.has(second), "3 on 5-7, alone");
    made.ask(first, malleable(1, 2));
    assert_eq!(made.has(first), "2 on 0-1, alone");
    assert_eq!(made.has(second), "5 on 2-3,5-7, alone");
}

#[test]
fn what_a_program_leaves_is_offered_in_the_order_of_arrival() {
    let mut made = Made::flat(Fcfs::default(), 6);
    let first = made.join(rigid(4, 4));
    let second = made.join(rigid(4, 4));
    let third = made.join(rigid(3, 3));
    assert_eq!(made.has(second), "4 on 4-5, alone");
    assert_eq!(made.has(third), "3 on 3");
    made.leave(first);
    // One for the guest, then two for the second, then what is left.
    assert_eq!(made.has(second), "4 on 1-2,4-5, alone");
    assert_eq!(made.has(third), "3 on 0,3, alone");
}

#[test]
fn a_program_without_a_free_cpu_is_a_guest_and_the_first_to_get_one() {
    let mut made = Made::flat(Fcfs::default(), 4);
    let small = made.join(rigid(1, 1));
    let large = made.join(rigid(5, 5));
    let guest = made.join(malleable(1, 2));
    assert_eq!(made.has(small), "1 on 0, alone");
    assert_eq!(made.has(large), "5 on 1-3");
    assert_eq!(made.has(guest), "1 on 3");
    // The large one lacks two CPUs and came earlier; the guest has none.
    made.leave(small);
    assert_eq!(made.has(guest), "1 on 0, alone");
    assert_eq!(made.has(large), "5 on 1-3, alone");
}

#[test]
fn guests_are_spread() {
    let mut made = Made::flat(Fcfs::default(), 2);
    let programs: Vec<u64> = (0..6).map(|_| made.join(rigid(1, 1))).collect();
    let on: Vec<String> = programs.iter().map(|p| made.has(*p)).collect();
    assert_eq!(
        on,
        ["1 on 0", "1 on 1", "1 on 1", "1 on 0", "1 on 1", "1 on 0"]
    );
}

#[test]
fn a_program_that_never_speaks_of_its_threads_is_taken_at_its_word() {
    let mut made = Made::flat(Fcfs::default(), 8);
    let silent = made.join(rigid(1, 3));
    assert_eq!(made.has(silent), "1 on 0, alone");
    made.run(250, &[], 0.0);
    assert_eq!(made.has(silent), "3 on 0-2, alone");
    assert_eq!(made.manager.next_reading_ns(), None);
}

#[test]
fn no_more_cpus_are_given_away_than_the_quota_allows() {
    let machine = Machine {
        capacity: 3.0,
        ..Machine::flat(8)
    };
    let mut made = Made::new(Fcfs::default(), machine);
    let first = made.join(malleable(1, 8));
    let second = made.join(malleable(1, 8));
    assert_eq!(made.has(first), "3 on 0-2, alone");
    // A guest where nobody is.
    assert_eq!(made.has(second), "1 on 7");
}

#[test]
fn cpus_that_a_person_has_filled_are_nobody_elses() {
    let mut made = Made::flat(Fcfs::default(), 4);
    let first = made.join(malleable(1, 4));
    let second = made.join(malleable(1, 4));
    made.set_by_a_person(second, Some((set([0, 1]), 2)));
    assert_eq!(made.has(second), "2 on 0-1");
    assert_eq!(made.has(first), "2 on 2-3, alone");
    made.set_by_a_person(second, None);
    assert_eq!(made.has(second), "1 on 0, alone");
    assert_eq!(made.has(first), "3 on 1-3, alone");
}

#[test]
fn fewer_cpus_are_left_to_those_who_came_first() {
    let mut made = Made::flat(Fcfs::default(), 4);
    let first = made.join(malleable(1, 2));
    let second = made.join(malleable(1, 2));
    made.on(corewise_decide::world::Input::Machine(Machine::flat(2)));
    assert_eq!(made.has(first), "2 on 0-1");
    assert_eq!(made.has(second), "1 on 1");
}
