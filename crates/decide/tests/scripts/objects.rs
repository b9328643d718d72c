//! What scripts see, and help in choosing.

use crate::*;

#[test]
fn scripts_see_the_machine_its_load_and_the_programs() {
    assert_eq!(value("machine.cpus"), "[0, 1, 2, 3]");
    assert_eq!(value("machine.capacity"), "4.0");
    assert_eq!(value("machine.threads"), "4");
    assert_eq!(value("machine.l2"), "[[0], [1], [2], [3]]");
    assert_eq!(value("machine.l3"), "[[0, 1, 2, 3]]");
    assert_eq!(value("load == ()"), "true");
    assert_eq!(value("free"), "[0, 1, 2, 3]");
    assert_eq!(value("programs.map(|p| p.id)"), "[1]");
    assert_eq!(
        value("[p.min, p.max, p.malleable, p.placement]"),
        "[1, 4, true, \"any\"]"
    );
    assert_eq!(
        value("[p.claim, p.uses, p.could_use, p.rate]"),
        "[(), (), (), ()]"
    );
    assert_eq!(value("program(7) == () && program(1) == p"), "true");
}

#[test]
fn sets_of_cpus_are_arrays() {
    assert_eq!(value("union([3, 1], [1, 2])"), "[1, 2, 3]");
    assert_eq!(value("without([1, 2, 3], [2])"), "[1, 3]");
    assert_eq!(value("common([1, 2, 3], [3, 4])"), "[3]");
    assert_eq!(value("pick(free, 2, p.placement)"), "[0, 1]");
    assert_eq!(value("resize([2, 3], free, 3, \"any\").len()"), "3");
    assert_eq!(value("2 in free"), "true");
}

#[test]
fn cpus_are_picked_close_together_or_apart() {
    let text = "fn on_joined(p) {
        note(`${pick(free, 2, \"compact\")} ${pick(free, 2, \"scatter\")}`);
    }";
    let mut manager = GlobalManager::new(Box::new(policy(text)));
    let place = |cpu| CpuPlace {
        cpu,
        core: cpu,
        l2: cpu / 2,
        l3: cpu / 2,
        node: cpu / 2,
        package: 0,
    };
    let machine = Machine {
        places: (0..4).map(place).collect(),
        ..Machine::flat(4)
    };
    manager.on(0, &Input::Machine(machine));
    let outputs = manager.on(1, &joined(1));
    assert_eq!(notes(&outputs), ["[0, 1] [0, 2]"]);
}

#[test]
fn permute_keeps_all_and_favours_nobody_in_the_long_run() {
    let text = "fn on_readings() { note(`${permute([1, 2, 3])}`); }";
    let (mut manager, _) = manager(2, text);
    manager.on(1, &joined(1));
    let mut seen = std::collections::BTreeMap::new();
    for time in 2..602 {
        let outputs = manager.on(time, &Input::Readings(Readings::default()));
        *seen.entry(notes(&outputs).concat()).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 6, "{seen:?}");
    assert!(seen.values().all(|&times| times > 50), "{seen:?}");
}
