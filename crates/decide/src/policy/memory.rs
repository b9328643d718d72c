//! What policies know beyond the status, as it is kept where another manager is to go on in the middle of
//! a history: at the head of a journal's further parts.

use super::broken_screw::BrokenScrew;
use super::combined::CombinedMemory;
#[cfg(feature = "scripts")]
use super::script::Kept;
use super::{automax::AutoMax, balanced::Balanced, fcfs::Fcfs, prefetch::Prefetch};
use serde::{Deserialize, Serialize};

/// What a policy knows beyond the status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Nothing: it decides by event and status alone.
    Nothing,
    /// Of `balanced`.
    Balanced(Box<Balanced>),
    /// Of `automax`.
    AutoMax(Box<AutoMax>),
    /// Of `fcfs`.
    Fcfs(Fcfs),
    /// Of `broken-screw`.
    BrokenScrew(Box<BrokenScrew>),
    /// Of `prefetch`.
    Prefetch(Prefetch),
    /// Of several policies together.
    Combined(Box<CombinedMemory>),
    /// Of a script.
    #[cfg(feature = "scripts")]
    Script(Box<Kept>),
}

/// A sequence of random numbers is where it is now.
pub(crate) mod seed {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        random: &fastrand::Rng,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        random.get_seed().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<fastrand::Rng, D::Error> {
        u64::deserialize(deserializer).map(fastrand::Rng::with_seed)
    }
}
