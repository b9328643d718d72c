//! Several policies at once, each over its own programs or CPUs.

use crate::support::{MS, Made, grants, malleable, rigid, set};
use corewise_decide::policy::Policy as _;
use corewise_decide::policy::broken_screw::PERIOD_NS;
use corewise_decide::policy::combined::{Combined, Part};
use corewise_decide::policy::source::Source;
use corewise_decide::reading::{CpuHeat, CpuReading, MachineReading};
use corewise_decide::status::LocalRule;
use corewise_decide::world::{Action, Input, Output, Readings};

fn part(name: &str, programs: &[&str], cpus: &str) -> Part {
    Part {
        source: Source::built_in(name),
        programs: programs.iter().map(|p| (*p).to_owned()).collect(),
        cpus: (!cpus.is_empty()).then(|| cpus.parse().unwrap()),
        claims: true,
    }
}

fn hardware_only(part: Part) -> Part {
    Part {
        claims: false,
        ..part
    }
}

fn script(text: &str, programs: &[&str], cpus: &str) -> Part {
    Part {
        source: Source::script("mine.rhai", text),
        ..part("", programs, cpus)
    }
}

fn made(parts: &[Part], cpus: u32) -> Made {
    Made::flat(Combined::new("day.toml", parts).unwrap(), cpus)
}

fn refused(parts: &[Part]) -> String {
    match Combined::new("day.toml", parts) {
        Ok(_) => panic!("it is not refused"),
        Err(why) => why,
    }
}

/// A reading `after_ns` later, in which each CPU has this temperature and so much of the time was busy.
fn read(
    made: &mut Made,
    after_ns: u64,
    celsius: &[f64],
    busy: &[u64],
    counted: u64,
) -> Vec<Output> {
    made.now_ns += after_ns;
    let heat = (0..).zip(celsius).map(|(cpu, celsius)| CpuHeat {
        cpu,
        celsius: *celsius,
        slows_at: Some(75.0),
        stops_at: Some(95.0),
    });
    let cpus = (0..).zip(busy).map(|(cpu, busy)| CpuReading {
        cpu,
        busy_ns: *busy,
        idle_ns: made.now_ns.saturating_sub(*busy),
        steal_ns: 0,
    });
    made.on(Input::Readings(Readings {
        machine: MachineReading {
            time_ns: made.now_ns,
            cpus: cpus.collect(),
            instructions: Some(counted),
            heat: heat.collect(),
            ..MachineReading::default()
        },
        programs: Vec::new(),
    }))
}

#[test]
fn each_policy_grants_its_own_cpus_to_its_own_programs() {
    let mut made = made(
        &[
            part("fcfs", &["p1", "p3"], "0-1"),
            part("balanced", &["p2"], "2-3"),
            part("observe", &[], ""),
        ],
        6,
    );
    let first = made.join(rigid(2, 2));
    assert_eq!(made.has(first), "2 on 0-1, alone");
    let [second, third, rest] = [(); 3].map(|()| made.join(rigid(2, 2)));
    assert!(
        made.claim(second).cpus.is_subset(&set([2, 3])),
        "{}",
        made.has(second)
    );
    assert!(
        made.claim(third).cpus.is_subset(&set([0, 1])),
        "it came too late, and shares"
    );
    assert_eq!(made.claim(rest).cpus, set([4, 5]), "what no policy names");
    made.leave(first);
    assert_eq!(made.has(third), "2 on 0-1, alone");
    assert!(made.claim(second).cpus.is_subset(&set([2, 3])));
}

#[test]
fn each_program_is_placed_by_its_own_policys_rule() {
    let policies = [
        part("fcfs", &["p1"], "0-1"),
        part("observe", &["q*"], "2-3"),
    ];
    let combined = Combined::new("day.toml", &policies).unwrap();
    assert_eq!(combined.local_rule_of("p1"), LocalRule::OneEach);
    assert_eq!(combined.local_rule_of("q7"), LocalRule::Leave);
    assert_eq!(combined.local_rule_of("nobodys"), LocalRule::Leave);
}

#[test]
fn a_program_that_is_nobodys_may_use_what_is_not_anothers_alone() {
    let mut made = made(&[part("fcfs", &["p1"], "0-1")], 4);
    let first = made.join(rigid(2, 2));
    let nobodys = made.join(rigid(1, 4));
    assert_eq!(made.has(first), "2 on 0-1, alone");
    assert_eq!(made.claim(nobodys).cpus, set([2, 3]));
}

/// The first two CPUs get hot, the program moves to the third; meanwhile prefetchers are tried on all.
#[test]
fn a_policy_moves_programs_while_another_tries_prefetchers() {
    let both = [
        part("broken-screw", &[], ""),
        hardware_only(part("prefetch", &[], "")),
    ];
    let mut made = made(&both, 4);
    let program = made.join(rigid(1, 1));
    let at = made.claim(program).cpus.iter().next().unwrap();
    assert_eq!(made.claim(program).threads, 1, "prefetch grants nothing");
    let mut celsius = [40.0; 4];
    let mut counted = 0;
    let (mut switched, mut moved_ns) = (Vec::new(), None);
    read(&mut made, 1, &celsius, &[], counted);
    let begin = made.now_ns;
    celsius[at as usize] = 99.0;
    for _ in 0..22 {
        // 500 ms with prefetchers retire twice as much as without.
        let on = switched.last() != Some(&false);
        counted += if on { 2_000 } else { 1_000 };
        let outputs = read(&mut made, 500 * MS, &celsius, &[], counted);
        for output in &outputs {
            match output {
                Output::Act {
                    action: Action::Prefetchers { on, .. },
                    reason,
                } => {
                    assert!(reason.starts_with("prefetch: "), "{reason}");
                    switched.push(*on);
                }
                Output::Grant { reason, cpus, .. } => {
                    assert!(reason.starts_with("broken-screw: CPU "), "{reason}");
                    assert!(!cpus.contains(at));
                    moved_ns.get_or_insert(made.now_ns - begin);
                }
                other => panic!("{other:?}"),
            }
        }
        // As often as the quicker of the two wants.
        assert_eq!(made.manager.next_reading_ns(), Some(made.now_ns + 500 * MS));
    }
    assert_eq!(switched[..3], [true, false, true]);
    assert_eq!(
        moved_ns,
        Some(PERIOD_NS),
        "the slower one is told every 10 s"
    );
}

#[test]
fn what_one_policy_ordered_and_failed_is_told_to_that_one() {
    let noisy = "fn on_joined(p) { set_weight(p, 50, \"light\"); }
                 fn on_failed(what) { note(\"I hear: \" + what); }";
    let both = [
        script(noisy, &["p2"], ""),
        hardware_only(part("prefetch", &[], "")),
    ];
    let mut made = made(&both, 2);
    made.join(rigid(1, 1));
    made.join(rigid(1, 1));
    let failed = |what: &str| Input::Failed {
        program: None,
        what: what.to_owned(),
    };
    let said = made.on(failed("no weights here"));
    assert!(
        matches!(&said[..], [Output::Note(text)] if text == "mine: I hear: no weights here"),
        "{said:?}"
    );
}

#[test]
fn hardware_is_set_of_ones_own_cpus_only() {
    let greedy = "fn on_joined(p) {
            set_prefetchers([0, 1, 2, 3], false, \"all of them\");
            set_frequency_mhz([3], 2000, \"another's\");
            set_duty_cycle([1], 50, \"mine\");
            grant(p, machine.cpus, 1, \"all I see\");
        }";
    let both = [script(greedy, &["p1"], "0-1"), part("observe", &[], "2-3")];
    let mut made = made(&both, 4);
    let program = made.join(rigid(1, 1));
    let entry = made.journal.last().unwrap();
    let actions: Vec<String> = entry
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Act { action, .. } => Some(action.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(
        actions,
        ["prefetchers of CPUs 0-1: off", "duty cycle of CPUs 1: 50 %"]
    );
    assert_eq!(made.claim(program).cpus, set([0, 1]));
}

#[test]
fn the_load_that_a_policy_sees_is_that_of_its_cpus() {
    let tells =
        "fn on_readings() { if load != () { note(`${load.busy} busy, ${load.idle} idle`); } }
                 fn on_joined(p) { }";
    let both = [script(tells, &["p1"], "0-1"), part("observe", &[], "2-3")];
    let mut made = made(&both, 4);
    made.join(rigid(1, 1));
    let second = 1_000 * MS;
    read(&mut made, second, &[], &[0, 0, 0, 0], 0);
    let said = read(
        &mut made,
        second,
        &[],
        &[second, second / 2, second, second],
        0,
    );
    assert!(
        matches!(&said[..], [Output::Note(text)] if text == "mine: 1.5 busy, 0.5 idle"),
        "{said:?}"
    );
}

#[test]
fn what_a_person_sets_stays_and_comes_back_to_its_policy() {
    let mut made = made(
        &[part("fcfs", &["p1"], "0-1"), part("observe", &[], "2-3")],
        4,
    );
    let first = made.join(malleable(1, 2));
    made.set_by_a_person(first, Some((set([3]), 1)));
    assert_eq!(made.has(first), "1 on 3");
    let given = made.set_by_a_person(first, None);
    assert!(!grants(&given).is_empty());
    assert!(made.claim(first).cpus.is_subset(&set([0, 1])));
}

#[test]
fn who_has_none_of_its_cpus_left_has_to_do_with_those_that_there_are() {
    let mut made = made(
        &[part("fcfs", &["p1"], "6-7"), part("observe", &[], "2-3")],
        4,
    );
    let program = made.join(rigid(1, 1));
    assert!(!made.claim(program).cpus.is_empty());
}

#[test]
fn two_that_grant_claims_to_the_same_programs_are_refused() {
    let why = refused(&[part("observe", &[], "0-1"), part("automax", &[], "2-3")]);
    assert!(
        why.contains("both would grant claims to all programs"),
        "{why}"
    );
    let why = refused(&[part("observe", &["a*"], ""), part("automax", &["*b"], "")]);
    assert!(why.contains("called both \"a*\" and \"*b\""), "{why}");
    assert!(
        why.contains("\"observe\" and the policy \"automax\" cannot decide together"),
        "{why}"
    );
    // The rest, beside those that are named, is nobody else's.
    assert!(
        Combined::new(
            "",
            &[part("observe", &["a*"], ""), part("automax", &[], "")]
        )
        .is_ok()
    );
}

#[test]
fn two_that_keep_the_same_cpus_for_their_programs_are_refused() {
    let why = refused(&[
        part("fcfs", &["a"], "0-2"),
        part("broken-screw", &["b"], "2-3"),
    ]);
    assert!(why.contains("have CPUs 2 in common"), "{why}");
    let why = refused(&[part("fcfs", &["a"], ""), part("balanced", &[], "")]);
    assert!(
        why.contains("have all CPUs that no other policy names in common"),
        "{why}"
    );
    // The rest, beside those that are named, is nobody else's.
    assert!(
        Combined::new(
            "",
            &[part("fcfs", &["a"], "0-2"), part("balanced", &[], "")]
        )
        .is_ok()
    );
    assert!(
        Combined::new(
            "",
            &[part("fcfs", &["a"], "0-1"), part("balanced", &[], "2-3")]
        )
        .is_ok()
    );
}

#[test]
fn who_sets_hardware_alone_has_all_cpus_unless_it_names_some() {
    let switches = script(
        "fn on_joined(p) { set_prefetchers([0], true, \"\"); }",
        &["a"],
        "0-1",
    );
    let prefetch = |cpus| hardware_only(part("prefetch", &[], cpus));
    let why = refused(&[switches.clone(), prefetch("")]);
    assert!(why.contains("the prefetchers of CPUs 0-1"), "{why}");
    assert!(Combined::new("", &[switches, prefetch("2-3")]).is_ok());
}

#[test]
fn two_that_set_the_same_of_the_same_cpu_are_refused() {
    let sets = |what: &str, programs: &[&str], cpus: &str| {
        script(&format!("fn on_joined(p) {{ {what}; }}"), programs, cpus)
    };
    for (order, what) in [
        (
            "set_prefetchers([0], true, \"\")",
            "the prefetchers of CPUs 1",
        ),
        (
            "set_frequency_mhz([0], 1000, \"\")",
            "the frequency of CPUs 1",
        ),
        ("set_duty_cycle([0], 50, \"\")", "the duty cycle of CPUs 1"),
    ] {
        let why = refused(&[sets(order, &["a"], "0-1"), sets(order, &["b"], "1-2")]);
        assert!(
            why.contains(what) && why.contains("give each its own `cpus`"),
            "{why}"
        );
        assert!(Combined::new("", &[sets(order, &["a"], "0-1"), sets(order, &["b"], "2")]).is_ok());
    }
    let why = refused(&[
        hardware_only(part("prefetch", &[], "0-1")),
        hardware_only(part("prefetch", &[], "2-3")),
    ]);
    assert!(why.contains("would judge the other's doing"), "{why}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (parts, says) in [
        (
            vec![hardware_only(part("observe", &[], ""))],
            "sets nothing else",
        ),
        (
            vec![hardware_only(part("prefetch", &["a"], ""))],
            "names programs",
        ),
        (vec![part("observe", &[""], "")], "is no name of programs"),
        (
            vec![part("observe", &["*a*b*c*d*"], "")],
            "at most four stars",
        ),
        (vec![part("no such policy", &[], "")], "no such policy"),
    ] {
        let why = refused(&parts);
        assert!(why.contains(says), "{why}");
    }
    let nested = Part {
        source: Source {
            parts: vec![part("observe", &[], "")],
            ..Source::built_in("inner.toml")
        },
        ..part("", &[], "")
    };
    assert!(refused(&[nested]).contains("several policies itself"));
}
