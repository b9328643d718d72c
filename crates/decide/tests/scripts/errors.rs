//! What is said of a wrong script, and what it leaves.

use crate::*;

#[test]
fn what_is_not_a_script_is_shown_with_its_line() {
    let wrong = error("fn on_joined(p) {\n    let x = ;\n}");
    assert_eq!(
        (wrong.kind, wrong.line),
        (ScriptErrorKind::Compile, Some(2))
    );
    assert!(wrong.to_string().starts_with("mine.rhai:2:"), "{wrong}");
}

#[test]
fn a_name_that_nobody_has_defined_is_an_error_before_its_line_is_reached() {
    let wrong = error("const LOW = 1;\nfn on_readings() {\n    if load.busy < LWO { }\n}");
    assert_eq!(wrong.line, Some(3));
    assert!(wrong.message.contains("LWO"), "{wrong}");
}

#[test]
fn an_event_that_does_not_exist_is_an_error_and_so_are_wrong_arguments() {
    let wrong = error("// a policy\nfn on_join(p) {}\nfn on_joined(p) {}");
    assert_eq!(wrong.line, Some(2));
    assert!(wrong.message.contains("on_joined"), "{wrong}");
    let wrong = error("fn on_joined(p) {}\n\nfn  on_left(id) {}");
    assert_eq!(wrong.line, Some(3));
    assert!(wrong.message.contains("2 arguments"), "{wrong}");
    assert!(error("const A = 1;").message.contains("any event"));
}

#[test]
fn a_variable_of_the_top_level_is_an_error_because_functions_do_not_see_it() {
    let wrong = error("const A = 1;\nlet b = 2;\nfn on_joined(p) {}");
    assert_eq!(wrong.line, Some(2));
    assert!(wrong.message.contains("const"), "{wrong}");
}

#[test]
fn an_error_in_a_called_function_is_shown_where_it_is() {
    let text = "fn on_joined(p) {\n  help(p);\n}\n\nfn help(p) {\n  p.nothing\n}";
    let (mut manager, report) = manager(2, text);
    manager.on(1, &joined(1));
    let wrong = report.lock().unwrap().failures[0].clone();
    assert_eq!((wrong.kind, wrong.line), (ScriptErrorKind::Run, Some(6)));
    assert_eq!(wrong.function.as_deref(), Some("on_joined"));
}

#[test]
fn what_a_script_throws_is_what_is_said() {
    let said = failure("throw \"no room\";");
    assert!(
        said.starts_with("mine.rhai:2:1: no room (in on_joined)"),
        "{said}"
    );
}

#[test]
fn wrong_orders_say_what_is_wrong() {
    for (body, what) in [
        ("grant(p, [0, -1], 1, \"\");", "CPUs are numbers"),
        ("grant(p, [0], -1, \"\");", "-1"),
        ("grant(\"p\", [0], 1, \"\");", "not a program"),
        ("ask(p, \"grow\", \"\");", "expand"),
        ("pick([0], 1, \"near\");", "compact"),
        ("set_weight(p, 0, \"\");", "10000"),
    ] {
        let said = failure(body);
        assert!(said.contains(what), "{body}: {said}");
    }
}

#[test]
fn an_event_that_fails_leaves_neither_orders_nor_memory() {
    let text = "fn on_joined(p) {
        state.seen = (if state.seen == () { 0 } else { state.seen }) + 1;
        grant(p, [state.seen - 1], 1, \"next\");
        if p.id == 2 { throw \"not you\"; }
    }";
    let (mut manager, _) = manager(4, text);
    manager.on(1, &joined(1));
    manager.on(2, &joined(2));
    manager.on(3, &joined(3));
    let cpus = |program| claim(&manager, program).cpus.to_string();
    assert_eq!([cpus(1), cpus(2), cpus(3)], ["0", "0-3", "1"]);
}

#[test]
fn a_script_that_fails_at_every_reading_does_not_fill_the_journal() {
    let (mut manager, report) = manager(2, "fn on_readings() { throw \"always\"; }");
    manager.on(1, &joined(1));
    let mut said = 0;
    for time in 2..=65 {
        said += manager
            .on(time, &Input::Readings(Readings::default()))
            .len();
    }
    assert_eq!(said, 7, "after 1, 2, 4, 8, 16, 32 and 64 times");
    assert_eq!(report.lock().unwrap().failures.len(), 64);
}

#[test]
fn what_cannot_be_kept_is_an_error() {
    for (body, what) in [
        ("state.first = p;", "its id"),
        ("state.f = |x| x;", "keep numbers"),
        ("state.all = [#{it: p}];", "its id"),
    ] {
        let said = failure(body);
        assert!(said.contains(what), "{body}: {said}");
    }
}
