//! Watching one probe: when its parallel phase begins, when there is enough to judge it by, and what
//! it showed. A state machine: readings come in, the time of the next look comes out.
//!
//! The window starts when the program's threads exist and run, not when its process does: programs
//! read input, import modules, build tables first (the paper profiles "beyond the initial input
//! reading phase"). For the first probe of a program that moment is *found*: two threads at work at
//! the same time, doing a piece of work. Later probes start their window at the same point of the program's
//! work, its *landmark*: the same number of regions entered or, where regions cannot be counted, the
//! same CPU time consumed. So even one thread alone, which never looks parallel, is measured in the
//! right phase, and all probes are measured at the same work.

use crate::profile::{Profile, Window};
use crate::reading::{MachineReading, ProgramReading, ThreadReading};
use crate::setting::Setting;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

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
    /// Where the window that this one is to be compared with ended. Where regions are counted, this one lasts
    /// until there, but no longer than three times its length.
    pub end: Option<Landmark>,
    /// Give up waiting for the window to begin after this long, in nanoseconds since the start.
    pub startup_limit_ns: u64,
    /// The CPUs that the program may use.
    pub cpus: Vec<u32>,
}

/// Time between looks while the program starts, for each 16 threads: a full reading costs about 20 µs
/// a thread.
const STARTUP_PERIOD_NS: u64 = 10_000_000;
/// Time between looks in the window: enough parts for an error estimate, few enough to cost nothing.
const WINDOW_PERIOD_NS: u64 = 25_000_000;
/// While the busiest thread does this much work, in nanoseconds of CPU time ...
const WORK_SPAN_NS: u64 = 60_000_000;
/// ... the others together must do at least this part of it: then two are at work. (Together, because a
/// thread that also does what is not parallel may do ten times as much as each of 23 others.) Measured in
/// work, not in time, so that it means the same on a crowded machine; and without spinning, because runtimes
/// start their threads on import and let them spin for a while.
const OTHERS_PART: f64 = 0.3;
/// Two threads that have been on CPUs together for this long are the parallel phase even if one only
/// spins: beside a neighbour, spinning threads may hardly get any work done. Longer than runtimes let
/// new threads spin (about 0.03 s each).
const TWO_ON_CPUS_NS: u64 = 400_000_000;
/// Work older than this is forgotten, so that two threads in turn are not taken for two at a time.
const WORK_MEMORY_NS: u64 = 1_000_000_000;
/// A region-counted window may take this many times its length to do the same work.
const SAME_WORK_FACTOR: u64 = 3;
/// Of the CPU time that a program had used where another window began, it must have used this part, too: a count
/// of regions alone does not say where in a long region that was. Not all of it: settings differ in what they use
/// for the same work.
const SAME_CPU_TIME: f64 = 0.9;

/// What comes after a reading.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchStep {
    /// Read again at this time.
    Look {
        /// Monotonic time in nanoseconds.
        at_ns: u64,
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
    /// Where it ended.
    pub end: Option<Landmark>,
    /// From the program's start to the window's (or to the end, without a window), in nanoseconds.
    pub startup_ns: u64,
}

/// What each living thread had done by a time, in nanoseconds of CPU time.
#[derive(Clone, Debug)]
struct Work {
    time_ns: u64,
    by_thread: HashMap<i32, u64>,
}

impl Work {
    fn of(program: &ProgramReading, done: impl Fn(&ThreadReading) -> u64) -> Work {
        Work {
            time_ns: program.time_ns,
            by_thread: program.threads.iter().map(|t| (t.tid, done(t))).collect(),
        }
    }
}

impl Work {
    /// What the threads have done since `earlier`.
    fn since(&self, earlier: &Work) -> Done {
        let mut done = Done::default();
        for (tid, &total) in &self.by_thread {
            let before = earlier.by_thread.get(tid).copied().unwrap_or(0);
            let own = total.saturating_sub(before);
            done.all += own;
            done.second = done.second.max(own.min(done.busiest));
            done.busiest = done.busiest.max(own);
        }
        done
    }
}

/// What threads have done in a time, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    busiest: u64,
    second: u64,
    all: u64,
}

/// The state of watching one probe.
#[derive(Clone, Debug)]
pub struct Watch {
    plan: WatchPlan,
    started_ns: u64,
    /// What each thread had done at recent readings, oldest first.
    recent: VecDeque<Work>,
    /// Time on CPUs at the last reading, spinning included.
    on_cpus: Option<Work>,
    /// How long a second thread was on a CPU beside the busiest one, spinning included.
    two_on_cpus_ns: u64,
    /// Readings of the window.
    window: Vec<ProgramReading>,
    machine_begin: Option<MachineReading>,
    machine_last: Option<MachineReading>,
    begin: Option<Landmark>,
    parallel: bool,
    /// The most work that any thread has done, in nanoseconds of CPU time.
    busiest: u64,
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
            on_cpus: None,
            two_on_cpus_ns: 0,
            window: Vec::new(),
            machine_begin: None,
            machine_last: None,
            begin: None,
            parallel: false,
            busiest: 0,
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
        self.remember(&program);
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
        self.look(now, self.startup_period(&program))
    }

    /// Whether the window has begun.
    pub fn is_open(&self) -> bool {
        !self.window.is_empty()
    }

    /// The program ended at `now_ns` after running for `wall_ns`.
    pub fn on_end(&mut self, now_ns: u64, wall_ns: u64) -> Watched {
        match self.finish(Some(wall_ns), now_ns) {
            WatchStep::Finished(watched) => *watched,
            WatchStep::Look { .. } => unreachable!("finish always finishes"),
        }
    }

    fn look(&self, now: u64, period: u64) -> WatchStep {
        WatchStep::Look {
            at_ns: now + period,
        }
    }

    fn startup_period(&self, program: &ProgramReading) -> u64 {
        STARTUP_PERIOD_NS * (program.threads.len() as u64).div_ceil(16).max(1)
    }

    fn at_the_beginning(&self, program: &ProgramReading) -> bool {
        match self.plan.begin {
            // One thread alone never looks parallel: it is measured once it works.
            None if self.plan.setting.threads == 1 => self.busiest >= WORK_SPAN_NS,
            None => self.parallel,
            Some(goal) => {
                let now = landmark(program);
                match (goal.regions, now.regions) {
                    (Some(regions), Some(entered)) if regions > 0 => {
                        let least = goal.cpu_ns as f64 * SAME_CPU_TIME;
                        entered >= regions && now.cpu_ns as f64 >= least
                    }
                    _ => now.cpu_ns >= goal.cpu_ns,
                }
            }
        }
    }

    fn enough(&self, open_for: u64) -> bool {
        if open_for < self.plan.window_ns {
            return false;
        }
        // Slow programs get more time to enter regions enough to count (one that is within a long region now may
        // do something else afterwards), and slow settings to enter the same.
        let regions = |r: Option<&ProgramReading>| r.and_then(|r| r.regions);
        let goal = self.plan.end.and_then(|end| end.regions);
        let there = match (regions(self.window.first()), regions(self.window.last())) {
            (Some(from), Some(to)) => match goal.filter(|goal| *goal > from) {
                Some(goal) => to >= goal,
                None => to == 0 || to - from >= 8,
            },
            _ => true,
        };
        there || open_for >= SAME_WORK_FACTOR * self.plan.window_ns
    }

    fn remember(&mut self, program: &ProgramReading) {
        let most = program.threads.iter().map(work).max().unwrap_or(0);
        self.busiest = self.busiest.max(most);
        let on_cpus = Work::of(program, |t| t.run_ns);
        if let Some(before) = &self.on_cpus {
            self.two_on_cpus_ns += on_cpus.since(before).second;
        }
        self.on_cpus = Some(on_cpus);
        let now = Work::of(program, work);
        // Of readings far enough back only the last one is needed.
        while let Some(second) = self.recent.get(1) {
            let too_old = now.time_ns.saturating_sub(self.recent[0].time_ns) > WORK_MEMORY_NS;
            if !too_old && now.since(second).busiest < WORK_SPAN_NS {
                break;
            }
            self.recent.pop_front();
        }
        self.recent.push_back(now);
    }

    /// Whether lately, while one thread did a good piece of work, others worked too; or two have
    /// been busy for so long that, work or not, this is what the program does.
    fn two_threads_at_work(&self) -> bool {
        if self.two_on_cpus_ns >= TWO_ON_CPUS_NS {
            return true;
        }
        let (Some(earlier), Some(now)) = (self.recent.front(), self.recent.back()) else {
            return false;
        };
        let done = now.since(earlier);
        let others = done.all - done.busiest;
        done.busiest >= WORK_SPAN_NS && others as f64 >= OTHERS_PART * done.busiest as f64
    }

    fn finish(&mut self, whole_run_ns: Option<u64>, now: u64) -> WatchStep {
        let window_begin = self.window.first().map(|r| r.time_ns);
        let startup_ns = window_begin.unwrap_or(now).saturating_sub(self.started_ns);
        let profile = self.window_profile(whole_run_ns);
        let profile = match profile {
            Some(p) if p.parallel || !self.must_look_parallel() => Ok(p),
            Some(_) => Err(NoProfile::NeverParallel),
            None if whole_run_ns.is_some_and(|ns| ns < 2 * WORK_SPAN_NS) => {
                Err(NoProfile::TooShort)
            }
            None => Err(NoProfile::NeverParallel),
        };
        WatchStep::Finished(Box::new(Watched {
            profile,
            begin: self.begin,
            end: self.window.last().map(landmark),
            startup_ns,
        }))
    }

    fn must_look_parallel(&self) -> bool {
        self.plan.begin.is_none() && !self.plan.to_the_end && self.plan.setting.threads > 1
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
    Landmark {
        regions: program.regions,
        cpu_ns: program.threads.iter().map(work).sum::<u64>() + work(&program.ended),
    }
}

/// A thread's CPU time without spinning.
fn work(thread: &ThreadReading) -> u64 {
    thread.run_ns.saturating_sub(thread.spin_ns.unwrap_or(0))
}

#[cfg(test)]
mod tests;
