//! Energy that packages, their cores and their memory have used: Intel's and AMD's RAPL, as Linux's powercap
//! shows it.
//!
//! `energy_uj` counts microjoules and begins again at 0 beyond `max_energy_range_uj`
//! (Documentation/power/powercap/powercap.rst): some minutes apart at full power, so whoever wants a sum
//! must read more often than that. Since Linux 5.10 only root may read it: what a processor uses tells others
//! what it computes.

use std::fs::File;

use serde::{Deserialize, Serialize};

use crate::Root;
use crate::sysfs::{again, entries, text, value};

/// The folder of the domains.
pub(crate) const FOLDER: &str = "/sys/class/powercap";

/// What a part of the machine has used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainEnergy {
    /// The domain as the kernel names it: `package-0`, `package-0/core`, `package-0/dram`.
    pub domain: String,
    /// Energy since the reader was opened, in J. It never goes back.
    pub joules: f64,
}

/// Adds up what the counters count.
#[derive(Debug)]
pub struct EnergyReader {
    domains: Vec<Domain>,
}

#[derive(Debug)]
struct Domain {
    name: String,
    file: File,
    /// The counter begins again beyond this; `None`: it is not known.
    range_uj: Option<u64>,
    last_uj: u64,
    sum_uj: u64,
}

impl EnergyReader {
    /// Finds the domains that may be read; none where there is none.
    pub fn open(root: &Root) -> EnergyReader {
        let domain = |folder: String| {
            let file = File::open(root.path(format!("{folder}/energy_uj"))).ok()?;
            Some(Domain {
                name: name(root, &folder),
                last_uj: again(&file)?,
                file,
                range_uj: value(root, &format!("{folder}/max_energy_range_uj")),
                sum_uj: 0,
            })
        };
        let folders = entries(root, FOLDER).into_iter();
        EnergyReader {
            domains: folders.filter_map(domain).collect(),
        }
    }

    /// What each domain has used since the reader was opened. Costs one file read for each.
    pub fn read(&mut self) -> Vec<DomainEnergy> {
        let of = |domain: &mut Domain| {
            domain.add();
            DomainEnergy {
                domain: domain.name.clone(),
                joules: domain.sum_uj as f64 / 1e6,
            }
        };
        self.domains.iter_mut().map(of).collect()
    }
}

impl Domain {
    fn add(&mut self) {
        let Some(now_uj) = again::<u64>(&self.file) else {
            return;
        };
        self.sum_uj += used(self.last_uj, now_uj, self.range_uj);
        self.last_uj = now_uj;
    }
}

/// What was used between two values of a counter that begins again at 0 beyond `range`; nothing where it went
/// back and nobody knows from where.
fn used(before: u64, now: u64, range: Option<u64>) -> u64 {
    match (now.checked_sub(before), range) {
        (Some(used), _) => used,
        // The value after `range` is 0.
        (None, Some(range)) if before <= range => range - before + now + 1,
        (None, _) => 0,
    }
}

/// `package-0` of `intel-rapl:0`, `package-0/core` of `intel-rapl:0:0`; the folder's where nothing is said.
fn name(root: &Root, folder: &str) -> String {
    let own = text(root, &format!("{folder}/name"))
        .unwrap_or_else(|| folder.rsplit('/').next().unwrap_or(folder).to_owned());
    let parent = folder
        .rsplit_once(':')
        .filter(|(parent, _)| parent.contains(':'));
    let of_parent = parent.and_then(|(parent, _)| text(root, &format!("{parent}/name")));
    match of_parent {
        Some(parent) => format!("{parent}/{own}"),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_counter_that_begins_again_counts_on(
            range in 1_u64..1 << 40, before in any::<u64>(), step in any::<u64>(),
        ) {
            let (before, step) = (before % (range + 1), step % (range + 1));
            let now = (before + step) % (range + 1);
            prop_assert_eq!(used(before, now, Some(range)), step);
        }
    }

    #[test]
    fn a_counter_that_went_back_from_nobody_knows_where_has_used_nothing() {
        assert_eq!(used(10, 4, None), 0);
        assert_eq!(used(10, 4, Some(5)), 0, "beyond its own range");
    }
}
