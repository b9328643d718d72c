use super::*;

const MS: u64 = 1_000_000;

fn plan() -> WatchPlan {
    WatchPlan {
        setting: Setting::threads(2),
        window_ns: 200 * MS,
        to_the_end: false,
        begin: None,
        end: None,
        startup_limit_ns: 2_000 * MS,
        cpus: vec![0, 1],
    }
}

/// A program of one thread until `parallel_ms`, then of two; each fully busy.
fn program_at(ms: u64, parallel_ms: u64) -> ProgramReading {
    let thread = |tid, run_ms: u64| ThreadReading {
        pid: 1,
        tid,
        run_ns: run_ms * MS,
        ..ThreadReading::default()
    };
    ProgramReading {
        time_ns: ms * MS,
        threads: vec![thread(1, ms), thread(2, ms.saturating_sub(parallel_ms))],
        ..ProgramReading::default()
    }
}

fn drive(watch: &mut Watch, program: impl Fn(u64) -> ProgramReading) -> Watched {
    let mut step = watch.first_look();
    for _ in 0..100_000 {
        match step {
            WatchStep::Look { at_ns } => {
                step = watch.on_reading(program(at_ns / MS), MachineReading::default());
            }
            WatchStep::Finished(watched) => return *watched,
        }
    }
    panic!("the watch never finished");
}

#[test]
fn the_window_starts_when_two_threads_are_at_work() {
    let watched = drive(&mut Watch::new(plan(), 0), |ms| program_at(ms, 700));
    let profile = watched.profile.unwrap();
    assert!(profile.startup_ns >= 700 * MS, "{profile:?}");
    assert!(profile.startup_ns <= 790 * MS, "{profile:?}");
    assert!((profile.cpu_util - 2.0).abs() < 0.01, "{profile:?}");
}

#[test]
fn a_program_of_one_busy_thread_is_never_parallel() {
    let watched = drive(&mut Watch::new(plan(), 0), |ms| program_at(ms, u64::MAX));
    assert_eq!(watched.profile, Err(NoProfile::NeverParallel));
    assert!(watched.startup_ns >= 2_000 * MS);
}

#[test]
fn many_threads_that_each_do_little_beside_a_busy_one_are_at_work_together() {
    // As where one thread prepares what 23 others share: each does a tenth of what that one does.
    let program = |ms: u64| {
        let thread = |tid, run_ms: u64| ThreadReading {
            pid: 1,
            tid,
            run_ns: run_ms * MS,
            ..ThreadReading::default()
        };
        let others = (2..25).map(|tid| thread(tid, ms.saturating_sub(700) / 10));
        ProgramReading {
            time_ns: ms * MS,
            threads: std::iter::once(thread(1, ms)).chain(others).collect(),
            ..ProgramReading::default()
        }
    };
    let watched = drive(&mut Watch::new(plan(), 0), program);
    let startup_ns = watched.profile.unwrap().startup_ns;
    assert!((700 * MS..=830 * MS).contains(&startup_ns), "{startup_ns}");
}

#[test]
fn one_thread_is_measured_from_the_landmark_of_an_earlier_probe() {
    let begin = Landmark {
        regions: None,
        cpu_ns: 700 * MS,
    };
    let plan = WatchPlan {
        setting: Setting::threads(1),
        begin: Some(begin),
        ..plan()
    };
    let watched = drive(&mut Watch::new(plan, 0), |ms| program_at(ms, u64::MAX));
    let profile = watched.profile.unwrap();
    assert!(profile.startup_ns >= 700 * MS && profile.startup_ns <= 710 * MS);
    assert!((profile.cpu_util - 1.0).abs() < 0.01);
}

#[test]
fn one_thread_without_a_landmark_is_measured_once_it_works() {
    let plan = WatchPlan {
        setting: Setting::threads(1),
        ..plan()
    };
    let watched = drive(&mut Watch::new(plan, 0), |ms| program_at(ms, u64::MAX));
    let profile = watched.profile.unwrap();
    assert!(profile.startup_ns <= 80 * MS, "{profile:?}");
}

#[test]
fn regions_where_counted_are_the_landmark() {
    let begin = Landmark {
        regions: Some(100),
        cpu_ns: 1,
    };
    let plan = WatchPlan {
        begin: Some(begin),
        ..plan()
    };
    let with_regions = |ms: u64| ProgramReading {
        regions: Some(ms),
        ..program_at(ms, 0)
    };
    let watched = drive(&mut Watch::new(plan, 0), with_regions);
    let profile = watched.profile.unwrap();
    assert!(profile.startup_ns >= 100 * MS, "{profile:?}");
    assert!(profile.regions.unwrap() >= 200, "{profile:?}");
}

/// One region from 100 ms on, and from 100 ms of it on many short ones; where a setting is `slower`, all but the
/// beginning takes so many times as long.
fn long_region_first(slower: u64) -> impl Fn(u64) -> ProgramReading {
    move |ms| {
        let work_ms = ms.min(100) + ms.saturating_sub(100) / slower;
        let short = work_ms.saturating_sub(300);
        ProgramReading {
            regions: Some(u64::from(work_ms >= 100) + short),
            ..program_at(work_ms, 0)
        }
    }
}

#[test]
fn a_slower_setting_is_watched_over_the_same_regions() {
    let first = drive(&mut Watch::new(plan(), 0), |ms| ProgramReading {
        time_ns: ms * MS,
        ..long_region_first(1)(ms)
    });
    let seen = first.profile.unwrap();
    assert!(seen.startup_ns < 100 * MS, "{seen:?}");
    let plan = WatchPlan {
        begin: first.begin,
        end: first.end,
        ..plan()
    };
    let second = drive(&mut Watch::new(plan, 0), |ms| ProgramReading {
        time_ns: ms * MS,
        ..long_region_first(2)(ms)
    });
    let end = first.end.unwrap().regions.unwrap();
    let there = second.end.unwrap().regions.unwrap();
    // Readings are 25 ms apart.
    assert!((end..=end + 13).contains(&there), "{there}, not {end}");
    let seen = second.profile.unwrap();
    assert!(seen.window_ns > 300 * MS, "{seen:?}");
}

#[test]
fn a_window_begins_within_a_long_region_where_the_first_one_did() {
    let begin = Landmark {
        regions: Some(1),
        cpu_ns: 2 * 250 * MS,
    };
    let plan = WatchPlan {
        begin: Some(begin),
        ..plan()
    };
    let watched = drive(&mut Watch::new(plan, 0), long_region_first(1));
    let startup_ns = watched.profile.unwrap().startup_ns;
    assert!((220 * MS..260 * MS).contains(&startup_ns), "{startup_ns}");
}

/// A second thread that only spins, from 0 to `until_ms`.
fn spinning_until(until_ms: u64) -> impl Fn(u64) -> ProgramReading {
    move |ms| {
        let mut reading = program_at(ms, 0);
        let spun = ms.min(until_ms) * MS;
        reading.threads[1].run_ns = spun;
        reading.threads[1].spin_ns = Some(spun);
        reading
    }
}

#[test]
fn threads_that_spin_on_import_are_not_at_work() {
    // OpenBLAS lets its threads spin for a while as soon as they exist.
    let watched = drive(&mut Watch::new(plan(), 0), spinning_until(100));
    assert_eq!(watched.profile, Err(NoProfile::NeverParallel));
}

#[test]
fn threads_that_keep_spinning_are_the_parallel_phase() {
    let watched = drive(&mut Watch::new(plan(), 0), spinning_until(u64::MAX));
    let profile = watched.profile.unwrap();
    assert!(profile.startup_ns < 500 * MS, "{profile:?}");
    assert!(profile.spins());
}

#[test]
fn on_a_crowded_machine_the_window_starts_after_as_much_work() {
    // Each thread gets a tenth of a CPU.
    let crowded = |ms: u64| {
        let mut reading = program_at(ms, 0);
        for thread in &mut reading.threads {
            thread.cpu_wait_ns = thread.run_ns * 9 / 10;
            thread.run_ns /= 10;
        }
        reading
    };
    let watched = drive(&mut Watch::new(plan(), 0), crowded);
    let startup = watched.profile.unwrap().startup_ns;
    assert!((600 * MS..700 * MS).contains(&startup), "{startup}");
}

#[test]
fn a_program_that_ends_before_its_window_does_is_timed_whole() {
    let mut watch = Watch::new(plan(), 0);
    for ms in (0..=140).step_by(5) {
        watch.on_reading(program_at(ms, 0), MachineReading::default());
    }
    let profile = watch.on_end(141 * MS, 141 * MS).profile.unwrap();
    assert_eq!(profile.whole_run_ns, Some(141 * MS));
}

#[test]
fn a_program_that_is_gone_at_once_is_too_short() {
    let mut watch = Watch::new(plan(), 0);
    let watched = watch.on_end(3 * MS, 3 * MS);
    assert_eq!(watched.profile, Err(NoProfile::TooShort));
}
