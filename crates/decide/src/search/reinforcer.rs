//! Thread Reinforcer (Pusukuri, Gupta, Bhuyan, IISWC 2011), Fig. 8: more threads, step by step, as
//! long as the profile improves.
//!
//! Two notes on the printed figure. It assigns `Pbest ← Ptry` before it calls
//! `ComputeNextT(Pbest, Ptry)`, which would make all deltas zero; section III's text, "the change
//! over the past two runs", is what is done here. And it prints no thresholds: ours are in
//! [`Thresholds`], relative to the number of CPUs so that they hold on machines of any size.

use super::{Choice, Extent, Outcome, Search, Space, Step, StopReason, Trial};
use crate::profile::Profile;
use crate::setting::Setting;
use serde::{Deserialize, Serialize};

/// The paper's window: 100 ms beyond the initial phase.
const WINDOW_NS: u64 = 100_000_000;

/// When a component of a profile is high, and when its change is (Table VI says which of them count
/// below and above the number of cores).
///
/// | component | absolute | change |
/// | --- | --- | --- |
/// | LOCK | `lock`: fraction of critical threads' time, 0.20 | `lock_change`: 0.10 |
/// | VCX_RATE | `vcx_rate`: 1,000 a second for each CPU | `vcx_change`: 500 a second for each CPU |
/// | MIGR_RATE | none | `migration_change`: 50 a second for each CPU |
/// | CPU_UTIL | none | `cpu_util_change`: 1 % of the CPUs |
///
/// The absolute threshold of VCX_RATE is the floor below which its change counts as low, whatever its
/// size: a rate that doubles from nothing is still nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// LOCK is high from here, as a fraction of time.
    pub lock: f64,
    /// ΔLOCK is high from here, as a fraction of time.
    pub lock_change: f64,
    /// VCX_RATE is high from here, a second and CPU.
    pub vcx_rate: f64,
    /// ΔVCX_RATE is high from here, a second and CPU.
    pub vcx_change: f64,
    /// ΔMIGR_RATE is high from here, a second and CPU.
    pub migration_change: f64,
    /// ΔCPU_UTIL is low below this fraction of the CPUs.
    pub cpu_util_change: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            lock: 0.20,
            lock_change: 0.10,
            vcx_rate: 1_000.0,
            vcx_change: 500.0,
            migration_change: 50.0,
            cpu_util_change: 0.01,
        }
    }
}

/// Tmin, Tstep and Tmax for a number of CPUs: 8, 8, 72 on the paper's 24, scaled and rounded to the
/// nearest whole number, at least 1; so 1, 1, 6 on two CPUs.
pub fn range_for_cpus(cpus: f64) -> (u32, u32, u32) {
    let scaled = |paper: f64| ((paper * cpus / 24.0).round() as u32).max(1);
    (scaled(8.0), scaled(8.0), scaled(72.0).max(2))
}

/// The state of `FindN()`.
#[derive(Clone, Debug)]
pub struct ThreadReinforcer {
    space: Space,
    thresholds: Thresholds,
    t_step: u32,
    /// Tbest, Pbest.
    best: Option<(u32, Profile)>,
    t_try: u32,
}

impl ThreadReinforcer {
    /// A search over `space`, whose `min` and `max` are *totals* of threads here (Tmin, Tmax).
    pub fn new(space: Space, t_step: u32, thresholds: Thresholds) -> ThreadReinforcer {
        let t_try = space.min;
        ThreadReinforcer {
            space,
            thresholds,
            t_step: t_step.max(1),
            best: None,
            t_try,
        }
    }

    /// The search with the paper's range, scaled to the CPUs of `space`.
    pub fn scaled(space: Space) -> ThreadReinforcer {
        let (min, step, max) = range_for_cpus(space.cpus);
        ThreadReinforcer::new(Space { min, max, ..space }, step, Thresholds::default())
    }

    fn try_now(&self) -> Step {
        Step::Try(Trial {
            setting: Setting::threads(self.space.convert.argument_for(self.t_try)),
            extent: Extent::Window(WINDOW_NS),
        })
    }

    fn done(&self, t: u32, stop: StopReason) -> Step {
        Step::Done(Choice {
            setting: Setting::threads(self.space.convert.argument_for(t)),
            stop,
            // The paper's tables: 11 of its 16 programs came within 3 % of the optimum.
            confidence: 0.7,
        })
    }

    fn up_to_cores(&self) -> bool {
        f64::from(self.t_try) <= self.space.cpus
    }

    /// `Terminate(Pbest, Ptry)`.
    fn terminate(&self, best: &Profile, tried: &Profile) -> Option<StopReason> {
        let d = Changes::new(&self.thresholds, self.space.cpus, best, tried);
        if d.cpu_util_low() {
            return Some(StopReason::CpuUtil);
        }
        if d.lock_high() {
            if d.lock_change_high() {
                return Some(StopReason::Lock);
            }
            if self.up_to_cores() && d.vcx_change_high() {
                return Some(StopReason::VcxRate);
            }
            if !self.up_to_cores() && d.migration_change_high() {
                return Some(StopReason::MigrRate);
            }
        }
        (self.t_try >= self.space.max).then_some(StopReason::Tmax)
    }

    /// `ComputeNextT(Pbest, Ptry)`.
    fn next_t(&self, best: &Profile, tried: &Profile) -> u32 {
        let d = Changes::new(&self.thresholds, self.space.cpus, best, tried);
        let whole_step = if self.up_to_cores() {
            !d.lock_high() || !d.vcx_change_high() || !d.lock_change_high()
        } else {
            !d.lock_high() || !d.migration_change_high()
        };
        let step = if whole_step {
            self.t_step
        } else {
            (self.t_step / 2).max(1)
        };
        self.t_try.saturating_add(step).min(self.space.max)
    }
}

impl Search for ThreadReinforcer {
    fn name(&self) -> &'static str {
        "thread-reinforcer"
    }

    fn start(&mut self) -> Step {
        self.try_now()
    }

    fn next(&mut self, outcome: Outcome) -> Step {
        let tried = match outcome {
            Outcome::Seen(profile) => profile,
            Outcome::Unseen(_) if self.best.is_none() => {
                return self.done(self.space.min, StopReason::NeverParallel);
            }
            // The program has shrunk away under more threads: what was best before stays.
            Outcome::Unseen(_) => {
                let t = self.best.as_ref().map_or(self.space.min, |b| b.0);
                return self.done(t, StopReason::CpuUtil);
            }
            Outcome::Failed => {
                let t = self.best.as_ref().map_or(self.space.min, |b| b.0);
                return self.done(t, StopReason::Failed);
            }
        };
        let Some((t_best, best)) = self.best.take() else {
            let first = self.t_try;
            self.best = Some((first, tried));
            if first >= self.space.max {
                return self.done(first, StopReason::Tmax);
            }
            self.t_try = first.saturating_add(self.t_step).min(self.space.max);
            return self.try_now();
        };
        match self.terminate(&best, &tried) {
            Some(StopReason::Tmax) => self.done(self.t_try, StopReason::Tmax),
            Some(stop) => self.done(t_best, stop),
            None => {
                let next = self.next_t(&best, &tried);
                self.best = Some((self.t_try, tried));
                self.t_try = next;
                self.try_now()
            }
        }
    }
}

/// Which changes between two profiles are high.
struct Changes<'a> {
    t: &'a Thresholds,
    cpus: f64,
    best: &'a Profile,
    tried: &'a Profile,
}

impl<'a> Changes<'a> {
    fn new(t: &'a Thresholds, cpus: f64, best: &'a Profile, tried: &'a Profile) -> Changes<'a> {
        Changes {
            t,
            cpus,
            best,
            tried,
        }
    }

    fn cpu_util_low(&self) -> bool {
        self.tried.cpu_util - self.best.cpu_util < self.t.cpu_util_change * self.cpus
    }

    fn lock_high(&self) -> bool {
        self.tried.lock >= self.t.lock
    }

    fn lock_change_high(&self) -> bool {
        self.tried.lock - self.best.lock >= self.t.lock_change
    }

    fn vcx_change_high(&self) -> bool {
        self.tried.vcx_rate >= self.t.vcx_rate * self.cpus
            && self.tried.vcx_rate - self.best.vcx_rate >= self.t.vcx_change * self.cpus
    }

    fn migration_change_high(&self) -> bool {
        self.tried.migration_rate - self.best.migration_rate >= self.t.migration_change * self.cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Convert;

    fn profile(cpu_util: f64, lock: f64, vcx_rate: f64, migration_rate: f64) -> Profile {
        Profile {
            setting: Setting::threads(1),
            window_ns: WINDOW_NS,
            startup_ns: 0,
            whole_run_ns: None,
            parallel: true,
            cpu_util,
            spin: Some(0.0),
            cpu_wait: 0.0,
            lock,
            vcx_rate,
            icx_rate: 0.0,
            migration_rate,
            regions: None,
            region_times: Vec::new(),
            others: 0.0,
            idle: 0.0,
            active_threads: 1,
            busiest: 0.0,
            critical_threads: 0,
            relative_error: 0.0,
        }
    }

    /// Runs the search on 24 CPUs against a program given as a function of its total of threads.
    fn run(program: impl Fn(u32) -> Profile) -> (Vec<u32>, Choice) {
        let mut search = ThreadReinforcer::scaled(Space::for_cpus(24.0));
        let mut tried = Vec::new();
        let mut step = search.start();
        loop {
            match step {
                Step::Try(trial) => {
                    tried.push(trial.setting.threads);
                    step = search.next(Outcome::Seen(program(trial.setting.threads)));
                }
                Step::Done(choice) => return (tried, choice),
            }
        }
    }

    #[test]
    fn the_range_is_the_papers_on_24_cpus_and_whole_on_two() {
        assert_eq!(range_for_cpus(24.0), (8, 8, 72));
        assert_eq!(range_for_cpus(2.0), (1, 1, 6));
        assert_eq!(range_for_cpus(0.5), (1, 1, 2));
    }

    #[test]
    fn a_program_that_uses_no_more_cpu_stops_by_cpu_util_at_the_number_before() {
        let (tried, choice) = run(|_| profile(3.0, 0.0, 0.0, 0.0));
        assert_eq!(tried, [8, 16]);
        assert_eq!(
            (choice.setting.threads, choice.stop),
            (8, StopReason::CpuUtil)
        );
    }

    #[test]
    fn lock_contention_that_grows_sharply_stops_by_lock() {
        let (_, choice) = run(|t| profile(f64::from(t), if t > 24 { 0.5 } else { 0.05 }, 0.0, 0.0));
        assert_eq!(
            (choice.setting.threads, choice.stop),
            (24, StopReason::Lock)
        );
    }

    #[test]
    fn switches_count_up_to_the_number_of_cores_and_migrations_above() {
        let contended = |t: u32| 0.3 + 0.001 * f64::from(t);
        let (_, by_switches) =
            run(|t| profile(f64::from(t), contended(t), 20_000.0 * f64::from(t), 0.0));
        assert_eq!(by_switches.stop, StopReason::VcxRate);
        let (_, by_migrations) =
            run(|t| profile(f64::from(t), contended(t), 0.0, 500.0 * f64::from(t)));
        assert_eq!(by_migrations.stop, StopReason::MigrRate);
        assert_eq!(by_migrations.setting.threads, 24);
    }

    #[test]
    fn without_contention_it_goes_on_to_tmax_and_takes_it() {
        let (tried, choice) = run(|t| profile(f64::from(t), 0.0, 0.0, 0.0));
        assert_eq!(tried, [8, 16, 24, 32, 40, 48, 56, 64, 72]);
        assert_eq!(
            (choice.setting.threads, choice.stop),
            (72, StopReason::Tmax)
        );
    }

    #[test]
    fn the_deltas_are_those_of_the_past_two_runs() {
        // As printed, Fig. 8 would compare Ptry with itself in ComputeNextT and never take half
        // steps: here migrations grow sharply with little contention change, so it does.
        let (tried, _) = run(|t| {
            let lock = if t >= 32 { 0.19 } else { 0.0 };
            let lock = if t >= 36 { 0.21 } else { lock };
            profile(f64::from(t), lock, 0.0, 2_000.0 * f64::from(t))
        });
        assert!(tried.starts_with(&[8, 16, 24, 32, 40]), "{tried:?}");
    }

    #[test]
    fn totals_are_converted_to_the_programs_argument() {
        let mut search = ThreadReinforcer::new(
            Space {
                min: 15,
                max: 127,
                convert: Convert {
                    fixed: 3,
                    per_argument: 4,
                },
                ..Space::for_cpus(24.0)
            },
            16,
            Thresholds::default(),
        );
        let Step::Try(trial) = search.start() else {
            panic!("nothing tried");
        };
        assert_eq!(trial.setting.threads, 3, "Table IV: 15 threads are n = 3");
    }
}
