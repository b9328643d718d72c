//! `corewise tune --detect-oversubscription`: shows what a calibration says of others at work, and under which
//! conditions that holds.

use crate::output;
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use corewise_decide::profile::Measure;
use corewise_decide::search::StopReason;
use corewise_decide::search::oversubscription::calibration::{Calibrated, calibrated};
use corewise_launch::runtimes::Runtime;
use corewise_launch::runtimes::schedule::dealt_out_while_running;
use corewise_local::advise::Advisor;
use corewise_local::tune::Tuned;
use serde_json::json;
use std::fmt::Write as _;

/// From so many CPUs on, what the times and what the kernel's counters say of others differ. (A thread that shares its
/// CPU gets less of it than it wants.)
const DISAGREE: f64 = 0.6;

/// Regions below this, in seconds, are short beside the scheduler's slices.
const SHORT: f64 = 2e-3;

/// What was found, and what is known of the conditions.
pub(crate) struct Found {
    calibrated: Option<Calibrated>,
    /// Why the calibration stopped.
    stop: StopReason,
    /// Whether the program has an OpenMP runtime that is known.
    openmp: bool,
    /// The calls by which loops of its file are dealt out while they run; `None`: not known.
    dealt_out: Option<Vec<String>>,
    /// CPUs that others used meanwhile, as the machine's own counters have it.
    others_by_counters: Option<f64>,
}

impl Found {
    /// Of the probes of a calibration.
    pub(crate) fn of(tuned: &Tuned, advisor: &Advisor) -> Found {
        let cpus = advisor.effective().count.ceil().max(1.0) as u32;
        let detected = advisor.detected();
        let runtimes = [Runtime::Libgomp, Runtime::LlvmOpenmp, Runtime::IntelOpenmp];
        let mut others: Vec<f64> = tuned.profiles().map(|profile| profile.others).collect();
        others.sort_by(f64::total_cmp);
        Found {
            calibrated: calibrated(cpus, tuned.profiles()),
            stop: tuned.choice.stop,
            openmp: runtimes.iter().any(|runtime| detected.has(*runtime)),
            // An interpreter's loops are in libraries, which are not looked at.
            dealt_out: (!detected.interpreter)
                .then(|| dealt_out_while_running(&detected.executable))
                .flatten(),
            others_by_counters: others.get(others.len() / 2).copied(),
        }
    }

    /// What `tune --json` adds for it.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let calibrated = self.calibrated.as_ref();
        let found = calibrated.filter(|found| found.is_steady());
        json!({
            "artefact": found.and_then(|found| found.detected.artefact),
            "others": found.and_then(|found| found.detected.artefact.map(|_| found.detected.others)),
            "threads": found.map(|found| found.detected.threads),
            "as_expected": found.map(|found| found.detected.as_expected),
            "disturbed": calibrated.map(|found| !found.is_steady()),
            "by_round": calibrated.map(|found| &found.by_round),
            "by": calibrated.map(|found| by(found.by)),
            "seconds": calibrated.map(|found| &found.seconds),
            "openmp": self.openmp,
            "dealt_out_while_running": self.dealt_out,
            "others_by_counters": self.others_by_counters,
        })
    }

    /// For people.
    pub(crate) fn print(&self) -> Result<()> {
        let Some(found) = &self.calibrated else {
            let why = match self.stop {
                StopReason::Blind => {
                    "the program's parallel regions are not counted here (that takes root, and an OpenMP library), \
                     and it does not end within --run-limit"
                        .to_owned()
                }
                stop => stop.to_string(),
            };
            return output::print(&format!("Nothing is detected: {why}.\n"));
        };
        output::print(&format!(
            "{}\n{}\n{}",
            table(found),
            self.answer(found),
            self.conditions(found)
        ))
    }

    fn answer(&self, found: &Calibrated) -> String {
        if !found.is_steady() {
            return self.disturbed(found);
        }
        let detected = found.detected;
        let mut text = match (detected.artefact, detected.others) {
            (Some(artefact), 0) => format!(
                "{} The time has its step at {artefact} threads, one more than there are CPUs.",
                output::bold("Nobody else is at work.")
            ),
            (Some(artefact), others) => format!(
                "{} From {artefact} threads on two share a CPU; {} what the others leave.",
                output::bold(&format!("Others at work: {}.", threads(others))),
                match detected.threads {
                    1 => "1 thread uses".to_owned(),
                    some => format!("{some} threads use"),
                }
            ),
            (None, _) => format!(
                "{} There is no step in the times: nobody can be told from somebody.",
                output::bold("Nothing is detected.")
            ),
        };
        if detected.artefact.is_some() {
            let percent = 100.0 * detected.as_expected;
            let _ = write!(text, " (The step is {percent:.0} % of what is expected.)");
        }
        text.push_str(&self.counters());
        if let Some(others) = self.others_by_counters {
            let told = f64::from(detected.others);
            if detected.artefact.is_some() && (told - others).abs() > DISAGREE {
                text.push_str(" The two do not agree: something below does not hold.");
            }
        }
        text
    }

    fn disturbed(&self, found: &Calibrated) -> String {
        format!(
            "{} In {} of {} rounds the times say something else: others came or went meanwhile. Try again when the load is \
             the same all the time.{}",
            output::bold("Disturbed: there is no answer."),
            found.differing(),
            found.by_round.len(),
            self.counters()
        )
    }

    fn counters(&self) -> String {
        let said =
            |others| format!("\nThe kernel's counters: others used {others:.2} CPUs meanwhile.");
        self.others_by_counters.map(said).unwrap_or_default()
    }

    fn conditions(&self, found: &Calibrated) -> String {
        let schedule = match (self.openmp, self.dealt_out.as_deref()) {
            (false, _) => {
                "its work is dealt out in advance; it has no OpenMP runtime that is known"
                    .to_owned()
            }
            (true, None) => "its loops have static schedules".to_owned(),
            (true, Some([])) => {
                "its loops have static schedules: all in its own file do".to_owned()
            }
            (true, Some(calls)) => format!(
                "what takes its time are loops with static schedules; NOT ALL OF ITS LOOPS ARE: it calls {}",
                calls.join(", ")
            ),
        };
        let shortest = found.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let pieces = match found.by {
            Measure::WholeRuns => {
                "it is parallel most of the time: these are the times of whole runs".to_owned()
            }
            _ if shortest < SHORT => format!(
                "a region lasts for some milliseconds to some tenths of a second; THESE ARE SHORTER: {:.3} ms",
                1e3 * shortest
            ),
            _ => "a region lasts for some milliseconds to some tenths of a second".to_owned(),
        };
        format!(
            "This holds if\n- {schedule};\n- {pieces};\n- the load was the same all the time, and of fewer threads than \
             there are CPUs.\n"
        )
    }
}

fn threads(count: u32) -> String {
    match count {
        1 => "1 thread".to_owned(),
        _ => format!("{count} threads"),
    }
}

fn by(measure: Measure) -> &'static str {
    match measure {
        Measure::WholeRuns => "whole-runs",
        Measure::Regions { .. } => "regions",
        Measure::UsefulCpus => "useful-cpus",
    }
}

fn table(found: &Calibrated) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let of = match found.by {
        Measure::WholeRuns => "a run, ms",
        _ => "a region, ms",
    };
    table.set_header(["threads", of, "threads × time, ms"]);
    for (threads, seconds) in (1_u32..).zip(&found.seconds) {
        let mark = match found.detected.artefact {
            Some(artefact) if artefact == threads && found.is_steady() => "  two share a CPU",
            _ => "",
        };
        table.add_row([
            threads.to_string(),
            format!("{:.2}", 1e3 * seconds),
            format!("{:.2}{mark}", 1e3 * f64::from(threads) * seconds),
        ]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
