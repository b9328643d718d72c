//! What comes before what: regions, locks, stages.

use super::super::task::Role;
use super::*;

#[test]
fn a_region_takes_as_long_as_its_slowest_share() {
    // Without costs it would be: share, share; the costs are some microseconds.
    let region = |imbalance| {
        let phase = format!("region = {{ work_ms = 80, imbalance = {imbalance} }}");
        alone(
            &format!("name = \"a\"\n[[phase]]\nrepeat = 5\n{phase}"),
            8,
            8,
        )
    };
    let even = region(0.0);
    assert!((50 * MS..52 * MS).contains(&even), "{even}");
    let uneven = region(0.8);
    assert!((60 * MS..90 * MS).contains(&uneven), "{uneven}");
}

#[test]
fn nobody_is_in_the_next_region_before_all_have_left_the_one_before() {
    // `Program::check` counts after each event who holds a unit, and of which region.
    for join in ["all", "leader", "work"] {
        for wait in ["\"spin\"", "\"block\"", "{ spin_us = 10 }"] {
            let mut bench = Bench::new(3);
            let text = format!(
                "name = \"a\"\nwait = {wait}\n[[phase]]\nrepeat = 50\nregion = {{ work_ms = 0.2, \
                 schedule = \"dynamic\", units = 9, imbalance = 1.0, join = \"{join}\" }}"
            );
            let p = bench.start(&text, 5);
            let mut regions = 0;
            let mut before = 0;
            bench
                .run(10 * SECOND, |bench| {
                    let done = bench.state(p).progress;
                    // All nine units of a region are done before any of the next one is.
                    regions += u32::from(done % 9 == 0 && done > before);
                    before = done;
                    false
                })
                .unwrap();
            assert_eq!((regions, before), (50, 450), "{join} {wait}");
        }
    }
}

#[test]
fn one_thread_at_a_time_holds_a_lock() {
    for wait in ["\"spin\"", "\"block\"", "{ spin_us = 5 }"] {
        let region = format!(
            "name = \"a\"\nlocks = {{ l = {{ wait = {wait} }} }}\n[[phase]]\nregion = {{ work_ms = 1, \
             schedule = \"dynamic\", units = 200, locks = [{{ name = \"l\", hold_us = 50 }}] }}"
        );
        let group = format!(
            "name = \"a\"\nlocks = {{ l = {{ wait = {wait} }} }}\n[[phase]]\n[[phase.group]]\n\
             name = \"g\"\nthreads = 8\nrepeat = 25\n\
             steps = [{{ lock = \"l\" }}, {{ work_us = 50 }}, {{ unlock = \"l\" }}]"
        );
        for text in [region, group] {
            // Eight threads on eight CPUs hold it 200 times for 50 µs: one after the other.
            let time = alone(&text, 8, 8);
            assert!((10 * MS..14 * MS).contains(&time), "{wait}: {time}");
        }
    }
}

#[test]
fn different_locks_are_held_at_the_same_time() {
    let group = |name: &str| {
        format!(
            "[[phase.group]]\nname = \"{name}\"\nrepeat = 20\n\
         steps = [{{ lock = \"{name}\" }}, {{ work_us = 500 }}, {{ unlock = \"{name}\" }}]\n"
        )
    };
    let text = format!("name = \"a\"\n[[phase]]\n{}{}", group("x"), group("y"));
    let time = alone(&text, 2, 1);
    assert!((10 * MS..11 * MS).contains(&time), "{time}");
}

#[test]
fn items_leave_an_ordered_stage_in_order_and_queues_keep_their_bounds() {
    let mut bench = Bench::new(6);
    let p = bench.start(
        "name = \"a\"
        [[phase]]
        [phase.pipeline]
        items = 300
        [[phase.pipeline.stage]]
        name = \"in\"
        work_us = 1
        [[phase.pipeline.stage]]
        name = \"a\"
        threads = 4
        work_us = 30
        variation = 1.0
        queue = 2
        [[phase.pipeline.stage]]
        name = \"b\"
        threads = 3
        work_us = 20
        variation = 1.0
        queue = 1
        [[phase.pipeline.stage]]
        name = \"out\"
        work_us = 5
        ordered = true",
        1,
    );
    let mut items = Vec::new();
    bench
        .run(SECOND, |bench| {
            let tasks = bench.programs.list[0].tasks.alive();
            for task in tasks {
                if let Role::Stage(at) = &task.role
                    && at.stage == 3
                    && items.last() != Some(&at.item)
                {
                    items.push(at.item);
                }
            }
            false
        })
        .unwrap();
    assert!(bench.state(p).ended_ns.is_some());
    assert!(items.iter().copied().eq(0..300), "{items:?}");
}

#[test]
fn a_pipeline_is_as_fast_as_its_slowest_stage() {
    let text = |threads| {
        format!(
            "name = \"a\"\n[[phase]]\n[phase.pipeline]\nitems = 200\n\
         [[phase.pipeline.stage]]\nname = \"in\"\nwork_us = 20\n\
         [[phase.pipeline.stage]]\nname = \"mid\"\nwork_us = 400\nthreads = {threads}\n\
         [[phase.pipeline.stage]]\nname = \"out\"\nwork_us = 20"
        )
    };
    let (one, four) = (alone(&text(1), 6, 1), alone(&text(4), 6, 1));
    assert!((80 * MS..85 * MS).contains(&one), "{one}");
    assert!((20 * MS..23 * MS).contains(&four), "{four}");
}

#[test]
fn jobs_come_in_waves_and_no_more_than_allowed_at_once() {
    let mut bench = Bench::new(8);
    let p = bench.start(
        "name = \"a\"\n[[phase]]\n\
         jobs = { count = 12, at_once = 3, work_ms = 10, wave = 6, every_ms = 100 }",
        1,
    );
    let mut most = 0;
    bench
        .run(SECOND, |bench| {
            most = most.max(bench.state(p).threads);
            false
        })
        .unwrap();
    // Three and their parent; the second wave takes two rounds of 10 ms.
    assert_eq!(most, 4);
    let end = bench.state(p).ended_ns.unwrap();
    assert!((120 * MS..123 * MS).contains(&end), "{end}");
    assert_eq!(bench.state(p).progress, 12);
}

#[test]
fn a_post_lets_one_thread_go_on() {
    let mut bench = Bench::new(4);
    let p = bench.start(
        "name = \"a\"\n[[phase]]\n\
         [[phase.group]]\nname = \"from\"\nrepeat = 10\nsteps = [{ work_us = 100 }, { post = \"s\" }]\n\
         [[phase.group]]\nname = \"to\"\nthreads = 2\nrepeat = 5\nsteps = [{ wait = \"s\" }, { work_us = 9 }]",
        1,
    );
    let end = bench.finish(p);
    assert!((MS..MS + 100_000).contains(&end), "{end}");
}

#[test]
fn who_is_still_leaving_a_barrier_takes_part_in_a_region_that_did_not_wait_for_it() {
    // The first region wakes its workers at the end; the second one begins before they have come.
    for wait in ["\"spin\"", "\"block\""] {
        let text = format!(
            "name = \"a\"\nwait = {wait}\n[[phase]]\nrepeat = 20\nphase = [\
             {{ region = {{ work_ms = 0.1 }} }}, \
             {{ region = {{ work_ms = 0.1, join = \"leader\" }} }}, \
             {{ region = {{ work_ms = 0.1, join = \"work\", schedule = \"dynamic\", units = 5 }} }}]"
        );
        let mut bench = Bench::new(2);
        let p = bench.start(&text, 4);
        bench.finish(p);
        assert_eq!(bench.state(p).progress, 20 * (1 + 1 + 5));
    }
}

#[test]
fn a_fifo_lock_waits_for_the_thread_that_came_first_and_another_one_for_whoever_has_a_cpu() {
    let text = |fifo| {
        format!(
            "name = \"a\"\nwait = \"spin\"\nlocks = {{ l = {{ wait = \"spin\", fifo = {fifo} }} }}\n[[phase]]\n\
             region = {{ work_ms = 100, schedule = \"dynamic\", units = 1000, \
             locks = [{{ name = \"l\", hold_us = 20 }}] }}"
        )
    };
    // With a CPU for each thread it makes no difference to speak of; without, all wait in loops for the one
    // that is next.
    let [fifo, other] =
        [true, false].map(|fifo| (alone(&text(fifo), 4, 4), alone(&text(fifo), 2, 4)));
    assert!(fifo.0 < other.0 * 11 / 10, "{} {}", fifo.0, other.0);
    assert!(fifo.1 > other.1 * 3, "{} {}", fifo.1, other.1);
}

#[test]
fn threads_have_a_fifo_lock_in_turn() {
    let mut bench = Bench::new(2);
    let text = "name = \"a\"\nlocks = { l = { wait = \"spin\", fifo = true } }\n[[phase]]\n[[phase.group]]\n\
                name = \"g\"\nthreads = 2\nrepeat = \"forever\"\n\
                steps = [{ lock = \"l\" }, { work_us = 50 }, { unlock = \"l\" }]";
    let p = bench.start(text, 1);
    bench.run(SECOND, |_| false).unwrap();
    let threads = bench.programs.threads(p);
    let work = threads[1..].iter().map(|t| bench.kernel.thread(*t).work_ns);
    let work: Vec<u64> = work.collect();
    assert!(
        work[0].abs_diff(work[1]) <= MS / 10 && work[0] > 400 * MS,
        "{work:?}"
    );
}
