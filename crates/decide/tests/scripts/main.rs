//! Script policies: what they can do, what they cannot, and what happens when they are wrong.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

mod any_status;
mod errors;
mod examples;
mod hardware;
mod hooks;
mod limits;
mod objects;
mod sandbox;

use corewise_decide::cpus::CpuSet;
use corewise_decide::global::GlobalManager;
use corewise_decide::policy::Policy as _;
use corewise_decide::policy::script::{
    MAX_OPERATIONS, Report, ScriptError, ScriptErrorKind, ScriptPolicy,
};
use corewise_decide::status::{
    Claim, CpuPlace, LocalRule, Machine, Placement, ProgramId, Request, Status, Wants,
};
use corewise_decide::world::{Input, Output, ProgramUse, Readings};
use std::sync::{Arc, Mutex};

fn policy(text: &str) -> ScriptPolicy {
    ScriptPolicy::new(text, "mine.rhai").unwrap()
}

fn error(text: &str) -> ScriptError {
    ScriptPolicy::new(text, "mine.rhai").unwrap_err()
}

/// A manager of `cpus` CPUs with this script, and what is known of the script.
fn manager(cpus: u32, text: &str) -> (GlobalManager, Arc<Mutex<Report>>) {
    let policy = policy(text);
    let report = policy.report();
    let mut manager = GlobalManager::new(Box::new(policy));
    manager.on(0, &Input::Machine(Machine::flat(cpus)));
    (manager, report)
}

fn joined(program: u64) -> Input {
    Input::Joined {
        program: ProgramId(program),
        pid: 100 + i32::try_from(program).unwrap(),
        name: format!("p{program}"),
        wants: Wants {
            min_threads: 1,
            max_threads: 4,
            placement: Placement::Any,
            malleable: true,
        },
    }
}

fn claim(manager: &GlobalManager, program: u64) -> Claim {
    let program = &manager.status().programs[&ProgramId(program)];
    program.claim.clone().unwrap()
}

fn notes(outputs: &[Output]) -> Vec<&str> {
    let mut notes = Vec::new();
    for output in outputs {
        if let Output::Note(text) = output {
            notes.push(text.as_str());
        }
    }
    notes
}

/// Runs `body` when a program joins; the note that says why it failed.
fn failure(body: &str) -> String {
    let (mut manager, report) = manager(4, &format!("fn on_joined(p) {{\n{body}\n}}"));
    let outputs = manager.on(1, &joined(1));
    assert_eq!(
        report.lock().unwrap().failures.len(),
        1,
        "it did not fail: {outputs:?}"
    );
    // Whatever the script did, the program may run.
    assert_eq!(claim(&manager, 1).cpus, CpuSet::first(4));
    notes(&outputs).concat()
}

/// What `expression` is, as text.
fn value(expression: &str) -> String {
    let (mut manager, report) = manager(
        4,
        &format!("fn on_joined(p) {{ note(`${{{expression}}}`) }}"),
    );
    let outputs = manager.on(1, &joined(1));
    assert_eq!(report.lock().unwrap().failures, []);
    notes(&outputs).concat()
}

#[test]
fn the_same_inputs_give_the_same_orders() {
    let text = include_str!("../../../../experiments/policies/automax.rhai");
    let play = || {
        let (mut manager, _) = manager(8, text);
        let mut outputs = Vec::new();
        for program in 1..6 {
            outputs.extend(manager.on(program, &joined(program)));
        }
        for time in 1..50_u64 {
            let program = |id| ProgramUse {
                program: ProgramId(id),
                run_ns: time * 1_000,
                progress: time,
                team: 1,
                could_use: 0,
                blocked: 0,
            };
            let mut readings = Readings::default();
            readings.machine.time_ns = time * 1_000_000;
            readings.programs = (1..6).map(program).collect();
            readings.machine.runnable = Some(5);
            outputs.extend(manager.on(time * 1_000_000, &Input::Readings(readings)));
        }
        outputs
    };
    let first = play();
    assert!(first.iter().any(|o| matches!(
        o,
        Output::Tell {
            what: Request::Expand,
            ..
        }
    )));
    assert_eq!(first, play());
}
