//! The machines of `experiments/machines`.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

use corewise_sim::machine::{Distance, SimMachine};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/machines")
}

fn load(name: &str) -> SimMachine {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    let xml = |file: &str| std::fs::read_to_string(folder().join(file));
    SimMachine::from_toml(&text, xml).unwrap()
}

fn count(machine: &SimMachine, of: impl Fn(&corewise_decide::status::CpuPlace) -> u32) -> usize {
    let all: BTreeSet<u32> = machine.places.iter().map(of).collect();
    all.len()
}

#[test]
fn every_machine_file_is_a_machine() {
    let files = std::fs::read_dir(folder()).unwrap();
    let mut cpus: Vec<u32> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .map(|name| load(&name).cpus())
        .collect();
    cpus.sort_unstable();
    assert_eq!(cpus, [2, 4, 4, 4, 8, 8, 24, 32, 64, 64, 128, 1024]);
}

#[test]
fn the_opteron_has_four_nodes_of_six_cores() {
    let machine = load("opteron-r905.toml");
    assert_eq!(machine.nodes.len(), 4);
    assert_eq!((machine.l2_bytes, machine.l3_bytes), (512 << 10, 6 << 20));
    assert_eq!(count(&machine, |p| p.core), 24);
    assert_eq!(count(&machine, |p| p.l3), 4);
    assert_eq!(machine.distance(0, 5), Distance::L3);
    assert_eq!(machine.distance(0, 6), Distance::Remote);
}

#[test]
fn the_opteron_6134_has_two_nodes_a_package() {
    let machine = load("opteron-6134.toml");
    assert_eq!(machine.nodes.len(), 8);
    assert_eq!(count(&machine, |p| p.package), 4);
    assert_eq!(machine.distance(0, 3), Distance::L3);
    assert_eq!(machine.distance(0, 4), Distance::Remote);
}

#[test]
fn behind_the_broken_screw_one_core_gets_hotter_than_all_others() {
    let machine = load("q6600-broken-screw.toml");
    let heat = machine.heat.as_ref().unwrap();
    let alone = heat.idle_w + heat.busy_w;
    let celsius = |cpu| heat.celsius(cpu, alone, alone + 3.0 * heat.idle_w);
    assert!(celsius(0) > heat.slows_at_c, "{}", celsius(0));
    assert!((1..4).all(|cpu| celsius(cpu) < heat.slows_at_c));
}

#[test]
fn clovertown_has_four_shared_l2_and_one_memory() {
    let machine = load("clovertown.toml");
    assert_eq!((machine.nodes.len(), machine.has_l3), (1, false));
    assert_eq!(count(&machine, |p| p.l2), 4);
    assert_eq!(count(&machine, |p| p.package), 2);
    assert_eq!(machine.distance(0, 1), Distance::L2);
    assert_eq!(machine.distance(1, 2), Distance::Node);
    assert_eq!(machine.distance(0, 7), Distance::Node);
}

#[test]
fn the_x7550s_siblings_are_numbered_as_linux_does() {
    let machine = load("x7550.toml");
    assert_eq!(machine.nodes.len(), 4);
    assert_eq!((machine.l2_bytes, machine.l3_bytes), (256 << 10, 18 << 20));
    assert_eq!(machine.distance(0, 32), Distance::Core);
    assert_eq!(machine.distance(0, 1), Distance::L3);
    assert_eq!(machine.distance(7, 8), Distance::Remote);
}

#[test]
fn a_machine_is_built_from_hwlocs_xml() {
    let text = "name = \"x\"\ntopology = { xml = \"24-cores-4-packages.xml\" }\n";
    let trees = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/trees");
    let machine = SimMachine::from_toml(text, |file| std::fs::read_to_string(trees.join(file)));
    let machine = machine.unwrap();
    assert_eq!((machine.cpus(), machine.nodes.len()), (24, 4));
    assert_eq!(machine.distance(1, 5), Distance::L2, "CPUs are interleaved");
    assert_eq!(machine.l2_bytes, 3 << 20);
}
