//! How fast each CPU runs, and between which limits it may.
//!
//! Linux's cpufreq keeps one policy for the CPUs that can only change together: a folder `policyN` with
//! `scaling_cur_freq` (what it runs at now), `scaling_min_freq` and `scaling_max_freq` (between what the
//! governor may choose: these are set) and `cpuinfo_min_freq` and `cpuinfo_max_freq` (what the hardware can),
//! all in kHz (Documentation/admin-guide/pm/cpufreq.rst). Before Linux 4.3 the folder is `cpuN/cpufreq`,
//! which later is a link.

use std::fs::File;

use serde::{Deserialize, Serialize};

use crate::sysfs::{CPUS, again, numbered, text, value};
use crate::{Root, cpu_list};

/// How fast a CPU runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFrequency {
    /// The CPU, as Linux numbers it.
    pub cpu: u32,
    /// Its frequency now, in Hz, as the driver knows it.
    pub now_hz: u64,
    /// The lowest that may be chosen, in Hz.
    pub least_hz: Option<u64>,
    /// The highest that may be chosen, in Hz.
    pub most_hz: Option<u64>,
    /// The highest that the hardware can, in Hz.
    pub hardware_most_hz: Option<u64>,
}

/// CPUs that change their frequency together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Its folder below the root.
    pub(crate) folder: String,
    /// Its CPUs, ascending.
    pub(crate) cpus: Vec<u32>,
}

/// The domains of frequency; none where there is no driver.
pub(crate) fn domains(root: &Root) -> Vec<Domain> {
    let policies = numbered(root, &format!("{CPUS}/cpufreq"), "policy");
    let domains: Vec<Domain> = policies
        .into_iter()
        .filter_map(|(number, folder)| {
            // `affected_cpus` leaves those out that are offline, which have nothing to be set.
            let list = text(root, &format!("{folder}/affected_cpus"));
            let cpus = list.map_or(Some(vec![number]), |list| cpus_of(&list))?;
            (!cpus.is_empty()).then_some(Domain { folder, cpus })
        })
        .collect();
    if !domains.is_empty() {
        return domains;
    }
    let each = numbered(root, CPUS, "cpu").into_iter();
    each.map(|(cpu, folder)| Domain {
        folder: format!("{folder}/cpufreq"),
        cpus: vec![cpu],
    })
    .filter(|domain| root.exists(&domain.folder))
    .collect()
}

/// CPUs as cpufreq lists them: numbers with spaces between.
fn cpus_of(list: &str) -> Option<Vec<u32>> {
    cpu_list::parse(&list.split_whitespace().collect::<Vec<_>>().join(","))
}

/// The files, kept open.
#[derive(Debug)]
pub struct FrequencyReader {
    root: Root,
    domains: Vec<(Domain, File)>,
}

impl FrequencyReader {
    /// Finds the CPUs that tell; none where the machine has no cpufreq driver. Costs some file reads for
    /// each.
    pub fn open(root: &Root) -> FrequencyReader {
        let open = |domain: Domain| {
            let file = File::open(root.path(format!("{}/scaling_cur_freq", domain.folder)));
            Some((domain, file.ok()?))
        };
        FrequencyReader {
            root: root.clone(),
            domains: domains(root).into_iter().filter_map(open).collect(),
        }
    }

    /// Frequencies now, by CPU; without those that do not answer. Costs four file reads for each domain, some
    /// of which ask the CPU.
    pub fn read(&self) -> Vec<CpuFrequency> {
        let of_domain = |(domain, file): &(Domain, File)| {
            let now_hz = hz(again(file)?);
            let limit =
                |name: &str| value(&self.root, &format!("{}/{name}", domain.folder)).map(hz);
            let frequency = CpuFrequency {
                cpu: 0,
                now_hz,
                least_hz: limit("scaling_min_freq"),
                most_hz: limit("scaling_max_freq"),
                hardware_most_hz: limit("cpuinfo_max_freq"),
            };
            let cpus = domain.cpus.iter();
            Some(
                cpus.map(|cpu| CpuFrequency {
                    cpu: *cpu,
                    ..frequency
                })
                .collect::<Vec<_>>(),
            )
        };
        let mut all: Vec<CpuFrequency> = self
            .domains
            .iter()
            .filter_map(of_domain)
            .flatten()
            .collect();
        all.sort_by_key(|frequency| frequency.cpu);
        all
    }
}

fn hz(khz: u64) -> u64 {
    khz.saturating_mul(1_000)
}
