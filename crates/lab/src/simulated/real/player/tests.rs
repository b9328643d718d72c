#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::simulated::real::workloads::{self, Workload};
use corewise_decide::cpus::CpuSet;
use corewise_sim::kernel::{GroupId, Kernel};
use corewise_sim::machine::SimMachine;
use corewise_sim::program::{Programs, Start, WaitPolicy};

/// A hundredth of a loop for each nanosecond or so: next to no work, and no long sleeps.
const TINY: Tempo = Tempo {
    loops_per_ns: 1e-4,
    sleeps: 1e-3,
};

fn made() -> Vec<Workload> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut all = workloads::read(root).unwrap().workloads;
    all.retain(|workload| workload.real.is_none());
    all
}

/// Work and pieces that the program does in the simulated world.
fn simulated(spec: &Arc<ProgramSpec>, threads: u32) -> (u64, u64) {
    let mut kernel = Kernel::new(&SimMachine::flat(2), 1);
    let mut programs = Programs::new(1);
    let start = Start {
        threads: Some(threads),
        group: GroupId::ROOT,
        allowed: CpuSet::first(2),
        malleable_under_claim: false,
        wait: None,
    };
    let number = programs.start(&mut kernel, spec, start);
    while programs.state(number).ended_ns.is_none() {
        let event = kernel.next(u64::MAX).unwrap();
        programs.on(&mut kernel, event).unwrap();
    }
    let work_ns = programs.counters(&kernel, number).work_ns;
    (work_ns, programs.state(number).progress)
}

fn read(text: &str) -> ProgramSpec {
    ProgramSpec::from_toml(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn there_are_sixteen_made_workloads_and_half_of_them_are_fitted_on() {
    let made = made();
    let fitted = made.iter().filter(|w| w.half == workloads::Half::Fitted);
    assert_eq!((made.len(), fitted.count()), (16, 8));
}

#[test]
fn every_made_workload_does_the_same_work_in_both_worlds() {
    for workload in made() {
        let script = Script::of(&workload.spec).unwrap();
        let played = play(&script, workload.threads, TINY).unwrap();
        let (work_ns, pieces) = simulated(&workload.spec, workload.threads);
        let name = &workload.name;
        assert_eq!(played.done, pieces, "{name}: pieces");
        let off = played.work_ns.abs_diff(work_ns);
        // The player rounds each piece to a nanosecond, and so does the model, in its own way.
        assert!(
            off <= pieces + work_ns / 10_000,
            "{name}: {} and {work_ns}",
            played.work_ns
        );
        let said = workload.spec.work_ns().unwrap();
        assert!(
            played.work_ns.abs_diff(said) <= pieces + said / 10_000,
            "{name}"
        );
    }
}

#[test]
fn every_way_of_waiting_lets_everybody_through_every_region() {
    for wait in [
        "\"spin\"",
        "\"yield\"",
        "\"block\"",
        "{ spin_us = 1 }",
        "{ spin_us = 5, yields = true }",
    ] {
        for join in ["all", "leader"] {
            let text = format!(
                "name = \"a\"\nwait = {wait}\n[[phase]]\nrepeat = 60\n[[phase.phase]]\nregion = {{ \
                 work_ms = 0.4, schedule = \"dynamic\", units = 7, join = \"{join}\" }}\n\
                 [[phase.phase]]\nregion = {{ work_ms = 0.3, units = 5, imbalance = 0.5, join = \
                 \"{join}\" }}\n[[phase.phase]]\nserial = {{ work_ms = 0.1 }}"
            );
            let script = Script::of(&read(&text)).unwrap();
            for threads in [1, 2, 4] {
                let played = play(&script, threads, TINY).unwrap();
                assert_eq!(played.done, 60 * (7 + 5 + 1), "{wait} {join} {threads}");
                assert_eq!(played.work_ns, 60 * 800_000, "{wait} {join} {threads}");
            }
        }
    }
}

#[test]
fn one_thread_at_a_time_holds_a_lock() {
    // The one that holds it counts up in two steps; nobody sees the first one.
    for wait in [
        WaitPolicy::BLOCK,
        WaitPolicy::SPIN,
        WaitPolicy::spin_then_block(1000),
    ] {
        let lock = Lock::new(wait);
        let (one, other) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        lock.take(10.0);
                        let now = one.load(Ordering::Relaxed);
                        assert_eq!(now, other.load(Ordering::Relaxed));
                        one.store(now + 1, Ordering::Relaxed);
                        std::thread::yield_now();
                        other.store(now + 1, Ordering::Relaxed);
                        lock.give_back();
                    }
                });
            }
        });
        assert_eq!(one.into_inner(), 2000, "{wait:?}");
    }
}

#[test]
fn what_cannot_be_played_is_refused_by_its_name() {
    let serial = "[[phase]]\nserial = { work_ms = 1 }";
    let refused = [
        ("memory", format!("memory = {{ share = 0.1 }}\n{serial}")),
        ("malleable", format!("malleable = true\n{serial}")),
        ("processes", format!("processes = 2\n{serial}")),
        ("jobs", "[[phase]]\njobs = { count = 1, work_ms = 1 }".to_owned()),
        (
            "repeat = \"forever\"",
            "[[phase]]\nrepeat = \"forever\"\nserial = { work_ms = 1 }".to_owned(),
        ),
        (
            "region.threads",
            "[[phase]]\nregion = { work_ms = 1, threads = 2 }".to_owned(),
        ),
        (
            "join = \"work\"",
            "[[phase]]\nregion = { work_ms = 1, schedule = \"dynamic\", units = 2, join = \"work\" }"
                .to_owned(),
        ),
    ];
    for (what, text) in refused {
        let spec = read(&format!("name = \"p\"\n{text}"));
        let error = Script::of(&spec).unwrap_err();
        assert_eq!((error.what, &*error.program), (what, "p"));
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn every_item_leaves_an_ordered_stage_once() {
    let text = "name = \"p\"\n[[phase]]\n[phase.pipeline]\nitems = 500\n[[phase.pipeline.stage]]\n\
                name = \"a\"\nwork_us = 1\n[[phase.pipeline.stage]]\nname = \"b\"\nthreads = \"team\"\n\
                work_us = 5\nvariation = 0.9\nqueue = 1\n[[phase.pipeline.stage]]\nname = \"c\"\n\
                work_us = 1\nordered = true";
    let script = Script::of(&read(text)).unwrap();
    for threads in [1, 3, 6] {
        let played = play(&script, threads, TINY).unwrap();
        assert_eq!(played.done, 500);
        assert_eq!(played.work_ns, 500 * 7000);
    }
}
