//! Beside others: what spinning costs, and whom it holds up.

use super::*;

const HOG: &str = "name = \"hog\"\n[[phase]]\nrepeat = \"forever\"\nserial = { work_ms = 1000 }";

fn beside_a_hog(text: &str, cpus: u32, wait: WaitPolicy) -> u64 {
    let mut bench = Bench::new(cpus);
    bench.start(HOG, 1);
    let p = bench.start_as(text, cpus, Some(wait));
    bench.finish(p)
}

fn regions(repeat: u32, region: &str) -> String {
    format!("name = \"a\"\n[[phase]]\nrepeat = {repeat}\nregion = {{ {region} }}")
}

#[test]
fn spinning_costs_cpu_time_and_blocking_does_not() {
    // One thread has work, three wait: 10 ms of serial work between regions.
    let text = "name = \"a\"\n[[phase]]\nrepeat = 10\n\
                phase = [{ serial = { work_ms = 10 } }, { region = { work_ms = 0.4 } }]";
    let used = |wait| {
        let mut bench = Bench::new(4);
        let p = bench.start_as(text, 4, Some(wait));
        bench.finish(p);
        bench.counters(p)
    };
    let (spins, blocks) = (used(WaitPolicy::SPIN), used(WaitPolicy::BLOCK));
    // In the first serial part there are no workers yet.
    assert!((260 * MS..300 * MS).contains(&spins.spin_ns), "{spins:?}");
    assert_eq!(blocks.spin_ns, 0);
    assert!(blocks.run_ns < 110 * MS, "{blocks:?}");
    assert!(blocks.lock_ns > 260 * MS, "{blocks:?}");
    let limited = used(WaitPolicy::spin_then_block(MS));
    assert!((25 * MS..40 * MS).contains(&limited.spin_ns), "{limited:?}");
}

#[test]
fn beside_a_busy_thread_spinning_regions_take_longer_than_blocking_ones() {
    let text = regions(1000, "work_ms = 0.2");
    let (spin, block) = (WaitPolicy::SPIN, WaitPolicy::BLOCK);
    let (spins, blocks) = (beside_a_hog(&text, 2, spin), beside_a_hog(&text, 2, block));
    let alone = alone(&text, 2, 2);
    assert!(
        spins > 2 * alone && 5 * spins > 6 * blocks,
        "{spins} and {blocks} against {alone}"
    );
}

#[test]
fn dynamic_units_go_to_whoever_has_a_cpu() {
    let units = |schedule| format!("work_ms = 400, schedule = \"{schedule}\", units = 400");
    let time = |schedule| beside_a_hog(&regions(5, &units(schedule)), 4, WaitPolicy::BLOCK);
    let (fixed, dynamic) = (time("static"), time("dynamic"));
    // A share whose thread is beside the hog takes longest, and the region with it.
    assert!(dynamic * 20 < fixed * 19, "{dynamic} against {fixed}");
}

#[test]
fn a_worker_that_has_no_cpu_is_not_waited_for_where_only_the_work_counts() {
    // Two threads on two CPUs that a hog is on as well: somebody is always late.
    let region =
        |join| format!("work_ms = 0.4, schedule = \"dynamic\", units = 8, join = \"{join}\"");
    let time = |join| {
        let mut bench = Bench::new(2);
        bench.start(HOG, 1);
        let p = bench.start(&regions(300, &region(join)), 2);
        bench.finish(p)
    };
    let (all, work) = (time("all"), time("work"));
    assert!(work < all, "{work} against {all}");
}

#[test]
fn a_region_of_fewer_threads_parks_the_others() {
    // The others do not spin while one thread works: the first region of four leaves them at the dock.
    let mut bench = Bench::new(4);
    let p = bench.start(
        "name = \"a\"\nwait = \"spin\"\n[[phase]]\nregion = { work_ms = 4 }\n\
         [[phase]]\nrepeat = 10\nregion = { work_ms = 10, threads = 1 }",
        4,
    );
    bench.finish(p);
    let spin_ns = bench.counters(p).spin_ns;
    assert!(spin_ns < 2 * MS, "{spin_ns}");
}

#[test]
fn work_that_moves_more_than_memory_can_carry_takes_longer() {
    let text = |memory| {
        let phase = "[[phase]]\nrepeat = 20\nregion = { work_ms = 40 }";
        format!("name = \"a\"\nmemory = {{ {memory} }}\n{phase}")
    };
    let (little, much) = (
        text("share = 0.8, bandwidth_bytes_per_s = 1e6"),
        text("share = 0.8, bandwidth_bytes_per_s = 4e11"),
    );
    assert!(alone(&much, 4, 4) > 3 * alone(&little, 4, 4));
}

#[test]
fn a_lock_that_more_threads_spin_for_than_there_are_cpus_is_slower_than_a_blocking_one() {
    // Who spins for a holder that has no CPU keeps the CPU from it.
    let time = |wait| {
        let text = format!(
            "name = \"a\"\nlocks = {{ l = {{ wait = \"{wait}\" }} }}\n[[phase]]\n[[phase.group]]\n\
             name = \"g\"\nthreads = 8\nrepeat = 1000\nsteps = [{{ lock = \"l\" }}, \
             {{ work_us = 10 }}, {{ unlock = \"l\" }}, {{ work_us = 10 }}]"
        );
        alone(&text, 2, 1)
    };
    let (spins, blocks) = (time("spin"), time("block"));
    assert!(2 * spins > 3 * blocks, "{spins} against {blocks}");
}
