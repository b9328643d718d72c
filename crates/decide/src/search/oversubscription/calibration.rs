//! The phase of calibration that the detector needs: a section's time with each number of threads, as a search that
//! has real programs probed.
//!
//! The first probe has a thread for each CPU. If it counts regions, the others are windows over the same regions; if
//! not, they are whole runs. Each number is probed several times, every other round backwards, and the median counts.
//!
//! The load must be the same all the time. Whether it was is told by the times themselves: each round has an answer of
//! its own. Where one of them differs, a few more are made; then all but one must agree, or there is no answer.

use super::{Detected, detect, most_threads};
use crate::profile::{Measure, Profile};
use crate::search::{Choice, Extent, Outcome, Search, Space, Step, StopReason, Trial};
use crate::search::{never_parallel, plain};
use crate::setting::Setting;
use crate::watch::NoProfile;
use std::collections::VecDeque;

/// The shortest length of a window with a thread for each CPU, in nanoseconds; with fewer threads the same work takes
/// longer.
const WINDOW_NS: u64 = 500_000_000;

/// A window lasts for so many regions: all must have enough of the same ones.
const REGIONS: u64 = 24;

/// Rounds that are added, once, where those made do not agree.
const MORE_ROUNDS: u32 = 2;

/// The name by which results tell of it.
pub const NAME: &str = "oversubscription";

/// What the probes of a calibration say.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// What the times are of.
    pub by: Measure,
    /// Of a region, or a whole run, with 1, 2, 3 ... threads: medians, in seconds.
    pub seconds: Vec<f64>,
    /// What they mean, if they mean anything: see [`Calibrated::is_steady`].
    pub detected: Detected,
    /// What each round by itself would mean: where two share a CPU.
    pub by_round: Vec<Option<u32>>,
}

impl Calibrated {
    /// Rounds whose own answer is not that of all of them together.
    pub fn differing(&self) -> usize {
        let answer = self.detected.artefact;
        self.by_round
            .iter()
            .filter(|round| **round != answer)
            .count()
    }

    /// Whether the rounds agree, all of a few, or all but one of more; else the load has changed meanwhile, and the
    /// times mean nothing.
    pub fn is_steady(&self) -> bool {
        let may_differ = usize::from(self.by_round.len() > MORE_ROUNDS as usize + 1);
        self.differing() <= may_differ
    }
}

/// Makes times of the profiles of a calibration, in their order, and looks for the artefact in them. `None` where
/// neither regions nor whole runs were seen, or nothing with one thread.
pub fn calibrated<'a>(
    cpus: u32,
    profiles: impl IntoIterator<Item = &'a Profile, IntoIter: Clone>,
) -> Option<Calibrated> {
    // The first one has shown what there is to measure.
    let profiles = profiles.into_iter().skip(1);
    let by = Measure::common(profiles.clone());
    if by == Measure::UsefulCpus {
        return None;
    }
    let speeds = |threads: u32| -> Vec<f64> {
        let of = profiles.clone();
        let of = of.filter(|profile| profile.setting.threads == threads);
        of.map(|profile| by.speed(profile)).collect()
    };
    let time = |speed: f64| (speed > 0.0).then(|| 1.0 / speed);
    let middle = |threads| {
        let mut speeds = speeds(threads);
        speeds.sort_by(f64::total_cmp);
        time(*speeds.get(speeds.len() / 2)?)
    };
    let seconds: Vec<f64> = (1..).map_while(middle).collect();
    let detected = (!seconds.is_empty()).then(|| detect(cpus, &seconds))?;
    // A round in which a number is missing has no answer that could be compared.
    let round = |index: usize| -> Option<Vec<f64>> {
        let numbers = (1..).take(seconds.len());
        let times = numbers.map(|threads| time(*speeds(threads).get(index)?));
        times.collect()
    };
    let by_round = (0..).map_while(round);
    let by_round = by_round.map(|times| detect(cpus, &times).artefact);
    Some(Calibrated {
        by,
        by_round: by_round.collect(),
        seconds,
        detected,
    })
}

/// The state of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    space: Space,
    rounds: u32,
    limit_ns: u64,
    /// What is still to be probed, once the first probe has shown what there is to measure.
    left: Option<VecDeque<u32>>,
    /// The length of a window with a thread for each CPU; `None`: whole runs.
    window_ns: Option<u64>,
    most: u32,
    /// Whether rounds were added already.
    extended: bool,
    seen: Vec<Profile>,
}

impl Calibration {
    /// `rounds` probes (at least 1) of each number; whole runs are cut off after `limit_ns` nanoseconds. Of the space
    /// only the number of CPUs counts: all numbers from 1 on are needed.
    pub fn new(space: Space, rounds: u32, limit_ns: u64) -> Calibration {
        let most = most_threads(space.one_per_cpu());
        Calibration {
            space,
            rounds: rounds.max(1),
            limit_ns,
            left: None,
            window_ns: Some(WINDOW_NS),
            most,
            extended: false,
            seen: Vec::new(),
        }
    }

    fn cpus(&self) -> u32 {
        self.space.cpus.ceil().max(1.0) as u32
    }

    fn step(&mut self) -> Step {
        let Some(left) = &mut self.left else {
            // Two at least, or nobody knows where the program is parallel.
            let threads = self.cpus().max(2);
            return self.probe(threads);
        };
        match left.pop_front() {
            Some(threads) => self.probe(threads),
            None => self.choose(),
        }
    }

    fn probe(&self, threads: u32) -> Step {
        let longer = (f64::from(self.cpus()) / f64::from(threads)).max(1.0);
        Step::Try(Trial {
            setting: Setting::threads(threads),
            extent: match self.window_ns {
                Some(window_ns) => Extent::Window((window_ns as f64 * longer) as u64),
                None => Extent::WholeRun(self.limit_ns),
            },
        })
    }

    /// The first probe was this: what the others will be.
    fn plan(&mut self, first: Profile) {
        let regions = first.regions.filter(|count| *count > 0);
        let regions = regions.filter(|_| first.whole_run_ns.is_none());
        self.window_ns = regions.map(|count| (REGIONS * first.window_ns / count).max(WINDOW_NS));
        self.seen.push(first);
        self.left = Some(self.rounds_of(self.rounds));
    }

    /// So many rounds, every other one backwards.
    fn rounds_of(&self, rounds: u32) -> VecDeque<u32> {
        let round = |round: u32| -> Box<dyn Iterator<Item = u32>> {
            match round % 2 {
                0 => Box::new(1..=self.most),
                _ => Box::new((1..=self.most).rev()),
            }
        };
        (0..rounds).flat_map(round).collect()
    }

    fn choose(&mut self) -> Step {
        let Some(found) = calibrated(self.cpus(), &self.seen) else {
            return plain(&self.space, StopReason::Blind);
        };
        if !found.is_steady() {
            if std::mem::replace(&mut self.extended, true) {
                return plain(&self.space, StopReason::Disturbed);
            }
            self.left = Some(self.rounds_of(MORE_ROUNDS));
            return self.step();
        }
        let (stop, confidence) = match found.detected.artefact {
            Some(_) => (StopReason::Oversubscribed, 0.9),
            None => (StopReason::Exhausted, 0.5),
        };
        Step::Done(Choice {
            setting: Setting::threads(found.detected.threads),
            stop,
            confidence,
        })
    }
}

impl Search for Calibration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&mut self) -> Step {
        self.step()
    }

    fn next(&mut self, outcome: Outcome) -> Step {
        match (outcome, self.left.is_some()) {
            (Outcome::Seen(profile), false) => self.plan(profile),
            (Outcome::Seen(profile), true) => self.seen.push(profile),
            (Outcome::Unseen(NoProfile::NeverParallel), false) => {
                return never_parallel(&self.space);
            }
            (Outcome::Unseen(NoProfile::TooShort), false) => {
                return plain(&self.space, StopReason::TooShort);
            }
            (Outcome::Failed, false) => return plain(&self.space, StopReason::Failed),
            // Times are looked at as far as each number has one.
            (Outcome::Unseen(_) | Outcome::Failed, true) => {}
        }
        self.step()
    }

    fn restrict(&mut self, _passive: bool, max: u32) {
        self.most = self.most.min(max);
    }
}

#[cfg(test)]
mod tests;
