//! What malleable programs did lately: how many threads they could use, by their own word, and whether
//! they do anything at all.

use super::patience::Patience;
use super::room::LASTING_NS;
use crate::policy::recent::Recent;
use crate::status::{Program, ProgramId, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Over this long, and below this many CPUs, a program is asleep: it waits for input, say.
const ASLEEP_NS: u64 = 300_000_000;
const ASLEEP: f64 = 0.05;

/// That a program could use fewer threads must last so long while others have threads beyond the CPUs.
const LASTING_LENT_NS: u64 = 8 * LASTING_NS;

/// It is awake again when it uses so many CPUs between two readings.
const AWAKE: f64 = 0.2;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Activities {
    programs: BTreeMap<ProgramId, Activity>,
    last_reading_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Activity {
    could_use: Option<CouldUse>,
    uses: Recent,
    asleep: bool,
}

/// The most that a program could use lately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct CouldUse {
    most: u32,
    /// Since when it says less, and the most that it has said since.
    less: Option<(u64, u32)>,
    /// How long it must say less.
    patience: Patience,
}

impl Activities {
    /// Whether a program has done nothing for some time.
    pub(super) fn is_asleep(&self, id: ProgramId) -> bool {
        self.programs.get(&id).is_some_and(|a| a.asleep)
    }

    /// How many threads a program could use, by its own word.
    pub(super) fn could_use(&self, id: ProgramId) -> Option<u32> {
        self.programs.get(&id)?.could_use.map(|c| c.most)
    }

    /// Whether someone may want more soon than they show now.
    pub(super) fn may_wake(&self, status: &Status) -> bool {
        self.programs.iter().any(|(id, activity)| {
            let wants = status.programs.get(id).map_or(0, |p| p.wants.max_threads);
            let less = activity.could_use.is_some_and(|c| c.most < wants);
            activity.asleep || less
        })
    }

    /// A program asks: it is awake.
    pub(super) fn wakes(&mut self, id: ProgramId) {
        self.programs.remove(&id);
    }

    /// There are new readings. If threads are lent beyond the CPUs, what a program cannot use is used by
    /// others already.
    pub(super) fn on_readings(&mut self, status: &Status, is_lent: bool) {
        let lasting_ns = match is_lent {
            true => LASTING_LENT_NS,
            false => LASTING_NS,
        };
        let now = status.time_ns;
        let span = now.saturating_sub(self.last_reading_ns);
        self.last_reading_ns = now;
        self.programs
            .retain(|id, _| status.programs.contains_key(id));
        for (id, program) in &status.programs {
            let activity = self.programs.entry(*id).or_insert_with(|| Activity {
                could_use: None,
                uses: Recent::default(),
                asleep: false,
            });
            activity.could_use = CouldUse::next(activity.could_use, program, now, lasting_ns);
            if let Some(uses) = program.uses {
                activity.uses.push(now, span, uses);
                let lately = activity.uses.mean_over(ASLEEP_NS);
                activity.asleep = match activity.asleep {
                    true => uses < AWAKE,
                    false => lately.is_some_and(|uses| uses < ASLEEP),
                };
            }
        }
    }
}

impl CouldUse {
    /// More is believed at once, less when it has lasted.
    fn next(
        known: Option<CouldUse>,
        program: &Program,
        now: u64,
        lasting_ns: u64,
    ) -> Option<CouldUse> {
        let says = program.could_use?;
        let known = known.unwrap_or(CouldUse {
            most: program.wants.max_threads,
            less: None,
            patience: Patience::default(),
        });
        let mut patience = known.patience;
        if says >= known.most {
            if says > known.most {
                patience.gives(now, lasting_ns);
            }
            return Some(CouldUse {
                most: says,
                less: None,
                patience,
            });
        }
        let (since, most) = known.less.map_or((now, says), |(t, m)| (t, m.max(says)));
        Some(match now.saturating_sub(since) >= patience.of(lasting_ns) {
            true => {
                patience.takes(now);
                CouldUse {
                    most,
                    less: None,
                    patience,
                }
            }
            false => CouldUse {
                less: Some((since, most)),
                ..known
            },
        })
    }
}
