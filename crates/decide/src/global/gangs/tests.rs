//! Programs that are gangs, among others and under policies.

use super::reads::PERIOD_NS;
use super::*;
use crate::global::GlobalManager;
use crate::policy::observe::Observe;
use crate::policy::source::Source;
use crate::reading::{CpuReading, MachineReading};
use crate::status::{Machine, Placement, Wants};
use crate::world::{ProgramUse, Readings};

const MS: u64 = 1_000_000;

/// A manager whose programs may all use everything.
fn manager(cpus: u32) -> GlobalManager {
    let mut manager = GlobalManager::new(Box::new(Observe::default()));
    manager.on(0, &Input::Machine(Machine::flat(cpus)));
    manager
}

fn join(
    manager: &mut GlobalManager,
    program: u64,
    threads: u32,
    gang: Option<&str>,
) -> Vec<Output> {
    let malleable = false;
    let wants = Wants {
        min_threads: threads,
        max_threads: threads,
        placement: Placement::Any,
        malleable,
    };
    let joined = Input::Joined {
        program: ProgramId(program),
        pid: 1,
        name: "p".to_owned(),
        wants,
    };
    let mut outputs = manager.on(manager.status().time_ns, &joined);
    if let Some(name) = gang {
        outputs.extend(says(manager, program, Some(name)));
    }
    outputs
}

fn says(manager: &mut GlobalManager, program: u64, gang: Option<&str>) -> Vec<Output> {
    let gang = gang.map(|name| Gang {
        name: name.to_owned(),
        keeps_idle: false,
        weight: 100,
    });
    let program = ProgramId(program);
    manager.on(manager.status().time_ns, &Input::Gang { program, gang })
}

/// Who was told a turn, and whether there is one.
fn told(outputs: &[Output]) -> Vec<(u64, bool)> {
    let turns = outputs.iter().filter_map(|output| match output {
        Output::Turn { program, turn, .. } => Some((program.0, turn.is_some())),
        _ => None,
    });
    turns.collect()
}

fn turn(outputs: &[Output], of: u64) -> Option<Turn> {
    let turns = outputs.iter().rev().filter_map(|output| match output {
        Output::Turn { program, turn, .. } if program.0 == of => Some(turn.clone()),
        _ => None,
    });
    turns.into_iter().next().flatten()
}

/// Reads so many times programs that use so many CPUs while they run by `turns`.
fn read(
    manager: &mut GlobalManager,
    times: u64,
    used: &mut [(u64, f64, u64)],
    turns: &mut BTreeMap<u64, Turn>,
) -> Vec<Output> {
    let mut all = Vec::new();
    for _ in 0..times {
        let before = manager.status().time_ns;
        let now = manager.next_reading_ns().unwrap().max(before);
        let mut programs = Vec::new();
        for (program, cpus, run_ns) in used.iter_mut() {
            let ran = turns
                .get(program)
                .map_or(now - before, |t| crate::gang::ran_ns(t, before, now));
            *run_ns += (ran as f64 * *cpus) as u64;
            programs.push(ProgramUse {
                program: ProgramId(*program),
                run_ns: *run_ns,
                progress: 0,
                team: 0,
                could_use: 0,
                blocked: 0,
            });
        }
        // All CPUs were idle for long enough.
        let idle = |cpu| CpuReading {
            cpu,
            idle_ns: now,
            ..CpuReading::default()
        };
        let machine = MachineReading {
            time_ns: now,
            cpus: (0..4).map(idle).collect(),
            runnable: Some(1),
            ..MachineReading::default()
        };
        let outputs = manager.on(now, &Input::Readings(Readings { machine, programs }));
        for output in &outputs {
            if let Output::Turn { program, turn, .. } = output {
                turns.remove(&program.0);
                turns.extend(turn.clone().map(|turn| (program.0, turn)));
            }
        }
        all.extend(outputs);
    }
    all
}

#[test]
fn who_is_no_gang_is_never_told_a_turn() {
    let mut m = manager(2);
    for program in 1..=3 {
        assert_eq!(told(&join(&mut m, program, 2, None)), []);
    }
    assert_eq!(told(&join(&mut m, 4, 2, Some(""))), []);
}

#[test]
fn two_gangs_that_need_all_cpus_take_turns_until_one_leaves() {
    let mut m = manager(2);
    assert_eq!(told(&join(&mut m, 1, 2, Some(""))), []);
    let outputs = join(&mut m, 2, 2, Some(""));
    assert_eq!(told(&outputs), [(1, true), (2, true)]);
    let (first, second) = (turn(&outputs, 1).unwrap(), turn(&outputs, 2).unwrap());
    assert_ne!(
        first.runs_at(first.epoch_ns),
        second.runs_at(first.epoch_ns)
    );
    let program = ProgramId(2);
    assert_eq!(told(&m.on(5 * MS, &Input::Left { program })), [(1, false)]);
}

#[test]
fn who_is_a_gang_no_longer_runs_always() {
    let mut m = manager(2);
    join(&mut m, 1, 2, Some(""));
    join(&mut m, 2, 2, Some(""));
    let mut outputs = told(&says(&mut m, 1, None));
    outputs.sort();
    assert_eq!(outputs, [(1, false), (2, false)]);
    assert_eq!(told(&says(&mut m, 1, None)), []);
}

#[test]
fn programs_of_one_name_have_one_turn() {
    let mut m = manager(4);
    join(&mut m, 1, 2, Some("a"));
    join(&mut m, 2, 2, Some("a"));
    let outputs = join(&mut m, 3, 4, Some("b"));
    assert_eq!(told(&outputs), [(1, true), (2, true), (3, true)]);
    assert_eq!(turn(&outputs, 1), turn(&outputs, 2));
    assert_ne!(turn(&outputs, 1), turn(&outputs, 3));
}

#[test]
fn who_joins_a_gang_that_takes_turns_has_its_turn() {
    let mut m = manager(4);
    join(&mut m, 1, 4, Some("a"));
    let before = join(&mut m, 2, 4, Some("b"));
    let outputs = join(&mut m, 3, 4, Some("a"));
    assert_eq!(told(&outputs), [(3, true)]);
    assert_eq!(turn(&outputs, 3), turn(&before, 1));
}

#[test]
fn gangs_that_fit_side_by_side_are_left_alone_and_not_read() {
    let mut m = manager(4);
    let others = m.next_reading_ns();
    join(&mut m, 1, 2, Some(""));
    assert_eq!(told(&join(&mut m, 2, 2, Some(""))), []);
    assert_eq!(m.gangs.next_reading_ns(), None);
    assert_eq!(others, None);
}

#[test]
fn gangs_with_half_of_their_threads_busy_run_two_by_two() {
    let mut m = manager(4);
    let mut turns = BTreeMap::new();
    for program in 1..=8 {
        let outputs = join(&mut m, program, 4, Some(""));
        for (program, _) in told(&outputs) {
            turns.extend(turn(&outputs, program).map(|turn| (program, turn)));
        }
    }
    assert!(turns.values().all(|t| t.runs_ns() * 8 == t.period_ns));
    let mut used: Vec<(u64, f64, u64)> = (1..=8).map(|program| (program, 2.01, 0)).collect();
    read(&mut m, 40, &mut used, &mut turns);
    assert!(
        turns.values().all(|t| t.runs_ns() * 4 == t.period_ns),
        "{turns:?}"
    );
}

#[test]
fn a_gang_that_comes_to_use_all_of_its_threads_is_alone_again() {
    let mut m = manager(4);
    let mut turns = BTreeMap::new();
    let outputs = [join(&mut m, 1, 4, Some("")), join(&mut m, 2, 4, Some(""))].concat();
    for program in 1..=2 {
        turns.extend(turn(&outputs, program).map(|turn| (program, turn)));
    }
    let mut used = [(1, 2.0, 0), (2, 2.0, 0)];
    read(&mut m, 30, &mut used, &mut turns);
    assert!(turns.is_empty());
    used[0].1 = 2.7;
    let outputs = read(&mut m, 3, &mut used, &mut turns);
    assert_eq!(told(&outputs), [(1, true), (2, true)]);
}

#[test]
fn readings_that_only_gangs_want_are_nothing_to_the_policy() {
    let mut m = manager(2);
    join(&mut m, 1, 2, Some(""));
    join(&mut m, 2, 2, Some(""));
    let mut used = [(1, 2.0, 0), (2, 2.0, 0)];
    read(&mut m, 1, &mut used, &mut BTreeMap::new());
    let policys = m.next_reading_ns;
    assert_eq!(m.next_reading_ns(), Some(PERIOD_NS));
    read(&mut m, 9, &mut used, &mut BTreeMap::new());
    assert_eq!(
        (m.next_reading_ns, m.status().time_ns),
        (policys, 9 * PERIOD_NS)
    );
    assert_eq!(m.next_reading_ns(), policys);
    read(&mut m, 1, &mut used, &mut BTreeMap::new());
    assert_ne!(m.next_reading_ns, policys);
}

#[test]
fn a_malleable_program_with_one_thread_is_no_gang_while_that_lasts() {
    let mut m = manager(2);
    join(&mut m, 1, 2, Some(""));
    let wants = Wants {
        min_threads: 1,
        max_threads: 2,
        placement: Placement::Any,
        malleable: true,
    };
    let joined = Input::Joined {
        program: ProgramId(2),
        pid: 2,
        name: "malleable".to_owned(),
        wants,
    };
    m.on(0, &joined);
    assert_eq!(told(&says(&mut m, 2, Some(""))), [(1, true), (2, true)]);
    let claim = |threads| Input::Overridden {
        program: ProgramId(2),
        claim: Some((CpuSet::new(), threads)),
    };
    assert_eq!(told(&m.on(MS, &claim(1))), [(1, false), (2, false)]);
    assert_eq!(told(&m.on(2 * MS, &claim(2))), [(1, true), (2, true)]);
}

#[test]
fn a_manager_that_goes_on_for_another_answers_as_that_one_would_have() {
    let source = Source::built_in("observe");
    let mut m = GlobalManager::new(source.make().unwrap());
    m.on(0, &Input::Machine(Machine::flat(4)));
    let mut turns = BTreeMap::new();
    for program in 1..=3 {
        let outputs = join(&mut m, program, 4, Some(""));
        for (program, _) in told(&outputs) {
            turns.extend(turn(&outputs, program).map(|turn| (program, turn)));
        }
    }
    let mut used: Vec<(u64, f64, u64)> = (1..=3).map(|program| (program, 2.0, 0)).collect();
    read(&mut m, 3, &mut used, &mut turns);
    let kept = serde_json::to_string(&m.known()).unwrap();
    let mut other = GlobalManager::resume(serde_json::from_str(&kept).unwrap(), &source).unwrap();
    let (mut other_used, mut other_turns) = (used.clone(), turns.clone());
    let first = read(&mut m, 20, &mut used, &mut turns);
    let second = read(&mut other, 20, &mut other_used, &mut other_turns);
    assert!(!told(&first).is_empty());
    assert_eq!(first, second);
    assert_eq!(m.known(), other.known());
}

#[test]
fn gangs_of_sizes_that_fit_no_unit_are_still_packed_side_by_side() {
    // Three of eight on 24 CPUs of six to a cache, and others that fill up what is left.
    let mut m = manager(24);
    for program in 1..=3 {
        assert_eq!(told(&join(&mut m, program, 8, Some(""))), []);
    }
    let outputs: Vec<Output> = (4..=9)
        .flat_map(|program| join(&mut m, program, 4, Some("")))
        .collect();
    for program in 1..=9 {
        let turn = turn(&outputs, program).unwrap();
        assert!(turn.runs_ns() * 2 >= turn.period_ns - 2, "{turn:?}");
    }
}

#[test]
fn on_a_large_machine_a_gang_that_fits_elsewhere_is_not_told_of_others_turns() {
    let mut m = manager(128);
    (1..=2).for_each(|program| drop(join(&mut m, program, 64, Some(""))));
    let outputs = join(&mut m, 3, 64, Some(""));
    let rest = join(&mut m, 4, 64, Some(""));
    assert_eq!(told(&outputs).len(), 2);
    assert_eq!(told(&rest).len(), 2);
}

/// The CPUs that a program was granted last.
fn granted(outputs: &[Output], of: u64) -> Option<String> {
    let mut grants = outputs.iter().rev().filter_map(|output| match output {
        Output::Grant { program, cpus, .. } if program.0 == of => Some(cpus.to_string()),
        _ => None,
    });
    grants.next()
}

#[test]
fn gangs_that_take_turns_at_a_place_are_granted_it_and_their_whole_claim_afterwards() {
    let mut m = manager(128);
    let mut outputs: Vec<Output> = (1..=3)
        .flat_map(|program| join(&mut m, program, 64, Some("")))
        .collect();
    // The third shares the first one's place; the second has its own alone, and is left to Linux.
    for (program, cpus) in [(1, "0-63"), (2, "0-127"), (3, "0-63")] {
        assert_eq!(granted(&outputs, program).as_deref(), Some(cpus));
    }
    outputs.extend(join(&mut m, 4, 64, Some("")));
    for (program, cpus) in [(1, "0-63"), (2, "64-127"), (3, "0-63"), (4, "64-127")] {
        assert_eq!(granted(&outputs, program).as_deref(), Some(cpus));
    }
    // A claim that a person sets is theirs still, as far as it reaches into the place.
    let claim = Some(((32..96).collect(), 64));
    let program = ProgramId(2);
    outputs.extend(m.on(0, &Input::Overridden { program, claim }));
    let set = granted(&outputs, 2).unwrap();
    assert!(["32-63", "64-95", "32-95"].contains(&set.as_str()), "{set}");
    outputs.extend(says(&mut m, 2, None));
    assert_eq!(granted(&outputs, 2).as_deref(), Some("32-95"));
    (2..=3).for_each(|program| {
        let program = ProgramId(program);
        outputs.extend(m.on(0, &Input::Left { program }));
    });
    for program in [1, 4] {
        assert_eq!(granted(&outputs, program).as_deref(), Some("0-127"));
    }
}

#[test]
fn gangs_that_keep_their_idle_cpus_keep_as_many_as_they_have_threads() {
    let mut m = manager(4);
    let mut outputs = Vec::new();
    for program in 1..=4 {
        join(&mut m, program, 2, None);
        let gang = Gang {
            name: String::new(),
            keeps_idle: true,
            weight: 100,
        };
        let program = ProgramId(program);
        let gang = Some(gang);
        outputs.extend(m.on(0, &Input::Gang { program, gang }));
    }
    let mut turns: BTreeMap<u64, Turn> = BTreeMap::new();
    for program in 1..=4 {
        turns.insert(program, turn(&outputs, program).unwrap());
    }
    let halves =
        |turns: &BTreeMap<u64, Turn>| turns.values().all(|t| t.runs_ns() * 2 == t.period_ns);
    assert!(halves(&turns));
    // However little they use, nobody else runs there.
    let mut used: Vec<(u64, f64, u64)> = (1..=4).map(|program| (program, 1.0, 0)).collect();
    read(&mut m, 30, &mut used, &mut turns);
    assert!(halves(&turns) && turns.len() == 4);
}

fn waits(
    manager: &mut GlobalManager,
    program: u64,
    awake: u32,
    spinning: Option<u32>,
) -> Vec<Output> {
    let waits = Waits {
        awake,
        spinning,
        switch_ns: 0,
    };
    let program = ProgramId(program);
    manager.on(manager.status().time_ns, &Input::Waits { program, waits })
}

#[test]
fn gangs_whose_threads_sleep_while_they_wait_are_left_to_linux() {
    let mut m = manager(2);
    join(&mut m, 1, 2, Some(""));
    join(&mut m, 2, 2, Some(""));
    assert_eq!(told(&waits(&mut m, 1, 0, None)), []);
    let outputs = waits(&mut m, 2, 1, None);
    assert_eq!(told(&outputs), [(1, false), (2, false)]);
    let outputs = waits(&mut m, 2, 2, None);
    assert_eq!(told(&outputs), [(1, true), (2, true)]);
}

#[test]
fn a_gang_that_is_known_to_sleep_beforehand_is_never_stopped() {
    let mut m = manager(2);
    for program in 1..=2 {
        join(&mut m, program, 2, None);
        waits(&mut m, program, 0, None);
        assert_eq!(told(&says(&mut m, program, Some(""))), []);
    }
}

#[test]
fn processes_of_one_gang_wait_for_each_other_though_each_has_one_thread() {
    let mut m = manager(2);
    for program in 1..=4 {
        let name = if program < 3 { "a" } else { "b" };
        join(&mut m, program, 1, Some(name));
        waits(&mut m, program, 1, None);
    }
    assert!((1..=4).all(|program| m.turn(ProgramId(program)).is_some()));
}

#[test]
fn rigid_programs_that_spin_are_found_to_be_gangs_and_why_is_said() {
    let mut m = manager(2);
    join(&mut m, 1, 2, None);
    join(&mut m, 2, 2, None);
    assert_eq!(waits(&mut m, 1, 2, None), []);
    assert_eq!(waits(&mut m, 2, 1, Some(900)), []);
    let outputs = waits(&mut m, 1, 2, Some(430));
    let said = |output: &Output| matches!(output, Output::Note(text) if text.contains("43 %"));
    assert!(outputs.iter().any(said), "{outputs:?}");
    assert_eq!(told(&outputs), []);
    assert_eq!(
        told(&waits(&mut m, 2, 2, Some(900))),
        [(1, true), (2, true)]
    );
    // It spins no longer.
    let outputs = waits(&mut m, 1, 2, Some(10));
    assert_eq!(told(&outputs), [(1, false), (2, false)]);
    assert_eq!(m.gang(ProgramId(1)), None);
}

#[test]
fn programs_that_can_have_fewer_threads_are_not_found_to_be_gangs() {
    let mut m = manager(2);
    join(&mut m, 1, 2, None);
    let wants = Wants {
        malleable: true,
        ..m.status().programs[&ProgramId(1)].wants
    };
    let program = ProgramId(1);
    m.on(0, &Input::Asked { program, wants });
    assert_eq!(waits(&mut m, 1, 2, Some(900)), []);
}

#[test]
fn where_switching_was_measured_to_be_dear_slices_are_longer() {
    let mut m = manager(2);
    for program in 1..=8 {
        join(&mut m, program, 2, Some(""));
    }
    let period = |m: &GlobalManager| m.turn(ProgramId(1)).map(|turn| turn.period_ns);
    let before = period(&m);
    let dear = Waits {
        awake: 2,
        spinning: None,
        switch_ns: 180_000,
    };
    let program = ProgramId(1);
    let waits = dear;
    m.on(0, &Input::Waits { program, waits });
    assert!(period(&m) > before, "{before:?} {:?}", period(&m));
}

#[test]
fn gangs_with_a_slash_in_their_name_share_out_the_turns_of_the_gang_that_they_are_within() {
    let mut manager = manager(2);
    for (program, name) in [(1, "job/left"), (2, "job/right"), (3, "other")] {
        join(&mut manager, program, 2, Some(name));
    }
    let part = |manager: &GlobalManager, program| {
        let turn = manager.turn(ProgramId(program)).unwrap();
        100 * turn.runs_ns() / turn.period_ns
    };
    assert_eq!(
        [1, 2, 3].map(|program| part(&manager, program)),
        [25, 25, 50]
    );
    // A program of the group's own name is a set like the others within it, and gives the group its weight.
    join(&mut manager, 4, 2, None);
    manager.on(
        0,
        &Input::Gang {
            program: ProgramId(4),
            gang: Some(Gang {
                name: "job".to_owned(),
                keeps_idle: false,
                weight: 300,
            }),
        },
    );
    let parts = [1, 2, 3, 4].map(|program| part(&manager, program));
    assert!(parts[2].abs_diff(25) <= 1, "{parts:?}");
    assert!(
        parts[0].abs_diff(parts[1]) <= 1 && parts[3] > 2 * parts[0],
        "{parts:?}"
    );
    // Without others within it, it is a set beside others again.
    says(&mut manager, 1, None);
    says(&mut manager, 2, None);
    assert!(part(&manager, 4).abs_diff(75) <= 1);
    assert!(manager.turn(ProgramId(1)).is_none());
}
