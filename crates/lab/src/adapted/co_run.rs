//! `co-run`: pairs of real programs side by side, restarted until each has had three runs that the other one
//! overlapped completely: managed, against plain Linux in several ways.
//!
//! The weighted speed-up of a pair is the mean of both programs' T_plain ÷ T_managed (Snavely and Tullsen's,
//! with times for rates): above 1, the pair is better off.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::corewise::Corewise;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::allowed_cpus;
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::programs::{Catalogue, Wait};
use crate::stats::{estimate, geometric_mean, median};

/// Programs with the part of their usual work that makes a run of one to two seconds alone (a full experiment has
/// [`LENGTH`] times as long ones), and whether they are on OpenMP, OpenBLAS or oneTBB.
const PROGRAMS: [(&str, f64, bool); 8] = [
    ("lightgbm", 0.6, true),
    ("numpy-svd", 1.0, true),
    ("numba-omp", 0.7, true),
    ("numba-tbb", 0.7, true),
    ("pbzip2", 0.5, false),
    ("x265", 0.7, false),
    ("hackbench", 1.0, false),
    ("mariadb", 0.7, false),
];
/// What a run of one or two seconds costs at its beginning and end weighs too much: a full experiment has longer
/// runs.
const LENGTH: f64 = 3.0;
/// Runs of each program that have to be overlapped completely.
const WANTED: u32 = 3;
/// Runs of each program beside the other one before: corewise probes a program that cannot follow its claim when
/// it is first run beside others.
const FIRST: u32 = 2;
/// A run that takes longer is ended, and counts as one that took so long: of two programs that spin for each
/// other's CPU one run can take minutes on plain Linux. So what is gained over such a run is a lower bound. Of long
/// runs, some eight times what they take alone; of short ones, fifteen times.
fn longest(context: &Context) -> Duration {
    Duration::from_secs(if context.quick { 20 } else { 35 })
}

/// How a pair is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As many threads as CPUs, each program in a session of its own.
    OwnSessions,
    /// The same, both in the lab's session.
    OneSession,
    /// The same, with OpenMP told not to spin.
    Passive,
    /// One thread each.
    OneThread,
    /// `corewise run`, each in a session of its own, under one manager; what is known of the programs was
    /// learned on the idle machine.
    Managed,
}

const WAYS: [Way; 5] = [
    Way::OwnSessions,
    Way::OneSession,
    Way::Passive,
    Way::OneThread,
    Way::Managed,
];

impl Way {
    /// What `--only` calls it; plain Linux, with which all are compared, is always among them.
    fn name(self) -> &'static str {
        match self {
            Way::OwnSessions => "plain",
            Way::OneSession => "one-session",
            Way::Passive => "passive",
            Way::OneThread => "one-thread",
            Way::Managed => "managed",
        }
    }
}

/// Runs the experiment. `--only A,B` takes the pairs of these programs; with the names of ways (`managed`,
/// `one-session`, `passive`, `one-thread`) those of them. `--quick` has runs of one to two seconds.
///
/// # Errors
/// If a program is not installed, cannot be started, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "co-run",
        "pairs of programs under one manager, against the same pairs as plain Linux runs them (each in its own \
         session; both in one), with OMP_WAIT_POLICY=passive, and with one thread each; the ways of a round one \
         after the other; managed, each program has run before, alone and beside the other one (first_runs: the \
         weighted speed-up of those)",
        "each program in a session of its own, but for `one session`",
    );
    let catalogue = Catalogue::read(context)?;
    let picked = context.pick(&PROGRAMS.map(|(name, ..)| name));
    let programs: Vec<_> = PROGRAMS
        .iter()
        .filter(|(n, ..)| picked.contains(n))
        .collect();
    let ways = context.pick(&WAYS.map(Way::name));
    let wanted = |way: &Way| *way == Way::OwnSessions || ways.contains(&way.name());
    let ways: Vec<Way> = WAYS.into_iter().filter(wanted).collect();
    let manager = Manager::start(context, "balanced")?;
    let corewise = Corewise::new(context)?;
    let stage = Stage {
        context,
        ways: &ways,
        catalogue: &catalogue,
        manager: &manager,
        corewise: &corewise,
    };
    for (name, scale, _) in &programs {
        stage.learn(name, *scale)?;
    }
    let mut table = Table::new(
        "weighted speed-up over plain Linux with own sessions; in brackets that of the worse program",
        &[
            "pair",
            "managed",
            "one session",
            "passive",
            "one thread",
            "managed over the best of these",
        ],
    );
    let (mut speed_ups, mut worst, mut over_best) = (Vec::new(), f64::INFINITY, Vec::new());
    let (mut cut, mut cut_managed) = (0, 0);
    for (first, left) in programs.iter().enumerate() {
        for right in &programs[first + 1..] {
            let key = format!("{}+{}", left.0, right.0);
            let pair = [(left.0, left.1), (right.0, right.1)];
            let pair = stage.pair(&key, pair)?;
            cut += pair.cut(Way::OwnSessions);
            cut_managed += pair.cut(Way::Managed);
            let of = |way: Way| pair.speed_up(way);
            let statics = [Way::OneSession, Way::Passive, Way::OneThread].map(|w| of(w).0);
            // Where one was left out it is not known which is best.
            let best = match statics.iter().any(|speed_up| speed_up.is_nan()) {
                true => f64::NAN,
                false => statics.iter().copied().fold(1.0, f64::max),
            };
            let (managed, smaller) = of(Way::Managed);
            let shown = |way| {
                let (both, worse) = of(way);
                format!("{} ({})", number(both), number(worse))
            };
            table.row([
                key.clone(),
                shown(Way::Managed),
                shown(Way::OneSession),
                shown(Way::Passive),
                shown(Way::OneThread),
                number(managed / best),
            ]);
            report.figure(format!("{key}.weighted_speed_up"), managed);
            report.figure(format!("{key}.worse_program"), smaller);
            report.figure(format!("{key}.first_runs"), pair.first_speed_up());
            worst = worst.min(pair.worst_beyond_its_interval());
            over_best.push(managed / best);
            if left.2 || right.2 {
                speed_ups.push(managed);
            }
        }
    }
    report.tables.push(table);
    report.figure("plain_runs_ended_at_the_limit", f64::from(cut));
    report.bars.push(Bar::at_most(
        "managed runs that took longer than the limit (none may)",
        f64::from(cut_managed),
        0.0,
    ));
    report.bars.push(Bar::at_least(
        "weighted speed-up over plain Linux, geometric mean of the pairs with OpenMP, OpenBLAS or oneTBB (at least)",
        geometric_mean(&speed_ups),
        1.3,
    ));
    report.bars.push(Bar::at_least(
        "the worst program of any pair, upper end of its interval (at least)",
        worst,
        0.95,
    ));
    report.bars.push(Bar::at_least(
        "weighted speed-up over that of the best static choice of each pair, geometric mean (at least)",
        geometric_mean(&over_best),
        1.0,
    ));
    Ok(report)
}

/// What pairs are run with.
struct Stage<'a> {
    context: &'a Context,
    ways: &'a [Way],
    catalogue: &'a Catalogue,
    manager: &'a Manager,
    corewise: &'a Corewise,
}

/// The times of a pair: for each way and each of the two programs, all complete runs.
struct Pair {
    seconds: [[Vec<f64>; 2]; WAYS.len()],
    /// Of each program's first managed runs beside the other one, the median, in seconds: what these took to
    /// find out is in them, and not in the others.
    first: [f64; 2],
    /// Runs are ended after so many seconds.
    limit: f64,
}

impl Stage<'_> {
    /// What corewise learns of a program on the idle machine.
    fn learn(&self, name: &str, scale: f64) -> Result<()> {
        let program = self.catalogue.program(name)?;
        self.catalogue.installed(program)?;
        let job = self.job(name, scale, Way::Managed)?;
        job.run(longest(self.context))?.success(&job)?;
        Ok(())
    }

    fn pair(&self, key: &str, programs: [(&str, f64); 2]) -> Result<Pair> {
        let mut seconds: [[Vec<f64>; 2]; WAYS.len()] = Default::default();
        let mut first = [f64::NAN; 2];
        let limit = longest(self.context);
        for round in 0..self.context.rounds(2, 1) {
            for (way, seconds) in WAYS.iter().zip(&mut seconds) {
                if !self.ways.contains(way) {
                    continue;
                }
                let mut jobs = Vec::new();
                for (name, scale) in programs {
                    jobs.push(self.job(name, scale, *way)?);
                }
                if *way == Way::Managed && round == 0 {
                    first = overlapped(&jobs, FIRST, limit)?.map(|seconds| median(&seconds));
                }
                let [left, right] = overlapped(&jobs, WANTED, limit)?;
                self.context.say(format_args!(
                    "{key}, round {}, {way:?}: {:.2} s and {:.2} s",
                    round + 1,
                    median(&left),
                    median(&right)
                ));
                seconds[0].extend(left);
                seconds[1].extend(right);
            }
        }
        let limit = limit.as_secs_f64();
        Ok(Pair {
            seconds,
            first,
            limit,
        })
    }

    fn job(&self, name: &str, scale: f64, way: Way) -> Result<Job> {
        let program = self.catalogue.program(name)?;
        let scale = if self.context.quick {
            scale
        } else {
            scale * LENGTH
        };
        let cpus = u32::try_from(allowed_cpus()?.len())?.max(1);
        let plain = |threads, wait| self.catalogue.job(program, threads, wait, scale);
        let job = match way {
            Way::OwnSessions | Way::OneSession => plain(cpus, Wait::Default)?,
            Way::Passive if program.waits => plain(cpus, Wait::Passive)?,
            Way::Passive => plain(cpus, Wait::Default)?,
            Way::OneThread => plain(1, Wait::Default)?,
            Way::Managed => {
                let job = self.catalogue.template(program, scale)?;
                let folder = self.manager.folder().to_string_lossy().into_owned();
                let words: &[&str] = match program.fixed {
                    true => &["run", "--quiet", "--as-is"],
                    false => &["run", "--quiet"],
                };
                self.corewise
                    .job(words, &job)
                    .with("COREWISE_RUNTIME_DIR", folder)
            }
        };
        Ok(match way {
            Way::OneSession => job,
            _ => job.under(["setsid", "--wait"]),
        })
    }
}

/// Runs two jobs side by side, each again and again, until each has had enough runs that the other one
/// overlapped completely. The times of those, in seconds; a run is ended after `limit`.
fn overlapped(jobs: &[Job], wanted: u32, limit: Duration) -> Result<[Vec<f64>; 2]> {
    let complete = [AtomicU32::new(0), AtomicU32::new(0)];
    let enough = || complete.iter().all(|c| c.load(Ordering::Relaxed) >= wanted);
    std::thread::scope(|scope| {
        let running: Vec<_> = jobs
            .iter()
            .zip(&complete)
            .map(|(job, complete)| {
                let enough = &enough;
                scope.spawn(move || -> Result<Vec<f64>> {
                    let mut times = Vec::new();
                    // The other one begins at the same time, and goes on until both have had enough: every run
                    // that ends before that is overlapped.
                    while !enough() {
                        let began = Instant::now();
                        let run = job.run(limit)?;
                        let seconds = match run.timed_out {
                            true => limit.as_secs_f64(),
                            false => run.success(job).map(|_| began.elapsed().as_secs_f64())?,
                        };
                        if enough() {
                            break;
                        }
                        times.push(seconds);
                        complete.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(times)
                })
            })
            .collect();
        let mut times = Vec::new();
        for thread in running {
            times.push(thread.join().ok().context("a thread failed")??);
        }
        times.try_into().ok().context("two programs make a pair")
    })
}

impl Pair {
    /// Both programs' times as plain Linux has them over those of `way`: the mean, and the smaller one.
    fn speed_up(&self, way: Way) -> (f64, f64) {
        let [left, right] = [0, 1].map(|program| {
            let seconds = |way| median(&self.of(way)[program]);
            seconds(Way::OwnSessions) / seconds(way)
        });
        (left.midpoint(right), left.min(right))
    }

    /// The weighted speed-up of the first managed runs.
    fn first_speed_up(&self) -> f64 {
        let plain = self.of(Way::OwnSessions);
        let [left, right] = [0, 1].map(|p| median(&plain[p]) / self.first[p]);
        left.midpoint(right)
    }

    /// Of the program that managing serves worse: the upper end of the interval of its speed-up.
    fn worst_beyond_its_interval(&self) -> f64 {
        let upper = [0, 1].map(|program| {
            let plain = estimate(&self.of(Way::OwnSessions)[program]);
            let managed = estimate(&self.of(Way::Managed)[program]);
            plain.high / managed.low
        });
        upper[0].min(upper[1])
    }

    /// Runs that were ended at the limit.
    fn cut(&self, way: Way) -> u32 {
        let all = self.of(way).iter().flatten();
        let cut = all.filter(|seconds| **seconds >= self.limit);
        u32::try_from(cut.count()).unwrap_or(u32::MAX)
    }

    fn of(&self, way: Way) -> &[Vec<f64>; 2] {
        let index = WAYS.iter().position(|w| *w == way).unwrap_or(0);
        &self.seconds[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weighted_speed_up_is_the_mean_of_both_programs() {
        let mut seconds: [[Vec<f64>; 2]; WAYS.len()] = Default::default();
        seconds[0] = [vec![4.0], vec![3.0]];
        seconds[4] = [vec![2.0], vec![3.0]];
        let pair = Pair {
            seconds,
            first: [2.0, 6.0],
            limit: 20.0,
        };
        assert_eq!(pair.first_speed_up(), 1.25);
        assert_eq!(pair.speed_up(Way::Managed), (1.5, 1.0));
        assert_eq!(pair.speed_up(Way::OwnSessions), (1.0, 1.0));
    }
}
