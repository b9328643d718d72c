//! Temperatures of cores, on made trees.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

mod common;

use common::Tree;
use corewise_decide::reading::CpuHeat;
use corewise_machine::heat::HeatReader;

fn of(heat: &[CpuHeat], cpu: u32) -> CpuHeat {
    *heat.iter().find(|heat| heat.cpu == cpu).unwrap()
}

#[test]
fn each_core_has_its_temperature_and_where_it_is_slowed_and_stopped() {
    let tree = Tree::named("quad-coretemp");
    let heat = HeatReader::open(&tree.root).read();
    let cpus: Vec<u32> = heat.iter().map(|heat| heat.cpu).collect();
    assert_eq!(cpus, [0, 1, 2, 3], "the other chip's sensor is no core's");
    let first = of(&heat, 0);
    assert_eq!(
        (first.celsius, first.slows_at, first.stops_at),
        (88.0, Some(82.0), Some(100.0))
    );
    assert_eq!(of(&heat, 2).celsius, 54.5);
}

#[test]
fn a_sensor_is_read_again_and_left_out_while_it_does_not_answer() {
    let tree = Tree::named("quad-coretemp");
    let reader = HeatReader::open(&tree.root);
    tree.write("sys/class/hwmon/hwmon1/temp2_input", "90000\n");
    tree.write("sys/class/hwmon/hwmon1/temp3_input", "");
    let heat = reader.read();
    assert_eq!(of(&heat, 0).celsius, 90.0);
    assert_eq!(heat.len(), 3);
}

#[test]
fn the_second_package_s_cores_are_its_own_and_siblings_share_a_sensor() {
    let tree = Tree::named("quad-coretemp");
    tree.write(
        "sys/devices/system/cpu/cpu1/topology/physical_package_id",
        "1\n",
    );
    tree.write("sys/devices/system/cpu/cpu1/topology/core_id", "0\n");
    tree.write("sys/devices/system/cpu/cpu3/topology/core_id", "0\n");
    tree.write("sys/class/hwmon/hwmon1/temp1_label", "Package id 0\n");
    tree.write("sys/class/hwmon/hwmon2/name", "coretemp\n");
    tree.write("sys/class/hwmon/hwmon2/temp1_label", "Package id 1\n");
    tree.write("sys/class/hwmon/hwmon2/temp2_label", "Core 0\n");
    tree.write("sys/class/hwmon/hwmon2/temp2_input", "40000\n");
    let heat = HeatReader::open(&tree.root).read();
    assert_eq!(of(&heat, 1).celsius, 40.0);
    assert_eq!((of(&heat, 1).slows_at, of(&heat, 1).stops_at), (None, None));
    assert_eq!((of(&heat, 0).celsius, of(&heat, 3).celsius), (88.0, 88.0));
}

#[test]
fn a_machine_without_sensors_of_cores_has_no_temperatures() {
    for name in ["virtual-2-cpus", "numa-24-cpus"] {
        let tree = Tree::named(name);
        assert_eq!(HeatReader::open(&tree.root).read(), [], "{name}");
    }
}
