//! What a policy made of a case, and how that compares with plain Linux.

use std::path::Path;

use anyhow::{Result, anyhow};
use corewise_sim::report::{Ended, ProgramReport};
use corewise_sim::world::{Options, Outcome, simulate};

use super::cases::{Case, Made};

/// After a program has come or gone, so long is left for things to settle, in nanoseconds.
const SETTLING_NS: u64 = 1_000_000_000;

/// Nobody has lost who is as fast as with their share of the CPUs, but for this part.
const OF_SHARE: f64 = 1.02;

/// A run of a case under a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ran {
    /// Until the last program that ends had ended, in seconds; the limit, where one did not.
    pub(super) makespan: f64,
    /// Whether all have ended.
    pub(super) is_done: bool,
    /// Programs that end, by the case's programs; those of one kind, which are all the same, from the
    /// fastest to the slowest. (Which of them comes late is chance.)
    pub(super) programs: Vec<One>,
    /// Time in which no program came or went, without the first second each, in seconds.
    pub(super) steady_seconds: f64,
    /// Claims that changed in it.
    pub(super) steady_changes: u64,
    /// Work of all programs, those without an end too, for each second until the last one had ended: CPUs'
    /// worth.
    pub(super) throughput: f64,
    /// Simulated events.
    pub(super) events: u64,
}

/// One program of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct One {
    pub(super) name: String,
    /// Its program in the case.
    pub(super) made: usize,
    /// How long it took, in seconds.
    pub(super) wall: f64,
    /// Its work, in seconds of one CPU.
    pub(super) work: f64,
}

/// Runs a case.
pub(super) fn run(case: &Case, policy: &str, folder: &Path) -> Result<Ran> {
    let scenario = case.scenario(policy, folder)?;
    let outcome = simulate(&scenario, Options::default())?;
    if outcome.report.ended == Ended::Deadlock {
        return Err(anyhow!(
            "seed {}, {policy}: a deadlock, which no case has: {}",
            case.seed,
            outcome.report.deadlock.join("; ")
        ));
    }
    let (steady_seconds, steady_changes) = steady(&outcome);
    let report = &outcome.report;
    let ending = report.programs.iter().filter(|p| !p.background);
    let mut programs: Vec<One> = ending.map(one).collect();
    programs.sort_by(|a, b| a.made.cmp(&b.made).then(a.wall.total_cmp(&b.wall)));
    let work: f64 = report.programs.iter().map(|p| p.work_seconds).sum();
    Ok(Ran {
        throughput: work / report.wall_seconds,
        makespan: report.wall_seconds,
        is_done: report.is_done(),
        programs,
        steady_seconds,
        steady_changes,
        events: report.events,
    })
}

fn one(program: &ProgramReport) -> One {
    // `word-2`: the second one of the case.
    let number = program.entry.rsplit('-').next();
    let number = number.and_then(|n| n.parse::<usize>().ok());
    One {
        name: program.name.clone(),
        made: number.map_or(0, |n| n.saturating_sub(1)),
        wall: program.wall_seconds,
        work: program.work_seconds,
    }
}

/// Time without comings and goings, and claims that changed in it.
fn steady(outcome: &Outcome) -> (f64, u64) {
    let end_ns = (outcome.report.wall_seconds * 1e9) as u64;
    let mut moments: Vec<u64> = vec![0, end_ns];
    for program in &outcome.report.programs {
        let moment = |seconds: f64| (seconds * 1e9) as u64;
        moments.push(moment(program.start_seconds));
        moments.extend(program.end_seconds.map(moment));
    }
    moments.sort_unstable();
    let quiet = moments.windows(2).filter_map(|pair| {
        let from = pair[0].saturating_add(SETTLING_NS);
        (from < pair[1]).then_some((from, pair[1]))
    });
    let quiet: Vec<(u64, u64)> = quiet.collect();
    let seconds: f64 = quiet
        .iter()
        .map(|(from, to)| (to - from) as f64 / 1e9)
        .sum();
    let within = |time: u64| quiet.iter().any(|(from, to)| (*from..*to).contains(&time));
    let changes = outcome.claims.iter().filter(|c| within(c.time_ns)).count();
    (seconds, changes as u64)
}

/// How long each of a case's programs takes alone, unmanaged, in seconds: one of each kind.
pub(super) fn alone(case: &Case, folder: &Path) -> Result<Vec<f64>> {
    let each = case.programs.iter().map(|made| {
        if !made.kind.ends() {
            return Ok(f64::INFINITY);
        }
        let single = Made {
            kind: made.kind.single(),
            start_ms: 0,
            session: 0,
        };
        Ok(run(&case.with(vec![single]), "none", folder)?.makespan)
    });
    each.collect()
}

/// A run under a policy against the same under plain Linux.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Against {
    /// Work for each second, over the same under plain Linux.
    pub(super) throughput: f64,
    /// Until all had ended, over the same.
    pub(super) makespan: f64,
    /// The sum of what all programs took, over the same.
    pub(super) total: f64,
    /// The worst of the programs, over the same; 1 if all those that took longer had their share.
    pub(super) worst: f64,
    /// The worst of the programs, those that had their share among them.
    pub(super) worst_of_all: f64,
    /// Jain's index of the slow-downs, 1: all suffer alike.
    pub(super) jain: f64,
    /// The largest slow-down.
    pub(super) slowest: f64,
    /// Changes of claims a second while nothing came or went; `None`: there was less than a second of it.
    pub(super) changes: Option<f64>,
}

/// Compares a run with plain Linux's.
pub(super) fn against(case: &Case, alone: &[f64], ran: &Ran, plain: &Ran) -> Against {
    let sum = |ran: &Ran| ran.programs.iter().map(|p| p.wall).sum::<f64>();
    let at_once: u32 = case.programs.iter().map(|p| p.kind.at_once()).sum();
    // CPUs that everybody would have if they were shared by programs.
    let share = (f64::from(case.cpus) / f64::from(at_once.max(1))).max(1.0);
    let mut worst = 1.0_f64;
    let mut worst_of_all = 0.0_f64;
    let mut slowest = 0.0_f64;
    for (one, other) in ran.programs.iter().zip(&plain.programs) {
        let ratio = one.wall / other.wall;
        let by_itself = alone.get(one.made).copied().unwrap_or(one.wall);
        let with_share = by_itself.max(one.work / share);
        worst_of_all = worst_of_all.max(ratio);
        if one.wall > with_share * OF_SHARE {
            worst = worst.max(ratio);
        }
        slowest = slowest.max(one.wall / by_itself);
    }
    Against {
        throughput: ran.throughput / plain.throughput,
        makespan: ran.makespan / plain.makespan,
        total: sum(ran) / sum(plain),
        worst,
        worst_of_all,
        jain: jain_of(alone, ran),
        slowest,
        changes: (ran.steady_seconds >= 1.0)
            .then(|| ran.steady_changes as f64 / ran.steady_seconds),
    }
}

/// Jain's index of a run's slow-downs.
pub(super) fn jain_of(alone: &[f64], ran: &Ran) -> f64 {
    let slow = ran.programs.iter();
    let slow = slow.map(|p| p.wall / alone.get(p.made).copied().unwrap_or(p.wall));
    jain(&slow.collect::<Vec<f64>>())
}

/// Jain's index of fairness (R. Jain, D. Chiu, W. Hawe, 1984): (Σx)² / (n Σx²).
pub(super) fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|x| x * x).sum();
    match squares > 0.0 {
        true => sum * sum / (values.len() as f64 * squares),
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn one_who_has_all_is_as_unfair_as_can_be() {
        assert_eq!(jain(&[1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[3.0, 0.0, 0.0]), 1.0 / 3.0);
    }
}
