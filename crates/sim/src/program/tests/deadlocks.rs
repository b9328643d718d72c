//! Programs that cannot go on are said to be so, with who waits for what.

use super::*;

const OPPOSITE: &str = include_str!("../../../../../experiments/programs/deadlock.toml");

fn stuck(bench: &mut Bench) -> Stuck {
    bench.run(60 * SECOND, |_| false).expect_err("it is stuck")
}

#[test]
fn two_locks_in_opposite_order_are_named_with_both_threads() {
    let mut bench = Bench::new(2);
    let p = bench.start(OPPOSITE, 1);
    let stuck = stuck(&mut bench);
    assert_eq!(
        (stuck.program, stuck.circle, stuck.time_ns),
        (p, 2, bench.kernel.now())
    );
    let mut said: Vec<String> = Vec::new();
    for waits in &stuck.waits[..2] {
        let holder = waits.held_by.as_ref().unwrap();
        said.push(format!("{} {} {holder}", waits.name, waits.what));
    }
    said.sort();
    assert_eq!(
        said,
        [
            "audit 0 lock `accounts` transfer 0",
            "transfer 0 lock `journal` audit 0"
        ]
    );
    let text = stuck.to_string();
    assert!(
        text.contains("waits for lock `accounts`, held by transfer 0"),
        "{text}"
    );
    assert!(text.contains(" (a circle: "), "{text}");
    assert!(
        text.contains("main waits for the threads that it has started"),
        "{text}"
    );
    assert!(bench.programs.stuck(&bench.kernel).is_some());
}

#[test]
fn a_circle_is_seen_although_others_go_on() {
    let mut bench = Bench::new(4);
    let ticks =
        "[[phase.group]]\nname = \"ticks\"\nrepeat = \"forever\"\nsteps = [{ work_us = 100 }]\n";
    bench.start(&format!("{OPPOSITE}\n{ticks}"), 1);
    let hog = bench.start(
        "name = \"hog\"\n[[phase]]\nrepeat = \"forever\"\nserial = { work_ms = 1 }",
        1,
    );
    let stuck = stuck(&mut bench);
    assert_eq!((stuck.circle, stuck.waits.len()), (2, 2));
    // It is said once; the others go on.
    let before = bench.state(hog).progress;
    let now = bench.kernel.now();
    bench.run(now + 100 * MS, |_| false).unwrap();
    assert!(bench.state(hog).progress > before + 50);
}

#[test]
fn spinning_in_a_circle_is_a_deadlock_too() {
    let mut bench = Bench::new(2);
    let spins =
        "[locks]\naccounts = { wait = \"spin\" }\njournal = { wait = \"yield\" }\n\n[[phase]]";
    bench.start(&OPPOSITE.replacen("[[phase]]", spins, 1), 1);
    assert_eq!(stuck(&mut bench).circle, 2);
}

#[test]
fn a_lock_that_is_taken_twice_or_never_given_back_is_a_deadlock() {
    let mut bench = Bench::new(1);
    bench.start(
        "name = \"a\"\n[[phase]]\n[[phase.group]]\nname = \"g\"\n\
         steps = [{ lock = \"l\" }, { work_us = 1 }, { lock = \"l\" }]",
        1,
    );
    let said = stuck(&mut bench);
    assert_eq!(
        (said.circle, said.waits[0].held_by.as_deref()),
        (1, Some("g 0"))
    );
    let mut bench = Bench::new(1);
    bench.start(
        "name = \"a\"\n[[phase]]\n[[phase.group]]\nname = \"g\"\nthreads = 2\n\
         steps = [{ lock = \"l\" }, { work_us = 1 }]",
        1,
    );
    let said = stuck(&mut bench).to_string();
    assert!(
        said.contains("g 1 waits for lock `l`, held by g 0, which has ended"),
        "{said}"
    );
}

#[test]
fn a_post_that_never_comes_is_named() {
    let mut bench = Bench::new(1);
    bench.start(
        "name = \"a\"\n[[phase]]\n[[phase.group]]\nname = \"g\"\nsteps = [{ wait = \"s\" }, { post = \"s\" }]",
        1,
    );
    let stuck = stuck(&mut bench);
    assert_eq!(stuck.circle, 0);
    assert!(
        stuck
            .to_string()
            .contains("g 0 waits for somebody to post `s`"),
        "{stuck}"
    );
}

#[test]
fn locks_in_the_same_order_are_no_deadlock() {
    let (work, rest) = OPPOSITE
        .split_once("[[phase.group]]\nname = \"audit\"")
        .unwrap();
    assert!(rest.contains("journal"));
    let mut bench = Bench::new(4);
    let p = bench.start(
        &work.replace("name = \"transfer\"", "name = \"transfer\"\nthreads = 8"),
        1,
    );
    bench.run(SECOND, |_| false).unwrap();
    assert!(bench.state(p).progress > 10_000, "{:?}", bench.state(p));
}

#[test]
fn a_frozen_program_on_an_idle_machine_is_said_to_have_no_cpu() {
    let mut bench = Bench::new(1);
    let p = bench.start("name = \"a\"\n[[phase]]\nserial = { work_ms = 1 }", 1);
    bench.programs.freeze(&mut bench.kernel, p, true);
    bench.run(u64::MAX, |_| false).unwrap();
    let stuck = bench.programs.stuck(&bench.kernel).unwrap();
    assert!(
        stuck.waits.is_empty() && stuck.to_string().contains("no CPU"),
        "{stuck}"
    );
    bench.programs.freeze(&mut bench.kernel, p, false);
    bench.finish(p);
}

#[test]
fn a_thread_that_takes_a_lock_again_that_it_has_waits_for_itself_whoever_is_next() {
    for fifo in [false, true] {
        let mut bench = Bench::new(2);
        let text = format!(
            "name = \"a\"\nlocks = {{ l = {{ wait = \"block\", fifo = {fifo} }} }}\n[[phase]]\n[[phase.group]]\n\
             name = \"g\"\nthreads = 2\nsteps = [{{ lock = \"l\" }}, {{ work_us = 5 }}, {{ unlock = \"l\" }}, \
             {{ lock = \"l\" }}, {{ lock = \"l\" }}, {{ unlock = \"l\" }}, {{ unlock = \"l\" }}]"
        );
        bench.start(&text, 1);
        assert_eq!(stuck(&mut bench).circle, 1, "{fifo}");
    }
}
