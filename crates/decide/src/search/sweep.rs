//! The sweep: every setting, run to its end, several times, in turn. Slow and without cleverness, so
//! it is the judge of the other searches.

use super::{Choice, Extent, Outcome, Search, Space, Step, StopReason, Trial};
use crate::profile::{Measure, Profile};
use crate::setting::Setting;

/// The state of a sweep.
#[derive(Clone, Debug)]
pub struct Sweep {
    space: Space,
    /// In the order in which they are tried: rounds in turn, every other one backwards, so that a
    /// machine that slows down does not favour the early ones.
    order: Vec<Setting>,
    at: usize,
    limit_ns: u64,
    seen: Vec<Profile>,
}

impl Sweep {
    /// `rounds` runs (at least 1) of every setting, each cut off after `limit_ns` nanoseconds.
    pub fn new(space: Space, rounds: u32, limit_ns: u64) -> Sweep {
        let settings = settings(&space);
        let order = (0..rounds.max(1))
            .flat_map(|round| {
                let mut one = settings.clone();
                if round % 2 == 1 {
                    one.reverse();
                }
                one
            })
            .collect();
        Sweep {
            space,
            order,
            at: 0,
            limit_ns,
            seen: Vec::new(),
        }
    }

    fn step(&self) -> Step {
        match self.order.get(self.at) {
            Some(&setting) => Step::Try(Trial {
                setting,
                extent: Extent::WholeRun(self.limit_ns),
            }),
            None => self.choose(),
        }
    }

    fn choose(&self) -> Step {
        let measure = Measure::common(&self.seen);
        let mut medians: Vec<(Setting, f64, f64)> = settings(&self.space)
            .into_iter()
            .filter_map(|setting| {
                let mut speeds: Vec<f64> = self
                    .seen
                    .iter()
                    .filter(|p| p.setting == setting)
                    .map(|p| measure.speed(p))
                    .collect();
                speeds.sort_by(f64::total_cmp);
                let median = *speeds.get(speeds.len() / 2)?;
                let spread = (speeds.last()? - speeds.first()?) / median.max(f64::MIN_POSITIVE);
                Some((setting, median, spread))
            })
            .collect();
        // Stable: of equals the one with fewer threads wins.
        medians.sort_by(|a, b| b.1.total_cmp(&a.1));
        let Some(&(setting, best, spread)) = medians.first() else {
            return super::plain(&self.space, StopReason::Failed);
        };
        let gap = medians.get(1).map_or(1.0, |second| best / second.1 - 1.0);
        let confidence = if gap < 0.05 || spread < gap {
            0.95
        } else {
            0.7
        };
        Step::Done(Choice {
            setting,
            stop: StopReason::Exhausted,
            confidence,
        })
    }
}

/// Every setting of a space: each number, and each number above one also waiting passively.
fn settings(space: &Space) -> Vec<Setting> {
    let mut all: Vec<Setting> = (space.min..=space.max).map(Setting::threads).collect();
    if space.passive {
        all.extend((space.min.max(2)..=space.max).map(Setting::passive));
    }
    all
}

impl Search for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn start(&mut self) -> Step {
        self.step()
    }

    fn next(&mut self, outcome: Outcome) -> Step {
        if let Outcome::Seen(profile) = outcome {
            self.seen.push(profile);
        }
        self.at += 1;
        self.step()
    }
}
