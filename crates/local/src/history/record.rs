//! What is kept of a search. Written as JSON; fields are only ever added, with defaults, so that
//! older and newer versions read each other's.

use serde::{Deserialize, Serialize};

use super::Key;
use super::whole::WholeRuns;
use crate::live::FoundRegion;
use corewise_decide::search::Used;
use corewise_decide::setting::Setting;
use corewise_launch::runtimes::Detected;

pub use corewise_decide::setting::WaitPolicy as Wait;

/// One point of the curve: what a number of threads gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of threads.
    pub threads: u32,
    /// How they waited.
    #[serde(default)]
    pub wait_policy: Wait,
    /// Progress for each second, relative to the other points of the same record (higher is faster).
    pub speed: f64,
    /// Part of the CPU time that was spent waiting in a loop, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin: Option<f64>,
    /// CPUs kept busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_util: Option<f64>,
    /// Threads that had no CPU though they could run, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_wait: Option<f64>,
    /// CPUs that were idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
    /// Time blocked on locks, in seconds for each thread and second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<f64>,
    /// Voluntary switches for each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcx_rate: Option<f64>,
    /// Migrations for each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_rate: Option<f64>,
    /// Length of the probe, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl Point {
    /// What the program used, where that was kept.
    pub fn used(&self) -> Option<Used> {
        Some(Used {
            threads: self.threads,
            cpu_util: self.cpu_util?,
            cpu_wait: self.cpu_wait?,
            idle: self.idle?,
        })
    }
}

/// What a search found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When the search ended, in seconds since 1970.
    pub created_unix_s: u64,
    /// The number of threads that was chosen.
    pub chosen_threads: u32,
    /// The way of waiting that was chosen.
    #[serde(default)]
    pub wait_policy: Wait,
    /// The search that chose.
    pub algorithm: String,
    /// How sure it was, 0 to 1.
    pub confidence: f64,
    /// Why it stopped.
    pub stop_reason: String,
    /// The curve.
    pub points: Vec<Point>,
    /// Whether waiting in loops was seen.
    #[serde(default)]
    pub spins: bool,
    /// What the search cost, in seconds.
    pub search_seconds: f64,
    /// The same with the program's own start-ups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_seconds: Option<f64>,
    /// The runtimes that the probes saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detected: Option<Detected>,
    /// What `corewise run --live` has found for each parallel region.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<FoundRegion>,
    /// Runs that used this result.
    #[serde(default)]
    pub uses: u32,
    /// How long the last of them took, in seconds.
    #[serde(default)]
    pub last_wall_seconds: Option<f64>,
    /// Whole runs, by their number of threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_runs: Option<WholeRuns>,
}

impl Record {
    /// What was chosen.
    pub fn setting(&self) -> Setting {
        Setting {
            threads: self.chosen_threads,
            wait: self.wait_policy,
        }
    }
}

/// A result with its key, as listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in this history.
    pub id: i64,
    /// Under what it is kept.
    pub key: Key,
    /// What was found.
    pub record: Record,
}
