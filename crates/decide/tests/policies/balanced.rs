//! `balanced`.

use crate::support::waves;
use crate::support::{MS, Made, grants, malleable, rigid, set};
use corewise_decide::policy::balanced::Balanced;
use corewise_decide::status::{CpuPlace, Machine, Placement, Wants};
use corewise_decide::world::Output;

fn made(cpus: u32) -> Made {
    Made::flat(Balanced::default(), cpus)
}

/// It has been read often enough that it is known that nothing else runs.
fn nothing_else_runs(made: &mut Made) {
    made.run(50, &[], 0.0);
}

#[test]
fn an_idle_machine_is_one_programs_whole() {
    let mut made = made(8);
    let program = made.join(malleable(1, 64));
    assert_eq!(made.has(program), "8 on 0-7");
    nothing_else_runs(&mut made);
    assert_eq!(made.has(program), "8 on 0-7, alone");
    assert_eq!(made.run(3_000, &[(program, 8.0)], 0.0), []);
}

#[test]
fn programs_share_what_they_can_use_and_have_cpus_of_their_own() {
    let mut made = made(8);
    let first = made.join(malleable(1, 64));
    nothing_else_runs(&mut made);
    let second = made.join(malleable(1, 2));
    let third = made.join(malleable(1, 64));
    assert_eq!(made.has(first), "3 on 0-2, alone");
    assert_eq!(made.has(second), "2 on 6-7, alone");
    assert_eq!(made.has(third), "3 on 3-5, alone");
}

#[test]
fn what_a_program_leaves_goes_to_the_others_at_once_and_they_keep_what_they_had() {
    let mut made = made(8);
    let first = made.join(malleable(1, 64));
    nothing_else_runs(&mut made);
    let second = made.join(malleable(1, 64));
    assert_eq!(made.has(first), "4 on 0-3, alone");
    assert_eq!(made.has(second), "4 on 4-7, alone");
    let third = made.join(malleable(1, 64));
    let outputs = made.leave(third);
    assert_eq!(made.has(first), "4 on 0-3, alone");
    assert_eq!(made.has(second), "4 on 4-7, alone");
    assert!(grants(&outputs).len() <= 2);
    made.leave(first);
    assert_eq!(made.has(second), "8 on 0-7, alone");
}

#[test]
fn a_program_that_changes_nothing_for_another_leaves_its_claim_alone() {
    let mut made = made(8);
    let first = made.join(malleable(1, 2));
    made.join(malleable(1, 2));
    let claim = made.has(first);
    let third = made.join(malleable(1, 2));
    assert_eq!(made.has(first), claim);
    made.leave(third);
    assert_eq!(made.has(first), claim);
}

#[test]
fn nobody_has_less_than_their_minimum_and_where_that_is_too_much_all_share_all_cpus() {
    let mut made = made(4);
    let programs: Vec<u64> = (0..6).map(|_| made.join(malleable(1, 8))).collect();
    for program in programs {
        assert_eq!(made.has(program), "1 on 0-3");
    }
    let large = made.join(malleable(3, 8));
    assert_eq!(made.has(large), "3 on 0-3");
}

#[test]
fn a_rigid_program_is_left_room_when_it_joins_and_for_further_threads_when_they_run() {
    let mut made = made(8);
    let flexible = made.join(malleable(1, 8));
    nothing_else_runs(&mut made);
    let fixed = made.join(rigid(3, 3));
    assert_eq!(made.has(flexible), "5 on 0-4, alone");
    assert_eq!(made.has(fixed), "3 on 5-7, alone");
    made.threads(fixed, 3);
    // One that reads and one that writes, say: they hardly run.
    made.threads(fixed, 5);
    assert_eq!(made.has(flexible), "5 on 0-4, alone");
    made.run(500, &[(flexible, 5.0), (fixed, 5.0)], 0.0);
    assert_eq!(made.claim(flexible).threads, 3);
    // What its further threads used might be another's.
    made.leave(fixed);
    assert_eq!(made.claim(flexible).threads, 6);
    made.run(1_000, &[(flexible, 6.0)], 0.0);
    assert_eq!(made.claim(flexible).threads, 8);
}

#[test]
fn a_rigid_program_that_could_be_anything_gets_its_share_and_keeps_it() {
    let mut made = made(8);
    let first = made.join(malleable(1, 8));
    let fixed = made.join(rigid(1, 64));
    assert_eq!(made.claim(fixed).threads, 4);
    made.leave(first);
    assert_eq!(made.claim(fixed).threads, 4);
}

#[test]
fn threads_of_a_rigid_program_that_sleep_are_not_left_room_for_long() {
    let mut made = made(4);
    let flexible = made.join(malleable(1, 4));
    let fixed = made.join(rigid(3, 3));
    made.threads(fixed, 3);
    assert_eq!(made.claim(flexible).threads, 1);
    made.run(1_000, &[(flexible, 1.0), (fixed, 1.0)], 0.0);
    assert_eq!(made.has(flexible), "3 on 0-3");
    // It stays so, although not everybody's threads have a CPU of their own.
    assert_eq!(
        grants(&made.run(2_000, &[(flexible, 3.0), (fixed, 1.0)], 0.0)),
        []
    );
    // They wake up: their room is back.
    made.run(500, &[(flexible, 3.0), (fixed, 3.0)], 0.0);
    assert_eq!(made.claim(flexible).threads, 1);
}

#[test]
fn threads_that_come_and_go_do_not_move_others() {
    let mut made = made(8);
    let flexible = made.join(malleable(1, 8));
    let fixed = made.join(rigid(2, 2));
    made.threads(fixed, 1);
    made.threads(fixed, 2);
    let mut outputs = Vec::new();
    for _ in 0..50 {
        outputs.extend(made.threads(fixed, 1));
        outputs.extend(made.threads(fixed, 2));
    }
    assert_eq!(grants(&outputs), []);
    assert_eq!(made.claim(flexible).threads, 6);
}

#[test]
fn a_busy_neighbour_takes_a_thread_and_gives_it_back() {
    let mut made = made(4);
    let program = made.join(malleable(1, 4));
    made.run(1_000, &[(program, 4.0)], 0.0);
    made.run(400, &[(program, 4.0)], 1.0);
    assert_eq!(made.has(program), "3 on 0-3");
    assert_eq!(grants(&made.run(2_000, &[(program, 3.0)], 1.0)), []);
    made.run(600, &[(program, 3.0)], 0.0);
    assert_eq!(made.claim(program).threads, 4);
}

#[test]
fn a_program_that_follows_slowly_is_not_taken_for_a_neighbour() {
    let mut made = made(4);
    let program = made.join(malleable(1, 4));
    made.run(1_000, &[(program, 4.0)], 0.0);
    let mut threads = 4;
    // It says nothing of its threads, and gives one up 60 ms after it should.
    for _ in 0..100 {
        made.now_ns += 10 * MS;
        made.busy_ns += 40 * MS;
        let share = 40 * MS / u64::from(threads + 1);
        made.shown.get_mut(&program).unwrap().run_ns += share * u64::from(threads);
        made.read(threads + 1);
        let granted = made
            .journal
            .iter()
            .rev()
            .find(|e| !grants(&e.outputs).is_empty());
        if made.now_ns - granted.unwrap().time_ns == 60 * MS {
            threads = made.claim(program).threads;
        }
    }
    assert_eq!(made.claim(program).threads, 3);
}

#[test]
fn a_busy_neighbour_never_takes_more_than_what_is_above_the_minimum() {
    let mut made = made(4);
    let program = made.join(malleable(2, 4));
    made.run(1_000, &[(program, 4.0)], 6.0);
    assert_eq!(made.claim(program).threads, 2);
}

/// From simulated scenarios: jobs were kept on CPUs on which processes ran that had not been seen yet.
#[test]
fn nobody_has_cpus_of_their_own_before_it_is_known_that_nothing_else_runs() {
    let mut made = made(8);
    let jobs: Vec<u64> = (0..3).map(|_| made.join(rigid(1, 1))).collect();
    let uses: Vec<(u64, f64)> = jobs.iter().map(|job| (*job, 1.0)).collect();
    made.run(1_000, &uses, 2.0);
    for job in &jobs {
        assert_eq!(made.has(*job), "1 on 0-7");
    }
    made.run(1_500, &uses, 0.0);
    for (cpu, job) in jobs.iter().enumerate() {
        assert_eq!(made.has(*job), format!("1 on {cpu}, alone"));
    }
}

/// Nobody's CPU time can be read here: there is only the run queue.
#[test]
fn a_neighbour_that_pauses_for_a_moment_keeps_its_room() {
    let mut made = made(4);
    let program = made.join(malleable(1, 4));
    made.shown.remove(&program);
    made.run(500, &[(program, 4.0)], 1.0);
    assert_eq!(made.claim(program).threads, 3);
    let mut outputs = Vec::new();
    for _ in 0..20 {
        outputs.extend(made.run(60, &[(program, 4.0)], 0.0));
        outputs.extend(made.run(140, &[(program, 4.0)], 1.0));
    }
    assert_eq!(grants(&outputs), []);
    made.run(500, &[(program, 4.0)], 0.0);
    assert_eq!(made.claim(program).threads, 4);
}

#[test]
fn what_runs_for_a_moment_changes_nothing() {
    let mut made = made(4);
    let program = made.join(malleable(1, 4));
    made.run(500, &[(program, 4.0)], 0.0);
    let mut outputs = Vec::new();
    for _ in 0..20 {
        outputs.extend(made.run(15, &[(program, 4.0)], 1.0));
        outputs.extend(made.run(85, &[(program, 4.0)], 0.0));
    }
    assert_eq!(grants(&outputs), []);
}

#[test]
fn beside_a_busy_neighbour_all_share_all_cpus_and_have_their_own_again_when_it_is_gone() {
    let mut made = made(4);
    let first = made.join(malleable(1, 4));
    let second = made.join(malleable(1, 4));
    let uses = [(first, 2.0), (second, 2.0)];
    made.run(1_000, &uses, 0.0);
    assert_eq!(made.has(first), "2 on 0-1, alone");
    made.run(500, &uses, 1.0);
    assert_eq!(
        (made.has(first), made.has(second)),
        ("2 on 0-3".into(), "1 on 0-3".into())
    );
    made.run(2_000, &[(first, 4.0), (second, 4.0)], 0.0);
    assert_eq!(made.has(first), "2 on 0-1, alone");
    assert_eq!(made.has(second), "2 on 2-3, alone");
}

#[test]
fn what_a_program_says_that_it_cannot_use_goes_to_others_if_it_lasts() {
    let mut made = made(8);
    let first = made.join(malleable(1, 8));
    let second = made.join(malleable(1, 8));
    let uses = [(first, 1.0), (second, 4.0)];
    made.shown.get_mut(&first).unwrap().could_use = 1;
    made.run(60, &uses, 0.0);
    assert_eq!(made.claim(second).threads, 4);
    // First it is lent; when it has lasted, the other one has it.
    made.run(500, &uses, 0.0);
    assert!(made.claim(second).threads >= 7);
    made.run(1_500, &uses, 0.0);
    assert_eq!(made.claim(first).threads, 1);
    assert!(made.claim(second).threads >= 7);
    // It can use more again: at the next reading.
    made.shown.get_mut(&first).unwrap().could_use = 8;
    made.run(300, &uses, 0.0);
    assert!(made.claim(first).threads >= 4);
}

#[test]
fn alone_a_program_keeps_what_it_cannot_use_at_present() {
    let mut made = made(8);
    let program = made.join(malleable(1, 8));
    made.shown.get_mut(&program).unwrap().could_use = 1;
    assert_eq!(grants(&made.run(2_000, &[(program, 1.0)], 0.0)), []);
    assert_eq!(grants(&made.run(2_000, &[(program, 0.0)], 0.0)), []);
    assert_eq!(made.claim(program).threads, 8);
}

/// From simulated scenarios: a team whose regions alternate with serial parts left CPUs idle.
#[test]
fn what_a_program_leaves_idle_for_moments_is_lent_to_others_and_it_keeps_its_number() {
    let mut made = made(4);
    let first = made.join(malleable(1, 4));
    let second = made.join(malleable(1, 4));
    let mut changes = 0;
    for _ in 0..20 {
        // A serial part, too short for threads to be taken away, and a region.
        changes += grants(&made.run(60, &[(first, 1.0), (second, 4.0)], 0.0)).len();
        changes += grants(&made.run(60, &[(first, 4.0), (second, 4.0)], 0.0)).len();
        assert!(made.claim(first).threads >= 2);
    }
    assert!(made.claim(second).threads >= 3);
    assert!(changes <= 6, "{changes}");
    // It works all the time: what was lent is given back.
    made.run(5_000, &[(first, 4.0), (second, 4.0)], 0.0);
    assert_eq!(made.has(second), "2 on 2-3, alone");
}

/// From simulated scenarios: what had only been a gap of one program was given and taken again and again.
#[test]
fn what_is_needed_again_is_lent_for_longer() {
    let mut made = made(4);
    let first = made.join(malleable(1, 4));
    let second = made.join(malleable(1, 4));
    let mut changes = Vec::new();
    for _ in 0..10 {
        let mut outputs = made.run(300, &[(first, 1.0), (second, 4.0)], 0.0);
        outputs.extend(made.run(3_000, &[(first, 4.0), (second, 4.0)], 0.0));
        changes.push(grants(&outputs).len());
    }
    assert!(changes[6..].iter().all(|c| *c <= 1), "{changes:?}");
    assert!(made.claim(first).threads + made.claim(second).threads > 4);
}

/// From simulated scenarios: two programs had one thread each for every CPU, with which they got less of
/// the CPUs than one rigid program that spun.
#[test]
fn beside_a_rigid_program_with_a_thread_for_each_cpu_everybody_has_as_many() {
    let mut made = made(4);
    let fixed = made.join(rigid(4, 4));
    made.threads(fixed, 4);
    let first = made.join(malleable(1, 4));
    let second = made.join(malleable(1, 64));
    for program in [first, second] {
        assert_eq!(made.has(program), "4 on 0-3");
    }
}

#[test]
fn in_a_group_of_its_own_a_program_that_spins_has_its_share_of_threads_beside_a_rigid_one() {
    let mut made = made(4);
    let fixed = made.join_in(Some("a"), rigid(4, 4));
    made.threads(fixed, 4);
    let apart = made.join_in(Some("b"), malleable(1, 4));
    assert_eq!(made.has(apart), "4 on 0-3");
    made.spins(apart);
    assert_eq!(made.has(apart), "2 on 0-3");
    // Beside one in the same group it has its part by its threads.
    let together = made.join_in(Some("b"), rigid(1, 1));
    made.threads(together, 1);
    assert_eq!(made.has(apart), "4 on 0-3");
    made.leave(together);
    assert_eq!(made.has(apart), "2 on 0-3");
    made.leave(fixed);
    made.run(1_000, &[(apart, 2.0)], 0.0);
    assert_eq!(made.claim(apart).threads, 4);
}

#[test]
fn a_rigid_program_that_would_leave_too_little_has_to_share() {
    let mut made = made(16);
    let fixed = made.join(rigid(12, 12));
    nothing_else_runs(&mut made);
    made.threads(fixed, 12);
    let flexible = made.join(malleable(1, 16));
    // Half of its fair share at least: that is enough.
    assert_eq!(made.has(flexible), "4 on 12-15, alone");
    made.run(500, &[(flexible, 4.0), (fixed, 16.0)], 0.0);
    assert_eq!(made.has(flexible), "16 on 0-15");
    // That threads of the rigid one wait for others that have no CPU does not mean that they need none.
    let outputs = made.run(3_000, &[(flexible, 13.0), (fixed, 3.0)], 0.0);
    assert_eq!(grants(&outputs), []);
    made.leave(fixed);
    made.run(1_000, &[(flexible, 12.0)], 0.0);
    assert_eq!(made.claim(flexible).threads, 16);
}

#[test]
fn room_of_a_rigid_program_that_has_left_is_nobodys() {
    let mut made = made(8);
    let flexible = made.join(malleable(1, 8));
    let fixed = made.join(rigid(4, 4));
    made.threads(fixed, 4);
    // It uses only half of the time, but sometimes all of its threads.
    made.run(60, &[(flexible, 4.0), (fixed, 2.0)], 0.0);
    made.leave(fixed);
    assert_eq!(made.claim(flexible).threads, 8);
}

#[test]
fn threads_that_work_by_fits_and_starts_do_not_move_others_for_ever() {
    let mut made = made(8);
    let flexible = made.join(malleable(1, 8));
    let fixed = made.join(rigid(4, 4));
    made.threads(fixed, 4);
    let mut changes = Vec::new();
    for _ in 0..20 {
        let mut outputs = made.run(300, &[(flexible, 8.0), (fixed, 0.0)], 0.0);
        outputs.extend(made.run(100, &[(flexible, 8.0), (fixed, 4.0)], 0.0));
        changes.push(grants(&outputs).len());
    }
    let late: usize = changes[10..].iter().sum();
    assert!(late <= 12, "{changes:?}");
}

#[test]
fn a_program_that_sleeps_leaves_its_share_to_others_until_it_wakes_up() {
    let mut made = made(2);
    let server = made.join(malleable(1, 2));
    let batch = made.join(malleable(1, 2));
    assert_eq!(made.claim(batch).threads, 1);
    made.run(1_000, &[(server, 0.01), (batch, 2.0)], 0.0);
    assert_eq!(
        (made.claim(server).threads, made.claim(batch).threads),
        (1, 2)
    );
    made.run(200, &[(server, 1.0), (batch, 2.0)], 0.0);
    assert_eq!(
        (made.claim(server).threads, made.claim(batch).threads),
        (1, 1)
    );
    made.run(1_500, &[(server, 1.0), (batch, 2.0)], 0.0);
    assert!(made.claim(server).cpus.is_disjoint(&made.claim(batch).cpus));
}

#[test]
fn a_neighbour_is_seen_beside_programs_that_sleep() {
    let mut made = made(4);
    let server = made.join(malleable(1, 4));
    let batch = made.join(malleable(1, 4));
    made.run(1_000, &[(server, 0.0), (batch, 4.0)], 0.0);
    assert_eq!(made.claim(batch).threads, 4);
    made.run(150, &[(server, 0.0), (batch, 4.0)], 1.0);
    assert_eq!(made.claim(batch).threads, 3);
}

#[test]
fn under_a_quota_there_are_no_more_threads_than_it_allows() {
    let machine = Machine {
        capacity: 3.0,
        ..Machine::flat(8)
    };
    let mut made = Made::new(Balanced::default(), machine);
    let first = made.join(malleable(1, 8));
    assert_eq!(made.claim(first).threads, 3);
    let second = made.join(malleable(1, 8));
    assert_eq!(made.claim(first).threads + made.claim(second).threads, 3);
}

#[test]
fn a_persons_claim_is_left_alone_and_its_cpus_are_used() {
    let mut made = made(8);
    let first = made.join(malleable(1, 8));
    nothing_else_runs(&mut made);
    let second = made.join(malleable(1, 8));
    made.set_by_a_person(first, Some((set([6, 7]), 2)));
    assert_eq!(made.has(first), "2 on 6-7");
    assert_eq!(made.claim(second).cpus, set(0..6));
    assert_eq!(made.claim(second).threads, 6);
    made.set_by_a_person(first, None);
    assert_eq!(made.claim(first).threads + made.claim(second).threads, 8);
    assert!(made.claim(first).cpus.is_disjoint(&made.claim(second).cpus));
}

#[test]
fn a_placement_is_followed_even_if_the_machine_is_empty() {
    let place = |cpu: u32| CpuPlace {
        cpu,
        core: cpu,
        l2: cpu,
        l3: cpu / 4,
        node: cpu / 4,
        package: 0,
    };
    let machine = Machine {
        places: (0..8).map(place).collect(),
        ..Machine::flat(8)
    };
    for (placement, cpus) in [
        (Placement::Scatter, "0-1,4-5"),
        (Placement::Compact, "0-3"),
        (Placement::Any, "0-7"),
    ] {
        let mut made = Made::new(Balanced::default(), machine.clone());
        let program = made.join(Wants {
            placement,
            ..malleable(1, 4)
        });
        nothing_else_runs(&mut made);
        assert_eq!(made.claim(program).cpus.to_string(), cpus, "{placement:?}");
    }
}

#[test]
fn readings_come_often_after_a_change_and_seldom_when_nothing_changes() {
    let mut made = made(4);
    let program = made.join(malleable(1, 4));
    let period = |made: &Made| made.manager.next_reading_ns().unwrap() - made.now_ns;
    made.read(4);
    assert_eq!(period(&made), 10 * MS);
    made.run(2_000, &[(program, 4.0)], 0.0);
    let before = made.journal.len();
    made.run(1_000, &[(program, 4.0)], 0.0);
    assert!(made.journal.len() - before <= 5);
    made.join(malleable(1, 4));
    let since = made.now_ns;
    for _ in 0..5 {
        made.now_ns = made.manager.next_reading_ns().unwrap().max(made.now_ns);
        made.read(4);
    }
    assert!(made.now_ns - since <= 400 * MS);
}

#[test]
fn every_grant_says_why() {
    let mut made = made(4);
    let program = made.join(malleable(1, 4));
    nothing_else_runs(&mut made);
    made.join(rigid(1, 1));
    made.leave(2);
    made.run(500, &[(program, 4.0)], 1.0);
    let outputs = made.journal.iter().flat_map(|e| &e.outputs);
    let reasons: Vec<&str> = outputs
        .filter_map(|o| match o {
            Output::Grant { reason, .. } => Some(reason.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(
        reasons,
        [
            "it can use 4 threads and no more",
            "3 of the 4 CPUs that 2 programs share; 1 CPU for rigid and unmanaged threads; on CPUs of its own",
            "rigid: room is left for its 1 thread; on CPUs of its own",
            "it can use 4 threads and no more",
            "alone: all that is left, 3 CPUs; 1 CPU for rigid and unmanaged threads",
        ]
    );
}

#[test]
fn waves_of_jobs_hardly_cost_the_jobs_nor_the_program_anything() {
    for wave in [(1, 5, 0), (2, 5, 0), (3, 5, 0), (1, 40, 7), (2, 40, 7)] {
        waves::hardly_cost_anything(wave, Balanced::default(), 1.06);
    }
}
