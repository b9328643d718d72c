//! A profile: what one probe of a program, run with one setting, showed in its window.
//!
//! The four components of Thread Reinforcer (section III) are here (`lock`, `migration_rate`,
//! `vcx_rate`, `cpu_util`), and beside them what tells *progress* from *being busy*: time spent
//! spinning, time spent waiting for a CPU, and regions entered.

use crate::reading::{MachineReading, ProgramReading, ThreadReading};
use crate::setting::Setting;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A thread is critical if it was on a CPU, or wanted one, at least this fraction as long as the
/// busiest one. Thread Reinforcer (section II.D) looks at critical threads only: ferret's loaders
/// sleep most of the time and say nothing about its speed.
const CRITICAL_FRACTION: f64 = 0.5;

/// What a blocking wait and its wake-up cost beyond the work they wait for, in nanoseconds of CPU
/// time. A program that sleeps and wakes a hundred thousand times a second looks busy without
/// progressing. Between 2 and 5 µs on machines of the last ten years.
const SWITCH_COST_NS: f64 = 3_000.0;

/// Fewer regions than this in a window say nothing certain about speed.
const REGIONS_MIN: u64 = 8;

/// What a probe showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// How the program was run.
    pub setting: Setting,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
    /// From the program's start to the window's, in nanoseconds.
    pub startup_ns: u64,
    /// The program's whole run time in nanoseconds, if it ended before the window did.
    pub whole_run_ns: Option<u64>,
    /// At least two threads were at work at the same time.
    pub parallel: bool,
    /// CPUs that the program used, on average (1.0 = one CPU busy).
    pub cpu_util: f64,
    /// Of these, CPUs spent waiting in loops. `None` where nobody could look.
    pub spin: Option<f64>,
    /// Threads that were runnable but had no CPU, on average (LAT).
    pub cpu_wait: f64,
    /// Fraction of their time that critical threads were blocked on locks and condition variables,
    /// 0 to 1 (LOCK).
    pub lock: f64,
    /// Voluntary context switches a second, whole program (VCX_RATE).
    pub vcx_rate: f64,
    /// Involuntary context switches a second, whole program.
    pub icx_rate: f64,
    /// Moves between CPUs a second, whole program (MIGR_RATE).
    pub migration_rate: f64,
    /// Regions entered in the window, where they can be counted.
    pub regions: Option<u64>,
    /// Regions entered since the program started, at times since the window did (in nanoseconds);
    /// empty where they cannot be counted. Both grow.
    pub region_times: Vec<(u64, u64)>,
    /// CPUs used by everything else on the program's CPUs.
    pub others: f64,
    /// CPUs that nobody used.
    pub idle: f64,
    /// Threads that ran in the window.
    pub active_threads: u32,
    /// CPUs that the busiest thread used, less spinning: 1.0 if it worked all the time.
    #[serde(default)]
    pub busiest: f64,
    /// Threads that wanted a CPU at least half as long as the busiest one.
    #[serde(default)]
    pub critical_threads: u32,
    /// Relative standard error of [`Profile::useful`], from the parts of the window.
    pub relative_error: f64,
}

impl Profile {
    /// CPUs at useful work: busy, less spinning, less the cost of switching. The estimate of speed
    /// for programs that show no progress of their own.
    pub fn useful(&self) -> f64 {
        useful_cpus(self.cpu_util, self.spin.unwrap_or(0.0), self.vcx_rate)
    }

    /// The most useful CPUs that this program could have on `cpus` CPUs with any number of threads, where one
    /// thread alone is critical: what that one does beyond what each of the others does is nobody's to share
    /// (Amdahl's law, from one profile). `None` where several threads are equally busy.
    pub fn most_useful(&self, cpus: f64) -> Option<f64> {
        let others = f64::from(self.active_threads.saturating_sub(1));
        if self.critical_threads != 1 || others < 1.0 {
            return None;
        }
        let useful = self.useful();
        let each = ((useful - self.busiest) / others).max(0.0);
        // Were the critical thread's share of the rest spread over all CPUs, it would take this part of the time.
        let spread = each * (f64::from(self.active_threads) / cpus.max(1.0)).min(1.0);
        let part = (self.busiest - each).max(0.0) + spread;
        Some(useful / part.clamp(1e-6, 1.0))
    }

    /// CPUs lost to spinning and switching.
    pub fn wasted(&self) -> f64 {
        self.cpu_util - self.useful()
    }

    /// When the program had entered `count` regions since its start, in nanoseconds since the
    /// window's; linear between readings. `None` if that was before the window or after it.
    fn time_of_region(&self, count: f64) -> Option<f64> {
        self.region_times.windows(2).find_map(|pair| {
            let [(t0, n0), (t1, n1)] = [pair[0], pair[1]].map(|(t, n)| (t as f64, n as f64));
            if n0 <= count && count <= n1 {
                let part = if n1 > n0 {
                    (count - n0) / (n1 - n0)
                } else {
                    0.0
                };
                Some(t0 + part * (t1 - t0))
            } else {
                None
            }
        })
    }

    /// Whether it entered regions one after the other: at the end of each, all waited for the last
    /// thread.
    pub fn is_in_regions(&self) -> bool {
        self.regions.is_some_and(|r| r >= 2)
    }

    /// Whether threads wait for each other, in whatever way.
    pub fn waits_for_others(&self) -> bool {
        waits_for_others(self.cpu_util, self.useful(), self.lock)
    }

    /// Whether a tenth or more of its CPU time went into spinning.
    pub fn spins(&self) -> bool {
        self.spin.is_some_and(|s| s > 0.1 * self.cpu_util)
    }
}

/// CPUs at useful work of `cpu_util` that are busy, of which `spin` wait in loops, with `vcx_rate` voluntary
/// switches a second.
pub fn useful_cpus(cpu_util: f64, spin: f64, vcx_rate: f64) -> f64 {
    let switching = vcx_rate * SWITCH_COST_NS / 1e9;
    (cpu_util - spin - switching).max(cpu_util * 0.01)
}

/// Whether threads wait for each other that keep `cpu_util` CPUs busy, `useful` of them at useful work, and are
/// blocked on locks for the part `lock` of their time.
pub fn waits_for_others(cpu_util: f64, useful: f64, lock: f64) -> bool {
    cpu_util - useful > 0.05 * cpu_util || lock > 0.05
}

/// What the speeds of several profiles are compared by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// All ran to their end: whole runs a second.
    WholeRuns,
    /// All entered these regions, counted from the program's start: regions a second, over the same
    /// regions. (Not over the same time: regions differ in size, and a slow setting sees fewer.)
    Regions {
        /// The first of them.
        from: u64,
        /// The last.
        to: u64,
    },
    /// CPUs at useful work.
    UsefulCpus,
}

impl Measure {
    /// The best measure that all of `profiles` share.
    pub fn common<'a>(profiles: impl IntoIterator<Item = &'a Profile> + Clone) -> Measure {
        let all = || profiles.clone().into_iter();
        if all().all(|p| p.whole_run_ns.is_some()) {
            return Measure::WholeRuns;
        }
        let from = all().map(|p| p.region_times.first().map(|r| r.1));
        let to = all().map(|p| p.region_times.last().map(|r| r.1));
        // One profile without regions: none at all.
        let from = from.reduce(|a, b| Some(a?.max(b?))).flatten();
        let to = to.reduce(|a, b| Some(a?.min(b?))).flatten();
        match (from, to) {
            (Some(from), Some(to)) if to >= from.saturating_add(REGIONS_MIN) => {
                Measure::Regions { from, to }
            }
            _ => Measure::UsefulCpus,
        }
    }

    /// The profile's speed by this measure; larger is faster. Only comparable among profiles of one
    /// program by the same measure.
    pub fn speed(self, profile: &Profile) -> f64 {
        match self {
            Measure::WholeRuns => profile
                .whole_run_ns
                .map_or(0.0, |ns| 1e9 / (ns.max(1) as f64)),
            Measure::Regions { from, to } => {
                let begin = profile.time_of_region(from as f64);
                let end = profile.time_of_region(to as f64);
                match (begin, end) {
                    (Some(begin), Some(end)) => (to - from) as f64 * 1e9 / (end - begin).max(1.0),
                    _ => 0.0,
                }
            }
            Measure::UsefulCpus => profile.useful(),
        }
    }
}

/// Readings of a window, from its start to its end.
pub(crate) struct Window<'a> {
    pub(crate) setting: Setting,
    pub(crate) startup_ns: u64,
    pub(crate) whole_run_ns: Option<u64>,
    pub(crate) parallel: bool,
    /// At least two, in order of time.
    pub(crate) program: &'a [ProgramReading],
    /// The machine at the window's start and end.
    pub(crate) machine: Option<(&'a MachineReading, &'a MachineReading)>,
    /// The CPUs that the program may use.
    pub(crate) cpus: &'a [u32],
}

impl Window<'_> {
    /// The profile of this window; `None` if it has no length.
    pub(crate) fn profile(&self) -> Option<Profile> {
        let (first, last) = (self.program.first()?, self.program.last()?);
        let window_ns = last.time_ns.checked_sub(first.time_ns).filter(|&n| n > 0)?;
        let seconds = window_ns as f64 / 1e9;
        let totals = Totals::between(first, last);
        let cpu_util = totals.run_ns as f64 / window_ns as f64;
        let (others, idle) = self
            .machine
            .map_or((0.0, 0.0), |(a, b)| self.others_and_idle(a, b, cpu_util));
        let parts: Vec<f64> = self
            .program
            .windows(2)
            .filter_map(|pair| useful_between(&pair[0], &pair[1]))
            .collect();
        Some(Profile {
            setting: self.setting,
            window_ns,
            startup_ns: self.startup_ns,
            whole_run_ns: self.whole_run_ns,
            parallel: self.parallel,
            cpu_util,
            spin: totals.spin_ns.map(|ns| ns as f64 / window_ns as f64),
            cpu_wait: totals.cpu_wait_ns as f64 / window_ns as f64,
            lock: totals.critical_lock_ns / window_ns as f64,
            vcx_rate: totals.voluntary as f64 / seconds,
            icx_rate: totals.involuntary as f64 / seconds,
            migration_rate: totals.migrations as f64 / seconds,
            regions: match (first.regions, last.regions) {
                (Some(a), Some(b)) => Some(b.saturating_sub(a)),
                _ => None,
            },
            region_times: self
                .program
                .iter()
                .filter_map(|r| Some((r.time_ns - first.time_ns, r.regions?)))
                .collect(),
            others,
            idle,
            active_threads: totals.active,
            busiest: totals.busiest_work_ns as f64 / window_ns as f64,
            critical_threads: totals.critical,
            relative_error: relative_error(&parts),
        })
    }

    fn others_and_idle(&self, a: &MachineReading, b: &MachineReading, cpu_util: f64) -> (f64, f64) {
        let mine = |cpu: u32| self.cpus.is_empty() || self.cpus.contains(&cpu);
        let (mut busy, mut idle) = (0.0, 0.0);
        for cpu in b.since(a).filter(|c| mine(c.cpu)) {
            busy += cpu.busy;
            idle += cpu.idle;
        }
        ((busy - cpu_util).max(0.0), idle)
    }
}

/// Differences between two readings, summed over threads.
struct Totals {
    run_ns: u64,
    cpu_wait_ns: u64,
    spin_ns: Option<u64>,
    voluntary: u64,
    involuntary: u64,
    migrations: u64,
    /// Mean over critical threads.
    critical_lock_ns: f64,
    critical: u32,
    active: u32,
    busiest_work_ns: u64,
}

impl Totals {
    fn between(first: &ProgramReading, last: &ProgramReading) -> Totals {
        let before: HashMap<i32, &ThreadReading> =
            first.threads.iter().map(|t| (t.tid, t)).collect();
        let none = ThreadReading::default();
        let earlier = |t: &ThreadReading| before.get(&t.tid).copied().unwrap_or(&none);

        // A thread that ended in between was in `first.threads` and is in `last.ended`: sums over
        // both are what does not jump.
        let sum = |r: &ProgramReading, f: &dyn Fn(&ThreadReading) -> u64| -> u64 {
            r.threads.iter().map(f).sum::<u64>() + f(&r.ended)
        };
        let delta = |f: &dyn Fn(&ThreadReading) -> u64| sum(last, f).saturating_sub(sum(first, f));

        let demand = |t: &ThreadReading| {
            let old = earlier(t);
            (t.run_ns + t.cpu_wait_ns).saturating_sub(old.run_ns + old.cpu_wait_ns)
        };
        let busiest = last.threads.iter().map(demand).max().unwrap_or(0);
        let critical: Vec<&ThreadReading> = last
            .threads
            .iter()
            .filter(|t| busiest > 0 && demand(t) as f64 >= CRITICAL_FRACTION * busiest as f64)
            .collect();
        let lock: u64 = critical
            .iter()
            .map(|t| {
                let now = t.lock_ns.unwrap_or(0);
                now.saturating_sub(earlier(t).lock_ns.unwrap_or(0))
            })
            .sum();
        let work = |t: &ThreadReading| {
            let done = |t: &ThreadReading| t.run_ns.saturating_sub(t.spin_ns.unwrap_or(0));
            done(t).saturating_sub(done(earlier(t)))
        };
        let spin_known =
            last.threads.iter().any(|t| t.spin_ns.is_some()) || last.ended.spin_ns.is_some();
        Totals {
            run_ns: delta(&|t| t.run_ns),
            cpu_wait_ns: delta(&|t| t.cpu_wait_ns),
            spin_ns: spin_known.then(|| delta(&|t| t.spin_ns.unwrap_or(0))),
            voluntary: delta(&|t| t.voluntary_switches.unwrap_or(0)),
            involuntary: delta(&|t| t.involuntary_switches.unwrap_or(0)),
            migrations: delta(&|t| t.migrations.unwrap_or(0)),
            critical_lock_ns: lock as f64 / critical.len().max(1) as f64,
            critical: critical.len() as u32,
            active: last.threads.iter().filter(|t| demand(t) > 0).count() as u32,
            busiest_work_ns: last.threads.iter().map(work).max().unwrap_or(0),
        }
    }
}

/// CPUs at work, less spinning, between two readings.
fn useful_between(a: &ProgramReading, b: &ProgramReading) -> Option<f64> {
    let span = b.time_ns.checked_sub(a.time_ns).filter(|&n| n > 0)?;
    let totals = Totals::between(a, b);
    let useful = totals.run_ns.saturating_sub(totals.spin_ns.unwrap_or(0));
    Some(useful as f64 / span as f64)
}

/// Standard error of the mean over the mean. One part alone says nothing: 1.
fn relative_error(parts: &[f64]) -> f64 {
    let n = parts.len() as f64;
    let mean = parts.iter().sum::<f64>() / n;
    if parts.len() < 2 || mean <= 0.0 {
        return 1.0;
    }
    let variance = parts.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (variance / n).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: i32, run_ms: u64, lock_ms: u64) -> ThreadReading {
        ThreadReading {
            pid: 1,
            tid,
            run_ns: run_ms * 1_000_000,
            lock_ns: Some(lock_ms * 1_000_000),
            spin_ns: Some(0),
            ..ThreadReading::default()
        }
    }

    fn reading(ms: u64, threads: Vec<ThreadReading>) -> ProgramReading {
        ProgramReading {
            time_ns: ms * 1_000_000,
            threads,
            ..ProgramReading::default()
        }
    }

    fn window(program: &[ProgramReading]) -> Profile {
        Window {
            setting: Setting::threads(2),
            startup_ns: 0,
            whole_run_ns: None,
            parallel: true,
            program,
            machine: None,
            cpus: &[],
        }
        .profile()
        .unwrap()
    }

    #[test]
    fn cpu_use_is_the_sum_over_threads_in_cpus() {
        let p = window(&[
            reading(1_000, vec![thread(1, 500, 0), thread(2, 100, 0)]),
            reading(1_100, vec![thread(1, 600, 0), thread(2, 150, 0)]),
        ]);
        assert!((p.cpu_util - 1.5).abs() < 1e-9, "{p:?}");
    }

    /// One thread that works for `leader` ms of 100, and `others` that work for `each`.
    fn led(leader: u64, others: i32, each: u64) -> Profile {
        let mut threads = vec![thread(1, 0, 0)];
        threads.extend((0..others).map(|n| thread(2 + n, 0, 0)));
        let mut after = vec![thread(1, leader, 0)];
        after.extend((0..others).map(|n| thread(2 + n, each, 0)));
        window(&[reading(0, threads), reading(100, after)])
    }

    #[test]
    fn what_one_thread_does_alone_bounds_the_speed_of_all() {
        // A fifth of the time 24 threads work, four fifths one alone: no CPU more would help.
        let p = led(100, 23, 20);
        let most = p.most_useful(24.0).unwrap();
        assert!((most / p.useful() - 1.0).abs() < 1e-6, "{most}");
        // With four threads on 24 CPUs, the common fifth could take a sixth of its time.
        let p = led(100, 3, 20);
        let most = p.most_useful(24.0).unwrap();
        assert!(
            (most / p.useful() - 1.0 / (0.8 + 0.2 / 6.0)).abs() < 1e-6,
            "{most}"
        );
    }

    #[test]
    fn threads_that_are_equally_busy_bound_nothing() {
        assert_eq!(led(100, 3, 100).most_useful(24.0), None);
        assert_eq!(led(100, 3, 60).most_useful(24.0), None);
        assert_eq!(led(100, 0, 0).most_useful(24.0), None);
    }

    #[test]
    fn a_thread_that_ends_in_the_window_is_not_lost() {
        let mut last = reading(1_100, vec![thread(1, 600, 0)]);
        last.ended = thread(0, 150, 0);
        let p = window(&[
            reading(1_000, vec![thread(1, 500, 0), thread(2, 100, 0)]),
            last,
        ]);
        assert!((p.cpu_util - 1.5).abs() < 1e-9, "{p:?}");
    }

    #[test]
    fn lock_is_the_mean_of_critical_threads_only() {
        // Two workers wait half of the time for a lock; a loader sleeps on its queue throughout.
        let p = window(&[
            reading(0, vec![thread(1, 0, 0), thread(2, 0, 0), thread(3, 0, 0)]),
            reading(
                100,
                vec![thread(1, 50, 50), thread(2, 50, 50), thread(3, 2, 98)],
            ),
        ]);
        assert!((p.lock - 0.5).abs() < 1e-9, "{p:?}");
    }

    #[test]
    fn spinning_is_not_progress() {
        let mut spinner = thread(2, 100, 0);
        spinner.spin_ns = Some(90_000_000);
        let p = window(&[
            reading(0, vec![thread(1, 0, 0), thread(2, 0, 0)]),
            reading(100, vec![thread(1, 100, 0), spinner]),
        ]);
        assert!((p.cpu_util - 2.0).abs() < 1e-9);
        assert!((p.useful() - 1.1).abs() < 1e-9, "{p:?}");
        assert!(p.spins());
    }

    #[test]
    fn unknown_spinning_stays_unknown() {
        let mut t = thread(1, 100, 0);
        t.spin_ns = None;
        let p = window(&[reading(0, vec![]), reading(100, vec![t])]);
        assert_eq!(p.spin, None);
    }

    #[test]
    fn others_are_what_is_busy_on_the_programs_cpus_and_not_the_program() {
        let cpu = |cpu, busy_ms: u64, idle_ms: u64| crate::reading::CpuReading {
            cpu,
            busy_ns: busy_ms * 1_000_000,
            idle_ns: idle_ms * 1_000_000,
            steal_ns: 0,
        };
        let at = |ms: u64, cpus| MachineReading {
            time_ns: ms * 1_000_000,
            cpus,
            ..MachineReading::default()
        };
        let a = at(0, vec![cpu(0, 0, 0), cpu(1, 0, 0), cpu(2, 0, 0)]);
        let b = at(100, vec![cpu(0, 100, 0), cpu(1, 70, 30), cpu(2, 100, 0)]);
        let program = [
            reading(0, vec![thread(1, 0, 0)]),
            reading(100, vec![thread(1, 90, 0)]),
        ];
        let p = Window {
            setting: Setting::threads(1),
            startup_ns: 0,
            whole_run_ns: None,
            parallel: false,
            program: &program,
            machine: Some((&a, &b)),
            cpus: &[0, 1],
        }
        .profile()
        .unwrap();
        assert!((p.others - 0.8).abs() < 1e-9, "{p:?}");
        assert!((p.idle - 0.3).abs() < 1e-9, "{p:?}");
    }

    #[test]
    fn speeds_by_regions_are_compared_over_the_same_regions() {
        // Ten large regions come first, then many small ones. Half as fast, one sees the large ones
        // only: by regions a second it would look a hundred times as slow.
        let seen = |region_times| Profile {
            region_times,
            ..window(&[
                reading(0, vec![thread(1, 0, 0)]),
                reading(100, vec![thread(1, 90, 0)]),
            ])
        };
        let fast = seen(vec![(0, 0), (50, 10), (100, 1_000)]);
        let slow = seen(vec![(0, 0), (50, 5), (100, 10)]);
        let measure = Measure::common([&fast, &slow]);
        let ratio = measure.speed(&fast) / measure.speed(&slow);
        assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn speeds_are_compared_by_the_best_measure_that_all_share() {
        let mut a = window(&[
            reading(0, vec![thread(1, 0, 0)]),
            reading(100, vec![thread(1, 90, 0)]),
        ]);
        let mut b = a.clone();
        assert_eq!(Measure::common([&a, &b]), Measure::UsefulCpus);
        a.region_times = vec![(0, 40), (100, 140)];
        assert_eq!(Measure::common([&a, &b]), Measure::UsefulCpus);
        b.region_times = vec![(0, 50), (100, 90)];
        let regions = Measure::common([&a, &b]);
        assert_eq!(regions, Measure::Regions { from: 50, to: 90 });
        assert!((regions.speed(&a) / regions.speed(&b) - 2.5).abs() < 1e-9);
        a.whole_run_ns = Some(1);
        b.whole_run_ns = Some(2);
        assert_eq!(Measure::common([&a, &b]), Measure::WholeRuns);
        assert!(Measure::WholeRuns.speed(&a) > Measure::WholeRuns.speed(&b));
    }
}
