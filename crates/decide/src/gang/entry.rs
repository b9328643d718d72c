//! What is kept of one set.

use super::mask::Mask;
use super::timing::ran_ns;
use super::{Change, SetId};
use corewise_abi::turn::Turn;
use serde::{Deserialize, Serialize};

/// What is kept of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Those that it asked for; of a relocatable set: none.
    pub(super) asked: Mask,
    /// How many a relocatable set asked for; 0: it is not relocatable.
    pub(super) count: u32,
    pub(super) demand: u32,
    pub(super) keeps_idle: bool,
    pub(super) sleeps: bool,
    pub(super) weight: u32,
    /// Where it is.
    pub(super) cpus: Mask,
    /// Whether that is to be told.
    pub(super) moved: bool,
    pub(super) ring: Option<u64>,
    /// When it runs by the last plan, and as it was told.
    pub(super) turn: Option<Turn>,
    pub(super) told: Option<Turn>,
    /// Time that it has received by turns for its weight, against others of its ring, and until when that is
    /// counted.
    pub(super) served: Option<u64>,
    pub(super) counted_ns: u64,
}

impl Entry {
    /// CPUs that it needs at once.
    pub(super) fn needs(&self) -> u32 {
        self.needs_of(self.cpus.count())
    }

    pub(super) fn needs_of(&self, cpus: u32) -> u32 {
        match self.keeps_idle {
            true => cpus,
            false => self.demand.clamp(1, cpus.max(1)),
        }
    }

    /// Whether it is for its sake that sets take turns.
    pub(super) fn needs_turns(&self) -> bool {
        self.keeps_idle || !self.sleeps
    }

    /// Counts what it received by its turn until now.
    pub(super) fn count(&mut self, time_ns: u64) {
        if let Some(turn) = &self.told {
            let ran = ran_ns(turn, self.counted_ns, time_ns).saturating_mul(100);
            let served = self.served.unwrap_or(0);
            self.served = Some(served.saturating_add(ran / u64::from(self.weight)));
        }
        self.counted_ns = time_ns;
    }

    pub(super) fn asks_as(&self, other: &Entry) -> bool {
        self.asked == other.asked
            && self.count == other.count
            && self.demand == other.demand
            && self.keeps_idle == other.keeps_idle
            && self.sleeps == other.sleeps
            && self.weight == other.weight
    }

    /// What is new to it.
    pub(super) fn tell(&mut self, set: SetId, reason: &str) -> Option<Change> {
        let moved = std::mem::take(&mut self.moved);
        if !moved && self.told == self.turn {
            return None;
        }
        self.told.clone_from(&self.turn);
        Some(Change {
            set,
            turn: self.turn.clone(),
            cpus: moved.then(|| self.cpus.cpus()),
            reason: reason.to_owned(),
        })
    }
}
