//! What came of a simulated run, as data and as JSON (docs/simulate.md has every key).

pub mod rows;

use serde::Serialize;
use std::fmt;

/// A report; its JSON is the same to the byte for the same scenario and seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// The machine.
    pub machine: MachineReport,
    /// Where random numbers started.
    pub seed: u64,
    /// The policy's name; `none`: plain Linux.
    pub policy: String,
    /// How it ended.
    pub ended: Ended,
    /// Virtual time that it took, in seconds.
    pub wall_seconds: f64,
    /// Every program that has started, in order.
    pub programs: Vec<ProgramReport>,
    /// Programs that had not ended (without those in the background); what had not even started is
    /// here, too.
    pub unfinished: Vec<String>,
    /// Which thread waits for what, where the programs had come to a standstill.
    pub deadlock: Vec<String>,
    /// Lines of the journal.
    pub journal_entries: u64,
    /// Grants among them.
    pub grants: u64,
    /// What could not be carried out.
    pub failures: u64,
    /// Events that were handled.
    pub events: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// All programs have ended, but for those in the background.
    Done,
    /// The time was over.
    Limit,
    /// Nothing could happen any more.
    Deadlock,
}

/// What the machine did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// Its CPUs.
    pub cpus: u32,
    /// CPUs that were busy, in the mean.
    pub busy_cpus: f64,
    /// The same as a part of all CPUs.
    pub busy_share: f64,
    /// Time in which some thread waited for a CPU, in seconds.
    pub pressure_seconds: f64,
    /// Energy that the processors have used, in joules, if the machine has a model of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
}

/// What one program did. Times of threads are sums over all its threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramReport {
    /// Its name.
    pub name: String,
    /// The scenario's entry that it is of.
    pub entry: String,
    /// Its session; `null` in a control group.
    pub session: Option<String>,
    /// Its control group; `null` outside of any.
    pub group: Option<String>,
    /// `rigid`, `malleable`, or `null`: not managed.
    pub managed: Option<&'static str>,
    /// Whether it is in the background.
    pub background: bool,
    /// When it started, in seconds after the beginning.
    pub start_seconds: f64,
    /// When it ended; `null`: it had not.
    pub end_seconds: Option<f64>,
    /// From its start to its end, or to the end of the run.
    pub wall_seconds: f64,
    /// Threads that it had altogether.
    pub threads: u32,
    /// On a CPU, spinning included.
    pub run_seconds: f64,
    /// Runnable, but waiting for a CPU.
    pub wait_seconds: f64,
    /// On a CPU, waiting in a loop.
    pub spin_seconds: f64,
    /// Blocked on locks, barriers and queues.
    pub lock_seconds: f64,
    /// Blocked on input, output or sleep.
    pub io_seconds: f64,
    /// Work done, as the time that it takes at full speed.
    pub work_seconds: f64,
    /// Switches away because a thread blocked.
    pub voluntary_switches: u64,
    /// Switches away because the scheduler took the CPU.
    pub involuntary_switches: u64,
    /// Moves from one CPU to another.
    pub migrations: u64,
    /// Threads that its claim granted, in the mean over the time that it had one; `null`: it had none.
    pub mean_claim_threads: Option<f64>,
    /// How often its claim changed.
    pub claims: u64,
    /// Units of work that it has done.
    pub progress: u64,
}

impl Report {
    /// The report as one JSON object, with a line end.
    ///
    /// # Errors
    /// None that a report can cause.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?))
    }

    /// Whether all that was to end has ended.
    pub fn is_done(&self) -> bool {
        self.ended == Ended::Done
    }
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A time in seconds, written for people: with a unit that fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0.0 => write!(f, "0"),
            s if s < 0.001 => write!(f, "{:.0} µs", s * 1e6),
            s if s < 1.0 => write!(f, "{:.1} ms", s * 1e3),
            s if s < 100.0 => write!(f, "{s:.2} s"),
            s => write!(f, "{s:.0} s"),
        }
    }
}

/// The first dozen names, and how many more there are.
pub fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown = names.len().min(SHOWN);
    let mut text = names[..shown].join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_said_in_a_unit_that_fits() {
        let said = [0.0, 0.000_25, 0.02, 1.5, 600.0].map(|s| Seconds(s).to_string());
        assert_eq!(said, ["0", "250 µs", "20.0 ms", "1.50 s", "600 s"]);
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let names: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
        assert!(listed(&names).ends_with("p11 and 8 more"));
        assert_eq!(listed(&names[..2]), "p0, p1");
    }
}
