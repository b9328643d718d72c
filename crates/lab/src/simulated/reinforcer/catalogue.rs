//! What the paper says of its programs, and their models.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use corewise_decide::search::StopReason;
use corewise_decide::setting::Convert;
use corewise_sim::machine::{Scheduler, SimMachine};
use corewise_sim::program::ProgramSpec;
use corewise_sim::scenario::{Entry, Scenario};
use corewise_sim::world::{Options, simulate};
use serde::Deserialize;

/// Virtual time after which a run is given up, in nanoseconds: more than any program takes with one thread.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// The programs and their machine.
pub struct Catalogue {
    /// The machine of the paper.
    pub machine: SimMachine,
    /// Its programs, in the order of its tables.
    pub programs: Vec<Paper>,
}

/// One program of the paper.
#[derive(Clone, Debug)]
pub struct Paper {
    /// Its name.
    pub name: String,
    /// How the tables count its threads.
    pub convert: Convert,
    /// Whether the paper chose its thresholds by this one.
    pub chosen_on: bool,
    /// The best speed-up, with how many threads.
    pub best: Best,
    /// What the paper's algorithm found.
    pub found: Found,
    /// The model.
    pub spec: Arc<ProgramSpec>,
}

/// The best that there is.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Speed with so many threads over speed with one.
    pub speed_up: f64,
    /// Threads, as the tables count them.
    pub threads: u32,
}

/// What an algorithm found.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Speed with that many threads over speed with one.
    pub speed_up: f64,
    /// Threads, as the tables count them.
    pub threads: u32,
    /// Why it stopped.
    pub stop: StopReason,
    /// How long it searched, in seconds.
    pub search: f64,
    /// How long the program ran then, in seconds.
    pub run: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    machine: String,
    scheduler: Scheduler,
    program: Vec<Entries>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    name: String,
    #[serde(default)]
    fixed: u32,
    #[serde(default = "one")]
    per_argument: u32,
    #[serde(default)]
    chosen_on: bool,
    best: Best,
    found: Found,
}

fn one() -> u32 {
    1
}

impl Catalogue {
    /// Reads `experiments/thread-reinforcer.toml`, the machine and the models.
    ///
    /// # Errors
    /// Where a file is missing or wrong.
    pub fn read(root: &Path) -> Result<Catalogue> {
        let folder = root.join("experiments");
        let file: File = toml::from_str(&text(&folder.join("thread-reinforcer.toml"))?)?;
        let path = folder.join(&file.machine);
        let xml = |name: &str| std::fs::read_to_string(folder.join("machines").join(name));
        let machine = SimMachine::from_toml(&text(&path)?, xml)
            .with_context(|| format!("{} is wrong", path.display()))?;
        let machine = SimMachine {
            scheduler: file.scheduler,
            ..machine
        };
        let programs = file.program.into_iter().map(|entry| {
            let path = folder.join(format!("thread-reinforcer/{}.toml", entry.name));
            let spec = ProgramSpec::from_toml(&text(&path)?)
                .with_context(|| format!("{} is wrong", path.display()))?;
            Ok(Paper {
                name: entry.name,
                convert: Convert {
                    fixed: entry.fixed,
                    per_argument: entry.per_argument,
                },
                chosen_on: entry.chosen_on,
                best: entry.best,
                found: entry.found,
                spec: Arc::new(spec),
            })
        });
        Ok(Catalogue {
            machine,
            programs: programs.collect::<Result<_>>()?,
        })
    }
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

impl Paper {
    /// Numbers that it can be given, up to the paper's 128 threads: every one up to 40 and every eighth beyond,
    /// or, with a `step`, so few of them; and in any case 1 and these.
    pub fn numbers(&self, step: u32, besides: &[u32]) -> Vec<u32> {
        let most = self.convert.argument_for(128);
        let steps = (1..=most).filter(|n| n % step == 0 && (*n <= 40 || n % 8 == 0));
        let mut numbers: Vec<u32> = steps.chain([1]).chain(besides.iter().copied()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// How long it takes with `n`, in virtual seconds, alone, unmanaged.
    ///
    /// # Errors
    /// If it does not end.
    pub fn seconds(&self, machine: &SimMachine, n: u32, seed: u64) -> Result<f64> {
        Ok(self.whole_run(machine, n, seed)?.0)
    }

    /// The same, and how many CPUs it used on average.
    ///
    /// # Errors
    /// If it does not end.
    pub fn whole_run(&self, machine: &SimMachine, n: u32, seed: u64) -> Result<(f64, f64)> {
        let mut scenario = Scenario::new(&*self.name, machine.clone());
        scenario.seed = seed;
        scenario.limit_ns = LONGEST_NS;
        let mut entry = Entry::new(&*self.name, Arc::clone(&self.spec));
        entry.threads = Some(n);
        entry.managed = None;
        scenario.entries.push(entry);
        let report = simulate(&scenario, Options::default())?.report;
        match report.unfinished.is_empty() {
            true => Ok((report.wall_seconds, report.machine.busy_cpus)),
            false => bail!(
                "{} with {n} does not end in the model: {:?}",
                self.name,
                report.deadlock
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_can_be_read_and_says_what_it_was_fitted_to() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let catalogue = Catalogue::read(&root).unwrap();
        assert_eq!(catalogue.machine.cpus(), 24);
        assert_eq!(catalogue.programs.len(), 16);
        for paper in &catalogue.programs {
            let source = paper.spec.source.as_deref().unwrap_or_default();
            assert!(
                source.contains("Table") || source.contains("Section"),
                "{}",
                paper.name
            );
        }
        let chosen_on = catalogue.programs.iter().filter(|p| p.chosen_on).count();
        assert_eq!(chosen_on, 3);
    }
}
