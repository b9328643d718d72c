//! What a script may use up.

use crate::*;

#[test]
fn an_infinite_loop_is_stopped_and_the_program_runs_nevertheless() {
    let said = failure("let n = 0;\nloop { n += 1; }");
    assert!(said.contains("more than 100000 operations"), "{said}");
    assert!(said.starts_with("mine.rhai:3:"), "{said}");
}

#[test]
fn operations_within_map_and_the_like_count_too() {
    // The interpreter forgets what the functions given to `map` took.
    let nested = "let list = []; list.pad(1000, 1);
        list.for_each(|x| { let list = []; list.pad(1000, 1); list.for_each(|x| { let n = x + 1; }) });";
    let text = format!("fn on_joined(p) {{ {nested} }}");
    let (mut manager, report) = manager(4, &text);
    manager.on(1, &joined(1));
    let report = report.lock().unwrap();
    assert_eq!(report.failures[0].kind, ScriptErrorKind::Limit);
    assert_eq!(report.most_operations, MAX_OPERATIONS + 1);
}

#[test]
fn a_limit_cannot_be_caught_by_the_script() {
    let said = failure("try { loop {} } catch { } note(\"survived\");");
    assert!(said.contains("operations"), "{said}");
    assert!(!said.contains("survived"), "{said}");
}

#[test]
fn a_string_that_doubles_is_stopped() {
    let said = failure("let s = \"x\";\nloop {\n s += s; }");
    assert!(said.contains("too large") && said.contains(":4:"), "{said}");
}

#[test]
fn an_array_that_grows_is_stopped() {
    for body in [
        "let a = []; loop { a.push(1); }",
        "let a = [1]; loop { a += a; }",
        "let a = [1]; loop { a = [a, a]; }",
        "let a = []; a.pad(1000000000, 0);",
        "state.all = []; loop { state.all.push([1, 2, 3]); }",
    ] {
        assert!(failure(body).contains("too large"), "{body}");
    }
}

#[test]
fn maps_within_maps_are_stopped() {
    for body in [
        "let m = #{}; loop { m = #{a: m, b: m}; }",
        "let n = 0; loop { state[`k${n}`] = n; n += 1; }",
        "let m = #{a: 1}; loop { m = #{x: [m, m]}; }",
    ] {
        let said = failure(body);
        let deep = said.contains("within each other");
        assert!(deep || said.contains("too large"), "{body}: {said}");
    }
}

#[test]
fn recursion_without_end_is_stopped() {
    let text = "fn deep(n) { deep(n + 1) }\nfn on_joined(p) { deep(0); }";
    let (mut manager, _) = manager(2, text);
    let outputs = manager.on(1, &joined(1));
    assert!(notes(&outputs)[0].contains("calls within each other"));
}

#[test]
fn what_is_changed_by_an_index_is_bounded_too() {
    let big = "let big = []; big.pad(2000, 0);";
    for body in [
        "let a = [0, 0]; loop { a[0] = a; }",
        "let a = [0, 0]; loop { let b = a; a[0] = b; a[1] = b; }",
        "let m = #{}; let n = 0; loop { m[`k${n}`] = n; n += 1; }",
        "let m = #{of: #{}}; let n = 0; loop { m.of[`k${n}`] = n; n += 1; }",
        &format!("{big} let a = [[], []]; loop {{ a[0].push(big); }}"),
        &format!("{big} let m = #{{}}; for n in 0..500 {{ m[`k${{n}}`] = big; }}"),
        "let a = [0]; loop { a = [a]; }",
        "let m = #{}; loop { m.m = m; }",
        "let n = [].reduce(|sum, x| [sum], 0); let n = range(0, 100); let a = []; for x in n { a.push(x); } a.reduce(|sum, x| [sum], 0);",
    ] {
        let said = failure(body);
        let deep = said.contains("within each other");
        assert!(deep || said.contains("too large"), "{body}: {said}");
    }
}

#[test]
fn a_script_cannot_make_functions_that_hold_data_out_of_sight() {
    for text in [
        "fn on_joined(p) { let f = Fn(\"note\"); }",
        "fn on_joined(p) { let f = |x| x; f.curry(1); }",
        "fn on_joined(p) { eval(\"1\"); }",
        "fn on_joined(p) { let n = 1; [1].map(|x| x + n); }",
        "fn grow() { this.x = 1; } fn on_joined(p) { let m = #{}; m.grow(); }",
    ] {
        assert_eq!(error(text).kind, ScriptErrorKind::Compile, "{text}");
    }
}
