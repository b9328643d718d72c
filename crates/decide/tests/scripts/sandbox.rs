//! What a script cannot reach.

use crate::*;

#[test]
fn a_script_reaches_no_file_clock_environment_or_other_script() {
    for call in [
        "timestamp()",
        "sleep(1)",
        "open_file(\"/etc/passwd\")",
        "env(\"HOME\")",
        "rand()",
        "exit(1)",
        "parse_json(\"{}\")",
    ] {
        let said = failure(&format!("{call};"));
        assert!(said.contains("not found"), "{call}: {said}");
    }
    assert_eq!(
        error("import \"other\" as other;\nfn on_joined(p) {}").line,
        Some(1)
    );
}

#[test]
fn what_a_script_prints_goes_to_the_journal() {
    let (mut manager, _) = manager(2, "fn on_joined(p) { print(\"hello\"); note(\"there\"); }");
    let outputs = manager.on(1, &joined(1));
    assert_eq!(notes(&outputs), ["hello", "there"]);
}

#[test]
fn the_status_cannot_be_changed_by_writing_to_it() {
    for body in [
        "p.threads = 3;",
        "machine.capacity = 1.0;",
        "programs = [];",
    ] {
        let text = format!("fn on_joined(p) {{ {body} }}");
        match ScriptPolicy::new(&text, "mine.rhai") {
            Err(_) => {}
            Ok(_) => {
                failure(body);
            }
        }
    }
}
