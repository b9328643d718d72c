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

use super::usl::Usl;
use super::{
    Choice, Extent, NEIGHBOUR_MIN, Objective, Outcome, Search, Space, Step, StopReason, Trial, Used,
};
use crate::profile::{Measure, Profile};
use crate::setting::{Setting, WaitPolicy};
use crate::watch::NoProfile;

/// A setting that cannot be faster by more than this is not worth a probe.
pub const MARGIN: f64 = 0.03;

/// A fitted curve may be wrong by this much before a setting is ruled out because of it.
const FIT_TOLERANCE: f64 = 1.10;

/// Up to so many CPUs all steps are small, and few windows find the way.
const SMALL_MACHINE: f64 = 4.0;

/// A program whose critical threads are blocked on locks for this part of their time gains nothing
/// from more threads.
const CONTENDED: f64 = 0.3;

/// Threads that wait for each other beside a neighbour run well or badly by turns of a second or so,
/// depending on which CPU the neighbour is on. A short window may have caught the good turn.
const CROWDED_DISCOUNT: f64 = 0.85;

/// Where work is shared out evenly and all wait for the last one (parallel regions, spinning), a
/// thread that shares its CPU with a neighbour has half of it, and the whole program runs as if all
/// had: N threads do N/2 CPUs' work. That is more than one for each free CPU would do only where
/// neighbours are on most of the CPUs, and there it is seen to be more by far. What a window shows
/// beyond it is its good turn.
const IN_STEP_DISCOUNT: f64 = 0.7;

/// More threads than the program's scheduling group gets CPUs in the long run are the choice only where
/// nothing else can be had.
const BEYOND_FAIR_DISCOUNT: f64 = 0.1;

/// What waking up costs the caches is seen late, and useful CPUs are an estimate: the runtime's own
/// way of waiting is left only for a gain.
const PASSIVE_DISCOUNT: f64 = 0.95;

/// Where nobody else wants the CPUs, spinning on them takes nothing from anyone, and waking up costs:
/// there the gain must be a large one.
const PASSIVE_ALONE_DISCOUNT: f64 = 0.85;

/// Fewer threads are preferred when they are slower by no more than this.
const FEWER_THREADS: f64 = 0.98;

/// Under contended locks, part of what looks useful is moving the lock from one cache to another and waking whoever
/// waits for it: the more threads, the more of it. There fewer are preferred up to this. On small machines one thread
/// less is a large part of all, and is not given away for that.
const FEWER_UNDER_LOCKS: f64 = 0.93;

/// The confidence that "nothing is more than 5 % faster" asks about, as a ratio.
const CLOSE_ENOUGH: f64 = 1.05;

/// Errors that a short window cannot see in itself (phases, other people's bursts), relative.
const SYSTEMATIC_ERROR: f64 = 0.04;

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

    /// Settings not yet tried, coarse on large machines.
    fn candidates(&self, fit: Option<&Usl>) -> Vec<Setting> {
        let cpus = self.space.one_per_cpu();
        let most = self.most_threads();
        let mut numbers = vec![cpus / 2, cpus, cpus + cpus / 2, 2 * cpus];
        if self.others() >= NEIGHBOUR_MIN {
            numbers.push(self.space.free_cpus(self.others()));
            numbers.extend(self.most_by_group());
        }
        // Big steps first: two points close together tell nothing of the curve. With one, or on a
        // machine where all steps are small, the rest.
        if let Some(fit) = fit {
            let peak = (self.space.min..=most)
                .max_by(|&a, &b| fit.speed(a).total_cmp(&fit.speed(b)).then(b.cmp(&a)));
            numbers.extend(peak);
        }
        if fit.is_some() || cpus <= 4 {
            numbers.extend([
                1,
                cpus / 8,
                cpus / 4,
                cpus - cpus / 4,
                cpus.saturating_sub(1),
            ]);
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut all: Vec<Setting> = numbers.iter().copied().map(Setting::threads).collect();
        if self.space.passive {
            all.extend(
                numbers
                    .iter()
                    .filter(|&&n| n >= 2)
                    .map(|&n| Setting::passive(n)),
            );
        }
        all.retain(|s| self.is_open(*s));
        all
    }

    /// The most useful CPUs that `candidate` could have, by what `seen` shows.
    fn bound(&self, candidate: Setting, seen: &Profile) -> f64 {
        let threads = f64::from(candidate.threads);
        let capacity = threads.min(self.space.cpus);
        if candidate.threads > seen.setting.threads && self.others() >= NEIGHBOUR_MIN {
            // More threads could win CPU time from the neighbours: nothing is known of how much.
            return capacity;
        }
        // Under a quota, CPUs are idle that the program may not use.
        let idle = seen.idle.min((self.space.cpus - seen.cpu_util).max(0.0));
        if candidate.threads == seen.setting.threads
            && (candidate.wait, seen.setting.wait) == (WaitPolicy::Passive, WaitPolicy::Default)
        {
            // Threads that sleep instead of spinning leave more CPUs idle, not fewer.
            return capacity.min(seen.useful() + seen.wasted());
        }
        if candidate.threads <= seen.setting.threads || candidate.wait != seen.setting.wait {
            let idle = match candidate.wait == seen.setting.wait && self.space.cpus > SMALL_MACHINE
            {
                // Fewer threads do more with the CPUs only where threads were in each other's way.
                true => idle * (seen.lock / CONTENDED).min(1.0),
                false => idle,
            };
            return capacity.min(seen.useful() + seen.wasted() + idle);
        }
        // More threads of the same kind use what is idle; they do not make the others stop spinning.
        // Where critical threads queue for locks, they would only join the queue.
        let free_of_locks = (1.0 - seen.lock / CONTENDED).max(0.0);
        capacity.min(seen.useful() + idle * free_of_locks)
    }

    /// The most useful CPUs that `candidate` could have if what more threads win only becomes less: beyond two
    /// settings that were tried, each thread adds at most what one between them did. Where all steps are small, so
    /// are differences, and nothing is concluded from them.
    fn by_trend(&self, candidate: Setting) -> f64 {
        let alike = |p: &&Profile| {
            p.setting.wait == candidate.wait && p.setting.threads < candidate.threads
        };
        let mut fewer: Vec<&Profile> = self.seen.iter().filter(alike).collect();
        fewer.sort_by_key(|p| p.setting.threads);
        let [.., before, last] = fewer[..] else {
            return f64::INFINITY;
        };
        if self.space.cpus <= SMALL_MACHINE || self.others() >= NEIGHBOUR_MIN {
            return f64::INFINITY;
        }
        let between = f64::from(last.setting.threads - before.setting.threads);
        let beyond = f64::from(candidate.threads - last.setting.threads);
        let won = (last.useful() - before.useful()).max(0.0);
        last.useful() + won / between * beyond
    }

    /// How fast `candidate` could be at best, in the unit of `measure`.
    fn promise(&self, candidate: Setting, measure: Measure, fit: Option<&Usl>) -> f64 {
        let per_cpu = self
            .seen
            .iter()
            .map(|p| measure.speed(p) / p.useful().max(1e-6))
            .fold(0.0, f64::max);
        let bounds = self.seen.iter().map(|p| {
            let serial = p.most_useful(self.space.cpus).unwrap_or(f64::INFINITY);
            self.bound(candidate, p).min(serial)
        });
        let bound = bounds.fold(self.by_trend(candidate), f64::min);
        let promise = bound * per_cpu * self.passive_discount(candidate, measure);
        match fit {
            Some(fit) if candidate.wait == WaitPolicy::Default => {
                promise.min(fit.speed(candidate.threads) * FIT_TOLERANCE)
            }
            _ => promise,
        }
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

    /// Speed, less what short windows flatter.
    fn worth(&self, profile: &Profile, measure: Measure) -> f64 {
        let mut worth = measure.speed(profile);
        if measure == Measure::UsefulCpus && profile.setting.wait == WaitPolicy::Passive {
            // More than it can have is another phase of the program than the one it is compared with.
            let others = self
                .seen
                .iter()
                .filter(|p| p.setting.wait == WaitPolicy::Default);
            let bounds = others.map(|p| self.bound(profile.setting, p));
            worth = bounds.fold(worth, f64::min);
        }
        if self
            .most_by_group()
            .is_some_and(|most| profile.setting.threads > most)
        {
            // Tried only to see where the program becomes parallel.
            worth *= BEYOND_FAIR_DISCOUNT;
        }
        let others = self.others();
        let free = self.space.free_cpus(others);
        if others >= NEIGHBOUR_MIN && profile.setting.threads > free {
            if profile.spins() || profile.is_in_regions() {
                worth *= IN_STEP_DISCOUNT;
            } else if profile.waits_for_others() {
                worth *= CROWDED_DISCOUNT;
            }
        }
        if others >= NEIGHBOUR_MIN && profile.setting.threads <= free && !self.is_denied(profile) {
            worth *= as_if_spread_out(profile);
        }
        worth * self.passive_discount(profile.setting, measure)
    }

    /// How much of its measured speed a way of waiting is believed to have.
    fn passive_discount(&self, setting: Setting, measure: Measure) -> f64 {
        if setting.wait != WaitPolicy::Passive {
            return 1.0;
        }
        let alone = self.others() < NEIGHBOUR_MIN;
        let has_cpus = f64::from(setting.threads) <= self.space.cpus.ceil();
        match measure {
            Measure::WholeRuns => 1.0,
            // Useful CPUs tell nothing of waking up, and where threads have no CPU each, somebody is woken often.
            Measure::UsefulCpus if alone => PASSIVE_ALONE_DISCOUNT,
            Measure::Regions { .. } if alone && has_cpus => PASSIVE_ALONE_DISCOUNT,
            _ => PASSIVE_DISCOUNT,
        }
    }

    /// The profile of the most worth; among those nearly as good the one with the fewest threads.
    fn best(&self, measure: Measure) -> Option<&Profile> {
        let by_worth =
            |a: &&Profile, b: &&Profile| self.worth(a, measure).total_cmp(&self.worth(b, measure));
        let first = self.seen.iter().max_by(by_worth)?;
        let flattered = measure == Measure::UsefulCpus && first.lock > CONTENDED;
        let nearly = match flattered && self.space.cpus > SMALL_MACHINE {
            true => FEWER_UNDER_LOCKS,
            false => FEWER_THREADS,
        };
        let most = self.worth(first, measure);
        self.seen
            .iter()
            .filter(|p| self.worth(p, measure) >= nearly * most)
            .min_by(|a, b| {
                let worth = |p| self.worth(p, measure);
                let fewer = a.setting.threads.cmp(&b.setting.threads);
                fewer.then(worth(b).total_cmp(&worth(a)))
            })
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

    fn done(&self, best: &Profile, measure: Measure, stop: StopReason, missed: f64) -> Step {
        let best_worth = self.worth(best, measure);
        // For every alternative that was measured: how sure is it that it is not 5 % faster? Errors
        // are taken as normal and independent, as good as any other guess from so few windows.
        let measured: f64 = self
            .seen
            .iter()
            .filter(|p| p.setting != best.setting)
            .map(|p| {
                let ratio = self.worth(p, measure) / best_worth;
                let error = (p.relative_error.powi(2)
                    + best.relative_error.powi(2)
                    + 2.0 * SYSTEMATIC_ERROR.powi(2))
                .sqrt();
                normal_cdf((CLOSE_ENOUGH - ratio) / error.max(1e-6))
            })
            .product();
        // What was not tried for lack of time could be that much faster; it mostly is not.
        let unmeasured = 1.0 - 0.5 * (missed / (missed + 0.2)).clamp(0.0, 1.0);
        Step::Done(Choice {
            setting: best.setting,
            stop,
            confidence: (0.97 * measured * unmeasured).clamp(0.0, 1.0),
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

/// Where there is a CPU for each thread beside the neighbours, a thread that waited for one had been
/// put on a neighbour's: the scheduler moves it within a second, which a short window may not see. How
/// much faster it will be then, as a factor of at least 1.
fn as_if_spread_out(profile: &Profile) -> f64 {
    let threads = f64::from(profile.setting.threads);
    let wanted = (profile.cpu_util + profile.cpu_wait).min(threads);
    (wanted / profile.cpu_util.max(1e-6)).max(1.0)
}

/// A curve through the points, if they are far enough apart to show one.
fn curve(points: &[(u32, f64)]) -> Option<Usl> {
    let fewest = points.iter().map(|p| p.0).min()?;
    let most = points.iter().map(|p| p.0).max()?;
    if most < 2 * fewest {
        return None;
    }
    Usl::fit(points)
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

/// The standard normal distribution function (Abramowitz and Stegun 26.2.17; error below 1e-7).
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if z >= 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests;
