//! What is said of a run afterwards: a paragraph for people, a summary for programs.

use crate::building::Offered;
use crate::joining::Joined;
use anyhow::{Context as _, Result};
use corewise_decide::search::runs::Next;
use corewise_decide::setting::Setting;
use corewise_launch::{Outcome, Status};
use corewise_local::advise::later::WholeRun;
use corewise_local::advise::{Advice, Advisor, Source};
use corewise_local::history::Record;
use corewise_local::live::Tuned;
use serde_json::json;
use std::path::Path;

/// What there is to say.
#[derive(Clone, Copy)]
pub(crate) struct Account<'a> {
    /// How the program was run.
    pub(crate) setting: Setting,
    /// Why, where there was a reason.
    pub(crate) advice: Option<&'a Advice>,
    /// The jobserver that it was offered.
    pub(crate) offered: Option<&'a Offered>,
    /// What was found for its regions, where they were searched.
    pub(crate) regions: Option<&'a Tuned>,
    /// What was known before.
    pub(crate) advisor: &'a Advisor,
    /// How it went, as far as its time is to be compared.
    pub(crate) whole: &'a WholeRun,
    /// How it went.
    pub(crate) outcome: &'a Outcome,
}

impl Account<'_> {
    /// What happened, in one paragraph.
    pub(crate) fn paragraph(&self) -> String {
        let Account {
            setting,
            advice,
            offered,
            advisor,
            outcome,
            ..
        } = *self;
        let with = offered.map_or_else(|| setting.to_string(), Offered::with);
        let how = match advice.map(|a| (&a.source, &a.choice)) {
            Some((Source::Recalled(record), _)) => recalled(record, advice.and_then(|a| a.next)),
            Some((Source::Tuned(t), choice)) => format!(
                "found with {} in {:.1} s, {:.1} s of them the program's own start-ups: {}",
                probes(t.probes.len()),
                t.total_seconds,
                t.startup_seconds,
                choice.stop
            ),
            Some((Source::Rule(why), _)) => format!("by rule, without probes: {why}"),
            None => match (self.regions, offered) {
                (Some(tuned), _) => regions(tuned),
                (None, Some(offered)) => offered.how(),
                (None, None) => "as plain Linux runs it".to_owned(),
            },
        };
        let how = match (advice, self.regions) {
            (Some(_), Some(tuned)) if !tuned.found.is_empty() => {
                format!("{how}; {}", regions(tuned))
            }
            _ => how,
        };
        let wall = outcome.wall_ns as f64 / 1e9;
        let others = advisor
            .others()
            .map_or_else(String::new, |others| format!(", others using {others:.1}"));
        format!(
            "corewise: ran with {with} on {:.1} effective CPUs{others} ({how}). \
         {wall:.2} s, {:.2} CPUs used on average.",
            advisor.effective().count,
            (outcome.user_ns + outcome.system_ns) as f64 / 1e9 / wall.max(1e-9),
        )
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write_summary(&self, path: &Path, joined: &Joined) -> Result<()> {
        let Account {
            setting,
            advice,
            offered,
            advisor,
            outcome,
            ..
        } = *self;
        let (source, tuned) = match advice.map(|a| &a.source) {
            Some(Source::Recalled(_)) => ("recalled", None),
            Some(Source::Tuned(tuned)) => ("tuned", Some(crate::tune::to_json(tuned, advisor)?)),
            Some(Source::Rule(_)) => ("rule", None),
            None if self.regions.is_some() => ("live", None),
            None => ("plain", None),
        };
        let summary = json!({
            "threads": setting.threads,
            "wait_policy": setting.wait,
            "source": source,
            "trial": matches!(advice.and_then(|a| a.next), Some(Next::Trial(_))),
            "undisturbed": self.whole.is_undisturbed(),
            "others_meanwhile": self.whole.others,
            "wall_seconds": outcome.wall_ns as f64 / 1e9,
            "user_seconds": outcome.user_ns as f64 / 1e9,
            "system_seconds": outcome.system_ns as f64 / 1e9,
            "exit_code": outcome.status.shell_code(),
            "signal": match outcome.status {
                Status::Exited(_) => None,
                Status::Signalled(signal) => Some(signal),
            },
            "max_rss_bytes": outcome.max_rss_bytes,
            "others": advisor.others(),
            "effective_cpus": advisor.effective().count,
            "tuned": tuned,
            "managed": joined.to_json(),
            "live": self.regions,
            "gang": joined.gang(),
            "jobserver": offered.map(Offered::to_json),
            "warnings": advisor.warnings(),
        });
        std::fs::write(path, format!("{summary:#}\n"))
            .with_context(|| format!("the summary cannot be written to {}", path.display()))
    }
}

/// Why it ran with what was recalled.
fn recalled(record: &Record, next: Option<Next>) -> String {
    match next {
        Some(Next::Trial(_)) => {
            "a trial of another number than the best one known; --no-trials forbids it".to_owned()
        }
        Some(Next::Best(threads)) if threads != record.chosen_threads => {
            "the fastest in earlier runs".to_owned()
        }
        _ => "recalled from an earlier search".to_owned(),
    }
}

fn probes(n: usize) -> String {
    match n {
        1 => "1 probe".to_owned(),
        n => format!("{n} probes"),
    }
}

/// What was found for regions, as the end of a sentence.
fn regions(tuned: &Tuned) -> String {
    let found = &tuned.found[..];
    let count = match found.len() {
        1 => "1 region".to_owned(),
        n => format!("{n} regions"),
    };
    let mut numbers: Vec<u32> = found.iter().map(|f| f.threads).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    match found {
        [] => "no region was worth a search".to_owned(),
        _ => format!(
            "{count} searched while it ran, {} of them known before, best with {} threads; the search has \
             lost {:.2} s",
            tuned.known,
            numbers.join(" or "),
            tuned.lost_seconds
        ),
    }
}
