//! The default search: branch and bound over settings.
//!
//! **Problem.** A search that climbs from few threads stops early on curves that rise slowly (the
//! paper's canneal and blackscholes), needs many runs on large machines, and is deceived by threads
//! that spin: they look busy, and are not working.
//!
//! **Approach.** Nobody works faster than their CPUs allow. A setting of N threads can do at most N
//! CPUs' worth of useful work; and beside the same neighbours it can do at most what an observed
//! setting did usefully, plus what that one wasted in spinning and switching, plus what it left idle.
//! So start with one thread for each effective CPU (or with what past runs suggest). If these CPUs
//! are all at useful work, the search is over after a single probe: no setting can beat it. If not,
//! the reason says which settings still could: spinning can be recovered by waiting passively or by
//! fewer threads, idle CPUs by more threads or, under contended locks, by fewer. The most promising
//! one is tried next. On larger machines, what more threads win is taken to become less and less. Where one
//! thread alone is busy nearly all the time, what it does beyond its share of the common work bounds
//! everybody's speed, too ([`Profile::most_useful`]). So it goes on, until none that is left could be faster
//! by more than [`MARGIN`]. Once there are points enough, a fitted scalability law ([`super::usl`]) lowers the
//! bounds of what lies between.
//!
//! More threads than CPUs are tried only where no neighbour is at work: there they would be paid for
//! with the neighbour's share. Where the neighbour is in another scheduling group (another session, another
//! cgroup), no more threads are chosen than this group gets CPUs in the long run ([`super::fair_share`]),
//! whatever a short window showed; unless one showed that the kernel does not give it that
//! ([`super::is_denied`]).

mod promise;
mod worth;

use super::{
    Choice, Extent, NEIGHBOUR_MIN, Objective, Outcome, Search, Space, Step, StopReason, Trial, Used,
};
use crate::profile::{Measure, Profile};
use crate::setting::{Setting, WaitPolicy};
use crate::watch::NoProfile;
use promise::curve;

/// A setting that cannot be faster by more than this is not worth a probe.
pub const MARGIN: f64 = 0.03;

/// Up to so many CPUs all steps are small, and few windows find the way.
const SMALL_MACHINE: f64 = 4.0;

/// A program whose critical threads are blocked on locks for this part of their time gains nothing
/// from more threads.
const CONTENDED: f64 = 0.3;

/// The state of the default search.
#[derive(Clone, Debug)]
pub struct BoundSearch {
    space: Space,
    first: Setting,
    seen: Vec<Profile>,
    failed: Vec<Setting>,
    /// The trial whose outcome comes next.
    pending: Setting,
    spent_ns: u64,
    window_ns: u64,
    /// Programs that end before the window does are run whole, this long at most.
    whole_run: Option<u64>,
}

impl BoundSearch {
    /// A search over `space`.
    pub fn new(space: Space) -> BoundSearch {
        let first = first_setting(&space);
        // Four windows find the way on small machines, larger ones have more to tell apart. Beside
        // neighbours three do, and should be long.
        let windows = match space.cpus {
            cpus if cpus > SMALL_MACHINE => 6,
            _ if space.others >= 2.0 * NEIGHBOUR_MIN => 3,
            _ => 4,
        };
        BoundSearch {
            first,
            seen: Vec::new(),
            failed: Vec::new(),
            pending: first,
            spent_ns: 0,
            window_ns: space.budget_ns / windows,
            whole_run: None,
            space,
        }
    }

    fn try_setting(&mut self, setting: Setting) -> Step {
        self.pending = setting;
        let extent = match self.whole_run {
            Some(limit_ns) => Extent::WholeRun(limit_ns),
            None => Extent::Window(self.window_ns),
        };
        Step::Try(Trial { setting, extent })
    }

    /// CPUs that others use. Windows have seen them longer than the look before the search did.
    fn others(&self) -> f64 {
        let seen = self.seen.iter().map(|p| p.others);
        seen.reduce(f64::max).unwrap_or(self.space.others)
    }

    fn most_threads(&self) -> u32 {
        let cpus = self.space.one_per_cpu();
        match self.space.objective {
            Objective::Share => idle_cpus(&self.space),
            Objective::Speed if self.others() >= NEIGHBOUR_MIN => cpus,
            // Threads that spin for each other are in step: one too many holds all of them up.
            Objective::Speed if self.seen.iter().any(Profile::spins) => cpus,
            Objective::Speed => self.space.max,
        }
        .min(self.most_by_group().unwrap_or(u32::MAX))
        .clamp(self.space.min, self.space.max)
    }

    /// What the neighbours' scheduling groups leave to the program's, while these neighbours are at work, and as
    /// long as the kernel was not seen to leave it less.
    fn most_by_group(&self) -> Option<u32> {
        let here = self.others() >= NEIGHBOUR_MIN;
        let most = self.space.most_by_group().filter(|_| here)?;
        (!self.seen.iter().any(|p| self.is_denied(p))).then_some(most)
    }

    /// Whether the kernel was seen to give the program less than its group's share.
    fn is_denied(&self, profile: &Profile) -> bool {
        let used = Used {
            threads: profile.setting.threads,
            cpu_util: profile.cpu_util,
            cpu_wait: profile.cpu_wait,
            idle: profile.idle,
        };
        super::is_denied(self.space.fair, &used)
    }

    fn decide(&mut self) -> Step {
        let measure = Measure::common(&self.seen);
        let Some(best) = self.best(measure).cloned() else {
            return super::plain(&self.space, StopReason::Failed);
        };
        if best.spin.is_none() && measure == Measure::UsefulCpus && best.cpu_wait > 0.1 {
            return self.cautious(&best);
        }
        let points: Vec<(u32, f64)> = self
            .seen
            .iter()
            .filter(|p| p.setting.wait == WaitPolicy::Default)
            .map(|p| (p.setting.threads, measure.speed(p)))
            .collect();
        let fit = curve(&points);
        let best_worth = self.worth(&best, measure);
        let one = Setting::threads(1);
        if self.space.one_per_cpu() == 1 && self.is_open(one) {
            // On one CPU the first probe had two threads, to show where the program is parallel.
            return self.try_setting(one);
        }
        let next = self
            .candidates(fit.as_ref())
            .into_iter()
            .map(|s| (s, self.promise(s, measure, fit.as_ref())))
            .filter(|(_, promise)| *promise > best_worth * (1.0 + MARGIN))
            // Of equal promises the one with fewer threads, and of these the unasked way of waiting.
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        match next {
            None => {
                let first_was_enough = self.seen.len() == 1;
                let stop = if first_was_enough {
                    StopReason::Saturated
                } else {
                    StopReason::Bounded
                };
                self.done(&best, measure, stop, 0.0)
            }
            Some((setting, promise)) => {
                if self.spent_ns + self.window_ns / 2 > self.space.budget_ns {
                    let missed = promise / best_worth - 1.0;
                    return self.done(&best, measure, StopReason::Budget, missed);
                }
                self.try_setting(setting)
            }
        }
    }

    fn is_open(&self, setting: Setting) -> bool {
        (self.space.min..=self.most_threads()).contains(&setting.threads)
            && !self.failed.contains(&setting)
            && self.seen.iter().all(|p| p.setting != setting)
    }

    /// Neither spinning nor progress can be seen, and threads wait for CPUs: the program has
    /// neighbours, and might spin for threads that have no CPU. No more threads than CPUs that the
    /// neighbours leave, sleeping while they wait.
    fn cautious(&self, seen: &Profile) -> Step {
        let free = (self.space.cpus - seen.others).floor().max(1.0) as u32;
        let threads = free.clamp(self.space.min, self.space.max);
        let passive = self.space.passive && threads > 1;
        Step::Done(Choice {
            setting: if passive {
                Setting::passive(threads)
            } else {
                Setting::threads(threads)
            },
            stop: StopReason::Blind,
            confidence: 0.5,
        })
    }
}

impl Search for BoundSearch {
    fn name(&self) -> &'static str {
        "bounds"
    }

    fn start(&mut self) -> Step {
        self.try_setting(self.first)
    }

    fn restrict(&mut self, passive: bool, max: u32) {
        self.space.passive &= passive;
        self.space.max = self.space.max.min(max).max(self.space.min);
    }

    fn next(&mut self, outcome: Outcome) -> Step {
        match outcome {
            Outcome::Seen(profile) => {
                if self.whole_run.is_none()
                    && let Some(ns) = profile.whole_run_ns
                {
                    // Whole runs compare with whole runs: let the others end, too.
                    self.whole_run = Some(ns.saturating_mul(4).max(self.window_ns));
                }
                self.spent_ns += profile.window_ns;
                self.seen.push(profile);
                self.decide()
            }
            Outcome::Unseen(NoProfile::NeverParallel) if self.seen.is_empty() => {
                super::never_parallel(&self.space)
            }
            Outcome::Unseen(NoProfile::TooShort) if self.seen.is_empty() => {
                if self.whole_run.is_some() {
                    return super::plain(&self.space, StopReason::TooShort);
                }
                self.whole_run = Some(self.window_ns);
                self.try_setting(self.first)
            }
            Outcome::Unseen(_) | Outcome::Failed => {
                self.failed.push(self.pending);
                if self.seen.is_empty() {
                    return super::plain(&self.space, StopReason::Failed);
                }
                self.decide()
            }
        }
    }
}

/// CPUs that are idle now, as whole threads; never none.
fn idle_cpus(space: &Space) -> u32 {
    // A CPU that is idle nine tenths of the time is idle.
    ((space.cpus - space.others + 0.1).floor().max(1.0) as u32).clamp(space.min, space.max)
}

fn first_setting(space: &Space) -> Setting {
    match space.objective {
        Objective::Share => Setting::threads(idle_cpus(space)),
        Objective::Speed => {
            let prior = space.prior.filter(|p| {
                // One thread does not show where the program becomes parallel.
                p.threads > 1
                    && (space.min..=space.max).contains(&p.threads)
                    && (p.wait == WaitPolicy::Default || space.passive)
            });
            // Two threads show where a program becomes parallel, on one CPU too.
            let threads = space.one_per_cpu().max(2).clamp(space.min, space.max);
            prior.unwrap_or(Setting::threads(threads))
        }
    }
}

#[cfg(test)]
mod tests;
