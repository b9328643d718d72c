//! What settings that were not tried could be worth at best.

use super::super::NEIGHBOUR_MIN;
use super::super::usl::Usl;
use super::{BoundSearch, CONTENDED, SMALL_MACHINE};
use crate::profile::{Measure, Profile};
use crate::setting::{Setting, WaitPolicy};

/// A fitted curve may be wrong by this much before a setting is ruled out because of it.
const FIT_TOLERANCE: f64 = 1.10;

impl BoundSearch {
    /// Settings not yet tried, coarse on large machines.
    pub(super) fn candidates(&self, fit: Option<&Usl>) -> Vec<Setting> {
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
    pub(super) fn bound(&self, candidate: Setting, seen: &Profile) -> f64 {
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
    pub(super) fn by_trend(&self, candidate: Setting) -> f64 {
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
    pub(super) fn promise(&self, candidate: Setting, measure: Measure, fit: Option<&Usl>) -> f64 {
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
}

/// A curve through the points, if they are far enough apart to show one.
pub(super) fn curve(points: &[(u32, f64)]) -> Option<Usl> {
    let fewest = points.iter().map(|p| p.0).min()?;
    let most = points.iter().map(|p| p.0).max()?;
    if most < 2 * fewest {
        return None;
    }
    Usl::fit(points)
}
