//! Which function of a script is called when.

use crate::*;

#[test]
fn what_a_script_keeps_is_there_at_the_next_event() {
    let text = "fn on_event(what) {
        state.events = (if state.events == () { [] } else { state.events }) + [what];
        note(`${state.events}`);
    }";
    let (mut manager, _) = manager(2, text);
    let outputs = manager.on(1, &joined(1));
    assert_eq!(notes(&outputs), ["[\"machine\", \"joined\"]"]);
}

#[test]
fn each_event_comes_to_its_function() {
    let text = r#"
        fn on_machine() { note("machine"); }
        fn on_joined(p) { grant(p, [0], 1, ""); ask(p, "expand", ""); note(`joined ${p.name}`); }
        fn on_asked(p) { note(`asked ${p.max}`); }
        fn on_threads(p, before, now) { note(`threads ${before} ${now}`); }
        fn on_answered(p, what, yes) { note(`answered ${what} ${yes}`); }
        fn on_left(id, claim) { note(`left ${id} ${claim}`); }
        fn on_readings() { note("readings"); }
        fn on_overridden(p) { note(`overridden ${p.overridden}`); }
        fn on_failed(what) { note(`failed ${what}`); }
    "#;
    let (mut manager, _) = manager(2, text);
    let program = ProgramId(1);
    let wants = Wants {
        min_threads: 1,
        max_threads: 7,
        placement: Placement::Any,
        malleable: true,
    };
    let inputs = [
        (Input::Machine(Machine::flat(3)), "machine"),
        (joined(1), "joined p1"),
        (Input::Asked { program, wants }, "asked 7"),
        (Input::Threads { program, count: 2 }, "threads 0 2"),
        (
            Input::Answered {
                program,
                request: 1,
                yes: false,
            },
            "answered expand false",
        ),
        (Input::Readings(Readings::default()), "readings"),
        (
            Input::Overridden {
                program,
                claim: Some((CpuSet::first(1), 1)),
            },
            "overridden true",
        ),
        (
            Input::Failed {
                program: None,
                what: "no cgroup".to_owned(),
            },
            "failed no cgroup",
        ),
        (Input::Left { program }, "left 1 1 threads on CPUs 0"),
    ];
    for (time, (input, said)) in (1..).zip(inputs) {
        assert_eq!(notes(&manager.on(time, &input)), [said]);
    }
}

#[test]
fn name_rule_and_period_are_the_scripts_own() {
    let plain = policy("fn on_joined(p) {}");
    assert_eq!(plain.name(), "mine");
    assert_eq!(plain.local_rule(), LocalRule::Whole);
    let said = policy(
        "fn name() { \"ours\" } fn local_rule() { \"one-each\" } fn on_joined(p) {}
         fn period_ms() { if programs.len() > 0 { 20 } else { 0 } }",
    );
    assert_eq!(said.name(), "ours");
    assert_eq!(said.local_rule(), LocalRule::OneEach);
    let mut manager = GlobalManager::new(Box::new(said));
    manager.on(0, &Input::Machine(Machine::flat(2)));
    manager.on(1, &joined(1));
    manager.on(5, &Input::Readings(Readings::default()));
    assert_eq!(manager.next_reading_ns(), Some(20_000_005));
    assert!(
        error("fn local_rule() { \"some\" } fn on_joined(p) {}")
            .message
            .contains("one-each")
    );
}

#[test]
fn grants_of_one_event_may_come_in_any_order() {
    // CPU 0 goes from the first to the second, which is named first.
    let text = "fn on_joined(p) {
        if p.id == 1 { grant_alone(p, [0, 1], 2, \"first\"); return; }
        grant_alone(2, [0], 1, \"second\");
        grant_alone(1, [1], 1, \"gives one\");
    }";
    let (mut manager, _) = manager(2, text);
    manager.on(1, &joined(1));
    manager.on(2, &joined(2));
    assert_eq!(claim(&manager, 1).cpus.to_string(), "1");
    assert_eq!(claim(&manager, 2).cpus.to_string(), "0");
    assert!(claim(&manager, 1).exclusive && claim(&manager, 2).exclusive);
}
