//! From a description to what is executed, with every check on the way.

use super::error::Fault;
use super::plan::{LockPlan, MOST_THREADS, Op, Plan};
use super::spec::{Memory, Phase, ProgramSpec};
use super::wait::{Repeat, WaitPolicy};
use crate::kernel::{Demand, Why};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;

mod groups;
mod numbers;
mod pipeline;
mod region;

use numbers::{count, fault, fraction, time};

/// Threads that a program may start in its life.
const MOST_STARTS: u64 = 1 << 20;
/// Units of a region, items of a pipeline, jobs.
const MOST_UNITS: u64 = 1_000_000_000;
/// How often a phase is repeated.
const MOST_REPEATS: u64 = 1_000_000_000_000;
/// Phases, with those within others; and how deep they may lie.
const MOST_PHASES: usize = 4096;
const DEEPEST: usize = 8;
const LONGEST_NAME: usize = 64;
/// What all processes have together of locks, semaphores and loops' counters.
const MOST_PARTS: u64 = 1 << 20;

const MS: f64 = 1_000_000.0;
const US: f64 = 1000.0;

/// What a phase comes to.
#[derive(Clone, Copy, Default)]
struct Sum {
    /// Work of all threads; `None`: endless.
    work_ns: Option<u64>,
    /// Threads that are started, without the team.
    starts: u64,
}

impl Sum {
    const NOTHING: Sum = Sum {
        work_ns: Some(0),
        starts: 0,
    };

    fn work(work_ns: u64) -> Sum {
        Sum {
            work_ns: Some(work_ns),
            starts: 0,
        }
    }

    fn and(self, other: Sum) -> Sum {
        let both = self.work_ns.zip(other.work_ns);
        Sum {
            work_ns: both.map(|(a, b)| a.saturating_add(b)),
            starts: self.starts.saturating_add(other.starts),
        }
    }
}

struct Compiler {
    ops: Vec<Op>,
    loops: usize,
    phases: usize,
    demands: Vec<Demand>,
    locks: Vec<LockPlan>,
    lock_numbers: BTreeMap<String, usize>,
    /// Locks that something takes.
    used: Vec<bool>,
    /// Locks that units take, in all parts.
    sections: u64,
    semaphores: BTreeMap<String, usize>,
    /// What a stage's `"team"` may come to at most.
    team: u32,
    processes: u32,
    malleable: bool,
    /// The most stages of a pipeline that have the team's threads.
    team_stages: u32,
}

impl Plan {
    /// The plan of a description.
    pub(super) fn of(spec: &ProgramSpec) -> Result<Plan, Fault> {
        if spec.name.is_empty() || spec.name.len() > LONGEST_NAME {
            let reason = format!("a program's name has 1 to {LONGEST_NAME} bytes");
            return Err(fault(&(0..0), reason));
        }
        let bounded = |n: &Option<Spanned<u32>>, what| {
            let n = n.as_ref().map(|n| count(n, 1..=MOST_THREADS, what));
            n.transpose()
        };
        let threads = bounded(&spec.threads, "threads")?;
        let least = bounded(&spec.min_threads, "min_threads")?.unwrap_or(1);
        let most = bounded(&spec.max_threads, "max_threads")?;
        let processes = bounded(&spec.processes, "processes")?.unwrap_or(1);
        if let (Some(bound), Some(span)) = (most, &spec.min_threads)
            && least > bound
        {
            return Err(fault(&span.span(), "min_threads is at most max_threads"));
        }
        if let (Some(threads), Some(span)) = (threads, &spec.threads)
            && (threads < least || most.is_some_and(|most| threads > most))
        {
            let reason = "threads lies between min_threads and max_threads";
            return Err(fault(&span.span(), reason));
        }
        let mut compiler = Compiler {
            ops: Vec::new(),
            loops: 0,
            phases: 0,
            demands: vec![power(spec)?],
            locks: Vec::new(),
            lock_numbers: BTreeMap::new(),
            used: Vec::new(),
            sections: 0,
            semaphores: BTreeMap::new(),
            team: most.unwrap_or(MOST_THREADS),
            processes,
            malleable: spec.malleable,
            team_stages: 1,
        };
        for (name, lock) in &spec.locks {
            let number = compiler.lock(name, &lock.span())?;
            compiler.locks[number].wait = lock.get_ref().wait;
            compiler.locks[number].fifo = lock.get_ref().fifo;
            compiler.used[number] = false;
        }
        let memory = compiler.memory(&spec.memory, 0)?;
        let sum = compiler.phases(&spec.phases, memory, 0, &(0..0))?;
        for (name, lock) in &spec.locks {
            if !compiler.used[compiler.lock_numbers[name]] {
                let reason = format!("nothing takes the lock {name:?}");
                return Err(fault(&lock.span(), reason));
            }
        }
        let parts = compiler.locks.len() + compiler.semaphores.len() + compiler.loops;
        let parts = (parts as u64).saturating_mul(u64::from(processes));
        if parts > MOST_PARTS {
            let reason = format!(
                "locks, semaphores and repeated phases are {parts} in all processes together, of which at \
                 most {MOST_PARTS} can be modelled"
            );
            let at = spec.processes.as_ref().map(Spanned::span);
            return Err(fault(&at.unwrap_or_default(), reason));
        }
        let mut semaphores: Vec<(usize, String)> = Vec::new();
        semaphores.extend(compiler.semaphores.into_iter().map(|(name, n)| (n, name)));
        semaphores.sort();
        Ok(Plan {
            processes,
            most_team: (MOST_THREADS / (processes * compiler.team_stages)).max(1),
            wait: spec.wait.unwrap_or(WaitPolicy::BLOCK),
            demands: compiler.demands,
            locks: compiler.locks,
            semaphores: semaphores.into_iter().map(|(_, name)| name).collect(),
            ops: compiler.ops,
            loops: compiler.loops,
            work_ns: sum
                .work_ns
                .map(|work| work.saturating_mul(u64::from(processes))),
        })
    }
}

/// What a program's work uses of the CPU's power, and what prefetchers do for it.
fn power(spec: &ProgramSpec) -> Result<Demand, Fault> {
    let mut demand = Demand::default();
    let between = |value: f64, least: f64, most: f64, span: &Range<usize>, what: &str| match value {
        value if (least..=most).contains(&value) => Ok(value),
        value => Err(fault(
            span,
            format!("{what} is {least} to {most}, not {value}"),
        )),
    };
    if let Some(power) = &spec.power {
        let power = between(*power.get_ref(), 0.0, 10.0, &power.span(), "power")?;
        demand.extra_power = power - 1.0;
    }
    if let Some(prefetch) = &spec.prefetch {
        let (of, span) = (prefetch.get_ref(), prefetch.span());
        demand.prefetch_gain = between(of.gain, -0.9, 10.0, &span, "gain")?;
        demand.prefetch_power = between(of.power, 0.0, 10.0, &span, "power")?;
    }
    Ok(demand)
}

impl Compiler {
    fn phases(
        &mut self,
        phases: &[Spanned<Phase>],
        memory: usize,
        depth: usize,
        outer: &Range<usize>,
    ) -> Result<Sum, Fault> {
        if phases.is_empty() {
            return Err(fault(outer, "there is no phase: nothing to do"));
        }
        let mut sum = Sum::NOTHING;
        for phase in phases {
            let span = phase.span();
            if sum.work_ns.is_none() {
                let reason = "this phase is never reached: the one before it repeats for ever";
                return Err(fault(&span, reason));
            }
            self.phases += 1;
            if self.phases > MOST_PHASES || depth >= DEEPEST {
                let reason = format!("at most {MOST_PHASES} phases, at most {DEEPEST} deep");
                return Err(fault(&span, reason));
            }
            sum = sum.and(self.phase(phase.get_ref(), &span, memory, depth)?);
        }
        Ok(sum)
    }

    fn phase(
        &mut self,
        phase: &Phase,
        span: &Range<usize>,
        memory: usize,
        depth: usize,
    ) -> Result<Sum, Fault> {
        let things = [
            phase.serial.is_some(),
            phase.region.is_some(),
            phase.pipeline.is_some(),
            phase.group.is_some(),
            phase.jobs.is_some(),
            phase.sleep_ms.is_some(),
            phase.io_us.is_some(),
            phase.phases.is_some(),
        ];
        if things.iter().filter(|said| **said).count() != 1 {
            let reason = "a phase says exactly one of serial, region, pipeline, group, jobs, sleep_ms, \
                          io_us, phase";
            return Err(fault(span, reason));
        }
        let memory = self.memory(&phase.memory, memory)?;
        let repeat = phase.repeat.as_ref().map(|r| (*r.get_ref(), r.span()));
        let (start, counter) = (self.ops.len(), self.loops);
        if let Some((repeat, span)) = &repeat {
            let times = match repeat {
                Repeat::Times(times) => Some(*times),
                Repeat::Forever => None,
            };
            if times.is_some_and(|times| times > MOST_REPEATS) {
                let reason = format!("at most {MOST_REPEATS} times, or \"forever\"");
                return Err(fault(span, reason));
            }
            self.ops.push(Op::Repeat { times, counter });
            self.loops += 1;
        }
        let once = self.thing(phase, span, memory, depth)?;
        let Some((repeat, at)) = repeat else {
            return self.bounded(once, span);
        };
        self.ops.push(Op::Again { start, counter });
        let sum = match repeat {
            Repeat::Times(times) => Sum {
                work_ns: once.work_ns.map(|work| work.saturating_mul(times)),
                starts: once.starts.saturating_mul(times),
            },
            Repeat::Forever if once.starts > 0 => {
                let reason = "what starts threads cannot repeat for ever; give a number";
                return Err(fault(&at, reason));
            }
            Repeat::Forever => Sum::default(),
        };
        self.bounded(sum, &at)
    }

    fn bounded(&self, sum: Sum, span: &Range<usize>) -> Result<Sum, Fault> {
        let starts = sum.starts.saturating_mul(u64::from(self.processes));
        if starts > MOST_STARTS {
            let reason = format!(
                "it would start {starts} threads in its life, of which at most {MOST_STARTS} can be \
                 modelled; repeat it less often, or bound its team with max_threads"
            );
            return Err(fault(span, reason));
        }
        Ok(sum)
    }

    /// What the phase does each time.
    fn thing(
        &mut self,
        phase: &Phase,
        span: &Range<usize>,
        memory: usize,
        depth: usize,
    ) -> Result<Sum, Fault> {
        if let Some(serial) = &phase.serial {
            let work_ns = time(&serial.work_ms, MS, 1, "work_ms")?;
            let demand = memory;
            self.ops.push(Op::Serial { work_ns, demand });
            return Ok(Sum::work(work_ns));
        }
        if let Some(region) = &phase.region {
            return self.region(region, memory);
        }
        if let Some(pipeline) = &phase.pipeline {
            return self.pipeline(pipeline, span, memory);
        }
        if let Some(groups) = &phase.group {
            return self.groups(groups, span, memory);
        }
        if let Some(jobs) = &phase.jobs {
            return self.jobs(jobs, memory);
        }
        if let Some(ms) = &phase.sleep_ms {
            let ns = time(ms, MS, 1, "sleep_ms")?;
            let why = Why::Sleep;
            self.ops.push(Op::Pause { ns, why });
        }
        if let Some(us) = &phase.io_us {
            let ns = time(us, US, 1, "io_us")?;
            self.ops.push(Op::Pause { ns, why: Why::Io });
        }
        match &phase.phases {
            Some(phases) => self.phases(phases, memory, depth + 1, span),
            None => Ok(Sum::NOTHING),
        }
    }

    /// Whether `threads` at the same time are few enough, in all processes.
    fn few_enough(&self, threads: u64, span: &Range<usize>) -> Result<(), Fault> {
        let all = threads.saturating_mul(u64::from(self.processes));
        if all > u64::from(MOST_THREADS) {
            let reason =
                format!("{all} threads at the same time are too many; at most {MOST_THREADS}");
            return Err(fault(span, reason));
        }
        Ok(())
    }

    /// The number of a demand; what `memory` leaves out is as in `outer`.
    fn memory(&mut self, memory: &Memory, outer: usize) -> Result<usize, Fault> {
        let mut demand = self.demands[outer];
        if let Some(share) = &memory.share {
            demand.memory_share = fraction(share, "share")?;
        }
        if let Some(bandwidth) = &memory.bandwidth_bytes_per_s {
            let most = 1e15;
            if !(0.0..=most).contains(bandwidth.get_ref()) {
                let reason = "bandwidth_bytes_per_s is 0 to 1e15";
                return Err(fault(&bandwidth.span(), reason));
            }
            demand.bandwidth_bytes_per_s = *bandwidth.get_ref();
        }
        if let Some(bytes) = memory.working_set_bytes {
            demand.working_set_bytes = bytes;
        }
        if demand == self.demands[outer] {
            return Ok(outer);
        }
        self.demands.push(demand);
        Ok(self.demands.len() - 1)
    }

    /// The number of a lock; a new one if the name is new.
    fn lock(&mut self, lock: &str, span: &Range<usize>) -> Result<usize, Fault> {
        name(lock, span)?;
        if let Some(number) = self.lock_numbers.get(lock) {
            self.used[*number] = true;
            return Ok(*number);
        }
        let number = self.locks.len();
        self.lock_numbers.insert(lock.to_owned(), number);
        self.locks.push(LockPlan {
            name: lock.to_owned(),
            wait: WaitPolicy::BLOCK,
            fifo: false,
        });
        self.used.push(true);
        Ok(number)
    }
}

fn name(name: &str, span: &Range<usize>) -> Result<(), Fault> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        let reason = format!("a name has 1 to {LONGEST_NAME} bytes");
        return Err(fault(span, reason));
    }
    Ok(())
}
