//! All work is done, whoever does it.

use super::*;
use proptest::prelude::*;

/// Threads count in parts of a nanosecond, and round when they are read.
fn assert_work(bench: &Bench, p: ProgramNumber, declared: u64) {
    let done = bench.counters(p).work_ns;
    let rounding = bench.programs.threads(p).len() as u64 + declared / 1_000_000_000;
    assert!(
        done.abs_diff(declared) <= rounding,
        "{done} of {declared} ns"
    );
}

fn assert_all_work_is_done(text: &str, cpus: u32, threads: u32) {
    let mut bench = Bench::new(cpus);
    let p = bench.start(text, threads);
    bench.finish(p);
    let declared = ProgramSpec::from_toml(text).unwrap().work_ns().unwrap();
    assert_work(&bench, p, declared);
}

#[test]
fn a_region_does_all_of_its_work_for_every_schedule_and_number_of_threads() {
    let units = "units = 37, imbalance = 0.7, locks = [{ name = \"l\", hold_us = 3, times = 2 }]";
    let regions = [
        "imbalance = 0.9".to_owned(),
        format!("schedule = \"static\", {units}"),
        format!("schedule = \"dynamic\", {units}, io_us = 10"),
        format!("schedule = \"dynamic\", join = \"leader\", {units}"),
        format!("schedule = \"dynamic\", join = \"work\", {units}"),
    ];
    for region in regions {
        for threads in [1, 2, 3, 8, 50] {
            for wait in ["\"spin\"", "\"block\"", "\"yield\"", "{ spin_us = 20 }"] {
                let text = format!(
                    "name = \"a\"\nwait = {wait}\n[[phase]]\nrepeat = 3\n\
                     region = {{ work_ms = 1.234567, {region} }}"
                );
                let spec = ProgramSpec::from_toml(&text).unwrap();
                let held = if region.contains("locks") {
                    37 * 2 * 3000
                } else {
                    0
                };
                assert_eq!(spec.work_ns(), Some(3 * (1_234_567 + held)));
                assert_all_work_is_done(&text, 4, threads);
            }
        }
    }
}

#[test]
fn processes_stages_groups_and_jobs_do_all_of_their_work() {
    let text = "
        name = \"all\"
        processes = 3
        [[phase]]
        serial = { work_ms = 0.5 }
        [[phase]]
        [phase.pipeline]
        items = 50
        [[phase.pipeline.stage]]
        name = \"in\"
        work_us = 3
        [[phase.pipeline.stage]]
        name = \"work\"
        threads = \"team\"
        work_us = 40
        variation = 1.0
        [[phase.pipeline.stage]]
        name = \"out\"
        work_us = 2
        ordered = true
        [[phase]]
        repeat = 2
        [[phase.group]]
        name = \"g\"
        threads = 2
        repeat = 10
        steps = [{ work_us = 7 }, { lock = \"l\" }, { work_us = 2 }, { unlock = \"l\" }, { io_us = 5 }]
        [[phase]]
        sleep_ms = 1
        [[phase]]
        jobs = { count = 9, work_ms = 0.1, variation = 0.5, wave = 4, every_ms = 1 }
    ";
    let each = 500_000 + 50 * 45_000 + 2 * 2 * 10 * 9_000 + 9 * 100_000;
    let spec = ProgramSpec::from_toml(text).unwrap();
    assert_eq!(spec.work_ns(), Some(3 * each));
    assert_all_work_is_done(text, 2, 3);
    let mut bench = Bench::new(2);
    let p = bench.start(text, 3);
    bench.finish(p);
    assert_eq!(bench.state(p).progress, 3 * (1 + 50 + 2 * 2 * 10 + 9));
}

/// Programs of any shape, small enough to run.
fn program() -> impl Strategy<Value = String> {
    let wait = prop::sample::select(vec![
        "\"spin\"",
        "\"block\"",
        "\"yield\"",
        "{ spin_us = 5 }",
        "{ spin_us = 50, yields = true }",
    ]);
    let phases = prop::collection::vec(phase(), 1..4);
    (wait, any::<bool>(), 1u32..3, phases).prop_map(|(wait, malleable, processes, phases)| {
        let phases = phases.join(", ");
        format!(
            "name = \"any\"\nwait = {wait}\nmalleable = {malleable}\nprocesses = {processes}\n\
             phase = [{phases}]\n"
        )
    })
}

fn phase() -> impl Strategy<Value = String> {
    let serial = (1u32..200).prop_map(|us| format!("serial = {{ work_ms = 0.{us:03} }}"));
    let sleep = (1u32..300).prop_map(|us| format!("io_us = {us}"));
    let lock = prop::sample::select(vec![
        "",
        ", locks = [{ name = \"l\", hold_us = 3, times = 2 }]",
    ]);
    let region = (
        prop::sample::select(vec!["static", "dynamic"]),
        prop::sample::select(vec!["all", "leader", "work"]),
        1u32..40,
        0u32..10,
        lock,
        1u32..400,
    );
    let region = region.prop_map(|(schedule, join, units, imbalance, locks, us)| {
        let join = if schedule == "static" && join == "work" {
            "all"
        } else {
            join
        };
        format!(
            "region = {{ work_ms = 0.{us:03}, schedule = \"{schedule}\", units = {units}, \
             imbalance = 0.{imbalance}, join = \"{join}\"{locks} }}"
        )
    });
    let stages = prop::collection::vec((1u32..5, 1u32..30, 1u32..4), 1..5);
    let pipeline = (1u32..30, stages, any::<bool>()).prop_map(|(items, stages, ordered)| {
        let last = stages.len() - 1;
        let stage = |(index, (threads, us, queue)): (usize, &(u32, u32, u32))| {
            let queue = match index {
                0 => String::new(),
                _ => format!(", queue = {queue}"),
            };
            let threads = match (index == last, ordered) {
                (true, true) => "ordered = true".to_owned(),
                _ => format!("threads = {threads}{queue}"),
            };
            format!("{{ name = \"s\", work_us = {us}, variation = 0.9, {threads} }}")
        };
        let stages: Vec<String> = stages.iter().enumerate().map(stage).collect();
        format!(
            "pipeline = {{ items = {items}, stage = [{}] }}",
            stages.join(", ")
        )
    });
    let step = prop::sample::select(vec![
        "{ lock = \"l\" }, { work_us = 2 }, { unlock = \"l\" }",
        "{ lock = \"l\" }, { lock = \"m\" }, { work_us = 2 }, { unlock = \"m\" }, { unlock = \"l\" }",
        "{ lock = \"m\" }, { lock = \"l\" }, { work_us = 2 }, { unlock = \"l\" }, { unlock = \"m\" }",
        "{ post = \"s\" }, { work_us = 3 }",
        "{ wait = \"s\" }, { work_us = 3 }",
        "{ sleep_us = 9 }",
    ]);
    let group = (prop::collection::vec(step, 1..4), 1u32..4, 1u32..6);
    let group = group.prop_map(|(steps, threads, repeat)| {
        let steps = steps.join(", ");
        format!("{{ name = \"g\", threads = {threads}, repeat = {repeat}, steps = [{steps}] }}")
    });
    let groups = prop::collection::vec(group, 1..4);
    let groups = groups.prop_map(|groups| format!("group = [{}]", groups.join(", ")));
    let jobs = (1u32..8, 1u32..4).prop_map(|(count, at_once)| {
        format!(
            "jobs = {{ count = {count}, at_once = {at_once}, work_ms = 0.05, variation = 1.0 }}"
        )
    });
    let leaf = prop_oneof![
        2 => serial,
        1 => sleep,
        4 => region,
        2 => pipeline,
        2 => groups,
        1 => jobs,
    ];
    let leaf =
        (leaf, 1u32..4).prop_map(|(thing, repeat)| format!("{{ repeat = {repeat}, {thing} }}"));
    leaf.prop_recursive(2, 6, 3, |inner| {
        let inner = prop::collection::vec(inner, 1..3);
        (inner, 1u32..3).prop_map(|(phases, repeat)| {
            format!("{{ repeat = {repeat}, phase = [{}] }}", phases.join(", "))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_program_ends_with_all_of_its_work_done_or_is_said_to_be_stuck(
        text in program(), cpus in 1u32..6, threads in 1u32..8, seed: u64,
        claims in prop::collection::vec((1u64..40, 1u32..9), 0..6),
    ) {
        let mut bench = Bench::seeded(cpus, seed);
        let p = bench.start(&text, threads);
        let mut time = 0;
        let mut result = Ok(());
        for (after, threads) in claims {
            time += after * 20_000;
            result = result.and(bench.run(time, |_| false));
            let cpus = CpuSet::first(1 + threads % cpus);
            bench.programs.set_claim(&mut bench.kernel, p, &cpus, threads);
        }
        // Without claims and stuck threads, an hour is far more than any of them takes.
        result = result.and_then(|()| bench.run(3600 * SECOND, |bench| {
            bench.state(p).ended_ns.is_some()
        }));
        match result {
            Ok(()) => {
                prop_assert!(bench.state(p).ended_ns.is_some(), "neither ended nor stuck");
                prop_assert_eq!(bench.state(p).threads, 0);
                let declared = ProgramSpec::from_toml(&text).unwrap().work_ns().unwrap();
                assert_work(&bench, p, declared);
            }
            Err(stuck) => {
                prop_assert!(text.contains("wait = \"s\"") || text.contains("\"m\""), "{stuck}");
                prop_assert!(!stuck.waits.is_empty());
                prop_assert!(bench.programs.stuck(&bench.kernel).is_some());
            }
        }
    }
}
