//! Temperatures of cores, and from where on the hardware does something about them.
//!
//! Linux's coretemp driver (Intel) shows each core of a package as a sensor of a hwmon device: `tempN_label` is
//! `Core` and the core's number in its package, `tempN_input` its temperature in thousandths of °C, `tempN_max` and
//! `tempN_crit` from where on it is slowed down and stopped (Documentation/hwmon/coretemp.rst). The label
//! `Package id` of the same device says which package. What shows one temperature for a whole package only (k10temp
//! on AMD's) is left out: nobody could tell its cores apart.

use crate::Root;
use crate::sysfs::{CPUS, again, entries, numbered, text, value};
use corewise_decide::reading::CpuHeat;
use std::collections::BTreeMap;
use std::fs::File;

/// Sensors, kept open.
#[derive(Debug)]
pub struct HeatReader {
    sensors: Vec<Sensor>,
}

#[derive(Debug)]
struct Sensor {
    cpus: Vec<u32>,
    input: File,
    slows_at: Option<f64>,
    stops_at: Option<f64>,
}

/// A core: its package, and its number there.
type Core = (u32, u32);

impl HeatReader {
    /// Finds the sensors of cores; none where the machine shows none. Costs some file reads for each CPU.
    pub fn open(root: &Root) -> HeatReader {
        let cpus = cpus_of_cores(root);
        let mut sensors = Vec::new();
        for chip in entries(root, "/sys/class/hwmon") {
            let is_coretemp = text(root, &format!("{chip}/name")).as_deref() == Some("coretemp");
            if !is_coretemp {
                continue;
            }
            let files = entries(root, &chip);
            let labels: Vec<(&str, String)> = files
                .iter()
                .filter_map(|file| {
                    let stem = file.strip_suffix("_label")?;
                    Some((stem, text(root, file)?))
                })
                .collect();
            let number = |label: &str, of: &str| label.strip_prefix(of)?.trim().parse().ok();
            let package = labels
                .iter()
                .find_map(|(_, label)| number(label, "Package id"));
            for (stem, label) in &labels {
                let Some(core) = number(label, "Core") else {
                    continue;
                };
                let limit = |what| {
                    let thousandths: i32 = value(root, &format!("{stem}_{what}"))?;
                    Some(f64::from(thousandths) / 1e3)
                };
                // The oldest drivers have no label for the package: then there is one.
                let cpus = cpus.get(&(package.unwrap_or(0), core)).cloned();
                let input = File::open(root.path(format!("{stem}_input"))).ok();
                if let (Some(cpus), Some(input)) = (cpus, input) {
                    sensors.push(Sensor {
                        cpus,
                        input,
                        slows_at: limit("max"),
                        stops_at: limit("crit"),
                    });
                }
            }
        }
        HeatReader { sensors }
    }

    /// Temperatures now, by CPU; without the CPUs whose sensor does not answer. Each core costs some microseconds:
    /// the kernel asks it.
    pub fn read(&self) -> Vec<CpuHeat> {
        let mut heat: Vec<CpuHeat> = self.sensors.iter().flat_map(Sensor::read).collect();
        heat.sort_by_key(|heat| heat.cpu);
        heat
    }
}

impl Sensor {
    fn read(&self) -> Vec<CpuHeat> {
        let Some(thousandths) = again::<i32>(&self.input) else {
            return Vec::new();
        };
        let of = |cpu: &u32| CpuHeat {
            cpu: *cpu,
            celsius: f64::from(thousandths) / 1e3,
            slows_at: self.slows_at,
            stops_at: self.stops_at,
        };
        self.cpus.iter().map(of).collect()
    }
}

/// The CPUs of each core.
fn cpus_of_cores(root: &Root) -> BTreeMap<Core, Vec<u32>> {
    let mut cores: BTreeMap<Core, Vec<u32>> = BTreeMap::new();
    for (cpu, folder) in numbered(root, CPUS, "cpu") {
        let of = |what| value(root, &format!("{folder}/topology/{what}"));
        if let (Some(package), Some(core)) = (of("physical_package_id"), of("core_id")) {
            cores.entry((package, core)).or_default().push(cpu);
        }
    }
    cores
}
