//! What a profile is worth: what was measured, less what short windows flatter; and how sure it is that the best is.

use super::super::{Choice, NEIGHBOUR_MIN, Step, StopReason};
use super::{BoundSearch, CONTENDED, SMALL_MACHINE};
use crate::profile::{Measure, Profile};
use crate::setting::{Setting, WaitPolicy};

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

impl BoundSearch {
    /// Speed, less what short windows flatter.
    pub(super) fn worth(&self, profile: &Profile, measure: Measure) -> f64 {
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
    pub(super) fn passive_discount(&self, setting: Setting, measure: Measure) -> f64 {
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
    pub(super) fn best(&self, measure: Measure) -> Option<&Profile> {
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

    pub(super) fn done(
        &self,
        best: &Profile,
        measure: Measure,
        stop: StopReason,
        missed: f64,
    ) -> Step {
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

/// Where there is a CPU for each thread beside the neighbours, a thread that waited for one had been
/// put on a neighbour's: the scheduler moves it within a second, which a short window may not see. How
/// much faster it will be then, as a factor of at least 1.
fn as_if_spread_out(profile: &Profile) -> f64 {
    let threads = f64::from(profile.setting.threads);
    let wanted = (profile.cpu_util + profile.cpu_wait).min(threads);
    (wanted / profile.cpu_util.max(1e-6)).max(1.0)
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
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_right_where_tables_say() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_345), (-1.96, 0.024_998)] {
            assert!((normal_cdf(z) - p).abs() < 1e-5, "{z}");
        }
    }
}
