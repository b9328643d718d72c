//! `gang-partial`: the three setups of the paper's Table 1 ("Non-intrusive Coscheduling for General Purpose
//! Operating Systems", section 5.2) on the simulated four-core machine. In the third, sets of four virtual CPUs
//! have two busy ones: what a set leaves over should be of use to others. And what two CPUs can show of that, on this
//! machine.
//!
//! Relative performance is the paper's measure: what simple bin packing would take, over what it took. Bin
//! packing has as many sets side by side as have a CPU for each busy thread. The time is that until the last set
//! has ended, which is never shorter than the paper's mean.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use corewise_decide::gang::{Turn, ran_ns};
use corewise_decide::status::ProgramId;
use corewise_decide::world::{Entry, Output};
use corewise_sim::report::Ended;
use corewise_sim::scenario::Scenario;
use corewise_sim::world::{Options, simulate};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::gang::copies;
use crate::gang::pairs::as_gang;
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::stats::median;

/// CPUs of the simulated machine.
pub(crate) const CPUS: u32 = 4;

/// Some four seconds.
const HALF_BUSY_ROUNDS: u64 = 700_000;

/// A row of the paper's table.
pub(crate) struct Setup {
    pub(crate) number: u32,
    /// Busy threads of each set.
    pub(crate) busy: u32,
    /// The paper's relative performance, in percent: its coscheduling, ESXi, and without coscheduling.
    pub(crate) paper: [f64; 3],
}

impl Setup {
    /// Its scenario's file.
    pub(crate) fn path(&self, root: &Path) -> PathBuf {
        let name = format!("experiments/scenarios/gang-setup-{}.toml", self.number);
        root.join(name)
    }

    /// How many sets have a CPU for each busy thread, side by side.
    pub(crate) fn side_by_side(&self) -> u32 {
        CPUS / self.busy
    }
}

pub(crate) const SETUPS: [Setup; 3] = [
    Setup {
        number: 1,
        busy: 4,
        paper: [99.0, 102.1, 3.9],
    },
    Setup {
        number: 2,
        busy: 2,
        paper: [95.5, 98.4, 59.8],
    },
    Setup {
        number: 3,
        busy: 2,
        paper: [47.4, 79.9, 40.8],
    },
];

/// How the sets of a setup are run.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// As gangs.
    Gangs,
    /// As gangs that keep the CPUs idle that they do not use: the paper's way.
    KeepIdle,
    /// As plain Linux has it.
    Plain,
    /// One of them, on plain Linux.
    Alone,
}

/// From when on which program runs by which turn.
type Told = (u64, ProgramId, Option<Turn>);

/// What came of a run.
pub(crate) struct Ran {
    /// Until each ended.
    pub(crate) times: Vec<f64>,
    /// Until the last one ended.
    seconds: f64,
    /// How much the time that sets were let run in a second differs among them, at most, as a part of the mean;
    /// of gangs.
    uneven: f64,
    longest_window_ms: f64,
}

/// Runs the experiment.
///
/// # Errors
/// If a scenario's file is missing or wrong, or a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "gang-partial",
        "virtual machines that compile on four simulated CPUs: as gangs, as gangs that keep their idle CPUs idle, and on plain \
         Linux, against bin packing of one alone",
        "all in one, simulated",
    );
    let mut table = Table::new(
        "relative performance against bin packing, in %",
        &[
            "setup",
            "gangs",
            "idle CPUs kept",
            "plain Linux",
            "paper",
            "ESXi, as in the paper",
            "paper, without",
        ],
    );
    let rounds = context.rounds(5, 1);
    for setup in &SETUPS {
        let path = setup.path(&context.root);
        let [gangs, kept, plain] = [Kind::Gangs, Kind::KeepIdle, Kind::Plain]
            .map(|kind| relative(&path, setup, kind, rounds));
        let (gangs, kept, plain) = (gangs?, kept?, plain?);
        let number_of = setup.number;
        report.figure(format!("setup_{number_of}_gangs_percent"), gangs.0);
        report.figure(format!("setup_{number_of}_idle_kept_percent"), kept.0);
        report.figure(format!("setup_{number_of}_plain_percent"), plain.0);
        report.figure(format!("setup_{number_of}_uneven_part"), gangs.1);
        report.figure(format!("setup_{number_of}_longest_window_ms"), gangs.2);
        let cells = [gangs.0, kept.0, plain.0].into_iter().chain(setup.paper);
        let first = std::iter::once(format!("{number_of}"));
        table.row(first.chain(cells.map(number)));
        if setup.number == 3 {
            report.bars.push(Bar::at_least(
                "half-busy sets (setup 3): relative performance against bin packing, % (at least)",
                gangs.0,
                90.0,
            ));
        }
    }
    report.tables.push(table);
    report.note(
        "uneven: from second to second, how far the time for which a set was let run is from the mean of all sets, at \
         most, once their numbers of busy threads are known (the first two seconds are left out)",
    );
    report.note("two slots of one set that follow each other are one window, as when three sets are left, of which two fit");
    here(context, &mut report)?;
    report.note(format!(
        "{rounds} seeds each, the median; how many threads of a set are busy is found out while it runs, which is in the time",
    ));
    Ok(report)
}

/// Two half-busy sets and one whose threads need all CPUs, on this machine: bin packing has the two side by side, and
/// the third before or after them.
fn here(context: &Context, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let spin = copies::spin(context, folder.path())?;
    let half = copies::half_busy(context, folder.path(), HALF_BUSY_ROUNDS)?;
    let manager = Manager::start(context, "balanced")?;
    let own = |job: Job| job.under(["setsid", "--wait"]);
    let gang = as_gang(context, &manager)?;
    let ways: [(&str, &dyn Fn(Job) -> Job); 2] =
        [("gangs", &|job| own(gang(job))), ("plain", &own)];
    let mut percents: [Vec<f64>; 2] = Default::default();
    for round in 0..context.rounds(3, 1) {
        let alone = copies::run(&spin, 1, folder.path(), &own)?.mean();
        let pair = copies::run(&half, 2, folder.path(), &own)?.longest();
        for ((name, wrap), percents) in ways.iter().zip(&mut percents) {
            let ran = copies::run_together(&[&spin, &half, &half], folder.path(), wrap)?;
            context.say(format_args!(
                "round {}, {name}: {:.2} s; one after the other {alone:.2} and {pair:.2} s",
                round + 1,
                ran.longest()
            ));
            percents.push(100.0 * (alone + pair) / ran.longest());
        }
    }
    for ((name, _), percents) in ways.iter().zip(&percents) {
        report.figure(format!("here_{name}_percent"), median(percents));
    }
    report.bars.push(Bar::at_least(
        "on this machine: two half-busy sets and a whole one, relative performance against bin packing, % (at least)",
        median(&percents[0]),
        90.0,
    ));
    Ok(())
}

/// Relative performance in percent, unevenness, and the longest slice: medians over seeds.
fn relative(path: &Path, setup: &Setup, kind: Kind, rounds: u32) -> Result<(f64, f64, f64)> {
    let mut percents = Vec::new();
    let (mut uneven, mut longest) = (Vec::new(), Vec::new());
    for seed in 0..rounds {
        let scenario = scenario(path, Kind::Alone, seed)?;
        let alone = once(&scenario)?.seconds;
        let many = self::scenario(path, kind, seed)?;
        let copies: u32 = many.entries.iter().map(|entry| entry.count).sum();
        let ideal = alone * f64::from(copies.div_ceil(setup.side_by_side()));
        let ran = once(&many)?;
        percents.push(100.0 * ideal / ran.seconds);
        uneven.push(ran.uneven);
        longest.push(ran.longest_window_ms);
    }
    Ok((median(&percents), median(&uneven), median(&longest)))
}

pub(crate) fn scenario(path: &Path, kind: Kind, seed: u32) -> Result<Scenario> {
    let mut scenario = Scenario::load(path)?;
    scenario.seed = u64::from(seed);
    for entry in &mut scenario.entries {
        match kind {
            Kind::Gangs => {}
            Kind::KeepIdle => {
                if let Some(gang) = &mut entry.gang {
                    gang.keeps_idle = true;
                }
            }
            Kind::Alone => entry.count = 1,
            Kind::Plain => {}
        }
    }
    if matches!(kind, Kind::Alone | Kind::Plain) {
        scenario.policy = None;
    }
    Ok(scenario)
}

pub(crate) fn once(scenario: &Scenario) -> Result<Ran> {
    let mut turns: Vec<Told> = Vec::new();
    let journal = |entry: &Entry| {
        for output in &entry.outputs {
            if let Output::Turn { program, turn, .. } = output {
                turns.push((entry.time_ns, *program, turn.clone()));
            }
        }
    };
    let options = Options {
        journal: Some(Box::new(journal)),
        timeline: false,
    };
    let outcome = simulate(scenario, options)?;
    let report = &outcome.report;
    anyhow::ensure!(
        report.ended == Ended::Done,
        "{}: {:?}",
        scenario.name,
        report.ended
    );
    let times = report.programs.iter().map(|program| program.wall_seconds);
    let times: Vec<f64> = times.collect();
    let first_end = times.iter().copied().fold(f64::INFINITY, f64::min);
    let longest = turns
        .iter()
        .flat_map(|(_, _, turn)| turn.iter().flat_map(|turn| &turn.windows));
    let longest = longest.map(|window| window.end_ns - window.begin_ns).max();
    Ok(Ran {
        times,
        seconds: report.wall_seconds,
        uneven: uneven(&turns, first_end),
        longest_window_ms: longest.unwrap_or(0) as f64 / 1e6,
    })
}

/// How far any set's time to run in any second is from the mean of that second, as a part of the mean.
fn uneven(turns: &[Told], first_end_seconds: f64) -> f64 {
    const SECOND: u64 = 1_000_000_000;
    let mut of: BTreeMap<ProgramId, Vec<&Told>> = BTreeMap::new();
    for told in turns {
        of.entry(told.1).or_default().push(told);
    }
    let mut worst: f64 = 0.0;
    for second in 2..first_end_seconds as u64 {
        let (from, to) = (second * SECOND, (second + 1) * SECOND);
        let ran: Vec<f64> = of.values().map(|told| ran(told, from, to)).collect();
        let mean = ran.iter().sum::<f64>() / ran.len().max(1) as f64;
        for ran in ran {
            worst = worst.max((ran - mean).abs() / mean);
        }
    }
    worst
}

/// How long one program was let run between two times, by the turns that it was told.
fn ran(told: &[&Told], from: u64, to: u64) -> f64 {
    let ends = told.iter().skip(1).map(|next| next.0).chain([u64::MAX]);
    let each = told.iter().zip(ends).map(|((begin, _, turn), end)| {
        let (from, to) = (from.max(*begin), to.min(end));
        match turn {
            _ if from >= to => 0,
            Some(turn) => ran_ns(turn, from, to),
            None => to - from,
        }
    });
    each.sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::gang::Window;

    fn half(begin_ms: u64) -> Turn {
        Turn {
            epoch_ns: 0,
            period_ns: 100_000_000,
            windows: vec![Window {
                begin_ns: begin_ms * 1_000_000,
                end_ns: (begin_ms + 50) * 1_000_000,
            }],
        }
    }

    #[test]
    fn sets_that_take_turns_are_even_and_one_that_runs_always_beside_them_is_not() {
        let told = |id: u64, turn: Option<Turn>| (0, ProgramId(id), turn);
        let even = [told(1, Some(half(0))), told(2, Some(half(50)))];
        assert!(uneven(&even, 9.5) < 1e-9);
        let not = [told(1, Some(half(0))), told(2, None)];
        assert!((uneven(&not, 9.5) - 1.0 / 3.0).abs() < 1e-9);
    }
}
