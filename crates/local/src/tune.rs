//! Tunes a real program: hosts a search ([`corewise_decide::search::host`]) whose probes run in the sandbox.

use crate::probing::{ProbeError, Prober};
use corewise_decide::profile::Profile;
use corewise_decide::search::host::host;
use corewise_decide::search::{Choice, Search};
use corewise_launch::runtimes::Detected;
use serde::{Deserialize, Serialize};
use std::time::Instant;

pub use corewise_decide::search::host::{Limits, ProbeRecord, Progress};

/// What tuning found, and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The search's answer.
    pub choice: Choice,
    /// The search's name.
    pub algorithm: String,
    /// Probes, in order.
    pub probes: Vec<ProbeRecord>,
    /// All of the time that tuning took, in seconds.
    pub total_seconds: f64,
    /// Part of it in which the program was starting up, in seconds.
    pub startup_seconds: f64,
    /// What the probes showed of the program's runtimes.
    pub detected: Detected,
    /// How lock time was seen.
    pub lock_method: String,
    /// How spinning was seen.
    pub spin_method: String,
}

impl Tuned {
    /// What searching cost besides the program's own start-ups, in seconds.
    pub fn search_seconds(&self) -> f64 {
        self.total_seconds - self.startup_seconds
    }

    /// Profiles that were seen.
    pub fn profiles(&self) -> impl Iterator<Item = &Profile> + Clone {
        self.probes.iter().filter_map(|p| p.outcome.as_ref().ok())
    }
}

/// Runs `search` to its end.
///
/// # Errors
/// When probes cannot be made, or the program fails in the first one: its own error text is in the
/// error. A failure in a later probe only rules that setting out.
pub fn tune(
    search: &mut dyn Search,
    prober: &mut Prober<'_>,
    limits: Limits,
    progress: &mut dyn Progress,
) -> Result<Tuned, ProbeError> {
    let start = Instant::now();
    let (choice, probes) = host(search, prober, limits, progress)?;
    Ok(Tuned {
        choice,
        algorithm: search.name().to_owned(),
        startup_seconds: probes.iter().map(|p| p.startup_seconds).sum(),
        probes,
        total_seconds: start.elapsed().as_secs_f64(),
        detected: prober.detected().clone(),
        lock_method: prober.lock_method().to_owned(),
        spin_method: prober.spin_method().to_owned(),
    })
}
