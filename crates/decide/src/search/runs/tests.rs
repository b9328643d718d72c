use super::*;
use proptest::prelude::*;

/// A program that keeps all CPUs at work in windows, whose threads do not wait for each other.
fn on(cpus: u32) -> Found {
    Found {
        threads: cpus,
        cpus: f64::from(cpus),
        min: 1,
        max: 4 * cpus,
        useful: f64::from(cpus),
        waits: false,
        spins: false,
        probe_seconds: 0.0,
    }
}

/// What came of `count` runs.
struct Came {
    runs: Runs,
    /// The number of each run.
    threads: Vec<u32>,
    /// Their times together, in seconds.
    seconds: f64,
    /// The same if each had gone with the best number known before it.
    best_known: f64,
    /// The most that a single trial lost beyond its presumption, in seconds.
    overrun: f64,
}

/// Runs a program `count` times that takes `time(n, run)` seconds with n threads and uses `cpu_util(n)` CPUs.
fn run(
    found: &Found,
    count: u32,
    time: impl Fn(u32, u32) -> f64,
    cpu_util: impl Fn(u32) -> f64,
) -> Came {
    let mut came = Came {
        runs: Runs::default(),
        threads: Vec::new(),
        seconds: 0.0,
        best_known: 0.0,
        overrun: 0.0,
    };
    for index in 0..count {
        let mut next = came.runs.next(found, true);
        if let Next::Trial(trial) = next
            && trial.probe
        {
            let seconds = found.probe_seconds;
            came.runs.probed(trial, Some(found.useful), seconds, found);
            came.seconds += seconds;
            next = came.runs.after_probe(found);
        }
        let threads = next.threads();
        let seconds = time(threads, index);
        let best = came.runs.best(found);
        let median = came.runs.number(best).and_then(Number::median);
        let best_seconds = match threads == best {
            true => seconds,
            false => median.unwrap(),
        };
        if let Next::Trial(trial) = next {
            let beyond = seconds - best_seconds * (1.0 + trial.risk);
            came.overrun = came.overrun.max(beyond);
        }
        came.best_known += best_seconds;
        came.seconds += seconds;
        came.threads.push(threads);
        let run = Run {
            threads,
            seconds,
            cpu_util: cpu_util(threads),
            comparable: true,
        };
        came.runs.ran(run, found);
    }
    came
}

/// The time of a thing dealt out in `units` equal pieces to n threads of 24 CPUs, of which each has as many as any
/// other.
fn dealt(units: u32, n: u32) -> f64 {
    let rounds = f64::from(n.div_ceil(24));
    f64::from(units.div_ceil(n)) * rounds
}

#[test]
fn the_first_two_runs_have_the_number_that_was_found() {
    let came = run(&on(24), 2, |n, _| dealt(128, n), |_| 20.0);
    assert_eq!(came.threads, [24, 24]);
}

#[test]
fn what_is_dealt_out_unevenly_at_the_end_gets_more_threads_than_cpus_in_a_later_run() {
    let came = run(&on(24), 40, |n, _| dealt(130, n), |_| 20.0);
    // 6 pieces each; 3 with 48 threads, in two turns each; 2 with 72, in three.
    assert_eq!(
        (dealt(130, 24), dealt(130, 48), dealt(130, 72)),
        (6.0, 6.0, 6.0)
    );
    assert_eq!(came.threads.last(), Some(&24), "no faster: it stays");
    let came = run(
        &on(24),
        40,
        |n, _| dealt(140, n) - f64::from(n) / 48.0,
        |_| 20.0,
    );
    assert_eq!(came.threads.last(), Some(&72));
    assert!(came.runs.trials <= 2, "{:?}", came.runs);
}

#[test]
fn where_more_threads_than_cpus_were_found_one_for_each_is_tried() {
    let found = Found {
        threads: 3,
        ..on(2)
    };
    let came = run(&found, 40, |n, _| if n == 2 { 9.5 } else { 10.0 }, |_| 1.99);
    assert_eq!(came.threads.last(), Some(&2));
    assert_eq!(came.runs.trials, 1);
}

#[test]
fn what_uses_all_cpus_throughout_is_never_tried_with_another_number() {
    let came = run(&on(24), 200, |_, _| 10.0, |_| 23.8);
    assert_eq!(came.runs.trials, 0);
}

#[test]
fn threads_that_spin_for_each_other_are_never_more_than_the_cpus() {
    let found = Found {
        spins: true,
        waits: true,
        ..on(24)
    };
    let came = run(&found, 200, |_, _| 10.0, |_| 15.0);
    assert!(came.threads.iter().all(|n| *n <= 24));
    assert!(came.runs.trials > 0);
}

#[test]
fn a_slower_number_is_not_tried_twice() {
    let found = Found {
        waits: true,
        ..on(24)
    };
    let slower = |n: u32, _| if n == 24 { 10.0 } else { 10.3 };
    let came = run(&found, 1_000, slower, |_| 12.0);
    let mut others: Vec<u32> = came.threads.into_iter().filter(|n| *n != 24).collect();
    let all = others.len();
    others.sort_unstable();
    others.dedup();
    assert_eq!(others.len(), all);
    assert!((1..8).contains(&all), "{others:?}");
}

#[test]
fn a_lucky_trial_is_gone_back_from() {
    let found = Found {
        waits: true,
        ..on(24)
    };
    let mut lucky = true;
    let mut runs = Runs::default();
    for _ in 0..60 {
        let threads = runs.next(&found, true).threads();
        let seconds = match threads {
            24 => 10.0,
            _ if std::mem::take(&mut lucky) => 9.0,
            _ => 11.5,
        };
        let run = Run {
            threads,
            seconds,
            cpu_util: 24.0,
            comparable: true,
        };
        runs.ran(run, &found);
    }
    assert_eq!(runs.best(&found), 24);
    assert!(!lucky);
}

#[test]
fn runs_that_differ_among_themselves_teach_nothing() {
    let changing = |_, run| if run % 2 == 0 { 10.0 } else { 13.0 };
    let came = run(&on(24), 300, changing, |_| 10.0);
    assert_eq!(came.runs.trials, 0);
}

#[test]
fn what_was_disturbed_is_not_compared_but_its_time_counts_as_lost() {
    let found = on(24);
    let mut runs = run(&found, 12, |_, _| 10.0, |_| 20.0).runs;
    assert_eq!(runs.trials, 0);
    let disturbed = Run {
        threads: 48,
        seconds: 14.0,
        cpu_util: 20.0,
        comparable: false,
    };
    runs.ran(disturbed, &found);
    assert_eq!((runs.best(&found), runs.trials), (24, 1));
    assert!((runs.lost_seconds - 4.0).abs() < 1e-9);
    assert_eq!(runs.number(48).unwrap().seconds, [0.0; 0]);
    runs.ran(disturbed, &found);
    assert!(runs.number(48).unwrap().is_tried(), "twice is enough");
}

#[test]
fn what_is_slow_or_fails_in_a_probe_is_not_run() {
    let found = on(24);
    for useful in [None, Some(10.0)] {
        let mut runs = run(&found, 12, |_, _| 10.0, |_| 20.0).runs;
        let mut probes = 0;
        for _ in 0..40 {
            if let Next::Trial(trial) = runs.next(&found, true) {
                assert!(trial.probe);
                probes += 1;
                runs.probed(trial, useful, 0.1, &found);
            }
            let threads = runs.after_probe(&found).threads();
            assert_eq!(threads, 24);
            let run = Run {
                threads,
                seconds: 10.0,
                cpu_util: 20.0,
                comparable: true,
            };
            runs.ran(run, &found);
        }
        assert_eq!(probes, 1);
    }
}

#[test]
fn no_number_is_run_that_was_not_probed() {
    let found = Found {
        waits: true,
        ..on(24)
    };
    let mut runs = run(&found, 12, |_, _| 10.0, |_| 24.0).runs;
    // Past the trials of these runs, so that both of what comes next can be afforded.
    runs.seconds += 1e4;
    runs.numbers.truncate(1);
    let Next::Trial(trial) = runs.next(&found, true) else {
        panic!("{runs:?}");
    };
    runs.probed(trial, None, 0.1, &found);
    assert!(matches!(runs.next(&found, true), Next::Trial(other) if other.probe));
    assert_eq!(runs.after_probe(&found), Next::Best(24));
}

#[test]
fn where_it_may_not_try_it_runs_with_the_best_number_known() {
    let runs = run(&on(24), 40, |n, _| 100.0 / f64::from(n), |_| 20.0).runs;
    assert_eq!(runs.next(&on(24), false), Next::Best(72));
    let never = Runs::default();
    assert_eq!(never.next(&on(24), false), Next::Best(24));
}

#[test]
fn a_short_program_is_not_tried_before_a_probe_is_paid_for() {
    let found = Found {
        probe_seconds: 1.0,
        ..on(24)
    };
    let came = run(&found, 60, |_, _| 0.5, |_| 20.0);
    assert_eq!(came.runs.trials, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever the times: n runs take at most 1 + PART times those of the best number known, and one overrun.
    #[test]
    fn trials_cost_no_more_than_their_part(
        cpus in 1_u32..40,
        start in 1_u32..40,
        curve in proptest::collection::vec(0.3_f64..4.0, 160),
        noise in proptest::collection::vec(0.98_f64..1.02, 97),
        util in 0.1_f64..1.0,
        waits: bool,
        probe_seconds in 0.0_f64..0.5,
    ) {
        let found = Found { threads: start.min(cpus), waits, probe_seconds, ..on(cpus) };
        let time = |n: u32, run: u32| 10.0 * curve[n as usize] * noise[run as usize % 97];
        let came = run(&found, 400, time, |_| util * f64::from(cpus));
        let limit = came.best_known + PART * came.seconds + came.overrun.max(0.0);
        prop_assert!(came.seconds <= limit + 1e-6, "{} > {limit}", came.seconds);
    }

    /// Where nothing takes longer than presumed, there is no overrun.
    #[test]
    fn trials_that_lose_no_more_than_presumed_cost_their_part_at_most(
        cpus in 2_u32..40,
        slower in 0.0_f64..0.02,
    ) {
        let found = Found { waits: true, ..on(cpus) };
        // At most 2 % slower for each thread that differs: less than the presumption of a neighbour.
        let time = |n: u32, _| 10.0 * (1.0 + slower * f64::from(n.abs_diff(cpus)).min(4.0));
        let came = run(&found, 500, time, |_| f64::from(cpus));
        prop_assert!(came.seconds <= came.best_known * (1.0 + 1.03 * PART));
    }

    /// On curves with one valley (Amdahl's law with contention and coherence) it comes near the bottom.
    #[test]
    fn it_comes_near_the_best_number_on_curves_with_one_valley(
        cpus in 2_u32..48,
        start in 1_u32..48,
        serial in 0.0_f64..0.2,
        coherence in 0.0_f64..0.01,
    ) {
        let found = Found { threads: start.min(cpus), waits: true, ..on(cpus) };
        let time = |n: u32| {
            let n = f64::from(n);
            10.0 * (1.0 + serial * (n - 1.0) + coherence * n * (n - 1.0)) / n
        };
        let best = (1..=cpus).map(time).fold(f64::INFINITY, f64::min);
        let came = run(&found, 1_500, |n, _| time(n), |_| 0.6 * f64::from(cpus));
        let last = time(came.runs.best(&found));
        prop_assert!(last <= 1.03 * best, "{last} {best}: {:?}", came.runs);
    }
}
