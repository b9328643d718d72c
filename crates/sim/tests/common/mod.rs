//! Scenarios for tests, made from text.
#![allow(dead_code, reason = "each test binary uses a part")]

use corewise_decide::world::Entry;
use corewise_sim::scenario::{Scenario, read};
use corewise_sim::world::{Options, Outcome, simulate};
use std::path::{Path, PathBuf};

/// The repository's folder of that name below `experiments`.
pub(crate) fn experiments(folder: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments")).join(folder)
}

/// A scenario that stands in `experiments/scenarios`, for what it names.
pub(crate) fn scenario(text: &str) -> Scenario {
    let path = experiments("scenarios").join("test.toml");
    Scenario::from_toml(text, &path, &read).unwrap_or_else(|error| panic!("{error}"))
}

/// A spinning program of `regions` regions of 2 ms of work, a job of `job_ms`, and a malleable program.
pub(crate) fn mixed(policy: &str) -> Scenario {
    scenario(&format!(
        "machine = \"flat:4\"\npolicy = \"{policy}\"\nseed = 5\nlimit_ms = 60_000\n\
         [[program]]\nname = \"team\"\nmalleable = true\nmax_threads = 4\n\
         [program.spec]\nname = \"team\"\nmalleable = true\n[[program.spec.phase]]\nrepeat = 4\n\
         region = {{ work_ms = 400, schedule = \"dynamic\", units = 200 }}\n\
         [[program]]\nname = \"spinner\"\nthreads = 2\nstart_ms = 50\n\
         [program.spec]\nname = \"spinner\"\nwait = \"spin\"\n[[program.spec.phase]]\nrepeat = 60\n\
         region = {{ work_ms = 2, imbalance = 0.2 }}\n\
         [[program]]\nname = \"job\"\ncount = 3\nwaves = 2\npause_ms = 30\nmanaged = false\nthreads = 1\n\
         [program.spec]\nname = \"job\"\n[[program.spec.phase]]\nserial = {{ work_ms = 60 }}\n"
    ))
}

/// A run, and its journal.
pub(crate) fn run(scenario: &Scenario) -> (Outcome, Vec<Entry>) {
    let mut entries = Vec::new();
    let outcome = simulate(
        scenario,
        Options {
            journal: Some(Box::new(|entry: &Entry| entries.push(entry.clone()))),
            timeline: true,
        },
    );
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    (outcome, entries)
}
