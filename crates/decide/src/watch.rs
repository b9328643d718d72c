//! Watching one probe: when its parallel phase begins, when there is enough to judge it by, and what
//! it showed. A state machine: readings come in, the time of the next look comes out.
//!
//! The window starts when the program's threads exist and run, not when its process does: programs
//! read input, import modules, build tables first (the paper profiles "beyond the initial input
//! reading phase"). For the first probe of a program that moment is *found*: two threads at work at
//! the same time, for a while. Later probes start their window at the same point of the program's
//! work, its *landmark*: the same number of regions entered or, where regions cannot be counted, the
//! same CPU time consumed. So even one thread alone, which never looks parallel, is measured in the
//! right phase, and all probes are measured at the same work.

use crate::profile::{Profile, Window};
use crate::reading::{MachineReading, ProgramReading};
use crate::setting::Setting;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

/// How thorough the next reading should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Run and waiting times only.
    Light,
    /// Everything.
    Full,
}

/// A point in a program's work, the same whatever its number of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landmark {
    /// Regions entered until then.
    pub regions: Option<u64>,
    /// CPU time that the whole program had used, less spinning, in nanoseconds.
    pub cpu_ns: u64,
}

/// What to watch for.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchPlan {
    /// How the program is run.
    pub setting: Setting,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
    /// Measure the whole run instead of a window.
    pub to_the_end: bool,
    /// Where the window begins; found by its parallel phase where there is none.
    pub begin: Option<Landmark>,
    /// Give up waiting for the window to begin after this long, in nanoseconds since the start.
    pub startup_limit_ns: u64,
    /// The CPUs that the program may use.
    pub cpus: Vec<u32>,
}

/// Time between looks while the program starts: 64 threads cost 45 µs a look.
const STARTUP_PERIOD_NS: u64 = 5_000_000;
/// Time between looks in the window: enough parts for an error estimate, few enough to cost nothing.
const WINDOW_PERIOD_NS: u64 = 25_000_000;
/// Two threads must have been at work for this long...
const PARALLEL_SPAN_NS: u64 = 40_000_000;
/// ... each for this part of it (running, or wanting to).
const PARALLEL_PART: f64 = 0.3;
/// A region-counted window may take this many times its length to do the same work.
const SAME_WORK_FACTOR: u64 = 3;

/// What comes after a reading.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchStep {
    /// Read again at this time.
    Look {
        /// Monotonic time in nanoseconds.
        at_ns: u64,
        /// How thoroughly.
        detail: Detail,
    },
    /// Enough seen: the probe can be ended.
    Finished(Box<Watched>),
}

/// Why a watch yields no profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoProfile {
    /// It ended, or ran for the whole start-up limit, without two threads at work at a time.
    NeverParallel,
    /// It ended before anything could be read.
    TooShort,
}

/// What a watch found.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// The profile, or why there is none.
    pub profile: Result<Profile, NoProfile>,
    /// Where the window began.
    pub begin: Option<Landmark>,
    /// From the program's start to the window's (or to the end, without a window), in nanoseconds.
    pub startup_ns: u64,
}

/// The state of watching one probe.
#[derive(Clone, Debug)]
pub struct Watch {
    plan: WatchPlan,
    started_ns: u64,
    /// Recent light readings, while waiting for the parallel phase.
    recent: VecDeque<ProgramReading>,
    /// Readings of the window.
    window: Vec<ProgramReading>,
    machine_begin: Option<MachineReading>,
    machine_last: Option<MachineReading>,
    begin: Option<Landmark>,
    parallel: bool,
    /// The phase has been seen; the next full reading opens the window.
    opening: bool,
}

impl Watch {
    /// Starts to watch a program that starts at `started_ns` (monotonic, in nanoseconds).
    pub fn new(plan: WatchPlan, started_ns: u64) -> Watch {
        // A whole run is measured from its start.
        let opening = plan.to_the_end;
        Watch {
            plan,
            started_ns,
            recent: VecDeque::new(),
            window: Vec::new(),
            machine_begin: None,
            machine_last: None,
            begin: None,
            parallel: false,
            opening,
        }
    }

    /// When to look first, and how thoroughly.
    pub fn first_look(&self) -> WatchStep {
        self.look(self.started_ns, STARTUP_PERIOD_NS)
    }

    /// Takes a reading in.
    pub fn on_reading(&mut self, program: ProgramReading, machine: MachineReading) -> WatchStep {
        let now = program.time_ns;
        self.recent.push_back(program.clone());
        while self
            .recent
            .front()
            .is_some_and(|r| now.saturating_sub(r.time_ns) > 2 * PARALLEL_SPAN_NS)
        {
            self.recent.pop_front();
        }
        self.parallel |= self.two_threads_at_work();
        self.machine_last = Some(machine.clone());

        if let Some(first) = self.window.first() {
            let open_for = now.saturating_sub(first.time_ns);
            self.window.push(program);
            if !self.plan.to_the_end && self.enough(open_for) {
                return self.finish(None, now);
            }
            return self.look(now, WINDOW_PERIOD_NS);
        }
        if self.opening {
            self.begin = Some(landmark(&program));
            self.machine_begin = Some(machine);
            self.window.push(program);
            return self.look(now, WINDOW_PERIOD_NS);
        }
        if self.at_the_beginning(&program) {
            self.opening = true;
            return self.look(now, 0);
        }
        if now.saturating_sub(self.started_ns) >= self.plan.startup_limit_ns {
            return self.finish(None, now);
        }
        self.look(now, STARTUP_PERIOD_NS)
    }

    /// The program ended at `now_ns` after running for `wall_ns`.
    pub fn on_end(&mut self, now_ns: u64, wall_ns: u64) -> Watched {
        match self.finish(Some(wall_ns), now_ns) {
            WatchStep::Finished(watched) => *watched,
            WatchStep::Look { .. } => unreachable!("finish always finishes"),
        }
    }

    fn look(&self, now: u64, period: u64) -> WatchStep {
        let full = self.opening || !self.window.is_empty() || self.counts_regions_at_start();
        WatchStep::Look {
            at_ns: now + period,
            detail: if full { Detail::Full } else { Detail::Light },
        }
    }

    fn counts_regions_at_start(&self) -> bool {
        self.plan.begin.is_some_and(|b| b.regions.is_some())
    }

    fn at_the_beginning(&self, program: &ProgramReading) -> bool {
        match self.plan.begin {
            None => self.parallel,
            Some(goal) => match (goal.regions, program.regions) {
                (Some(goal), Some(now)) if goal > 0 => now >= goal,
                _ => landmark(program).cpu_ns >= goal.cpu_ns,
            },
        }
    }

    fn enough(&self, open_for: u64) -> bool {
        if open_for < self.plan.window_ns {
            return false;
        }
        // Slow programs get more time to enter regions enough to count.
        let regions = |r: Option<&ProgramReading>| r.and_then(|r| r.regions);
        match (regions(self.window.first()), regions(self.window.last())) {
            (Some(a), Some(b)) if b > a && b - a < 8 => {
                open_for >= SAME_WORK_FACTOR * self.plan.window_ns
            }
            _ => true,
        }
    }

    /// Whether over the last span at least two threads ran, or wanted to, most of the time.
    fn two_threads_at_work(&self) -> bool {
        let Some(last) = self.recent.back() else {
            return false;
        };
        let Some(earlier) = self
            .recent
            .iter()
            .rev()
            .find(|r| last.time_ns.saturating_sub(r.time_ns) >= PARALLEL_SPAN_NS)
        else {
            return false;
        };
        let span = (last.time_ns - earlier.time_ns) as f64;
        let before: HashMap<i32, u64> = earlier
            .threads
            .iter()
            .map(|t| (t.tid, t.run_ns + t.cpu_wait_ns))
            .collect();
        let at_work = last.threads.iter().filter(|t| {
            let old = before.get(&t.tid).copied().unwrap_or(0);
            (t.run_ns + t.cpu_wait_ns).saturating_sub(old) as f64 >= PARALLEL_PART * span
        });
        at_work.count() >= 2
    }

    fn finish(&mut self, whole_run_ns: Option<u64>, now: u64) -> WatchStep {
        let window_begin = self.window.first().map(|r| r.time_ns);
        let startup_ns = window_begin.unwrap_or(now).saturating_sub(self.started_ns);
        let profile = self.window_profile(whole_run_ns);
        let profile = match profile {
            Some(p) if p.parallel || self.plan.begin.is_some() || self.plan.to_the_end => Ok(p),
            Some(_) => Err(NoProfile::NeverParallel),
            None if whole_run_ns.is_some_and(|ns| ns < 2 * PARALLEL_SPAN_NS) => {
                Err(NoProfile::TooShort)
            }
            None => Err(NoProfile::NeverParallel),
        };
        WatchStep::Finished(Box::new(Watched {
            profile,
            begin: self.begin,
            startup_ns,
        }))
    }

    fn window_profile(&self, whole_run_ns: Option<u64>) -> Option<Profile> {
        let startup_ns = self.window.first()?.time_ns.saturating_sub(self.started_ns);
        Window {
            setting: self.plan.setting,
            startup_ns,
            whole_run_ns,
            parallel: self.parallel,
            program: &self.window,
            machine: self.machine_begin.as_ref().zip(self.machine_last.as_ref()),
            cpus: &self.plan.cpus,
        }
        .profile()
    }
}

fn landmark(program: &ProgramReading) -> Landmark {
    let useful =
        |t: &crate::reading::ThreadReading| t.run_ns.saturating_sub(t.spin_ns.unwrap_or(0));
    Landmark {
        regions: program.regions,
        cpu_ns: program.threads.iter().map(useful).sum::<u64>() + useful(&program.ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::ThreadReading;

    const MS: u64 = 1_000_000;

    fn plan() -> WatchPlan {
        WatchPlan {
            setting: Setting::threads(2),
            window_ns: 200 * MS,
            to_the_end: false,
            begin: None,
            startup_limit_ns: 2_000 * MS,
            cpus: vec![0, 1],
        }
    }

    /// A program of one thread until `parallel_ms`, then of two; each fully busy.
    fn program_at(ms: u64, parallel_ms: u64) -> ProgramReading {
        let thread = |tid, run_ms: u64| ThreadReading {
            pid: 1,
            tid,
            run_ns: run_ms * MS,
            ..ThreadReading::default()
        };
        ProgramReading {
            time_ns: ms * MS,
            threads: vec![thread(1, ms), thread(2, ms.saturating_sub(parallel_ms))],
            ..ProgramReading::default()
        }
    }

    fn drive(watch: &mut Watch, program: impl Fn(u64) -> ProgramReading) -> Watched {
        let mut step = watch.first_look();
        for _ in 0..100_000 {
            match step {
                WatchStep::Look { at_ns, .. } => {
                    step = watch.on_reading(program(at_ns / MS), MachineReading::default());
                }
                WatchStep::Finished(watched) => return *watched,
            }
        }
        panic!("the watch never finished");
    }

    #[test]
    fn the_window_starts_when_two_threads_are_at_work() {
        let watched = drive(&mut Watch::new(plan(), 0), |ms| program_at(ms, 700));
        let profile = watched.profile.unwrap();
        assert!(profile.startup_ns >= 700 * MS, "{profile:?}");
        assert!(profile.startup_ns <= 760 * MS, "{profile:?}");
        assert!((profile.cpu_util - 2.0).abs() < 0.01, "{profile:?}");
    }

    #[test]
    fn a_program_of_one_busy_thread_is_never_parallel() {
        let watched = drive(&mut Watch::new(plan(), 0), |ms| program_at(ms, u64::MAX));
        assert_eq!(watched.profile, Err(NoProfile::NeverParallel));
        assert!(watched.startup_ns >= 2_000 * MS);
    }

    #[test]
    fn one_thread_is_measured_from_the_landmark_of_an_earlier_probe() {
        let begin = Landmark {
            regions: None,
            cpu_ns: 700 * MS,
        };
        let plan = WatchPlan {
            setting: Setting::threads(1),
            begin: Some(begin),
            ..plan()
        };
        let watched = drive(&mut Watch::new(plan, 0), |ms| program_at(ms, u64::MAX));
        let profile = watched.profile.unwrap();
        assert!(profile.startup_ns >= 700 * MS && profile.startup_ns <= 710 * MS);
        assert!((profile.cpu_util - 1.0).abs() < 0.01);
    }

    #[test]
    fn regions_where_counted_are_the_landmark() {
        let begin = Landmark {
            regions: Some(100),
            cpu_ns: 1,
        };
        let plan = WatchPlan {
            begin: Some(begin),
            ..plan()
        };
        let with_regions = |ms: u64| ProgramReading {
            regions: Some(ms),
            ..program_at(ms, 0)
        };
        let watched = drive(&mut Watch::new(plan, 0), with_regions);
        let profile = watched.profile.unwrap();
        assert!(profile.startup_ns >= 100 * MS, "{profile:?}");
        assert!(profile.regions.unwrap() >= 200, "{profile:?}");
    }

    #[test]
    fn a_program_that_ends_before_its_window_does_is_timed_whole() {
        let mut watch = Watch::new(plan(), 0);
        for ms in (0..=100).step_by(5) {
            watch.on_reading(program_at(ms, 0), MachineReading::default());
        }
        let profile = watch.on_end(101 * MS, 101 * MS).profile.unwrap();
        assert_eq!(profile.whole_run_ns, Some(101 * MS));
    }

    #[test]
    fn a_program_that_is_gone_at_once_is_too_short() {
        let mut watch = Watch::new(plan(), 0);
        let watched = watch.on_end(3 * MS, 3 * MS);
        assert_eq!(watched.profile, Err(NoProfile::TooShort));
    }
}
