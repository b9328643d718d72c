//! Whole scenarios: what is asked for happens, and is told.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;

use common::{experiments, mixed, run, scenario};
use corewise_decide::world::{Input, Output};
use corewise_sim::page::page;
use corewise_sim::report::{Ended, ProgramReport, Report};
use corewise_sim::scenario::Scenario;

const MS: u64 = 1_000_000;

/// A program of one thread with so much work.
fn job(name: &str, ms: u32, keys: &str) -> String {
    format!(
        "[[program]]\nname = \"{name}\"\nthreads = 1\n{keys}\n[program.spec]\nname = \"{name}\"\n\
         [[program.spec.phase]]\nserial = {{ work_ms = {ms} }}\n"
    )
}

fn program<'a>(report: &'a Report, name: &str) -> &'a ProgramReport {
    let found = report.programs.iter().find(|p| p.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {report:?}"))
}

#[test]
fn one_program_alone_takes_as_long_as_its_work() {
    let text = format!(
        "machine = \"flat:1\"\npolicy = \"fcfs\"\n{}",
        job("alone", 100, "")
    );
    let (outcome, entries) = run(&scenario(&text));
    let report = &outcome.report;
    assert_eq!(report.ended, Ended::Done);
    let alone = program(report, "alone");
    assert!((0.1..0.102).contains(&alone.wall_seconds), "{alone:?}");
    assert_eq!(alone.managed, Some("rigid"));
    assert!(
        alone
            .mean_claim_threads
            .is_some_and(|threads| threads == 1.0)
    );
    let left = entries
        .iter()
        .filter(|e| matches!(e.input, Input::Left { .. }));
    assert_eq!(left.count(), 1);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let scenario = mixed("balanced");
    let said = |scenario: &Scenario| {
        let (outcome, entries) = run(scenario);
        let journal: Vec<String> = entries
            .iter()
            .map(|e| serde_json::to_string(e).unwrap())
            .collect();
        (outcome.report.json().unwrap(), journal, page(&outcome))
    };
    let first = said(&scenario);
    assert!(first == said(&scenario));
    let mut other = scenario;
    other.seed = 6;
    assert!(first.0 != said(&other).0);
}

#[test]
fn without_a_manager_nothing_is_decided_or_read() {
    let (outcome, entries) = run(&mixed("none"));
    assert_eq!(outcome.report.policy, "none");
    assert!(entries.is_empty());
    assert_eq!(
        (outcome.report.journal_entries, outcome.report.grants),
        (0, 0)
    );
    assert!(outcome.report.programs.iter().all(|p| p.managed.is_none()));
    assert!(outcome.report.is_done());
}

#[test]
fn a_program_follows_its_claim_after_the_delay_and_not_before() {
    // Two CPUs and first come, first served: who comes second is moved when the first one leaves.
    let text = format!(
        "machine = \"flat:2\"\npolicy = \"fcfs\"\ndelay_us = 400\n{}{}",
        job("first", 50, ""),
        job("second", 50, "start_ms = 10"),
    );
    let (outcome, entries) = run(&scenario(&text));
    let granted: Vec<u64> = entries
        .iter()
        .filter(|e| e.outputs.iter().any(|o| matches!(o, Output::Grant { .. })))
        .map(|e| e.time_ns)
        .collect();
    assert!(
        granted.contains(&0) && granted.contains(&(10 * MS)),
        "{granted:?}"
    );
    // The local manager looks after the same delay, and says that there is a thread.
    let told = entries
        .iter()
        .find(|e| matches!(e.input, Input::Threads { count: 1, .. }));
    assert_eq!(told.map(|e| e.time_ns), Some(400_000));
    assert!(outcome.report.is_done());
}

#[test]
fn programs_start_after_others_and_in_waves() {
    let text = format!(
        "machine = \"flat:4\"\npolicy = \"none\"\n{}{}{}",
        job("first", 20, ""),
        job("second", 20, "after = \"first\"\nstart_ms = 5"),
        job("wave", 10, "count = 2\nwaves = 3\npause_ms = 7"),
    );
    let (outcome, _) = run(&scenario(&text));
    let report = &outcome.report;
    let (first, second) = (program(report, "first"), program(report, "second"));
    let gap = second.start_seconds - first.end_seconds.unwrap();
    assert!((gap - 0.005).abs() < 1e-9, "{gap}");
    let starts: Vec<f64> = (1..=6)
        .map(|n| program(report, &format!("wave-{n}")).start_seconds)
        .collect();
    let ends: Vec<f64> = (1..=6)
        .map(|n| program(report, &format!("wave-{n}")).end_seconds.unwrap())
        .collect();
    assert_eq!((starts[0], starts[0]), (0.0, starts[1]));
    let last_of_first = ends[0].max(ends[1]);
    assert!(
        (starts[2] - last_of_first - 0.007).abs() < 1e-9,
        "{starts:?} {ends:?}"
    );
    assert_eq!(starts[2], starts[3]);
}

#[test]
fn a_run_without_end_is_given_up_and_says_who_had_not_ended() {
    let text = format!(
        "machine = \"flat:2\"\npolicy = \"balanced\"\nlimit_ms = 300\n{}{}\
         [[program]]\nname = \"hog\"\nfile = \"../programs/hog.toml\"\n\
         [[program]]\nname = \"beside\"\nfile = \"../programs/hog.toml\"\nbackground = true\n",
        job("short", 10, ""),
        job("never", 10, "after = \"hog\""),
    );
    let (outcome, _) = run(&scenario(&text));
    assert_eq!(outcome.report.ended, Ended::Limit);
    assert_eq!(outcome.report.wall_seconds, 0.3);
    assert_eq!(outcome.report.unfinished, ["never (not started)", "hog"]);
}

#[test]
fn a_deadlock_is_named_and_ends_the_run_with_and_without_a_manager() {
    for policy in ["none", "balanced"] {
        let text = format!(
            "machine = \"flat:2\"\npolicy = \"{policy}\"\n\
             [[program]]\nname = \"bank\"\nfile = \"../programs/deadlock.toml\"\n"
        );
        let (outcome, _) = run(&scenario(&text));
        let report = &outcome.report;
        assert_eq!(report.ended, Ended::Deadlock, "{policy}");
        assert!(!report.is_done());
        let said = report.deadlock.join("\n");
        for part in ["transfer", "audit", "accounts", "journal"] {
            assert!(said.contains(part), "{policy}: {said}");
        }
        assert_eq!(report.unfinished, ["bank"]);
    }
}

#[test]
fn a_rigid_program_keeps_its_threads_and_a_malleable_one_follows() {
    let (outcome, _) = run(&mixed("automax"));
    let team = program(&outcome.report, "team");
    assert_eq!(team.managed, Some("malleable"));
    assert!(team.claims > 1, "{team:?}");
    let spinner = program(&outcome.report, "spinner");
    assert_eq!((spinner.managed, spinner.threads), (Some("rigid"), 2));
    let job = program(&outcome.report, "job-1");
    assert_eq!((job.managed, job.claims), (None, 0));
}

#[test]
fn a_group_uses_no_more_than_its_quota_and_the_manager_within_it_knows() {
    let quota = "[[group]]\nname = \"box\"\nquota_cpus = 0.5\nperiod_ms = 20\n";
    let text = format!(
        "machine = \"flat:4\"\npolicy = \"observe\"\nmanager = \"box\"\n{quota}{}",
        job("boxed", 200, "group = \"box\""),
    );
    let (outcome, entries) = run(&scenario(&text));
    let boxed = program(&outcome.report, "boxed");
    assert!((0.36..0.44).contains(&boxed.wall_seconds), "{boxed:?}");
    let machine = entries.iter().find_map(|e| match &e.input {
        Input::Machine(machine) => Some(machine.capacity),
        _ => None,
    });
    assert_eq!(machine, Some(0.5));
}

#[test]
fn readings_count_what_linux_counts_in_ticks_and_without_the_reader() {
    let text = format!(
        "machine = \"flat:2\"\npolicy = \"observe\"\n{}",
        job("job", 2_500, "")
    );
    let (_, entries) = run(&scenario(&text));
    let readings: Vec<_> = entries
        .iter()
        .filter_map(|e| match &e.input {
            Input::Readings(readings) => Some(readings),
            _ => None,
        })
        .collect();
    assert!(readings.len() >= 3, "{}", readings.len());
    let last = readings.last().unwrap();
    assert_eq!(last.machine.runnable, Some(1));
    assert!(last.machine.cpus.iter().all(|c| c.busy_ns % (10 * MS) == 0));
    let busy: u64 = last.machine.cpus.iter().map(|c| c.busy_ns).sum();
    let passed = last.machine.time_ns;
    assert!(passed - busy < 40 * MS, "{passed} {busy}");
    assert!(last.programs[0].run_ns >= busy);
}

#[test]
fn the_page_is_one_small_file_that_says_it_all_without_scripts() {
    let (outcome, _) = run(&mixed("automax"));
    let html = page(&outcome);
    for part in [
        "team",
        "spinner",
        "job",
        "hatched: spinning",
        "Claims",
        "Why",
        "prefers-color-scheme",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("<script") && !html.contains("http"));
    assert!(html.len() < 1_000_000, "{}", html.len());
}

#[test]
fn the_page_of_a_large_machine_with_many_switches_is_small_too() {
    let text = format!(
        "machine = \"flat:160\"\npolicy = \"balanced\"\nlimit_ms = 300\n\
         [[program]]\nname = \"spinner\"\nthreads = 160\n[program.spec]\nname = \"spinner\"\n\
         wait = {{ spin_us = 50 }}\n[[program.spec.phase]]\nrepeat = \"forever\"\n\
         region = {{ work_ms = 160, imbalance = 0.9 }}\n{}",
        job("job", 5, "count = 300\nwaves = 9\nmanaged = false"),
    );
    let (outcome, _) = run(&scenario(&text));
    let segments = outcome
        .timeline
        .as_ref()
        .unwrap()
        .cpus()
        .iter()
        .map(Vec::len);
    assert!(segments.sum::<usize>() > 10_000);
    let html = page(&outcome);
    assert!((20_000..1_000_000).contains(&html.len()), "{}", html.len());
    assert!(html.contains("The first 128 of 160 CPUs"));
}

#[test]
fn names_in_a_scenario_cannot_put_anything_into_the_page() {
    let text = format!(
        "name = \"<script>alert(1)</script>\"\nmachine = \"flat:1\"\npolicy = \"balanced\"\n{}",
        job("<img src=x>", 5, ""),
    );
    let html = page(&run(&scenario(&text)).0);
    assert!(
        !html.contains("<script") && !html.contains("<img"),
        "{html}"
    );
}

#[test]
fn every_example_is_a_scenario() {
    let mut seen = 0;
    for entry in std::fs::read_dir(experiments("scenarios")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let loaded = Scenario::load(&path);
            assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen >= 6);
}

#[test]
fn spinning_collapses_beside_a_neighbour_in_a_session_of_its_own() {
    let beside = |session: &str| {
        let text = format!(
            "machine = \"flat:2\"\npolicy = \"none\"\nlimit_ms = 60_000\n\
             [[program]]\nname = \"team\"\nthreads = 2\n[program.spec]\nname = \"team\"\nwait = \"spin\"\n\
             [[program.spec.phase]]\nrepeat = 200\nregion = {{ work_ms = 1 }}\n\
             [[program]]\nname = \"hog\"\nfile = \"../programs/hog.toml\"\nsession = \"{session}\"\n\
             background = true\n"
        );
        let (outcome, _) = run(&scenario(&text));
        let team = program(&outcome.report, "team");
        (team.wall_seconds, team.spin_seconds)
    };
    let (same, spun) = beside("main");
    let (own, _) = beside("another");
    // Alone it takes 0.1 s.
    assert!(same > 0.15 && spun > 0.05, "{same} {spun}");
    assert!(own > same, "{own} {same}");
}
