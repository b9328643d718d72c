//! Parts of caches and of memory bandwidth, through Linux's resctrl.
//!
//! A program gets a group of its own below `/sys/fs/resctrl`, whose `schemata` says which ways of each L3
//! cache it may fill, and how much of each cache's memory bandwidth it may use
//! (Documentation/arch/x86/resctrl.rst). Others keep theirs: ways are one program's alone only if the others'
//! groups leave them out. Removing the group puts its threads back into the default group; threads that are
//! in another group, somebody else's, are left alone.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use super::group_files::{PREFIX, read_any, write_any};
use super::process::{Process, processes_below, threads};
use super::{Error, resctrl_files};
use crate::Root;
use crate::sysfs::value;
use crate::undo::{PRESENT, Report, Setting, UndoLog};

/// Listings of a program's threads before it is given up that new ones come all the time.
const MAX_LISTINGS: usize = 16;

/// What resctrl can share out on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resctrl {
    folder: PathBuf,
    cache: Option<Cache>,
    /// Why not, where it cannot be shared out.
    bandwidth: Result<Bandwidth, &'static str>,
    /// Numbers of the L3 caches.
    caches: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cache {
    /// A bit for each way.
    all: u64,
    /// The fewest ways that a group may have.
    least: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bandwidth {
    least: u32,
    step: u32,
}

impl Resctrl {
    /// Looks what there is. Costs some file reads.
    ///
    /// # Errors
    /// Why nothing can be shared out here, and what would help.
    pub fn find(root: &Root) -> Result<Resctrl, String> {
        let folder = resctrl_files::FOLDER;
        let schemata = root.read(format!("{folder}/schemata")).map_err(|_| {
            format!(
                "{folder}/schemata is not there: needs a processor with Intel's RDT or AMD's QoS, and mount -t resctrl resctrl {folder}"
            )
        })?;
        let info = |file: &str| format!("{folder}/info/{file}");
        let ways = root.read(info("L3/cbm_mask")).ok();
        let ways = ways.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        let line = |name: &str| {
            let lines = schemata.lines().map(str::trim);
            lines
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| *key == name)
        };
        let cache = ways
            .filter(|all| *all != 0 && line("L3").is_some())
            .map(|all| Cache {
                all,
                least: value(root, &info("L3/min_cbm_bits")).unwrap_or(1),
            });
        let bandwidth = match line("MB") {
            None => Err("the processor shares out caches only"),
            Some((_, domains)) if !in_percent(domains) => Err(
                "resctrl counts bandwidth in another unit than percent: that of AMD's processors, or the mount option mba_MBps (mount it again without)",
            ),
            Some(_) => Ok(Bandwidth {
                least: value(root, &info("MB/min_bandwidth")).unwrap_or(10),
                step: value(root, &info("MB/bandwidth_gran")).unwrap_or(10),
            }),
        };
        let domains = line("L3").filter(|_| cache.is_some()).or(line("MB"));
        let Some((_, domains)) = domains else {
            return Err(format!(
                "{folder}/schemata has no line for L3 caches and none for memory bandwidth; with CDP (L3CODE, L3DATA), mount it again without"
            ));
        };
        let number = |part: &str| part.split_once('=')?.0.trim().parse().ok();
        Ok(Resctrl {
            folder: root.path(folder),
            cache,
            bandwidth,
            caches: domains.split(';').filter_map(number).collect(),
        })
    }

    /// In how many parts an L3 cache can be shared out; `None`: it cannot.
    pub fn ways(&self) -> Option<u32> {
        self.cache.map(|cache| cache.all.count_ones())
    }

    /// Whether memory bandwidth can be.
    ///
    /// # Errors
    /// Why not.
    pub fn bandwidth(&self) -> Result<(), &'static str> {
        self.bandwidth.map(|_| ())
    }

    /// The ways from `from` to `to` percent of a cache; never fewer than a group must have.
    fn mask(&self, cache: Cache, from: u32, to: u32) -> u64 {
        let ways = cache.all.count_ones();
        let least = cache.least.clamp(1, ways);
        let at = |percent: u32| (percent.min(100) * ways + 50) / 100;
        let first = at(from).min(ways - least);
        let count = at(to).saturating_sub(first).clamp(least, ways - first);
        let ones = u64::MAX >> (64 - count);
        ones << first << cache.all.trailing_zeros()
    }
}

/// A program's parts, through an undo log.
#[derive(Debug)]
pub struct ProgramShare<'log> {
    log: &'log UndoLog,
    process: Process,
    resctrl: Resctrl,
    group: PathBuf,
}

impl<'log> ProgramShare<'log> {
    /// Makes a group for a program, with all of everything. Nobody is in it yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without resctrl; [`Error::Write`] without the right to, or where the processor
    /// has no more groups.
    pub fn create(log: &'log UndoLog, root: &Root, process: Process) -> Result<Self, Error> {
        let what = "sharing out caches and memory bandwidth";
        let resctrl = Resctrl::find(root).map_err(|why| Error::Unavailable { what, why })?;
        let name = format!("{PREFIX}{}-{}", process.pid, process.start_time);
        let group = resctrl.folder.join(name);
        let made = Setting::ShareMade {
            path: group.clone(),
        };
        log.set(&made, PRESENT)?;
        Ok(Self {
            log,
            process,
            resctrl,
            group,
        })
    }

    /// The program may fill each L3 cache from `from` to `to` percent of its ways, counted from the first
    /// one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where caches cannot be shared out, [`Error::Write`] where the kernel refuses.
    pub fn set_cache(&self, from: u32, to: u32) -> Result<(), Error> {
        let cache = self.resctrl.cache.ok_or(Error::Unavailable {
            what: "sharing out L3 caches",
            why: "the processor shares out memory bandwidth only".into(),
        })?;
        let mask = self.resctrl.mask(cache, from, to);
        self.write("L3", &format!("{mask:x}"))
    }

    /// The program may use `percent` of each cache's memory bandwidth, rounded up to what the processor can.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where bandwidth cannot be shared out, [`Error::Write`] where the kernel
    /// refuses.
    pub fn set_bandwidth(&self, percent: u32) -> Result<(), Error> {
        let bandwidth = self.resctrl.bandwidth.map_err(|why| Error::Unavailable {
            what: "sharing out memory bandwidth",
            why: why.into(),
        })?;
        let step = bandwidth.step.max(1);
        let percent = percent.min(100).next_multiple_of(step).min(100);
        self.write("MB", &percent.max(bandwidth.least).to_string())
    }

    /// Moves the program's threads into its group, those too that are made meanwhile; those made later are
    /// born in it. Returns how many are in it.
    ///
    /// # Errors
    /// [`Error::Gone`] when the program has ended, [`Error::Write`] where the kernel refuses.
    pub fn move_in(&self) -> Result<usize, Error> {
        if !self.process.lives() {
            return Err(Error::Gone {
                what: format!("process {}", self.process.pid),
            });
        }
        let mut inside = 0;
        let mut seen = HashSet::new();
        for _ in 0..MAX_LISTINGS {
            // A thread that is in no group but the default one is nobody else's.
            let free = self.tasks(&self.resctrl.folder)?;
            let all = processes_below(self.process.pid).into_iter();
            let new: Vec<i32> = all
                .flat_map(threads)
                .filter(|tid| seen.insert(*tid))
                .collect();
            if new.is_empty() {
                break;
            }
            for tid in new.into_iter().filter(|tid| free.contains(tid)) {
                match write_any(&self.group.join("tasks"), &tid.to_string()) {
                    Ok(()) => inside += 1,
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(source) => return Err(self.refused("tasks", &tid.to_string(), source)),
                }
            }
        }
        Ok(inside)
    }

    /// Removes the group.
    pub fn leave(self) -> Report {
        self.log
            .restore(|what| matches!(what, Setting::ShareMade { path } if *path == self.group))
    }

    /// One line of `schemata`: the kernel takes them one by one, and changes the others not.
    fn write(&self, resource: &str, value: &str) -> Result<(), Error> {
        let each = self.resctrl.caches.iter();
        let domains: Vec<String> = each.map(|cache| format!("{cache}={value}")).collect();
        let line = format!("{resource}:{}", domains.join(";"));
        write_any(&self.group.join("schemata"), &line)
            .map_err(|source| self.refused("schemata", &line, source))
    }

    fn tasks(&self, group: &std::path::Path) -> Result<BTreeSet<i32>, Error> {
        let path = group.join("tasks");
        let text = read_any(&path).map_err(|source| Error::Read {
            what: path.display().to_string(),
            source,
        })?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect())
    }

    fn refused(&self, file: &str, value: &str, source: std::io::Error) -> Error {
        Error::Write {
            what: self.group.join(file).display().to_string(),
            value: value.to_owned(),
            source,
            advice: "info/last_cmd_status beside the groups says what resctrl did not like",
        }
    }
}

/// Whether a line of the default group is in percent. It may use all: 100 %, or a number of megabytes, or of eighths
/// of a gigabyte, a second that is far above that (the same document, "Memory bandwidth Allocation").
fn in_percent(domains: &str) -> bool {
    let numbers = domains.split(';').filter_map(|part| part.split_once('='));
    let mut numbers = numbers.map(|(_, number)| number.trim().parse::<u64>());
    numbers.all(|number| number.is_ok_and(|number| number <= 100))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(ways: u32, least: u32) -> (Resctrl, Cache) {
        let cache = Cache {
            all: u64::MAX >> (64 - ways),
            least,
        };
        let resctrl = Resctrl {
            folder: PathBuf::new(),
            cache: Some(cache),
            bandwidth: Err("none"),
            caches: vec![0],
        };
        (resctrl, cache)
    }

    #[test]
    fn halves_of_a_cache_have_no_way_in_common() {
        let (resctrl, cache) = of(11, 1);
        let (first, second) = (resctrl.mask(cache, 0, 50), resctrl.mask(cache, 50, 100));
        assert_eq!((first, second), (0b111111, 0b11111000000));
    }

    proptest! {
        #[test]
        fn ways_are_side_by_side_within_the_cache_and_enough(
            ways in 1_u32..=32, least in 1_u32..4, from in 0_u32..130, to in 0_u32..130,
        ) {
            let (resctrl, cache) = of(ways, least);
            let mask = resctrl.mask(cache, from, to);
            prop_assert_eq!(mask & !cache.all, 0);
            prop_assert!(mask.count_ones() >= least.min(ways));
            let run = mask >> mask.trailing_zeros();
            prop_assert_eq!(run & (run + 1), 0, "the kernel takes ways side by side only");
        }
    }
}
