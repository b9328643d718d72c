//! `automax-waves`: Fig. 5 of REEact's paper (section 4.2) on this machine. A malleable program that
//! could use every CPU runs beside three waves of one-thread jobs with pauses between, once with one,
//! once with two and once with three jobs a wave. (The paper: jobs of 50 s, pauses of 30 s, 4 CPUs.)
//!
//! On a shared host the same run takes up to twice as long from one moment to the next, because other
//! guests use the cores behind the virtual CPUs. What a policy does to a job is how long it has to wait
//! for a CPU: so times are put in relation to the CPU time that was used in them, in the same run.
//!
//! - A job's *stretch* is its time over its CPU time: 1 if it never waited.
//! - The *oracle* knows when jobs come and how much CPU time they and the malleable program need (from
//!   the run that it is compared with), gives the malleable program as many threads as the jobs leave
//!   CPUs, at least one, switches freely, and shares CPUs fairly where threads are more.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::actor::{self, JobRan, Shared};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::manage::stage::{Manager, Player};
use crate::stats::{estimate, interleaved, median, paired_ratio};

const WAVES: usize = 3;
const SETUPS: [(&str, usize); 3] = [("one-job", 1), ("two-jobs", 2), ("three-jobs", 3)];

/// A job's work, on a CPU of its own.
const JOB_MS: u64 = 600;
const PAUSE: Duration = Duration::from_millis(360);
/// From the malleable program's start to the first wave.
const LEAD: Duration = Duration::from_millis(400);
/// The malleable program's unit of work.
const UNIT_US: u64 = 1_000;
/// Its whole work in CPU seconds, for each CPU, and for each job a wave: it should outlast the waves.
const WORK_S_PER_CPU: f64 = 2.0;
const WORK_S_PER_JOB: f64 = 0.9;

/// How the malleable program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// With so many threads throughout, without a manager.
    Fixed(usize),
    /// As a team under the policy.
    Automax,
}

/// One run of the malleable program with its waves.
struct Ran {
    malleable: Shared,
    jobs: Vec<JobRan>,
}

impl Ran {
    fn seconds(&self) -> f64 {
        (self.malleable.ended_ns - self.malleable.began_ns) as f64 / 1e9
    }

    /// The mean of the jobs' times, as the paper has it.
    fn job_seconds(&self) -> f64 {
        let all = self.jobs.iter().map(|j| (j.ended_ns - j.began_ns) as f64);
        all.sum::<f64>() / self.jobs.len().max(1) as f64 / 1e9
    }

    /// The mean over jobs of their time over their CPU time.
    fn stretch(&self) -> f64 {
        let all = self.jobs.iter().map(|j| {
            let time = j.ended_ns.saturating_sub(j.began_ns);
            time as f64 / j.run_ns.max(1) as f64
        });
        all.sum::<f64>() / self.jobs.len().max(1) as f64
    }

    /// The malleable program's time over what the oracle would have needed.
    fn over_oracle(&self, jobs: usize, cpus: usize) -> f64 {
        self.seconds() / oracle_seconds(self, jobs, cpus)
    }
}

/// How long the malleable program of a run would take under the oracle.
fn oracle_seconds(ran: &Ran, jobs: usize, cpus: usize) -> f64 {
    const STEP_NS: u64 = 1_000_000;
    let mut left: Vec<Vec<f64>> = ran
        .jobs
        .chunks(jobs.max(1))
        .map(|wave| wave.iter().map(|job| job.run_ns as f64).collect())
        .collect();
    left.reverse();
    let mut wave: Vec<f64> = Vec::new();
    let mut next_wave_ns = nanoseconds(LEAD);
    let mut own = ran.malleable.run_ns as f64;
    let mut time_ns = 0;
    while own > 0.0 {
        if wave.is_empty() && time_ns >= next_wave_ns {
            wave = left.pop().unwrap_or_default();
        }
        let threads = cpus.saturating_sub(wave.len()).max(1);
        // As many threads as CPUs at most, or a fair share for each.
        let share = (cpus as f64 / (threads + wave.len()) as f64).min(1.0);
        own -= share * threads as f64 * STEP_NS as f64;
        if !wave.is_empty() {
            wave.iter_mut()
                .for_each(|job| *job -= share * STEP_NS as f64);
            wave.retain(|job| *job > 0.0);
            if wave.is_empty() {
                next_wave_ns = time_ns + STEP_NS + nanoseconds(PAUSE);
            }
        }
        time_ns += STEP_NS;
    }
    time_ns as f64 / 1e9
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs the experiment.
///
/// # Errors
/// If a program or the manager cannot be started, or a program gives a wrong result.
pub fn run(context: &Context) -> Result<Report> {
    let cpus = crate::load::allowed_cpus()?.len();
    let per_ms = actor::loops_per_ms();
    let mut report = Report::new(
        context,
        "automax-waves",
        "a malleable program under the policy automax beside waves of one-thread jobs, against every \
         fixed number of threads up to twice the CPUs (as many as CPUs is plain Linux), and against \
         an offline oracle that knows arrivals and needs and switches freely",
        "everything in the lab's session",
    );
    let mut table = Table::new(
        "medians in seconds",
        &[
            "setup",
            "variant",
            "malleable",
            "jobs",
            "malleable ÷ oracle",
            "jobs ÷ fixed 1",
        ],
    );
    let mut variants: Vec<Variant> = (1..=2 * cpus).map(Variant::Fixed).collect();
    variants.push(Variant::Automax);
    let names: Vec<&str> = SETUPS.iter().map(|s| s.0).collect();
    for name in context.pick(&names) {
        let jobs = SETUPS.iter().find(|s| s.0 == name).map_or(1, |s| s.1);
        let plan = Plan {
            units: ((cpus as f64 * WORK_S_PER_CPU + jobs as f64 * WORK_S_PER_JOB) * 1e6
                / UNIT_US as f64) as u64,
            unit_loops: per_ms * UNIT_US / 1000,
            job_loops: per_ms * JOB_MS,
            jobs,
        };
        let mut runs: Vec<Vec<Ran>> = variants.iter().map(|_| Vec::new()).collect();
        for (round, index) in interleaved(0..variants.len(), context.rounds(5, 2), 5) {
            let ran = plan.run(context, variants[index])?;
            context.say(format_args!(
                "{name}, round {}, {:?}: {:.2} s, jobs {:.2} s",
                round + 1,
                variants[index],
                ran.seconds(),
                ran.job_seconds(),
            ));
            runs[index].push(ran);
        }
        judge(name, &plan, cpus, &variants, &runs, &mut report, &mut table);
    }
    report.tables.push(table);
    report.figure(
        "capacity",
        crate::load::capacity(Duration::from_millis(500))?,
    );
    Ok(report)
}

fn judge(
    name: &str,
    plan: &Plan,
    cpus: usize,
    variants: &[Variant],
    runs: &[Vec<Ran>],
    report: &mut Report,
    table: &mut Table,
) {
    let of = |variant: Variant| {
        let index = variants.iter().position(|v| *v == variant).unwrap_or(0);
        &runs[index]
    };
    let medians = |runs: &[Ran]| {
        let own: Vec<f64> = runs.iter().map(Ran::seconds).collect();
        let jobs: Vec<f64> = runs.iter().map(Ran::job_seconds).collect();
        (median(&own), median(&jobs))
    };
    // Runs of one round are compared with each other: the machine changes from round to round.
    let beside_one: Vec<f64> = of(Variant::Fixed(1)).iter().map(Ran::stretch).collect();
    let stretch = |runs: &[Ran]| {
        let all: Vec<f64> = runs.iter().map(Ran::stretch).collect();
        paired_ratio(&all, &beside_one)
    };
    let over_oracle = |runs: &[Ran]| {
        let over = runs.iter().map(|ran| ran.over_oracle(plan.jobs, cpus));
        estimate(&over.collect::<Vec<_>>())
    };
    for (variant, runs) in variants.iter().zip(runs) {
        let (own, jobs) = medians(runs);
        let what = match variant {
            Variant::Fixed(n) if *n == cpus => format!("fixed {n} (plain)"),
            Variant::Fixed(n) => format!("fixed {n}"),
            Variant::Automax => "automax".to_owned(),
        };
        let key = what
            .split(" (")
            .next()
            .unwrap_or_default()
            .replace(' ', "-");
        report.figure(format!("{name}.{key}.malleable_seconds"), own);
        report.figure(format!("{name}.{key}.job_seconds"), jobs);
        table.row([
            name.to_owned(),
            what,
            number(own),
            number(jobs),
            over_oracle(runs).to_string(),
            stretch(runs).to_string(),
        ]);
    }
    let automax = of(Variant::Automax);
    report.bars.push(Bar::at_most(
        format!("{name}: jobs' time over that beside one thread, by CPU time"),
        stretch(automax).median,
        1.05,
    ));
    report.bars.push(Bar::at_most(
        format!("{name}: the malleable program's time over the oracle's"),
        over_oracle(automax).median,
        1.10,
    ));
}

struct Plan {
    units: u64,
    unit_loops: u64,
    job_loops: u64,
    jobs: usize,
}

impl Plan {
    fn run(&self, context: &Context, variant: Variant) -> Result<Ran> {
        let mut manager = None;
        let (units, loops) = (self.units.to_string(), self.unit_loops.to_string());
        let mut malleable = match variant {
            Variant::Fixed(threads) => {
                Player::start(&["fixed", &units, &loops, &threads.to_string()], None)?
            }
            Variant::Automax => {
                let manager = manager.insert(Manager::start(context, "automax")?);
                Player::start(&["team", &units, &loops], Some(manager))?
            }
        };
        malleable
            .line()
            .context("the malleable program did not begin")?;
        std::thread::sleep(LEAD);
        let mut jobs = Vec::new();
        for wave in 0..WAVES {
            if wave > 0 {
                std::thread::sleep(PAUSE);
            }
            let loops = self.job_loops.to_string();
            let players = (0..self.jobs)
                .map(|_| Player::start(&["job", &loops], None))
                .collect::<Result<Vec<_>>>()?;
            for player in players {
                jobs.push(player.finish::<JobRan>()?);
            }
        }
        let malleable: Shared = malleable.finish()?;
        // Each unit was done, once, whoever did it.
        let expected = actor::expected_sum(self.units, self.unit_loops);
        ensure!(
            malleable.sum == expected,
            "{variant:?} gave a wrong sum: {} instead of {expected}",
            malleable.sum
        );
        Ok(Ran { malleable, jobs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A run in which the malleable program used `own_ms` and each job 1,000 ms.
    fn ran(own_ms: u64, jobs: usize) -> Ran {
        let job = JobRan {
            began_ns: 0,
            ended_ns: 1_100 * MS,
            run_ns: 1_000 * MS,
        };
        Ran {
            malleable: Shared {
                began_ns: 0,
                ended_ns: 10_000 * MS,
                run_ns: own_ms * MS,
                sum: 0,
            },
            jobs: vec![job; jobs],
        }
    }

    #[test]
    fn a_jobs_stretch_is_what_it_waited_for_a_cpu() {
        assert!((ran(1, 3).stretch() - 1.1).abs() < 1e-9);
    }

    #[test]
    fn the_oracle_leaves_each_job_a_cpu() {
        // Two CPUs for 0.4 s, one beside the first job, two in the pause, one beside the second job, and
        // two for what is left.
        let pause = PAUSE.as_secs_f64();
        let left = 3.8 - 2.0 * 0.4 - 1.0 - 2.0 * pause - 1.0;
        let expected = 0.4 + 1.0 + pause + 1.0 + left / 2.0;
        let seconds = oracle_seconds(&ran(3_800, 3), 1, 2);
        assert!((seconds - expected).abs() < 0.01, "{seconds} {expected}");
    }

    #[test]
    fn where_jobs_are_more_than_cpus_the_oracle_shares_fairly() {
        // Three jobs and one thread on two CPUs: half a CPU each, for two seconds.
        let seconds = oracle_seconds(&ran(1_800, 3), 3, 2);
        assert!((seconds - 2.4).abs() < 0.01, "{seconds}");
    }
}
