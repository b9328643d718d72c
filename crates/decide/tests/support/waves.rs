//! Waves of one-thread jobs beside a malleable program, as in Fig. 5 of REEact's paper, on a made machine:
//! every runnable thread gets the same share of the CPUs, a program gives up a thread when it has
//! finished the piece of work that it has, and CPU time is shown in ticks of 10 ms, as Linux does.

use super::{MS, Made, Shown, malleable};
use corewise_decide::policy::Policy;
use corewise_decide::status::{ProgramId, Request};
use corewise_decide::world::{Input, Output};

/// What is tried.
#[derive(Clone, Copy)]
pub(crate) struct Waves {
    pub(crate) cpus: u32,
    /// Jobs a wave.
    pub(crate) jobs: u32,
    /// CPU time of a job.
    pub(crate) job_ms: u64,
    /// From the end of a wave to the beginning of the next, and from the start to the first.
    pub(crate) pause_ms: u64,
    /// CPU time of the malleable program.
    pub(crate) work_ms: u64,
    /// How long a piece of work takes.
    pub(crate) unit_ms: u64,
    /// A thread that runs for a moment at every so many readings; 0: none.
    pub(crate) noise: u64,
}

/// Who says how many threads the malleable program has.
pub(crate) enum Who {
    /// It always has this many.
    Static(u32),
    /// Knows how many jobs there are.
    Oracle,
    /// The policy.
    Manager(Box<Made>),
}

/// How long it took, in seconds.
#[derive(Debug)]
pub(crate) struct Took {
    pub(crate) program: f64,
    /// A job, in the mean.
    pub(crate) jobs: f64,
    /// How often the program's number of threads has changed.
    pub(crate) changes: u32,
}

impl Who {
    pub(crate) fn policy(policy: impl Policy + 'static, cpus: u32) -> Who {
        let mut made = Made::flat(policy, cpus);
        made.join(malleable(1, cpus));
        Who::Manager(Box::new(made))
    }
}

/// Two CPUs with waves of `jobs` hardly cost the jobs (at most `jobs_at_most` of their time alone) nor the
/// program (at most a tenth of its time with an oracle) anything under a policy; and its number of threads
/// goes down and up for each wave, and hardly ever for nothing.
pub(crate) fn hardly_cost_anything<P: Policy + 'static>(
    (jobs, unit_ms, noise): (u32, u64, u64),
    policy: P,
    jobs_at_most: f64,
) {
    let waves = Waves {
        cpus: 2,
        jobs,
        job_ms: 3_000,
        pause_ms: 2_000,
        work_ms: 20_000,
        unit_ms,
        noise,
    };
    let alone = run(waves, Who::Static(1));
    let oracle = run(waves, Who::Oracle);
    let took = run(waves, Who::policy(policy, waves.cpus));
    assert!(
        took.jobs <= jobs_at_most * alone.jobs,
        "{jobs}: {took:?} {alone:?}"
    );
    assert!(
        took.program <= 1.10 * oracle.program,
        "{jobs}: {took:?} {oracle:?}"
    );
    assert!(took.changes <= 10, "{jobs}: {took:?}");
}

/// Runs it, in steps of a millisecond.
pub(crate) fn run(waves: Waves, mut who: Who) -> Took {
    let cpus = f64::from(waves.cpus);
    let (mut team, mut done, mut changes, mut took) = (1, 0.0, 0, None);
    let mut jobs: Vec<(f64, u64)> = Vec::new();
    let (mut times, mut started, mut pause) = (Vec::new(), 0, waves.pause_ms);
    let mut shrink_at = None;
    let mut busy = 0.0;
    let mut ran = 0.0;
    let mut readings = 0;
    for now in 0_u64.. {
        assert!(now < 1_000_000, "it does not end");
        if jobs.is_empty() && started < 3 {
            match pause {
                0 => {
                    jobs = vec![(waves.job_ms as f64, now); waves.jobs as usize];
                    (started, pause) = (started + 1, waves.pause_ms);
                }
                _ => pause -= 1,
            }
        }
        let active = jobs.len() as u32;
        let target = match &mut who {
            Who::Static(threads) => *threads,
            Who::Oracle => waves.cpus.saturating_sub(active).max(1),
            Who::Manager(made) => {
                made.now_ns += MS;
                made.busy_ns = busy as u64 * MS / 10 / MS * 10 * MS;
                if made
                    .manager
                    .next_reading_ns()
                    .is_some_and(|at| at <= made.now_ns)
                {
                    readings += 1;
                    let noise = u32::from(waves.noise > 0 && readings % waves.noise == 0);
                    let shown = Shown {
                        run_ns: (ran * MS as f64) as u64,
                        team,
                        ..Shown::default()
                    };
                    made.shown.insert(1, shown);
                    let running = if took.is_none() { team } else { 0 };
                    let outputs = made.read(running + active + noise);
                    answer(made, &outputs, waves.cpus);
                }
                made.claim(1).threads
            }
        };
        if took.is_none() && target > team {
            changes += target - team;
            team = target;
        } else if target < team {
            let at = *shrink_at.get_or_insert(match who {
                Who::Manager(_) => now + waves.unit_ms,
                _ => now,
            });
            if now >= at {
                changes += team - target;
                team = target;
                shrink_at = None;
            }
        }
        let running = if took.is_none() { team } else { 0 };
        let runnable = f64::from(running + active);
        let share = (cpus / runnable.max(1.0)).min(1.0);
        busy += runnable.min(cpus);
        done += share * f64::from(running);
        ran += share * f64::from(running);
        for (left, _) in &mut jobs {
            *left -= share;
        }
        jobs.retain(|(left, since)| {
            if *left <= 0.0 {
                times.push((now - since) as f64 / 1e3);
            }
            *left > 0.0
        });
        if done >= waves.work_ms as f64 && took.is_none() {
            took = Some(now as f64 / 1e3);
        }
        if let Some(program) = took.filter(|_| jobs.is_empty() && started == 3) {
            let sum: f64 = times.iter().sum();
            return Took {
                program,
                jobs: sum / times.len() as f64,
                changes,
            };
        }
    }
    unreachable!("it ends or fails");
}

/// The program's local part: it does what it can, and says so.
fn answer(made: &mut Made, outputs: &[Output], most: u32) {
    for output in outputs {
        if let Output::Tell { request, what, .. } = output {
            let threads = made.claim(1).threads;
            let yes = match what {
                Request::Expand => threads < most,
                Request::Shrink => threads > 1,
            };
            let outputs = made.on(Input::Answered {
                program: ProgramId(1),
                request: *request,
                yes,
            });
            answer(made, &outputs, most);
        }
    }
}
