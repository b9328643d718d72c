//! A cell: one program under one condition. Its candidates (numbers of threads and ways of waiting)
//! are measured interleaved, in two halves of rounds: the best is found on one half and judged on
//! the other, so that luck in finding it cannot count twice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::cgroup::QuotaGroup;
use crate::experiment::Context;
use crate::load::{Hog, Session, allowed_cpus};
use crate::measure::{Job, Run};
use crate::programs::{Catalogue, Program, Wait};
use crate::stats::{geometric_mean, interleaved, median};

/// The first run of a cell, with one thread, may take so many seconds.
const LONGEST_SECONDS: f64 = 120.0;
/// The plain run's first may take so many seconds, however short the others are: how bad plain Linux
/// is belongs to the report.
const PLAIN_SECONDS: f64 = 30.0;
/// A candidate is ended at so many times the best run so far...
const CUT: f64 = 3.0;
/// ...and is left out of further rounds where its first took so many times the best.
const HOPELESS: f64 = 1.3;
/// A candidate is allowed as the best where the hog keeps this part of its share.
const KEPT: f64 = 0.95;

/// What else happens while a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing that we started.
    Alone,
    /// One hog in the program's session.
    HogSameSession,
    /// One hog in a session of its own.
    HogOwnSession,
    /// Nothing else, but no more than one CPU's time for the program.
    Quota,
}

impl Condition {
    /// All of them.
    pub const ALL: [Condition; 4] = [
        Condition::Alone,
        Condition::HogSameSession,
        Condition::HogOwnSession,
        Condition::Quota,
    ];

    /// What figures and `--only` call it.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Alone => "alone",
            Condition::HogSameSession => "hog-same-session",
            Condition::HogOwnSession => "hog-own-session",
            Condition::Quota => "quota-1",
        }
    }

    /// Those of these conditions that the user picked, or all.
    pub fn picked(context: &Context, all: &[Condition]) -> Vec<Condition> {
        let names = all.iter().map(|condition| condition.name());
        let names = context.pick(&names.collect::<Vec<_>>());
        let picked = all
            .iter()
            .filter(|condition| names.contains(&condition.name()));
        picked.copied().collect()
    }

    /// CPUs that the program may use by right: the highest number of threads that is worth trying
    /// is twice that.
    pub fn effective_cpus(self) -> Result<u32> {
        Ok(match self {
            Condition::Quota => 1,
            _ => allowed_cpus()?.len().max(1) as u32,
        })
    }

    /// Makes it so until the result is dropped.
    pub fn set_up(self) -> Result<Surroundings> {
        Ok(Surroundings {
            hog: match self {
                Condition::HogSameSession => Some(Hog::start(Session::Same)?),
                Condition::HogOwnSession => Some(Hog::start(Session::Own)?),
                Condition::Alone | Condition::Quota => None,
            },
            quota: match self {
                Condition::Quota => Some(QuotaGroup::new(1.0)?),
                _ => None,
            },
        })
    }
}

/// A condition that holds now.
pub struct Surroundings {
    hog: Option<Hog>,
    quota: Option<QuotaGroup>,
}

impl Surroundings {
    /// The job inside the quota, where there is one.
    pub fn place(&self, mut job: Job) -> Job {
        job.cgroup = self.quota.as_ref().map(QuotaGroup::procs);
        job
    }

    /// Runs a job here; with its run comes the hog's share: the part of one CPU that it had.
    pub fn run(
        &self,
        job: &Job,
        timeout: Duration,
        keep_output: bool,
    ) -> Result<(Run, Option<f64>)> {
        let job = self.place(job.clone());
        let before = self.hog.as_ref().map(Hog::run_ns).transpose()?;
        let run = job.start(keep_output)?.finish(timeout)?;
        let share = match (&self.hog, before) {
            (Some(hog), Some(before)) => {
                Some((hog.run_ns()? - before) as f64 / 1e9 / run.wall_seconds)
            }
            _ => None,
        };
        Ok((run, share))
    }
}

/// What is set: by hand, or by corewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Setting {
    /// Number of threads.
    pub threads: u32,
    /// How they wait.
    pub wait: Wait,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.wait {
            Wait::Default => write!(f, "{}", self.threads),
            Wait::Passive => write!(f, "{} passive", self.threads),
        }
    }
}

/// One run of one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Wall time in seconds; where the run was cut, the time until then.
    pub seconds: f64,
    /// Whether it took too long and was ended: it would have taken more than `seconds`.
    pub cut: bool,
    /// The hog's share during the run, in CPUs.
    pub hog_share: Option<f64>,
}

/// What was measured of one cell: each setting's runs, by round.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Setting → round → run. A setting that was hopeless lacks the later rounds.
    pub samples: BTreeMap<Setting, BTreeMap<u32, Sample>>,
    /// What plain Linux does: as many threads as CPUs, waiting as the runtime likes.
    pub plain: Setting,
    /// How many rounds there were.
    pub rounds: u32,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            threads: 1,
            wait: Wait::Default,
        }
    }
}

/// How a cell is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// How often; made even, for two halves.
    pub rounds: u32,
    /// Size of the input: 1.0 is the catalogue's.
    pub scale: f64,
    /// Settings that are measured in every round though they be slow: what corewise chose, which
    /// may lie outside the others.
    pub keep: &'a [Setting],
}

/// How a choice compares with the best of its cell.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Time of the choice over that of the best setting under which the hog keeps its share.
    pub ratio: f64,
    /// The same with every setting allowed as the best.
    pub unrestricted: f64,
    /// The hog's share beside the choice over that beside the plain run; none without a hog.
    pub hog_kept: Option<f64>,
    /// The best of all rounds, of those allowed.
    pub best: Setting,
    /// Time of the plain run over that of the choice.
    pub over_plain: f64,
}

impl Cell {
    /// Measures the settings 1..=twice the effective CPUs, with each way of waiting that applies.
    /// `also` is called once a round, among the runs: what is compared with them.
    pub fn measure(
        context: &Context,
        catalogue: &Catalogue,
        program: &Program,
        condition: Condition,
        plan: &Plan<'_>,
        also: &mut dyn FnMut(u32, &Surroundings) -> Result<()>,
    ) -> Result<Cell> {
        let plain = Setting {
            threads: allowed_cpus()?.len() as u32,
            wait: Wait::Default,
        };
        let mut settings = plan.keep.to_vec();
        settings.push(plain);
        for threads in 1..=2 * condition.effective_cpus()? {
            // One thread waits for nobody.
            let waits = program
                .waits()
                .iter()
                .take(if threads == 1 { 1 } else { usize::MAX });
            settings.extend(waits.map(|&wait| Setting { threads, wait }));
        }
        settings.sort();
        settings.dedup();
        let mut cell = Cell {
            plain,
            rounds: plan.rounds.next_multiple_of(2),
            ..Cell::default()
        };
        let surroundings = condition.set_up()?;
        let mut order = interleaved(0..settings.len() + 1, cell.rounds, 0xce11);
        // One thread first: it always ends, and says what is too long for the others.
        let first = |index: usize| settings.get(index).is_some_and(|one| one.threads == 1);
        order[..=settings.len()].sort_by_key(|&(_, index)| !first(index));
        let mut best = f64::INFINITY;
        for (round, index) in order {
            let Some(&setting) = settings.get(index) else {
                also(round, &surroundings)?;
                continue;
            };
            if round > 0 && cell.is_out(setting, plan.keep, best) {
                continue;
            }
            let cut = match round {
                0 if setting == plain => PLAIN_SECONDS.max(CUT * best),
                0 => CUT * best,
                // What came so far is not hopeless: a long run is now the machine's doing.
                _ => LONGEST_SECONDS,
            };
            let cut = Duration::from_secs_f64(cut.min(LONGEST_SECONDS));
            let job = catalogue.job(program, setting.threads, setting.wait, plan.scale)?;
            let (mut run, hog_share) = surroundings.run(&job, cut, false)?;
            let sample = Sample {
                seconds: run.wall_seconds,
                cut: run.timed_out,
                hog_share,
            };
            if !sample.cut || best.is_infinite() {
                run = run.success(&job)?;
                best = best.min(run.wall_seconds);
            }
            let samples = cell.samples.entry(setting).or_default();
            samples.insert(round, sample);
            context.say(format_args!(
                "{}, {}, round {} of {}, threads {setting}: {}{:.2} s",
                program.name,
                condition.name(),
                round + 1,
                cell.rounds,
                if sample.cut { "more than " } else { "" },
                sample.seconds,
            ));
        }
        Ok(cell)
    }

    /// Whether a setting needs no further runs: it was cut, or hopeless in the first round (which
    /// does not put out what is to be kept).
    fn is_out(&self, setting: Setting, keep: &[Setting], best: f64) -> bool {
        let first = self.samples.get(&setting).and_then(|runs| runs.get(&0));
        first.is_none_or(|first| {
            first.cut || (!keep.contains(&setting) && first.seconds > HOPELESS * best)
        })
    }

    /// Median time of a setting over the rounds of one half (0 or 1: even or odd rounds), or all.
    fn seconds(&self, setting: Setting, half: Option<u32>) -> f64 {
        let Some(runs) = self.samples.get(&setting) else {
            return f64::INFINITY;
        };
        let times = runs
            .iter()
            .filter(|(round, _)| half.is_none_or(|half| **round % 2 == half))
            .map(|(_, sample)| sample.seconds)
            .collect::<Vec<_>>();
        match times.is_empty() {
            true => f64::INFINITY,
            false => median(&times),
        }
    }

    /// Median time over all rounds, in seconds (a lower bound where its run was cut); infinite where
    /// it was never measured.
    pub fn median_seconds(&self, setting: Setting) -> f64 {
        self.seconds(setting, None)
    }

    /// Median of the hog's share beside a setting, in CPUs; none without a hog.
    pub fn hog_share(&self, setting: Setting) -> Option<f64> {
        let runs = self.samples.get(&setting)?.values();
        let shares = runs
            .filter_map(|sample| sample.hog_share)
            .collect::<Vec<_>>();
        (!shares.is_empty()).then(|| median(&shares))
    }

    /// The hog's share beside this setting over that beside the plain run.
    pub fn hog_kept(&self, setting: Setting) -> Option<f64> {
        Some(self.hog_share(setting)? / self.hog_share(self.plain)?)
    }

    /// The fastest setting over these rounds, of all or of those that leave the hog its share.
    pub fn best(&self, half: Option<u32>, restricted: bool) -> Setting {
        let allowed = |setting: &&Setting| {
            !restricted || self.hog_kept(**setting).is_none_or(|kept| kept >= KEPT)
        };
        // Only what was measured in every round: the others were hopeless in the first.
        let all = self
            .samples
            .iter()
            .filter(|(_, runs)| runs.len() as u32 == self.rounds);
        all.map(|(setting, _)| setting)
            .filter(allowed)
            .copied()
            .min_by(|a, b| f64::total_cmp(&self.seconds(*a, half), &self.seconds(*b, half)))
            .unwrap_or(self.plain)
    }

    /// Time of `choice` over that of the best, found on one half of the rounds and judged on the
    /// other, both ways round (the geometric mean of the two).
    pub fn ratio(&self, choice: Setting, restricted: bool) -> f64 {
        let judged = [0, 1].map(|half| {
            let best = self.best(Some(1 - half), restricted);
            if best == choice {
                return 1.0;
            }
            // A choice that was cut in the first round has no second half: its one time counts.
            let time = match self.seconds(choice, Some(half)) {
                time if time.is_finite() => time,
                _ => self.median_seconds(choice),
            };
            time / self.seconds(best, Some(half))
        });
        geometric_mean(&judged)
    }

    /// The same for times that were measured beside the cell, one a round.
    pub fn ratio_of(&self, times: &[f64], restricted: bool) -> f64 {
        let judged = [0, 1].map(|half| {
            let best = self.best(Some(1 - half), restricted);
            let own = times.iter().skip(half as usize).step_by(2);
            median(&own.copied().collect::<Vec<_>>()) / self.seconds(best, Some(half))
        });
        geometric_mean(&judged)
    }

    /// How `choice` compares.
    pub fn verdict(&self, choice: Setting) -> Verdict {
        Verdict {
            ratio: self.ratio(choice, true),
            unrestricted: self.ratio(choice, false),
            hog_kept: self.hog_kept(choice),
            best: self.best(None, true),
            over_plain: self.median_seconds(self.plain) / self.median_seconds(choice),
        }
    }
}

impl Verdict {
    /// Whether the hog keeps its share beside the choice; yes without a hog.
    pub fn hog_keeps_its_share(&self) -> bool {
        self.hog_kept.is_none_or(|kept| kept >= KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(threads: u32) -> Setting {
        Setting {
            threads,
            wait: Wait::Default,
        }
    }

    /// A cell from (threads, its times by round, its hog's share).
    fn cell(rows: &[(u32, &[f64], Option<f64>)]) -> Cell {
        let samples = rows.iter().map(|&(threads, times, hog_share)| {
            let runs = times.iter().enumerate();
            let runs = runs.map(|(round, &seconds)| {
                let cut = false;
                (
                    round as u32,
                    Sample {
                        seconds,
                        cut,
                        hog_share,
                    },
                )
            });
            (setting(threads), runs.collect())
        });
        Cell {
            samples: samples.collect(),
            plain: setting(2),
            rounds: 4,
        }
    }

    #[test]
    fn the_best_itself_has_the_ratio_one() {
        let cell = cell(&[(1, &[2.0; 4], None), (2, &[1.0; 4], None)]);
        assert_eq!(cell.ratio(setting(2), true), 1.0);
        assert_eq!(cell.ratio(setting(1), true), 2.0);
        assert_eq!(cell.verdict(setting(2)).over_plain, 1.0);
    }

    #[test]
    fn luck_in_the_half_that_finds_the_best_does_not_count() {
        // Two threads are lucky in the even rounds only, three in the odd ones: neither is better.
        let cell = cell(&[
            (1, &[1.0; 4], None),
            (2, &[0.8, 1.2, 0.8, 1.2], None),
            (3, &[1.2, 0.8, 1.2, 0.8], None),
        ]);
        assert!(cell.ratio(setting(1), true) < 0.9);
    }

    #[test]
    fn a_setting_that_takes_the_hogs_share_is_not_the_best() {
        let cell = cell(&[(2, &[2.0; 4], Some(0.66)), (4, &[1.0; 4], Some(0.40))]);
        let verdict = cell.verdict(setting(2));
        assert_eq!(verdict.ratio, 1.0);
        assert_eq!(verdict.unrestricted, 2.0);
        assert!(verdict.hog_keeps_its_share());
        assert!(!cell.verdict(setting(4)).hog_keeps_its_share());
    }

    #[test]
    fn settings_that_lack_rounds_are_never_the_best() {
        let cell = cell(&[(1, &[1.0], None), (2, &[1.4; 4], None)]);
        assert_eq!(cell.best(None, true), setting(2));
        assert!(cell.ratio(setting(9), true).is_infinite());
        // Its one round counts where it is the choice.
        assert!((cell.ratio(setting(1), true) - 1.0 / 1.4).abs() < 1e-9);
    }

    #[test]
    fn times_beside_the_cell_are_judged_by_halves_too() {
        let cell = cell(&[(1, &[3.0; 4], None), (2, &[1.0, 2.0, 1.0, 2.0], None)]);
        assert!((cell.ratio_of(&[1.1, 2.2, 1.1, 2.2], true) - 1.1).abs() < 1e-9);
    }
}
