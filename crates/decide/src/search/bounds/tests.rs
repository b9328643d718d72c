//! Scenarios: programs given as models, machines given as numbers.

use super::*;

/// What a program would show with a setting.
type Program<'a> = &'a dyn Fn(Setting) -> Profile;

fn profile(setting: Setting, cpu_util: f64, spin: f64, idle: f64, others: f64) -> Profile {
    Profile {
        setting,
        window_ns: 250_000_000,
        startup_ns: 0,
        whole_run_ns: None,
        parallel: true,
        cpu_util,
        spin: Some(spin),
        cpu_wait: (f64::from(setting.threads) - cpu_util - idle).max(0.0),
        lock: 0.0,
        vcx_rate: 0.0,
        icx_rate: 0.0,
        migration_rate: 0.0,
        regions: None,
        region_times: Vec::new(),
        others,
        idle,
        active_threads: setting.threads,
        busiest: 0.0,
        critical_threads: 0,
        relative_error: 0.01,
    }
}

fn run(space: Space, program: Program<'_>) -> (Vec<Setting>, Choice) {
    let mut search = BoundSearch::new(space);
    let mut tried = Vec::new();
    let mut step = search.start();
    loop {
        match step {
            Step::Try(trial) => {
                tried.push(trial.setting);
                assert!(tried.len() < 100, "the search does not end: {tried:?}");
                step = search.next(Outcome::Seen(program(trial.setting)));
            }
            Step::Done(choice) => return (tried, choice),
        }
    }
}

/// A program of which `parallel` of one CPU second can use any number of threads, the rest one; after
/// Amdahl, with threads sleeping while they wait.
fn amdahl(parallel: f64, cpus: f64) -> impl Fn(Setting) -> Profile {
    move |s| {
        let n = f64::from(s.threads).min(cpus);
        let speed = 1.0 / (1.0 - parallel + parallel / n);
        profile(s, speed, 0.0, cpus - speed, 0.0)
    }
}

#[test]
fn a_program_that_keeps_all_cpus_at_work_needs_one_probe() {
    let (tried, choice) = run(Space::for_cpus(2.0), &|s| profile(s, 1.98, 0.0, 0.02, 0.0));
    assert_eq!(tried, [Setting::threads(2)]);
    assert_eq!(choice.setting, Setting::threads(2));
    assert_eq!(choice.stop, StopReason::Saturated);
    assert!(choice.confidence > 0.9);
}

#[test]
fn a_spinner_beside_a_neighbour_is_given_the_cpu_that_is_free() {
    // Two threads on two CPUs beside a hog: each waits in a loop for the one without a CPU.
    let space = Space {
        others: 1.0,
        ..Space::for_cpus(2.0)
    };
    let (_, choice) = run(space, &|s| match s.threads {
        1 => profile(s, 1.0, 0.0, 0.0, 1.0),
        _ => profile(s, 1.3, 1.0, 0.0, 0.7),
    });
    assert_eq!(choice.setting, Setting::threads(1));
}

#[test]
fn beside_a_neighbour_of_another_group_no_more_threads_are_chosen_than_the_own_group_has_cpus() {
    // For the length of a window the second thread has a third of the neighbour's CPU.
    let window = |s: Setting| match s.threads {
        1 => profile(s, 1.0, 0.0, 0.0, 1.0),
        _ => profile(s, 1.33, 0.0, 0.0, 0.67),
    };
    let beside = |fair| Space {
        others: 1.0,
        fair,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(beside(1.0), &window);
    assert_eq!(choice.setting, Setting::threads(1), "{tried:?}");
    let (_, choice) = run(beside(2.0), &window);
    assert_eq!(choice.setting, Setting::threads(2), "in its own group");
    // The neighbour has gone by the time of the first window.
    let (_, choice) = run(beside(1.0), &|s| {
        profile(s, f64::from(s.threads), 0.0, 0.0, 0.0)
    });
    assert_eq!(choice.setting, Setting::threads(2), "nobody there any more");
}

#[test]
fn where_the_kernel_denies_a_group_its_share_more_threads_may_get_it() {
    // Beside a database server: one thread has a third of a CPU, two have what one should have.
    let space = Space {
        others: 2.0,
        fair: 1.0,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(space, &|s| match s.threads {
        1 => profile(s, 0.35, 0.0, 0.0, 1.65),
        _ => profile(s, 0.95, 0.0, 0.0, 1.05),
    });
    assert_eq!(choice.setting, Setting::threads(2), "{tried:?}");
}

#[test]
fn half_of_a_large_machine_is_left_beside_a_group_that_wants_all() {
    let space = Space {
        others: 24.0,
        fair: 12.0,
        ..Space::for_cpus(24.0)
    };
    let (_, choice) = run(space, &|s| {
        let cpus = f64::from(s.threads).min(12.0);
        profile(s, cpus, 0.0, 0.0, 24.0 - cpus)
    });
    assert_eq!(choice.setting, Setting::threads(12));
}

#[test]
fn waiting_passively_is_chosen_when_it_recovers_what_spinning_wastes() {
    let space = Space {
        passive: true,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(space, &|s| match s.wait {
        WaitPolicy::Passive => profile(s, 1.8, 0.0, 0.2, 0.0),
        WaitPolicy::Default => profile(s, 2.0, 0.6, 0.0, 0.0),
    });
    assert_eq!(choice.setting, Setting::passive(2), "{tried:?}");
}

#[test]
fn passive_waiting_is_not_tried_where_nobody_spins() {
    let space = Space {
        passive: true,
        ..Space::for_cpus(4.0)
    };
    let (tried, _) = run(space, &|s| {
        profile(s, f64::from(s.threads).min(4.0), 0.0, 0.0, 0.0)
    });
    assert_eq!(tried, [Setting::threads(4)]);
}

#[test]
fn a_pipeline_that_leaves_cpus_idle_is_given_more_threads() {
    // ferret: with n threads a stage, only the ranking stage's are busy.
    let (_, choice) = run(Space::for_cpus(24.0), &|s| {
        let busy = (0.6 * f64::from(s.threads)).min(24.0);
        profile(s, busy, 0.0, 24.0 - busy, 0.0)
    });
    assert!(choice.setting.threads > 24, "{choice:?}");
}

#[test]
fn no_more_threads_than_cpus_beside_a_neighbour() {
    let space = Space {
        others: 1.0,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(space, &|s| {
        let n = f64::from(s.threads);
        let cpu = (2.0 * n / (n + 1.0)).min(n);
        profile(s, cpu, 0.0, 0.0, 2.0 - cpu)
    });
    assert_eq!(choice.setting, Setting::threads(2));
    assert!(tried.iter().all(|s| s.threads <= 2), "{tried:?}");
}

#[test]
fn where_more_threads_won_nothing_still_more_are_not_tried() {
    // Ten CPUs' work, however many threads: the rest of the time all wait for a device.
    let (tried, choice) = run(Space::for_cpus(24.0), &|s| {
        let busy = f64::from(s.threads.min(10));
        profile(s, busy, 0.0, 24.0 - busy, 0.0)
    });
    assert_eq!(tried, [24, 36].map(Setting::threads));
    assert_eq!(choice.setting, Setting::threads(24));
}

#[test]
fn threads_go_on_being_added_where_each_wins_something() {
    // A pipeline whose slow stage is served better by each thread more.
    let (tried, choice) = run(Space::for_cpus(24.0), &|s| {
        let busy = f64::from(s.threads).min(48.0) / 2.0 * 0.98;
        profile(s, busy, 0.0, 24.0 - busy, 0.0)
    });
    assert!(tried.len() <= 3, "{tried:?}");
    assert_eq!(choice.setting, Setting::threads(48));
}

#[test]
fn slowly_rising_curves_do_not_stop_the_search_early() {
    // canneal and blackscholes: 3.6 and 4.9 times as fast with 41 and 33 threads; climbing searches
    // stop at 9 with 2.9 and 3.7.
    for parallel in [0.75, 0.83] {
        let program = amdahl(parallel, 24.0);
        let (tried, choice) = run(Space::for_cpus(24.0), &program);
        let found = program(choice.setting).cpu_util;
        let best = (1..=48).map(|n| program(Setting::threads(n)).cpu_util);
        let best = best.fold(0.0, f64::max);
        assert!(
            found >= 0.95 * best,
            "{parallel}: {choice:?} after {tried:?}"
        );
        assert!(tried.len() <= 6);
    }
}

#[test]
fn a_contended_lock_is_relieved_by_fewer_threads() {
    // facesim: fastest with 16 of 24; the more threads queue, the more they switch.
    let curve = |n: f64| n / (1.0 + 0.08 * (n - 1.0) + 0.0045 * n * (n - 1.0));
    let program = |s: Setting| {
        let useful = curve(f64::from(s.threads).min(48.0));
        Profile {
            lock: 1.0 - useful / f64::from(s.threads),
            ..profile(s, useful, 0.0, 24.0 - useful, 0.0)
        }
    };
    let (tried, choice) = run(Space::for_cpus(24.0), &program);
    let found = curve(f64::from(choice.setting.threads));
    let best = (1..=48).map(|n| curve(f64::from(n))).fold(0.0, f64::max);
    assert!(found >= 0.95 * best, "{choice:?} after {tried:?}");
}

#[test]
fn share_uses_no_more_threads_than_cpus_are_idle() {
    let space = Space {
        others: 5.0,
        objective: Objective::Share,
        ..Space::for_cpus(8.0)
    };
    let (tried, choice) = run(space, &|s| profile(s, f64::from(s.threads), 0.0, 0.0, 5.0));
    assert_eq!(choice.setting.threads, 3);
    assert!(tried.iter().all(|s| s.threads <= 3));
}

#[test]
fn share_on_a_full_machine_still_runs_one_thread() {
    let space = Space {
        others: 8.0,
        objective: Objective::Share,
        ..Space::for_cpus(8.0)
    };
    let (_, choice) = run(space, &|s| profile(s, 0.5, 0.0, 0.0, 7.5));
    assert_eq!(choice.setting.threads, 1);
}

#[test]
fn what_past_runs_suggest_is_tried_first_unless_it_is_one_thread() {
    let program = |s: Setting| {
        let busy = f64::from(s.threads).min(4.0);
        profile(s, busy, 0.0, 4.0 - busy, 0.0)
    };
    for (prior, first) in [(3, 3), (1, 4), (99, 4)] {
        let space = Space {
            prior: Some(Setting::threads(prior)),
            ..Space::for_cpus(4.0)
        };
        let (tried, choice) = run(space, &program);
        assert_eq!(tried[0], Setting::threads(first));
        assert_eq!(choice.setting, Setting::threads(4), "{tried:?}");
    }
}

#[test]
fn on_one_cpu_one_thread_is_enough_unless_two_keep_it_busier() {
    let (tried, choice) = run(Space::for_cpus(1.0), &|s| profile(s, 0.99, 0.0, 0.0, 0.0));
    assert_eq!(tried, [Setting::threads(2), Setting::threads(1)]);
    assert_eq!(choice.setting, Setting::threads(1));
    // Waiting for a disk, one thread leaves the CPU idle that a second one can use.
    let (_, choice) = run(Space::for_cpus(1.0), &|s| {
        let busy = 0.5 * f64::from(s.threads);
        profile(s, busy, 0.0, 1.0 - busy, 0.0)
    });
    assert_eq!(choice.setting, Setting::threads(2));
}

#[test]
fn cpus_that_a_quota_forbids_are_not_idle() {
    let (tried, choice) = run(Space::for_cpus(1.0), &|s| profile(s, 0.99, 0.0, 1.0, 0.0));
    assert_eq!(choice.setting, Setting::threads(1), "{tried:?}");
    assert_eq!(tried.len(), 2);
}

#[test]
fn beside_a_neighbour_threads_that_wait_for_each_other_must_win_clearly() {
    // A short window caught passive waiting in a good turn: hardly better than the free CPU.
    let space = Space {
        passive: true,
        others: 1.0,
        ..Space::for_cpus(2.0)
    };
    let (_, choice) = run(space, &|s| match (s.threads, s.wait) {
        (1, _) => profile(s, 0.95, 0.0, 0.0, 1.0),
        (_, WaitPolicy::Passive) => profile(s, 1.2, 0.2, 0.1, 0.7),
        _ => profile(s, 1.4, 0.7, 0.0, 0.6),
    });
    assert_eq!(choice.setting, Setting::threads(1));
}

#[test]
fn a_good_turn_of_parallel_regions_beside_a_neighbour_is_not_believed() {
    let space = Space {
        passive: true,
        others: 1.0,
        ..Space::for_cpus(2.0)
    };
    let in_regions = |p: Profile| Profile {
        regions: Some(500),
        ..p
    };
    let (tried, choice) = run(space, &|s| match s.threads {
        1 => in_regions(profile(s, 1.0, 0.0, 0.0, 1.0)),
        _ => in_regions(profile(s, 1.35, 0.0, 0.0, 0.65)),
    });
    assert_eq!(choice.setting, Setting::threads(1), "{tried:?}");
}

#[test]
fn a_thread_that_began_on_the_neighbours_cpu_is_not_held_against_its_setting() {
    // One thread shared the neighbour's CPU in its window; two looked half as fast again.
    let space = Space {
        others: 1.0,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(space, &|s| match s.threads {
        1 => Profile {
            cpu_wait: 0.4,
            ..profile(s, 0.6, 0.0, 0.4, 1.0)
        },
        _ => Profile {
            regions: Some(500),
            ..profile(s, 1.3, 0.0, 0.0, 0.7)
        },
    });
    assert_eq!(choice.setting, Setting::threads(1), "{tried:?}");
}

#[test]
fn alone_on_the_machine_waiting_passively_must_win_by_a_lot() {
    let space = Space {
        passive: true,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(space, &|s| match s.wait {
        WaitPolicy::Passive => profile(s, 1.72, 0.0, 0.2, 0.0),
        WaitPolicy::Default => profile(s, 2.0, 0.4, 0.0, 0.0),
    });
    assert!(tried.contains(&Setting::passive(2)));
    assert_eq!(choice.setting, Setting::threads(2));
}

#[test]
fn waiting_passively_does_not_use_cpus_that_were_idle() {
    // Hardly anything spins; the window with passive waiting caught another phase.
    let space = Space {
        passive: true,
        ..Space::for_cpus(2.0)
    };
    let (_, choice) = run(space, &|s| match (s.wait, s.threads) {
        (WaitPolicy::Passive, 2) => profile(s, 1.98, 0.0, 0.0, 0.0),
        (WaitPolicy::Passive, _) => profile(s, 1.95, 0.0, 0.0, 0.0),
        (WaitPolicy::Default, _) => profile(s, 1.8, 0.07, 0.0, 0.2),
    });
    assert_eq!(choice.setting, Setting::threads(2));
}

#[test]
fn where_neighbours_are_on_most_cpus_parallel_regions_use_them_all_the_same() {
    // 14 hogs on 16 CPUs: each of 16 threads has half a CPU, two threads would have one each.
    let space = Space {
        others: 14.0,
        ..Space::for_cpus(16.0)
    };
    let (tried, choice) = run(space, &|s| {
        let crowded = f64::from(s.threads.saturating_sub(2));
        let busy = f64::from(s.threads.min(2)) + crowded / 2.0;
        let in_step = f64::from(s.threads) * if s.threads > 2 { 0.5 } else { 1.0 };
        Profile {
            regions: Some(500),
            ..profile(s, busy, busy - in_step, 0.0, 16.0 - busy)
        }
    });
    assert!(choice.setting.threads >= 12, "{tried:?} {choice:?}");
}

#[test]
fn threads_that_spin_for_each_other_are_never_more_than_the_cpus() {
    let space = Space {
        passive: true,
        ..Space::for_cpus(2.0)
    };
    let (tried, _) = run(space, &|s| match s.wait {
        WaitPolicy::Passive => profile(s, 1.2, 0.0, 0.8, 0.0),
        WaitPolicy::Default => profile(s, 1.8, 0.4, 0.2, 0.0),
    });
    assert_eq!(tried, [Setting::threads(2), Setting::passive(2)]);
}

#[test]
fn what_the_first_probe_rules_out_is_not_tried() {
    let mut search = BoundSearch::new(Space {
        passive: true,
        ..Space::for_cpus(2.0)
    });
    search.start();
    search.restrict(false, 2);
    let spinning = profile(Setting::threads(2), 1.6, 0.5, 0.4, 0.0);
    let mut step = search.next(Outcome::Seen(spinning));
    while let Step::Try(trial) = step {
        assert_eq!(trial.setting.wait, WaitPolicy::Default);
        assert!(trial.setting.threads <= 2);
        step = search.next(Outcome::Seen(profile(trial.setting, 1.0, 0.0, 1.0, 0.0)));
    }
}

#[test]
fn a_program_that_never_is_parallel_runs_with_one_thread() {
    let mut search = BoundSearch::new(Space::for_cpus(4.0));
    search.start();
    let Step::Done(choice) = search.next(Outcome::Unseen(NoProfile::NeverParallel)) else {
        panic!("it goes on");
    };
    assert_eq!(choice.setting, Setting::threads(1));
    assert_eq!(choice.stop, StopReason::NeverParallel);
}

#[test]
fn a_failing_first_probe_leaves_the_program_as_plain_linux_runs_it() {
    let mut search = BoundSearch::new(Space::for_cpus(4.0));
    search.start();
    let Step::Done(choice) = search.next(Outcome::Failed) else {
        panic!("it goes on");
    };
    assert_eq!(choice.setting, Setting::threads(4));
    assert_eq!(choice.stop, StopReason::Failed);
}

#[test]
fn where_neither_spinning_nor_progress_can_be_seen_it_is_cautious_beside_neighbours() {
    let space = Space {
        passive: true,
        others: 1.0,
        ..Space::for_cpus(4.0)
    };
    let (_, choice) = run(space, &|s| Profile {
        spin: None,
        cpu_wait: 0.7,
        ..profile(s, 3.3, 0.0, 0.0, 1.0)
    });
    assert_eq!(choice.setting, Setting::passive(3));
    assert_eq!(choice.stop, StopReason::Blind);
}

#[test]
fn regions_entered_count_more_than_being_busy() {
    // Passive waiting looks busier, but enters fewer regions: it pays for its wake-ups.
    let space = Space {
        passive: true,
        ..Space::for_cpus(2.0)
    };
    let (tried, choice) = run(space, &|s| {
        let (spin, regions) = match s.wait {
            WaitPolicy::Passive => (0.0, 800),
            WaitPolicy::Default => (0.4, 1_000),
        };
        Profile {
            region_times: vec![(0, 0), (250_000_000, regions)],
            ..profile(s, 1.9, spin, 0.1, 0.0)
        }
    });
    assert!(tried.contains(&Setting::passive(2)), "{tried:?}");
    assert_eq!(choice.setting, Setting::threads(2));
}

/// Half of the time blocked on locks; a sixteenth more CPUs that look useful with twice the threads.
fn contended(s: Setting) -> Profile {
    let useful = 5.0 + f64::from(s.threads) / 48.0;
    Profile {
        lock: 0.5,
        ..profile(s, useful + 1.0, 1.0, 24.0 - useful - 1.0, 0.0)
    }
}

#[test]
fn under_contended_locks_fewer_threads_are_preferred_although_more_look_a_little_more_useful() {
    let (tried, choice) = run(Space::for_cpus(24.0), &contended);
    assert!(tried.contains(&Setting::threads(12)), "{tried:?}");
    assert_eq!(choice.setting, Setting::threads(12));
    // Where locks are free, useful CPUs are what counts.
    let free = |s: Setting| Profile {
        lock: 0.0,
        ..contended(s)
    };
    let (_, choice) = run(Space::for_cpus(24.0), &free);
    assert!(choice.setting.threads > 12, "{choice:?}");
    // A single thread of two is not given away for that.
    let two = |s: Setting| Profile {
        lock: 0.5,
        ..profile(s, 0.94 + 0.06 * f64::from(s.threads), 0.0, 0.5, 0.0)
    };
    let (_, choice) = run(Space::for_cpus(2.0), &two);
    assert_eq!(choice.setting.threads, 2);
}
