//! What is left of a run: its report, who ran where, what was granted and why.

use super::local::Local;
use super::{SimWorld, Started, start};
use crate::program::ProgramNumber;
use crate::report::{Ended, MachineReport, ProgramReport, Report, seconds};
use crate::scenario::{Managed, Share};
use crate::timeline::Timeline;
use corewise_decide::global::GlobalManager;
use corewise_decide::status::{ProgramId, Request};
use corewise_decide::world::{Action, Output};
use std::collections::BTreeMap;

/// Reasons and claims that are kept; of more, it is only counted how many there were.
const MOST_REASONS: usize = 2_000;
const MOST_CLAIMS: usize = 100_000;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// In numbers.
    pub report: Report,
    /// Who ran where, if that was recorded.
    pub timeline: Option<Timeline>,
    /// The program of each thread, as an index into the report's programs, by the thread's number.
    pub program_of_thread: Vec<usize>,
    /// What was granted over time; bounded.
    pub claims: Vec<ClaimStep>,
    /// Why things were decided, from the journal; bounded.
    pub reasons: Vec<Reason>,
    /// Reasons that there was no room for.
    pub reasons_left_out: u64,
}

/// From a time on, a program's claim was this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimStep {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// Which program, as an index into the report's programs.
    pub program: usize,
    /// CPUs of the claim.
    pub cpus: u32,
    /// Threads granted; 0: the program has ended.
    pub threads: u32,
}

/// What was decided, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// About which program, as an index into the report's programs, if about any.
    pub program: Option<usize>,
    /// What was decided.
    pub what: String,
    /// Why.
    pub why: String,
}

/// What is noted while the world runs.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) entries: u64,
    pub(super) grants: u64,
    pub(super) failures: u64,
    claims: Vec<ClaimStep>,
    reasons: Vec<Reason>,
    reasons_left_out: u64,
    /// Mean threads granted, and how often, of programs that have left.
    left: BTreeMap<ProgramId, (Option<f64>, u64)>,
}

impl Record {
    /// A program's claim is this from now on.
    pub(super) fn claim(&mut self, time_ns: u64, number: ProgramNumber, cpus: u32, threads: u32) {
        self.grants += 1;
        self.step(ClaimStep {
            time_ns,
            program: number.0 as usize,
            cpus,
            threads,
        });
    }

    fn step(&mut self, step: ClaimStep) {
        if self.claims.len() < MOST_CLAIMS {
            self.claims.push(step);
        }
    }

    /// A program leaves.
    pub(super) fn close(&mut self, program: ProgramId, local: &Local, now_ns: u64) {
        let mut local = local.clone();
        local.count_grant(now_ns);
        if local.granted.is_some() {
            self.step(ClaimStep {
                time_ns: now_ns,
                program: local.number.0 as usize,
                cpus: 0,
                threads: 0,
            });
        }
        let span = local
            .first_granted_ns
            .map(|since| now_ns.saturating_sub(since));
        let mean = span.map(|span| match (span, &local.granted) {
            (0, granted) => granted
                .as_ref()
                .map_or(0.0, |(_, threads)| f64::from(*threads)),
            (span, _) => local.granted_thread_ns as f64 / span as f64,
        });
        self.left.insert(program, (mean, local.claims));
    }
}

impl SimWorld<'_> {
    /// Notes why something is done.
    pub(super) fn note(&mut self, output: &Output) {
        if self.record.reasons.len() >= MOST_REASONS {
            self.record.reasons_left_out += 1;
            return;
        }
        let (what, why) = said(output);
        let program = output.program().and_then(|id| id.0.checked_sub(1));
        self.record.reasons.push(Reason {
            time_ns: self.kernel.now(),
            program: program.and_then(|index| usize::try_from(index).ok()),
            what,
            why,
        });
    }

    fn program_report(&self, index: usize, started: &Started) -> ProgramReport {
        let scenario = self.scenario;
        let entry = &scenario.entries[started.entry];
        let state = self.programs.state(started.number);
        let counters = self.programs.counters(&self.kernel, started.number);
        let end_ns = state.ended_ns.unwrap_or(self.kernel.now());
        let (session, group) = match &entry.share {
            Share::Session(name) => (Some(name.clone()), None),
            Share::Group(index) => (None, scenario.groups.get(*index).map(|g| g.name.clone())),
        };
        let claims = self.record.left.get(&start::id_of(started.number));
        let (mean_claim_threads, claims) = claims.copied().unwrap_or((None, 0));
        ProgramReport {
            name: started.name.clone(),
            entry: entry.name.clone(),
            session,
            group,
            managed: match entry.managed.filter(|_| scenario.policy.is_some()) {
                None => None,
                Some(Managed::Rigid) => Some("rigid"),
                Some(Managed::Malleable { .. }) => Some("malleable"),
            },
            background: entry.background,
            start_seconds: seconds(state.started_ns),
            end_seconds: state.ended_ns.map(seconds),
            wall_seconds: seconds(end_ns.saturating_sub(state.started_ns)),
            threads: self.programs.threads(ProgramNumber(index as u32)).len() as u32,
            run_seconds: seconds(counters.run_ns),
            wait_seconds: seconds(counters.wait_ns),
            spin_seconds: seconds(counters.spin_ns),
            lock_seconds: seconds(counters.lock_ns),
            io_seconds: seconds(counters.io_ns + counters.sleep_ns),
            work_seconds: seconds(counters.work_ns),
            voluntary_switches: counters.voluntary,
            involuntary_switches: counters.involuntary,
            migrations: counters.migrations,
            mean_claim_threads,
            claims,
            progress: state.progress,
        }
    }

    fn machine_report(&self) -> MachineReport {
        let cpus = self.scenario.machine.places.len() as u32;
        let busy: u64 = (0..cpus).map(|cpu| self.kernel.cpu(cpu).busy_ns).sum();
        let busy_cpus = busy as f64 / self.kernel.now().max(1) as f64;
        MachineReport {
            name: self.scenario.machine.name.clone(),
            cpus,
            busy_cpus,
            busy_share: busy_cpus / f64::from(cpus.max(1)),
            pressure_seconds: seconds(self.kernel.pressure_ns()),
            energy_joules: self
                .scenario
                .machine
                .heat
                .is_some()
                .then(|| self.kernel.energy_j()),
        }
    }

    /// What the run's end did not come for, by name.
    fn unfinished(&self) -> Vec<String> {
        let entries = self.scenario.entries.iter().enumerate();
        let waited_for = entries.filter(|(_, entry)| !entry.background);
        let left = waited_for.filter(|(index, _)| !self.starter.is_done(*index));
        let mut names = Vec::new();
        for (index, entry) in left {
            let alive = self.started.iter().filter(|s| s.entry == index && !s.ended);
            let before = names.len();
            names.extend(alive.map(|started| started.name.clone()));
            if names.len() == before {
                names.push(match self.starter.has_started(index) {
                    true => format!("{} (a later wave)", entry.name),
                    false => format!("{} (not started)", entry.name),
                });
            }
        }
        names
    }
}

/// The outcome of a world that has ended.
pub(super) fn make(mut world: SimWorld<'_>, manager: &GlobalManager) -> Outcome {
    let now = world.kernel.now();
    for (program, local) in std::mem::take(&mut world.managed) {
        world.record.close(program, &local, now);
    }
    let mut program_of_thread = Vec::new();
    for index in 0..world.started.len() {
        for thread in world.programs.threads(ProgramNumber(index as u32)) {
            let at = thread.0 as usize;
            if program_of_thread.len() <= at {
                program_of_thread.resize(at + 1, usize::MAX);
            }
            program_of_thread[at] = index;
        }
    }
    let started = world.started.iter().enumerate();
    let programs = started.map(|(index, started)| world.program_report(index, started));
    let report = Report {
        scenario: world.scenario.name.clone(),
        machine: world.machine_report(),
        seed: world.scenario.seed,
        policy: match world.scenario.policy {
            Some(_) => manager.policy().name(),
            None => "none".to_owned(),
        },
        ended: world.ended.unwrap_or(Ended::Limit),
        wall_seconds: seconds(now),
        programs: programs.collect(),
        unfinished: world.unfinished(),
        deadlock: world.deadlock.clone(),
        journal_entries: world.record.entries,
        grants: world.record.grants,
        failures: world.record.failures,
        events: world.events,
    };
    let timeline = world.timeline.map(|shared| {
        let mut timeline = shared.take();
        timeline.end(now);
        timeline
    });
    Outcome {
        report,
        timeline,
        program_of_thread,
        claims: world.record.claims,
        reasons: world.record.reasons,
        reasons_left_out: world.record.reasons_left_out,
    }
}

/// What an output says, and why.
fn said(output: &Output) -> (String, String) {
    match output {
        Output::Grant {
            cpus,
            threads,
            reason,
            ..
        } => {
            let s = if *threads == 1 { "" } else { "s" };
            (
                format!("{threads} thread{s} on CPUs {cpus}"),
                reason.clone(),
            )
        }
        Output::Tell { what, reason, .. } => {
            let what = match what {
                Request::Expand => "asked for a thread more",
                Request::Shrink => "asked for a thread less",
            };
            (what.to_owned(), reason.clone())
        }
        Output::Turn { turn, reason, .. } => {
            let what = turn.as_ref().map_or("runs always".to_owned(), |turn| {
                let share = turn.runs_ns() as f64 / turn.period_ns as f64;
                format!("runs {:.0} % of the time, by turns", 100.0 * share)
            });
            (what, reason.clone())
        }
        Output::Act { action, reason } => {
            let what = match action {
                Action::Weight { weight, .. } => format!("weight {weight}"),
                Action::Cpuset { cpus, .. } => format!("confined to CPUs {cpus}"),
                Action::Freeze { frozen: true, .. } => "stopped".to_owned(),
                Action::Freeze { frozen: false, .. } => "continued".to_owned(),
                Action::Slice { slice_ns, .. } => format!("slices of {} µs", slice_ns / 1_000),
                Action::Prefetchers { on: true, .. } => "prefetchers on".to_owned(),
                Action::Prefetchers { on: false, .. } => "prefetchers off".to_owned(),
                other => other.to_string(),
            };
            (what, reason.clone())
        }
        Output::Note(text) => ("note".to_owned(), text.clone()),
    }
}
