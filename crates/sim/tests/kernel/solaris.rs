//! OpenSolaris' dispatcher.

use crate::support::{Does, MS, Play, S, free, near, synthetic};
use corewise_sim::machine::{Scheduler, SimMachine};

fn solaris(cpus: u32, quantum_ms: u64) -> SimMachine {
    SimMachine {
        scheduler: Scheduler::Solaris {
            quantum_ns: quantum_ms * MS,
        },
        ..free(SimMachine::flat(cpus))
    }
}

#[test]
fn more_threads_than_cpus_all_get_as_much() {
    let mut play = Play::on(&solaris(8, 20));
    let threads: Vec<_> = (0..9).map(|_| play.add(Does::Hog)).collect();
    play.until(9 * S);
    for thread in threads {
        let ran = play.of(thread).run_ns;
        assert!(near(ran, 8 * S, 5), "{ran}");
    }
}

#[test]
fn a_thread_has_its_cpu_for_a_quantum() {
    let mut play = Play::on(&solaris(1, 100));
    let threads = [play.add(Does::Hog), play.add(Does::Hog)];
    play.until(10 * S);
    let switches: u64 = threads.iter().map(|t| play.of(*t).involuntary).sum();
    assert!((98..=100).contains(&switches), "{switches}");
}

#[test]
fn one_that_wakes_up_need_not_wait_for_one_that_has_used_its_quantum() {
    let mut play = Play::on(&solaris(2, 100));
    let hogs = [0; 4].map(|_| play.add(Does::Hog));
    let rests = play.add(Does::Rests(MS, 9 * MS));
    play.until(10 * S);
    // It waits only while hogs have not yet used up their first quanta.
    let waited = play.of(rests).wait_ns;
    assert!(waited < 400 * MS, "{waited}");
    let work: u64 = hogs.iter().map(|t| play.of(*t).run_ns).sum();
    assert!(work + play.of(rests).run_ns == 20 * S, "nobody is idle");
}

#[test]
fn a_cpu_that_becomes_idle_takes_from_other_caches_too() {
    let machine = free(synthetic(
        "package:2 [numa] l3:1 core:2 pu:1",
        "scheduler = { solaris = { quantum_ns = 100_000_000 } }",
    ));
    let mut play = Play::on(&machine);
    // The first four end soon, and leave their CPUs to the other four.
    for _ in 0..4 {
        play.add(Does::Once(10 * MS));
    }
    let hogs: Vec<_> = (0..4).map(|_| play.add(Does::Hog)).collect();
    play.until(S);
    for hog in hogs {
        assert!(play.of(hog).run_ns > 880 * MS);
    }
}

#[test]
fn a_quantum_out_of_its_range_is_refused_with_its_line() {
    let text = "name = \"m\"\ntopology = { synthetic = \"core:2 pu:1\" }\nscheduler = { solaris = { quantum_ns = 5 } }";
    let error = SimMachine::from_toml(text, |_| Err::<String, _>("none")).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("quantum_ns") && said.contains('3'), "{said}");
}
