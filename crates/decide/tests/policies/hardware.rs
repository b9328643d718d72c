//! The policies about hardware: `broken-screw` and `prefetch`.

use crate::support::{MS, Made, rigid, set};
use corewise_decide::cpus::CpuSet;
use corewise_decide::policy::Policy;
use corewise_decide::policy::broken_screw::{BrokenScrew, PERIOD_NS};
use corewise_decide::policy::prefetch::{PAUSE_NS, Prefetch, SAMPLE_NS};
use corewise_decide::reading::{CpuHeat, MachineReading};
use corewise_decide::world::{Action, Input, Output, Readings};

const T1: f64 = 75.0;
const T2: f64 = 95.0;

/// A reading `after_ns` later, with these temperatures, and so many instructions retired so far.
fn read(made: &mut Made, after_ns: u64, celsius: &[f64], instructions: Option<u64>) -> Vec<Output> {
    made.now_ns += after_ns;
    let heat = (0..).zip(celsius).map(|(cpu, celsius)| CpuHeat {
        cpu,
        celsius: *celsius,
        slows_at: Some(T1),
        stops_at: Some(T2),
    });
    made.on(Input::Readings(Readings {
        machine: MachineReading {
            time_ns: made.now_ns,
            instructions,
            heat: heat.collect(),
            ..MachineReading::default()
        },
        programs: Vec::new(),
    }))
}

fn warm(made: &mut Made, celsius: &[f64]) {
    read(made, PERIOD_NS, celsius, None);
}

/// A manager, and its program of one thread, moved to CPU 0 by the heat of all others.
fn on_cpu_0() -> (Made, u64) {
    let mut made = Made::flat(BrokenScrew::default(), 4);
    let program = made.join(rigid(1, 1));
    let at = made.claim(program).cpus.iter().next().unwrap();
    if at != 0 {
        let mut celsius = [80.0; 4];
        celsius[0] = 40.0;
        warm(&mut made, &celsius);
    }
    assert_eq!(made.claim(program).cpus, set([0]));
    (made, program)
}

#[test]
fn first_cpus_are_drawn_at_random_and_are_the_programs_own() {
    let mut firsts = CpuSet::new();
    for seed in 0..40 {
        let mut made = Made::flat(BrokenScrew::with_seed(seed), 4);
        let program = made.join(rigid(1, 1));
        firsts.extend(made.claim(program).cpus.iter());
        let second = made.join(rigid(1, 1));
        assert!(
            made.claim(second)
                .cpus
                .is_disjoint(&made.claim(program).cpus)
        );
    }
    assert_eq!(firsts.count(), 4);
}

#[test]
fn between_t1_and_t2_the_first_free_cpu_below_t1_takes_its_place() {
    let (mut made, program) = on_cpu_0();
    warm(&mut made, &[74.9, 40.0, 40.0, 40.0]);
    assert_eq!(made.claim(program).cpus, set([0]), "it is not too hot yet");
    warm(&mut made, &[T1, 76.0, 60.0, 40.0]);
    assert_eq!(made.claim(program).cpus, set([2]));
    // It may come back: it was never as hot as T2.
    warm(&mut made, &[60.0, 90.0, 80.0, 90.0]);
    assert_eq!(made.claim(program).cpus, set([0]));
}

#[test]
fn from_t2_on_the_coolest_cpu_takes_its_place_and_it_never_comes_back() {
    let (mut made, program) = on_cpu_0();
    warm(&mut made, &[T2, 60.0, 50.0, 55.0]);
    assert_eq!(made.claim(program).cpus, set([2]));
    warm(&mut made, &[30.0, 80.0, T2, 70.0]);
    assert_eq!(
        made.claim(program).cpus,
        set([3]),
        "CPU 0 was too hot for it"
    );
}

#[test]
fn where_nothing_is_cooler_it_stays() {
    let (mut made, program) = on_cpu_0();
    warm(&mut made, &[96.0, 97.0, 98.0, 99.0]);
    assert_eq!(made.claim(program).cpus, set([0]));
}

#[test]
fn without_sensors_it_is_said_once_and_nobody_moves() {
    let mut made = Made::flat(BrokenScrew::default(), 4);
    let program = made.join(rigid(1, 1));
    let before = made.claim(program).cpus.clone();
    let said = read(&mut made, PERIOD_NS, &[], None);
    assert!(
        matches!(&said[..], [Output::Note(text)] if text.contains("temperature")),
        "{said:?}"
    );
    assert_eq!(read(&mut made, PERIOD_NS, &[], None), []);
    assert_eq!(made.claim(program).cpus, before);
}

#[test]
fn more_programs_than_cpus_share_and_get_their_own_when_one_is_free() {
    let mut made = Made::flat(BrokenScrew::default(), 2);
    let [first, second, third] = [(); 3].map(|()| made.join(rigid(1, 1)));
    assert!(!made.claim(third).cpus.is_empty());
    let had = made.claim(first).cpus.clone();
    made.leave(first);
    assert_eq!(made.claim(third).cpus, had);
    assert!(made.claim(third).cpus.is_disjoint(&made.claim(second).cpus));
}

/// What is ordered of prefetchers.
fn switched(outputs: &[Output]) -> Option<bool> {
    outputs.iter().find_map(|output| match output {
        Output::Act {
            action: Action::Prefetchers { on, .. },
            ..
        } => Some(*on),
        _ => None,
    })
}

/// A test of prefetchers with which, and without which, so many instructions are retired in a sample. What is
/// ordered at the end.
fn tested(made: &mut Made, retired: &mut u64, with: u64, without: u64) -> Option<bool> {
    let mut sample = |made: &mut Made, more: u64| {
        *retired += more;
        let retired = Some(*retired);
        switched(&read(made, SAMPLE_NS, &[], retired))
    };
    while sample(made, 1000) != Some(true) {}
    assert_eq!(sample(made, with), Some(false));
    sample(made, without)
}

#[test]
fn prefetchers_stay_on_only_where_they_retire_two_percent_more() {
    for (with, stay) in [(1030, true), (1019, false), (900, false)] {
        let mut made = Made::flat(Prefetch::default(), 4);
        made.join(rigid(1, 4));
        let mut retired = 0;
        assert_eq!(
            tested(&mut made, &mut retired, with, 1000),
            Some(stay),
            "{with}"
        );
    }
}

#[test]
fn a_new_thread_starts_a_test_after_a_pause_and_nothing_else_does() {
    let mut made = Made::flat(Prefetch::default(), 4);
    let program = made.join(rigid(1, 4));
    let mut retired = 0;
    tested(&mut made, &mut retired, 1000, 1000);
    let mut quiet = |made: &mut Made| {
        retired += 1000;
        switched(&read(made, SAMPLE_NS, &[], Some(retired)))
    };
    for _ in 0..2 * PAUSE_NS / SAMPLE_NS {
        assert_eq!(quiet(&mut made), None);
    }
    made.threads(program, 2);
    assert_eq!(quiet(&mut made), Some(true));
    // In the middle of a test another one comes: it begins anew.
    made.threads(program, 3);
    assert_eq!(quiet(&mut made), Some(true));
}

#[test]
fn where_nobody_counts_instructions_or_nothing_can_be_switched_it_is_said_once() {
    let mut made = Made::flat(Prefetch::default(), 4);
    made.join(rigid(1, 4));
    read(&mut made, SAMPLE_NS, &[], None);
    // Who counts begins when this policy does, which may be in the middle.
    assert_eq!(read(&mut made, SAMPLE_NS, &[], None), []);
    let said = read(&mut made, SAMPLE_NS, &[], None);
    assert!(matches!(&said[..], [Output::Note(_)]), "{said:?}");
    assert_eq!(read(&mut made, SAMPLE_NS, &[], None), []);

    let mut made = Made::flat(Prefetch::default(), 4);
    let program = made.join(rigid(1, 4));
    read(&mut made, SAMPLE_NS, &[], Some(1));
    assert_eq!(
        switched(&read(&mut made, SAMPLE_NS, &[], Some(2))),
        Some(true)
    );
    let said = made.on(Input::Failed {
        program: None,
        what: "no control".to_owned(),
    });
    assert!(matches!(&said[..], [Output::Note(text)] if text.contains("no control")));
    made.threads(program, 2);
    made.now_ns += 1000 * MS;
    assert_eq!(read(&mut made, PAUSE_NS, &[], Some(9)), []);
    assert_eq!(Prefetch::default().name(), "prefetch");
}
