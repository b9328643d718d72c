//! What scripts see of the hardware, and set.

use super::*;
use corewise_decide::reading::{CpuHeat, MachineReading};

fn read(manager: &mut GlobalManager, time_ns: u64, instructions: Option<u64>) -> Vec<Output> {
    let heat = CpuHeat {
        cpu: 1,
        celsius: 81.5,
        slows_at: Some(80.0),
        stops_at: None,
    };
    let machine = MachineReading {
        time_ns,
        instructions,
        heat: vec![heat],
        ..MachineReading::default()
    };
    let programs = Vec::new();
    manager.on(time_ns, &Input::Readings(Readings { machine, programs }))
}

fn notes(outputs: &[Output]) -> Vec<&str> {
    fn note(output: &Output) -> Option<&str> {
        match output {
            Output::Note(text) => Some(text),
            _ => None,
        }
    }
    outputs.iter().filter_map(note).collect()
}

#[test]
fn heat_and_counted_instructions_are_seen_and_what_is_not_known_is_nothing() {
    let text = "fn on_readings() {
        for cpu in [0, 1] {
            note(`${machine.temperature(cpu)} ${machine.slows_at(cpu)} ${machine.stops_at(cpu)}`);
        }
        if load != () { note(`${load.instructions}`); }
    }";
    let (mut manager, report) = manager(2, text);
    assert!(manager.policy().wants_heat() && manager.policy().decides().instructions);
    manager.on(1, &joined(1));
    let said = read(&mut manager, 1_000_000_000, Some(5));
    assert_eq!(notes(&said), ["  ", "81.5 80.0 "]);
    let said = read(&mut manager, 2_000_000_000, Some(1_005));
    assert_eq!(notes(&said)[2], "1000.0");
    let said = read(&mut manager, 3_000_000_000, None);
    assert_eq!(notes(&said)[2], "");
    assert!(report.lock().unwrap().failures.is_empty());
}

#[test]
fn a_script_that_does_not_ask_has_nothing_read_for_it() {
    let policy = policy("fn on_joined(p) { grant(p, machine.cpus, 1, \"\"); }");
    assert!(!policy.wants_heat());
    assert_eq!(
        policy.decides(),
        corewise_decide::policy::Decides::default()
    );
}

#[test]
fn what_a_script_sets_is_an_action_with_its_reason() {
    let text = "fn on_joined(p) {
        set_prefetchers([0], false, \"r\");
        set_frequency_mhz([0, 1, 9], 1600, \"r\");
        set_frequency_mhz([1], 0, \"r\");
        set_duty_cycle([1], 50, \"r\");
        set_cache(p, 0, 25, \"r\");
        set_bandwidth(p, 30, \"r\");
        set_prefetchers([9], true, \"may not be granted\");
    }";
    let (mut manager, report) = manager(2, text);
    let outputs = manager.on(1, &joined(1));
    let action = |output: &Output| match output {
        Output::Act { action, reason } => {
            assert_eq!(reason, "r");
            Some(action.to_string())
        }
        _ => None,
    };
    let actions: Vec<String> = outputs.iter().filter_map(action).collect();
    let wanted = [
        "prefetchers of CPUs 0: off",
        "frequency of CPUs 0-1: at most 1600 MHz",
        "frequency of CPUs 1: as it was",
        "duty cycle of CPUs 1: 50 %",
        "program 1: L3 caches from 0 to 25 %",
        "program 1: 30 % of the memory bandwidth",
    ];
    assert_eq!(actions, wanted);
    assert!(report.lock().unwrap().failures.is_empty());
}

#[test]
fn what_makes_no_sense_of_hardware_is_an_error_with_its_line() {
    for (order, says) in [
        (
            "set_prefetchers([], true, \"\")",
            "there is no CPU in the list",
        ),
        (
            "set_duty_cycle([0], 0, \"\")",
            "from 1 to 100 percent, not 0",
        ),
        (
            "set_bandwidth(p, 101, \"\")",
            "from 1 to 100 percent, not 101",
        ),
        ("set_frequency_mhz([0], -1, \"\")", "a frequency"),
    ] {
        let (mut manager, report) = manager(2, &format!("fn on_joined(p) {{\n  {order};\n}}"));
        let outputs = manager.on(1, &joined(1));
        assert!(!outputs.iter().any(|o| matches!(o, Output::Act { .. })));
        let report = report.lock().unwrap();
        let [failure] = &report.failures[..] else {
            panic!("{order}: {:?}", report.failures)
        };
        assert_eq!(failure.line, Some(2));
        assert!(failure.message.contains(says), "{}", failure.message);
    }
}
