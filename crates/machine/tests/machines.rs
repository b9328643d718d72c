//! Readings, sensors, controls and topologies of several machines, made and real.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

mod common;

use common::{Tree, trees};
use corewise_machine::sensors::{Facility, controls, sensors};
use corewise_machine::topology::Kind;
use corewise_machine::{HostReader, Root, Topology};

fn get<'a>(list: &'a [Facility], name: &str) -> &'a Facility {
    list.iter()
        .find(|f| f.name == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn a_virtual_machine_is_read_with_its_pressure() {
    let tree = Tree::named("virtual-2-cpus");
    let mut reader = HostReader::open(&tree.root).unwrap();
    let reading = reader.read().unwrap();
    assert_eq!(reading.cpus.len(), 2);
    assert_eq!(reading.runnable, Some(3));
    assert_eq!(reading.pressure_ns, Some(5_692_859_000));
    assert_eq!(reading.cpus[1].busy_ns, (101 + 50 + 2) * 10_000_000);
    assert_eq!(reading.cpus[1].steal_ns, 70_000_000);
}

#[test]
fn missing_pressure_is_none_and_not_zero() {
    let tree = Tree::named("numa-24-cpus");
    let reading = HostReader::open(&tree.root).unwrap().read().unwrap();
    assert_eq!(reading.cpus.len(), 24);
    assert_eq!(reading.pressure_ns, None);
}

#[test]
fn pressure_that_is_switched_off_is_none() {
    let tree = Tree::named("virtual-2-cpus");
    tree.write("proc/pressure/cpu", "");
    let mut reader = HostReader::open(&tree.root).unwrap();
    assert!(!reader.has_pressure());
    assert_eq!(reader.read().unwrap().pressure_ns, None);
}

#[test]
fn a_cpu_that_goes_offline_leaves_the_reading() {
    let tree = Tree::named("virtual-2-cpus");
    let mut reader = HostReader::open(&tree.root).unwrap();
    assert_eq!(reader.read().unwrap().cpus.len(), 2);
    tree.write(
        "proc/stat",
        "cpu0 999 0 50 9000 40 0 2 7 0 0\nprocs_running 1\n",
    );
    let reading = reader.read().unwrap();
    assert_eq!(reading.cpus.len(), 1);
    assert!(reading.cpus[0].busy_ns > 0);
}

#[test]
fn a_virtual_machine_says_why_it_lacks_hardware_sensors() {
    let tree = Tree::named("virtual-2-cpus");
    let list = sensors(&tree.root);
    for name in [
        "run-time",
        "cpu-wait",
        "switches",
        "migrations",
        "pressure",
        "steal",
        "run-queue",
    ] {
        assert!(get(&list, name).available, "{:?}", get(&list, name));
    }
    for name in ["frequency", "temperature", "energy", "hardware-counters"] {
        let sensor = get(&list, name);
        assert!(!sensor.available && !sensor.why.is_empty(), "{sensor:?}");
    }
    assert!(get(&list, "steal").why.contains("the hypervisor"));
}

#[test]
fn a_server_of_bare_metal_has_them() {
    let tree = Tree::named("numa-24-cpus");
    let list = sensors(&tree.root);
    for name in ["frequency", "temperature", "energy"] {
        assert!(get(&list, name).available, "{:?}", get(&list, name));
    }
    let pressure = get(&list, "pressure");
    assert!(!pressure.available && pressure.why.contains("CONFIG_PSI"));
    let controls = controls(&tree.root);
    assert!(get(&controls, "frequency").available);
    assert!(get(&controls, "prefetchers").why.contains("Intel"));
    let quota = get(&controls, "cgroup-quota");
    assert!(
        !quota.available && quota.why.contains("subtree_control"),
        "{quota:?}"
    );
}

#[test]
fn without_proc_each_sensor_of_programs_says_so() {
    let tree = Tree::named("no-proc");
    let list = sensors(&tree.root);
    for name in [
        "run-time",
        "user-system-time",
        "switches",
        "migrations",
        "cpu-use",
    ] {
        let sensor = get(&list, name);
        assert!(
            !sensor.available && sensor.why.contains("mount"),
            "{sensor:?}"
        );
    }
    assert!(!get(&controls(&tree.root), "cgroup-weight").available);
}

#[test]
fn this_machines_list_is_whole_and_each_entry_has_its_reason() {
    let root = Root::system();
    let (sensors, controls) = (sensors(&root), controls(&root));
    for list in [&sensors, &controls] {
        let mut names: Vec<_> = list.iter().map(|f| &f.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), list.len(), "names are unique");
        assert!(list.iter().all(|f| !f.why.is_empty()));
    }
    // What every Linux with /proc has.
    for name in [
        "topology",
        "user-system-time",
        "switches",
        "cpu-use",
        "run-queue",
    ] {
        assert!(get(&sensors, name).available, "{:?}", get(&sensors, name));
    }
    assert_eq!(
        get(&sensors, "pressure").available,
        HostReader::open(&root).unwrap().has_pressure()
    );
    assert!(get(&controls, "wait-policy").available);
}

#[test]
fn a_server_is_built_from_its_xml() {
    let xml = std::fs::read_to_string(trees().join("24-cores-4-packages.xml")).unwrap();
    let t = Topology::from_xml(&xml).unwrap();
    assert_eq!(t.cpus().len(), 24);
    assert_eq!(t.count(Kind::Package), 4);
    assert_eq!(t.count(Kind::L2), 12);
    let nodes = t.objects(Kind::NumaNode);
    assert_eq!(nodes.len(), 4);
    assert_eq!(nodes[1].cpus, [1, 5, 9, 13, 17, 21]);
    assert_eq!(nodes[1].size_bytes, Some(16 << 30));
    let at = t.places()[5];
    assert_eq!((at.cpu, at.package, at.numa_node), (5, Some(1), Some(1)));
}
