use super::super::Model;
use super::*;

const MS: u64 = 1_000_000;

/// What a probe of a program with sections of 40 ms of work shows beside others.
struct Made {
    model: Model,
    /// Whether its regions are counted.
    counted: bool,
    /// Its sections, where it ends by itself.
    sections: u64,
}

impl Made {
    fn section_ns(&self, threads: u32) -> f64 {
        let contention = self.model.contention_max(threads);
        1e9 * self.model.seconds(threads, contention, 0.04, 0.0)
    }

    fn probe(&self, trial: Trial) -> Outcome {
        let section_ns = self.section_ns(trial.setting.threads);
        let whole_ns = (self.sections as f64 * section_ns) as u64;
        let (length_ns, whole) = match trial.extent {
            Extent::Window(ns) | Extent::WholeRun(ns) => (ns.min(whole_ns), ns >= whole_ns),
        };
        let entered = (length_ns as f64 / section_ns) as u64;
        Outcome::Seen(Profile {
            setting: trial.setting,
            window_ns: length_ns,
            startup_ns: 0,
            whole_run_ns: whole.then_some(whole_ns),
            parallel: true,
            cpu_util: 1.0,
            spin: None,
            cpu_wait: 0.0,
            lock: 0.0,
            vcx_rate: 0.0,
            icx_rate: 0.0,
            migration_rate: 0.0,
            regions: self.counted.then_some(entered),
            region_times: match self.counted {
                true => vec![
                    (0, 10),
                    ((entered as f64 * section_ns) as u64, 10 + entered),
                ],
                false => Vec::new(),
            },
            others: 0.0,
            idle: 0.0,
            active_threads: trial.setting.threads,
            busiest: 0.0,
            critical_threads: trial.setting.threads,
            relative_error: 0.0,
        })
    }

    /// Lets the search have its probes: what it chooses, and the trials.
    fn host(&self, search: &mut Calibration) -> (Choice, Vec<Trial>) {
        let mut trials = Vec::new();
        let mut step = search.start();
        loop {
            match step {
                Step::Done(choice) => return (choice, trials),
                Step::Try(trial) => {
                    trials.push(trial);
                    step = search.next(self.probe(trial));
                }
            }
        }
    }
}

fn calibration(cpus: f64) -> Calibration {
    Calibration::new(Space::for_cpus(cpus), 3, 60_000 * MS)
}

#[test]
fn the_threads_that_others_leave_room_for_are_chosen() {
    for (others, counted) in [(0, true), (3, true), (0, false), (3, false), (7, true)] {
        let made = Made {
            model: Model { cpus: 8, others },
            counted,
            sections: 1000,
        };
        let (choice, trials) = made.host(&mut calibration(8.0));
        assert_eq!(choice.setting, Setting::threads(8 - others), "{counted}");
        assert_eq!(choice.stop, StopReason::Oversubscribed);
        assert_eq!(trials.len(), 1 + 3 * 10);
    }
}

/// Hosts a calibration on eight CPUs beside others of whom there are `others(n)` in its nth probe.
fn beside_changing(others: impl Fn(usize) -> u32) -> (Choice, usize) {
    let mut search = calibration(8.0);
    let (mut step, mut probes) = (search.start(), 0);
    loop {
        let trial = match step {
            Step::Done(choice) => return (choice, probes),
            Step::Try(trial) => trial,
        };
        let made = Made {
            model: Model {
                cpus: 8,
                others: others(probes),
            },
            counted: true,
            sections: 100_000,
        };
        step = search.next(made.probe(trial));
        probes += 1;
    }
}

/// The first probe, and three rounds of ten.
const USUAL: usize = 31;

#[test]
fn others_that_come_or_go_for_good_leave_no_answer_instead_of_a_wrong_one() {
    for from in [5, 11, 15, 21, 25] {
        let (choice, _) = beside_changing(|n| u32::from(n >= from));
        let right_at_last =
            choice.stop == StopReason::Oversubscribed && choice.setting.threads == 7;
        let says_so = choice.stop == StopReason::Disturbed && choice.confidence <= 0.5;
        assert!(right_at_last || says_so, "{from}: {choice:?}");
    }
}

#[test]
fn whoever_is_at_work_for_one_round_changes_no_answer() {
    for round in 0..3 {
        let during = 1 + 10 * round..11 + 10 * round;
        let (choice, probes) = beside_changing(|n| 3 * u32::from(during.contains(&n)));
        assert_eq!(choice.setting.threads, 8);
        assert_eq!(choice.stop, StopReason::Oversubscribed);
        assert_eq!(probes, USUAL + 20, "it makes sure");
    }
}

#[test]
fn others_that_come_and_go_all_the_time_leave_no_answer() {
    let (choice, _) = beside_changing(|n| [0, 3, 5, 1, 6, 2][(n / 10) % 6]);
    assert_eq!(choice.stop, StopReason::Disturbed);
    assert_eq!(choice.setting.threads, 8, "as plain Linux runs it");
}

#[test]
fn where_regions_are_counted_probes_are_windows_and_else_whole_runs() {
    let mut made = Made {
        model: Model { cpus: 2, others: 0 },
        counted: true,
        sections: 1000,
    };
    let whole = |trial: &Trial| matches!(trial.extent, Extent::WholeRun(_));
    assert!(!made.host(&mut calibration(2.0)).1.iter().any(whole));
    made.counted = false;
    let trials = made.host(&mut calibration(2.0)).1;
    assert!(!whole(&trials[0]) && trials[1..].iter().all(whole));
}

#[test]
fn a_program_that_ends_within_a_window_is_run_to_its_end() {
    let made = Made {
        model: Model { cpus: 4, others: 1 },
        counted: true,
        sections: 20,
    };
    let mut search = calibration(4.0);
    let (choice, trials) = made.host(&mut search);
    assert!(matches!(trials[1].extent, Extent::WholeRun(_)));
    assert_eq!(choice.setting.threads, 3);
    let found = calibrated(4, &search.seen).unwrap();
    assert_eq!((found.by, found.seconds.len()), (Measure::WholeRuns, 6));
    assert!((found.seconds[0] - 20.0 * 0.04).abs() < 1e-6);
}

#[test]
fn without_regions_or_an_end_it_says_that_it_is_blind() {
    let made = Made {
        model: Model { cpus: 4, others: 0 },
        counted: false,
        sections: 1_000_000,
    };
    let (choice, _) = made.host(&mut calibration(4.0));
    assert_eq!(choice.stop, StopReason::Blind);
}

#[test]
fn a_program_that_is_never_parallel_is_not_calibrated() {
    let mut search = calibration(4.0);
    search.start();
    let step = search.next(Outcome::Unseen(NoProfile::NeverParallel));
    assert!(matches!(step, Step::Done(choice) if choice.stop == StopReason::NeverParallel));
}

#[test]
fn a_number_that_fails_leaves_the_times_before_it() {
    let made = Made {
        model: Model { cpus: 4, others: 2 },
        counted: true,
        sections: 100_000,
    };
    let mut search = calibration(4.0);
    let mut step = search.start();
    let choice = loop {
        step = match step {
            Step::Done(choice) => break choice,
            Step::Try(trial) if trial.setting.threads > 4 => search.next(Outcome::Failed),
            Step::Try(trial) => search.next(made.probe(trial)),
        };
    };
    assert_eq!(choice.setting.threads, 2);
    assert_eq!(calibrated(4, &search.seen).unwrap().seconds.len(), 4);
}
