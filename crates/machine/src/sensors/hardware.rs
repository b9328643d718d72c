//! What the hardware tells: counters, frequencies, temperatures, energy.

use super::{Tried, cause, live, not_perf};
use crate::Root;
use crate::counters::InstructionReader;
use crate::energy::{self, EnergyReader};
use crate::frequency::FrequencyReader;
use crate::heat::HeatReader;
use crate::sysfs::{CPUS, entries, value};
use crate::{probe, throttling as throttle};

const NO_COUNTERS: &str = "the processor's counters are not there; a virtual machine has them only if its host passes them on";

fn no_counter(root: &Root, e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => NO_COUNTERS.into(),
        _ => not_perf(root, e),
    }
}

pub(super) fn counters(root: &Root) -> Tried {
    live(root)?;
    probe::hardware_counter()
        .map(|()| "cycles, instructions, cache misses of each thread: perf_event_open".into())
        .map_err(|e| no_counter(root, &e))
}

pub(super) fn instructions(root: &Root) -> Tried {
    live(root)?;
    InstructionReader::open(root, [0])
        .map(|_| "instructions that each CPU retires, whoever runs there: perf_event_open".into())
        .map_err(|e| {
            let what = "counting whole CPUs needs root, CAP_PERFMON, or a kernel.perf_event_paranoid of 0 or less";
            match e.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => what.to_owned(),
                _ => no_counter(root, &e),
            }
        })
}

pub(super) fn frequency(root: &Root) -> Tried {
    let known = FrequencyReader::open(root).read().len();
    match known {
        0 => Err(format!(
            "no cpufreq driver ({CPUS}/cpu*/cpufreq is not there); virtual machines seldom have one"
        )),
        _ => Ok(format!(
            "of {known} CPUs, in Hz: scaling_cur_freq and its limits in {CPUS}/cpufreq/policy*, or cpu*/cpufreq"
        )),
    }
}

pub(super) fn temperature(root: &Root) -> Tried {
    let is_number = |file: &String| value::<i64>(root, file).is_some();
    let zones = entries(root, "/sys/class/thermal").into_iter();
    let zone = zones
        .filter(|zone| zone.contains("thermal_zone"))
        .map(|zone| format!("{zone}/temp"))
        .find(is_number);
    let chips = || entries(root, "/sys/class/hwmon").into_iter();
    let found = zone.or_else(|| {
        chips()
            .flat_map(|chip| entries(root, &chip))
            .filter(|file| file.ends_with("_input") && file.contains("/temp"))
            .find(is_number)
    });
    found
        .map(|file| format!("in °C: {file}"))
        .ok_or_else(|| "no thermal zone and no hwmon temperature (/sys/class/thermal, /sys/class/hwmon are empty); virtual machines seldom have one".into())
}

pub(super) fn core_temperature(root: &Root) -> Tried {
    let heat = HeatReader::open(root).read();
    let limits = heat.iter().filter(|heat| heat.slows_at.is_some()).count();
    match (heat.len(), limits) {
        (0, _) => Err("no chip of the coretemp driver (/sys/class/hwmon): needs an Intel processor and the kernel's module coretemp; AMD's show one temperature for a package".into()),
        (cpus, 0) => Ok(format!("in °C, of {cpus} CPUs, without the limits from which they are slowed down: coretemp in /sys/class/hwmon")),
        (cpus, _) => Ok(format!("in °C, of {cpus} CPUs, and from where on they are slowed down and stopped: coretemp in /sys/class/hwmon")),
    }
}

pub(super) fn throttling(root: &Root) -> Tried {
    let known = throttle::throttling(root);
    match known.first() {
        None => Err(format!(
            "{CPUS}/cpu*/thermal_throttle is not there: needs an Intel processor, and a kernel with CONFIG_X86_THERMAL_VECTOR"
        )),
        Some(first) => Ok(format!(
            "how often {}each core was slowed down for its heat: {CPUS}/cpu*/thermal_throttle",
            if first.core_ns.is_some() {
                "and how long "
            } else {
                ""
            },
        )),
    }
}

pub(super) fn energy(root: &Root) -> Tried {
    let folder = energy::FOLDER;
    let domains = EnergyReader::open(root).read();
    if !domains.is_empty() {
        let names: Vec<&str> = domains.iter().map(|d| d.domain.as_str()).collect();
        return Ok(format!(
            "in J, of {}: {folder}/*/energy_uj",
            names.join(", ")
        ));
    }
    let file = entries(root, folder)
        .into_iter()
        .map(|domain| format!("{domain}/energy_uj"))
        .find(|file| root.exists(file));
    let Some(file) = file else {
        return Err(format!(
            "no RAPL domain ({folder}/*/energy_uj is not there): needs the intel_rapl modules and a processor that shows them; virtual machines do not"
        ));
    };
    match root.read(&file) {
        Err(e) => Err(format!(
            "{file} cannot be read ({}): needs root, or read permission on it",
            cause(&e)
        )),
        Ok(_) => Err(format!("{file} holds no number")),
    }
}
