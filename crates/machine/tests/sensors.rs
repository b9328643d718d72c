//! What the hardware tells, on made trees.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

mod common;

use common::{Tree, desktop, with_resctrl};
use corewise_machine::counters::{InstructionReader, MADE};
use corewise_machine::energy::EnergyReader;
use corewise_machine::frequency::FrequencyReader;
use corewise_machine::sensors::{controls, sensors};
use corewise_machine::throttling::throttling;

#[test]
fn each_cpu_tells_its_frequency_and_its_limits() {
    let tree = desktop();
    let frequencies = FrequencyReader::open(&tree.root).read();
    assert_eq!(frequencies.len(), 8);
    let third = frequencies[3];
    assert_eq!((third.cpu, third.now_hz), (3, 1_900_000_000));
    assert_eq!(third.most_hz, Some(3_800_000_000));
    tree.write(
        "sys/devices/system/cpu/cpufreq/policy3/scaling_cur_freq",
        "",
    );
    let reader = FrequencyReader::open(&tree.root);
    assert_eq!(reader.read().len(), 7, "one does not answer");
}

#[test]
fn cpus_that_change_together_tell_the_same() {
    let tree = desktop();
    tree.write(
        "sys/devices/system/cpu/cpufreq/policy0/affected_cpus",
        "0 4\n",
    );
    // Offline: the policy has no CPU.
    tree.write("sys/devices/system/cpu/cpufreq/policy4/affected_cpus", "\n");
    let frequencies = FrequencyReader::open(&tree.root).read();
    assert_eq!((frequencies[0].cpu, frequencies[4].cpu), (0, 4));
    assert_eq!(frequencies[0].now_hz, frequencies[4].now_hz);
    assert_eq!(frequencies.len(), 8);
}

#[test]
fn throttling_is_told_of_cores_and_packages_and_older_kernels_tell_no_times() {
    let tree = desktop();
    let all = throttling(&tree.root);
    assert_eq!(
        (all.len(), all[0].core_events, all[1].core_events),
        (8, 12, 0)
    );
    assert_eq!(all[0].core_ns, Some(345_000_000));
    let folder = "sys/devices/system/cpu/cpu0/thermal_throttle/";
    std::fs::remove_file(
        tree.root
            .path(format!("{folder}core_throttle_total_time_ms")),
    )
    .unwrap();
    assert_eq!(throttling(&tree.root)[0].core_ns, None);
}

#[test]
fn energy_counts_on_when_its_counter_begins_again() {
    let tree = desktop();
    let mut reader = EnergyReader::open(&tree.root);
    assert!(reader.read().iter().all(|domain| domain.joules == 0.0));
    let counter = "sys/class/powercap/intel-rapl:0/energy_uj";
    tree.write(counter, "262143328850\n");
    assert_eq!(reader.read()[0].joules, 0.32885);
    tree.write(counter, "671149\n");
    let domains = reader.read();
    assert_eq!(domains[0].joules, 1.0);
    let names: Vec<&str> = domains.iter().map(|d| d.domain.as_str()).collect();
    assert_eq!(names, ["package-0", "package-0/core", "package-0/uncore"]);
    tree.write(counter, "");
    assert_eq!(
        reader.read()[0].joules,
        1.0,
        "it does not answer for a while"
    );
}

#[test]
fn a_made_trees_instructions_come_from_a_file() {
    let tree = desktop();
    tree.write(MADE.trim_start_matches('/'), "123\n");
    let mut reader = InstructionReader::open(&tree.root, [0]).unwrap();
    assert_eq!(reader.read(), Some(123));
}

#[test]
fn the_desktop_has_all_of_it_and_a_virtual_machine_says_of_each_why_not() {
    let tree = desktop();
    with_resctrl(&tree);
    let of = |tree: &Tree| -> Vec<_> {
        let both = [sensors(&tree.root), controls(&tree.root)].concat();
        let hardware = [
            "frequency",
            "core-temperature",
            "throttling",
            "energy",
            "duty-cycle",
            "prefetchers",
            "cache-share",
            "bandwidth-share",
        ];
        let named = both
            .into_iter()
            .filter(|f| hardware.contains(&f.name.as_str()));
        named.map(|f| (f.name, f.available, f.why)).collect()
    };
    let desktop = of(&tree);
    assert_eq!(desktop.len(), 9, "frequency is a sensor and a control");
    assert!(
        desktop.iter().all(|(_, available, _)| *available),
        "{desktop:?}"
    );
    let bare = of(&Tree::named("virtual-2-cpus"));
    assert!(bare.iter().all(|(_, available, _)| !available), "{bare:?}");
    assert!(bare.iter().all(|(_, _, why)| why.len() > 20), "{bare:?}");
}
