//! Limits of CPUs' frequencies, through cpufreq's `scaling_max_freq`.

use std::path::PathBuf;

use super::Error;
use crate::frequency::{Domain, domains};
use crate::sysfs::value;
use crate::undo::{Report, Setting, UndoLog};
use crate::{Root, cpu_list};

const WHAT: &str = "limiting frequencies";

/// Limits how fast CPUs run, through an undo log.
#[derive(Clone, Debug)]
pub struct FrequencyControl<'log> {
    log: &'log UndoLog,
    root: Root,
}

impl<'log> FrequencyControl<'log> {
    /// A control that writes to this log.
    pub fn new(log: &'log UndoLog, root: &Root) -> Self {
        let root = root.clone();
        Self { log, root }
    }

    /// Lets these CPUs choose frequencies of at most `most_hz`; as near to it as the hardware, and the lower
    /// limit that is set, allow. Costs some file reads for each CPU of the machine, and a line in the log for
    /// each domain.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for CPUs without a cpufreq driver; [`Error::Refused`] where others change their
    /// frequency together with them; [`Error::Write`] without the right to. Some of the CPUs may be limited
    /// then.
    pub fn limit(&self, cpus: &[u32], most_hz: u64) -> Result<(), Error> {
        for domain in self.of(cpus)? {
            let bound = |name| value::<u64>(&self.root, &format!("{}/{name}", domain.folder));
            let least = bound("scaling_min_freq").or(bound("cpuinfo_min_freq"));
            let most = bound("cpuinfo_max_freq").unwrap_or(u64::MAX);
            let khz = (most_hz / 1_000).max(least.unwrap_or(1)).min(most);
            self.log.set(&self.setting(&domain)?, &khz.to_string())?;
        }
        Ok(())
    }

    /// Puts the limits of these CPUs back, where they are still ours.
    pub fn release(&self, cpus: &[u32]) -> Report {
        let of_these = |domain: &Domain| domain.cpus.iter().any(|cpu| cpus.contains(cpu));
        let all = domains(&self.root).into_iter().filter(of_these);
        let settings: Vec<Setting> = all
            .filter_map(|domain| self.setting(&domain).ok())
            .collect();
        self.log.restore(|what| settings.contains(what))
    }

    /// The domains of these CPUs, which must be theirs alone.
    fn of(&self, cpus: &[u32]) -> Result<Vec<Domain>, Error> {
        let all = domains(&self.root);
        if let Some(cpu) = cpus
            .iter()
            .find(|cpu| !all.iter().any(|d| d.cpus.contains(cpu)))
        {
            return Err(Error::Unavailable {
                what: WHAT,
                why: format!("CPU {cpu} has no cpufreq driver; virtual machines seldom have one"),
            });
        }
        let theirs = |domain: &Domain| domain.cpus.iter().any(|cpu| cpus.contains(cpu));
        let found: Vec<Domain> = all.into_iter().filter(theirs).collect();
        let whole = |domain: &&Domain| domain.cpus.iter().all(|cpu| cpus.contains(cpu));
        match found.iter().find(|domain| !whole(domain)) {
            None => Ok(found),
            Some(domain) => Err(Error::Refused {
                what: format!("limiting the frequency of CPUs {}", cpu_list::format(cpus)),
                why: format!(
                    "CPUs {} change theirs together: name all of them",
                    cpu_list::format(&domain.cpus)
                ),
            }),
        }
    }

    /// The file by the folder in which it really is: CPUs have links to those that they share.
    fn setting(&self, domain: &Domain) -> Result<Setting, Error> {
        let link: PathBuf = self.root.path(&domain.folder);
        let folder = link.canonicalize().map_err(|source| Error::Read {
            what: link.display().to_string(),
            source,
        })?;
        let path = folder.join("scaling_max_freq");
        Ok(Setting::HardwareFile { path })
    }
}
