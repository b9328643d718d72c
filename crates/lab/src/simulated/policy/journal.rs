//! Whether two policies keep the same journal.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use anyhow::Result;
use corewise_decide::world::Entry;
use corewise_sim::world::{JournalSink, Options, simulate};

use super::cases::Case;

/// Whether a case has the same journal under both policies: the same inputs at the same times, and the
/// same outputs with the same reasons. Both draw the same lots.
pub(super) fn is_same(case: &Case, one: &str, other: &str, folder: &Path) -> Result<bool> {
    Ok(journal(case, one, folder)? == journal(case, other, folder)?)
}

/// The lines of a journal, each as a number that stands for it.
fn journal(case: &Case, policy: &str, folder: &Path) -> Result<Vec<u64>> {
    let mut scenario = case.scenario(policy, folder)?;
    if let Some(source) = &mut scenario.policy {
        // The built-in policies always begin with the same.
        source.seed = 0;
    }
    let mut lines = Vec::new();
    let sink: JournalSink<'_> = Box::new(|entry: &Entry| {
        let mut hasher = DefaultHasher::new();
        match serde_json::to_string(entry) {
            Ok(line) => line.hash(&mut hasher),
            Err(error) => error.to_string().hash(&mut hasher),
        }
        lines.push(hasher.finish());
    });
    simulate(
        &scenario,
        Options {
            journal: Some(sink),
            timeline: false,
        },
    )?;
    Ok(lines)
}
