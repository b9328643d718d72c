//! Memory bandwidth and remote memory.

use super::support::*;
use corewise_sim::kernel::{Demand, GroupId, ProcessId};

fn streams(n: u32, demand: Demand, bandwidth: &str) -> Vec<u64> {
    let more = format!("[node]\nbandwidth_bytes_per_s = {bandwidth}\nremote_factor = 2.0");
    let machine = free(synthetic("package:2 [numa] l3:1 core:4 pu:1", &more));
    let mut play = Play::on(&machine);
    let threads: Vec<_> = (0..n)
        .map(|at| {
            play.add_with(
                Does::Hog,
                GroupId::ROOT,
                &cpus(&[at % 4]),
                ProcessId(0),
                demand,
            )
        })
        .collect();
    play.until(S);
    threads.iter().map(|t| play.of(*t).work_ns).collect()
}

#[test]
fn streams_share_a_nodes_bandwidth() {
    let demand = Demand {
        bandwidth_bytes_per_s: 10e9,
        memory_share: 0.8,
        working_set_bytes: 0,
        ..Demand::default()
    };
    assert!(streams(2, demand, "20e9").iter().all(|w| near(*w, S, 1)));
    assert!(
        streams(4, demand, "20e9")
            .iter()
            .all(|w| near(*w, S / 2, 2))
    );
    assert!(
        streams(4, demand, "10e9")
            .iter()
            .all(|w| near(*w, S / 4, 2))
    );
}

#[test]
fn those_who_need_no_memory_are_not_slowed() {
    let demand = Demand {
        bandwidth_bytes_per_s: 10e9,
        memory_share: 0.0,
        working_set_bytes: 0,
        ..Demand::default()
    };
    assert!(streams(4, demand, "10e9").iter().all(|w| *w == S));
}

#[test]
fn remote_memory_is_slower() {
    let machine = free(synthetic(
        "package:2 [numa] l3:1 core:2 pu:1",
        "[node]\nbandwidth_bytes_per_s = 1e11\nremote_factor = 2.0",
    ));
    let mut play = Play::on(&machine);
    let demand = Demand {
        bandwidth_bytes_per_s: 1e9,
        memory_share: 0.5,
        working_set_bytes: 0,
        ..Demand::default()
    };
    let t = play.add_with(Does::Hog, GroupId::ROOT, &cpus(&[0]), ProcessId(0), demand);
    play.until(S);
    assert!(near(play.of(t).work_ns, S, 1));
    play.k.set_allowed(t, &cpus(&[2]));
    play.until(2 * S);
    // Half of its time is memory, which takes twice as long there.
    assert!(
        near(play.of(t).work_ns - S, S * 2 / 3, 1),
        "{}",
        play.of(t).work_ns
    );
    let none = Demand::default();
    play.k.set_demand(t, none);
    let before = play.of(t).work_ns;
    play.until(3 * S);
    assert!(near(play.of(t).work_ns - before, S, 1));
}
