//! What programs may rely on, whatever a policy does.

use super::*;
use crate::policy::observe::Observe;
use crate::reading::MachineReading;
use crate::status::{Machine, Placement, Request};
use crate::world::{ProgramUse, Readings};

/// Does whatever a test has put down.
struct Dictated(Vec<Vec<Order>>);

impl Policy for Dictated {
    fn name(&self) -> String {
        "dictated".to_owned()
    }

    fn period_ns(&self, _: &Status) -> Option<u64> {
        Some(1)
    }

    fn on(&mut self, event: &Event, _: &Status, orders: &mut Orders) {
        if !matches!(event, Event::Machine) && !self.0.is_empty() {
            orders.list = self.0.remove(0);
        }
    }
}

fn wants(min_threads: u32, max_threads: u32) -> Wants {
    Wants {
        min_threads,
        max_threads,
        placement: Placement::Any,
        malleable: true,
    }
}

fn joined(program: u64, wants: Wants) -> Input {
    Input::Joined {
        program: ProgramId(program),
        pid: 100 + i32::try_from(program).unwrap(),
        name: format!("p{program}"),
        wants,
    }
}

fn grant(program: u64, cpus: &[u32], threads: u32, exclusive: bool) -> Order {
    Order::Grant {
        program: ProgramId(program),
        claim: Claim {
            cpus: cpus.iter().copied().collect(),
            threads,
            exclusive,
        },
        reason: "because".to_owned(),
    }
}

fn manager(cpus: u32, orders: Vec<Vec<Order>>) -> GlobalManager {
    let mut manager = GlobalManager::new(Box::new(Dictated(orders)));
    manager.on(0, &Input::Machine(Machine::flat(cpus)));
    manager
}

fn claim(manager: &GlobalManager, program: u64) -> Claim {
    let program = &manager.status().programs[&ProgramId(program)];
    program.claim.clone().unwrap()
}

#[test]
fn nobody_gets_fewer_threads_than_its_minimum_nor_more_than_it_can_use() {
    let mut m = manager(
        8,
        vec![
            vec![grant(1, &[0], 1, false)],
            vec![grant(2, &[0], 9, false)],
        ],
    );
    m.on(1, &joined(1, wants(3, 4)));
    m.on(2, &joined(2, wants(1, 4)));
    assert_eq!((claim(&m, 1).threads, claim(&m, 2).threads), (3, 4));
}

#[test]
fn cpus_that_are_anothers_alone_are_not_granted() {
    let orders = vec![
        vec![grant(1, &[0, 1], 2, true)],
        vec![grant(2, &[1, 2], 2, true)],
    ];
    let mut m = manager(4, orders);
    m.on(1, &joined(1, wants(1, 4)));
    m.on(2, &joined(2, wants(1, 4)));
    assert_eq!(claim(&m, 2).cpus, [2].into_iter().collect());
    assert!(claim(&m, 2).exclusive);
}

#[test]
fn where_nothing_is_left_all_share() {
    let orders = vec![
        vec![grant(1, &[0, 1], 2, true)],
        vec![grant(2, &[0], 1, true)],
    ];
    let mut m = manager(2, orders);
    m.on(1, &joined(1, wants(1, 4)));
    m.on(2, &joined(2, wants(1, 4)));
    assert_eq!(claim(&m, 2).cpus, CpuSet::first(2));
    assert!(!claim(&m, 1).exclusive && !claim(&m, 2).exclusive);
}

#[test]
fn cpus_outside_of_the_outer_claim_are_not_granted() {
    let mut m = manager(2, vec![vec![grant(1, &[1, 2, 3], 2, false)]]);
    m.on(1, &joined(1, wants(1, 4)));
    assert_eq!(claim(&m, 1).cpus, [1].into_iter().collect());
}

#[test]
fn a_program_that_the_policy_forgets_may_use_everything() {
    let mut m = manager(4, vec![vec![grant(1, &[0], 1, true)], Vec::new()]);
    m.on(1, &joined(1, wants(1, 4)));
    let outputs = m.on(2, &joined(2, wants(1, 9)));
    assert!(matches!(&outputs[..], [Output::Grant { threads: 9, .. }]));
    assert_eq!(claim(&m, 2).cpus, [1, 2, 3].into_iter().collect());
    assert!(!claim(&m, 2).exclusive && claim(&m, 1).exclusive);
}

#[test]
fn a_claim_loses_cpus_that_may_no_longer_be_granted_even_if_the_policy_does_nothing() {
    let mut m = manager(4, vec![vec![grant(1, &[1, 2, 3], 3, false)]]);
    m.on(1, &joined(1, wants(1, 4)));
    m.on(2, &Input::Machine(Machine::flat(2)));
    assert_eq!(claim(&m, 1).cpus, [1].into_iter().collect());
    assert_eq!(m.on(3, &Input::Machine(Machine::flat(3))), []);
}

#[test]
fn a_grant_that_changes_nothing_is_not_put_out() {
    let same = || vec![grant(1, &[0], 1, false)];
    let mut m = manager(2, vec![same(), same()]);
    assert_eq!(m.on(1, &joined(1, wants(1, 4))).len(), 1);
    let asked = Input::Asked {
        program: ProgramId(1),
        wants: wants(1, 2),
    };
    assert_eq!(m.on(2, &asked), []);
}

#[test]
fn only_the_one_who_was_asked_can_answer_and_once() {
    let ask = Order::Ask {
        program: ProgramId(1),
        what: Request::Shrink,
        reason: String::new(),
    };
    let note = |text: &str| vec![Order::Note(text.to_owned())];
    let mut m = manager(2, vec![vec![ask], note("2 joined"), note("heard")]);
    let told = m.on(1, &joined(1, wants(1, 4)));
    m.on(2, &joined(2, wants(1, 4)));
    let Some(Output::Tell { request, .. }) = told.first() else {
        panic!("nobody was asked: {told:?}");
    };
    let answer = |program| Input::Answered {
        program: ProgramId(program),
        request: *request,
        yes: true,
    };
    assert_eq!(m.on(3, &answer(2)), []);
    assert_eq!(m.on(4, &answer(1)), [Output::Note("heard".to_owned())]);
    assert_eq!(m.on(5, &answer(1)), []);
}

#[test]
fn no_claim_keeps_a_cpu_that_may_no_longer_be_used() {
    let mut m = manager(4, vec![vec![grant(1, &[2, 3], 2, true)]]);
    m.on(1, &joined(1, wants(1, 4)));
    m.on(2, &joined(2, wants(1, 4)));
    let set = Input::Overridden {
        program: ProgramId(2),
        claim: Some((CpuSet::from_iter([3]), 1)),
    };
    m.on(3, &set);
    let outputs = m.on(4, &Input::Machine(Machine::flat(3)));
    assert_eq!(claim(&m, 1).cpus, CpuSet::from_iter([2]));
    assert_eq!(claim(&m, 2).cpus, CpuSet::first(3));
    assert_eq!(outputs.len(), 2);
}

#[test]
fn a_persons_claim_follows_what_the_program_cannot_do_without() {
    let mut m = manager(4, Vec::new());
    m.on(1, &joined(1, wants(1, 4)));
    let set = Input::Overridden {
        program: ProgramId(1),
        claim: Some((CpuSet::first(1), 1)),
    };
    m.on(2, &set);
    let asked = Input::Asked {
        program: ProgramId(1),
        wants: wants(3, 4),
    };
    assert_eq!(m.on(3, &asked).len(), 1);
    assert_eq!(claim(&m, 1).threads, 3);
}

#[test]
fn a_persons_wish_is_met_as_soon_as_the_program_can() {
    let mut m = manager(4, Vec::new());
    m.on(1, &joined(1, wants(2, 2)));
    let set = Input::Overridden {
        program: ProgramId(1),
        claim: Some((CpuSet::first(2), 1)),
    };
    m.on(2, &set);
    assert_eq!(claim(&m, 1).threads, 2);
    let asked = Input::Asked {
        program: ProgramId(1),
        wants: wants(1, 3),
    };
    m.on(3, &asked);
    assert_eq!(claim(&m, 1).threads, 1);
    assert_eq!(claim(&m, 1).cpus, CpuSet::first(2));
}

#[test]
fn what_runs_on_cpus_of_others_is_not_load_here() {
    let load = crate::status::Load {
        runnable: Some(5),
        elsewhere: 2.0,
        ..Default::default()
    };
    assert_eq!(load.on_allowed_cpus(), Some(3.0));
}

#[test]
fn of_too_many_open_requests_the_oldest_can_no_longer_be_answered() {
    let ask = || {
        vec![Order::Ask {
            program: ProgramId(1),
            what: Request::Expand,
            reason: String::new(),
        }]
    };
    let mut orders: Vec<Vec<Order>> = (0..=MOST_OPEN_REQUESTS).map(|_| ask()).collect();
    orders.push(vec![Order::Note("heard".to_owned())]);
    let mut m = manager(2, orders);
    m.on(1, &joined(1, wants(1, 4)));
    let asked = Input::Asked {
        program: ProgramId(1),
        wants: wants(1, 4),
    };
    for _ in 0..MOST_OPEN_REQUESTS {
        m.on(2, &asked);
    }
    let answer = |request| Input::Answered {
        program: ProgramId(1),
        request,
        yes: true,
    };
    assert_eq!(m.on(3, &answer(1)), []);
    assert_eq!(m.on(3, &answer(2)), [Output::Note("heard".to_owned())]);
}

#[test]
fn a_persons_claim_stays_until_it_is_given_back() {
    let whole = || vec![grant(1, &[0, 1], 2, false)];
    let mut m = manager(2, vec![whole(), whole(), whole()]);
    m.on(1, &joined(1, wants(1, 4)));
    let set = |claim| Input::Overridden {
        program: ProgramId(1),
        claim,
    };
    m.on(2, &set(Some((CpuSet::first(1), 1))));
    assert_eq!(
        (claim(&m, 1).cpus, claim(&m, 1).threads),
        (CpuSet::first(1), 1)
    );
    m.on(3, &set(None));
    assert_eq!(claim(&m, 1).threads, 2);
}

#[test]
fn use_is_what_was_used_between_two_readings() {
    let mut m = GlobalManager::new(Box::new(Observe::default()));
    m.on(1, &Input::Machine(Machine::flat(2)));
    m.on(2, &joined(1, wants(1, 4)));
    let reading = |ms: u64, run_ms: u64, busy_ms: u64| {
        let cpu = |cpu| crate::reading::CpuReading {
            cpu,
            busy_ns: busy_ms * 1_000_000,
            idle_ns: 0,
            steal_ns: 0,
        };
        Input::Readings(Readings {
            machine: MachineReading {
                time_ns: ms * 1_000_000,
                cpus: vec![cpu(0), cpu(1)],
                runnable: Some(2),
                pressure_ns: None,
                ..MachineReading::default()
            },
            programs: vec![ProgramUse {
                program: ProgramId(1),
                run_ns: run_ms * 1_000_000,
                progress: run_ms,
                team: 2,
                could_use: 0,
                blocked: 0,
            }],
        })
    };
    m.on(3, &reading(100, 0, 0));
    assert_eq!(m.status().load, None);
    m.on(4, &reading(200, 120, 100));
    let load = m.status().load.unwrap();
    let program = &m.status().programs[&ProgramId(1)];
    assert!((program.uses.unwrap() - 1.2).abs() < 1e-9);
    assert!((load.others - 0.8).abs() < 1e-9);
    assert!((program.progress_rate.unwrap() - 1200.0).abs() < 1e-6);
    // Counters that move in ticks stand still at times: that is no idle CPU.
    m.on(5, &reading(202, 122, 100));
    let load = m.status().load.unwrap();
    assert_eq!((load.busy, load.idle), (0.0, 0.0));
}

#[test]
fn nothing_is_read_while_there_are_no_programs_nor_more_often_than_the_shortest_period() {
    let mut m = manager(2, Vec::new());
    assert_eq!(m.next_reading_ns(), None);
    m.on(5, &joined(1, wants(1, 1)));
    assert_eq!(m.next_reading_ns(), Some(5));
    m.on(7, &Input::Readings(Readings::default()));
    assert_eq!(m.next_reading_ns(), Some(7 + SHORTEST_PERIOD_NS));
    m.on(
        8,
        &Input::Left {
            program: ProgramId(1),
        },
    );
    assert_eq!(m.next_reading_ns(), None);
}

#[test]
fn in_a_world_whose_time_begins_at_0_readings_are_a_period_apart_too() {
    let mut m = GlobalManager::new(Box::new(Dictated(Vec::new())));
    m.on(0, &Input::Machine(Machine::flat(2)));
    m.on(0, &joined(1, wants(1, 2)));
    assert_eq!(m.next_reading_ns(), Some(0));
    m.on(0, &Input::Readings(Readings::default()));
    assert_eq!(m.next_reading_ns(), Some(SHORTEST_PERIOD_NS));
}
