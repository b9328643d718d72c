//! How threads wait for each other, and how often things happen: two words of program files that are
//! either a word or something else.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use std::fmt;

/// The longest that a thread spins before it blocks, in microseconds: an hour.
const LONGEST_SPIN_US: f64 = 3_600_000_000.0;

/// How a thread waits for others.
///
/// In files: `"spin"`, `"yield"`, `"block"`, or a table: `{ spin_us = 100 }`, `{ spin_us = 30000,
/// yields = true }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// It first looks again and again, for so many nanoseconds of CPU time; 0: it blocks at once; `None`:
    /// it never blocks.
    pub spin_ns: Option<u64>,
    /// While it spins it gives its CPU to others each time (`sched_yield`).
    pub yields: bool,
}

impl WaitPolicy {
    /// Looks again and again (`OMP_WAIT_POLICY=active`).
    pub const SPIN: WaitPolicy = WaitPolicy {
        spin_ns: None,
        yields: false,
    };
    /// Looks again and again, and yields.
    pub const YIELD: WaitPolicy = WaitPolicy {
        spin_ns: None,
        yields: true,
    };
    /// Sleeps in the kernel (`OMP_WAIT_POLICY=passive`).
    pub const BLOCK: WaitPolicy = WaitPolicy::spin_then_block(0);

    /// Looks again and again for `spin_ns`, then sleeps.
    pub const fn spin_then_block(spin_ns: u64) -> WaitPolicy {
        WaitPolicy {
            spin_ns: Some(spin_ns),
            yields: false,
        }
    }
}

/// It blocks.
impl Default for WaitPolicy {
    fn default() -> WaitPolicy {
        WaitPolicy::BLOCK
    }
}

impl<'de> Deserialize<'de> for WaitPolicy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<WaitPolicy, D::Error> {
        from.deserialize_any(ReadsWait)
    }
}

struct ReadsWait;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Spins {
    spin_us: f64,
    #[serde(default)]
    yields: bool,
}

impl<'de> Visitor<'de> for ReadsWait {
    type Value = WaitPolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\"spin\", \"yield\", \"block\" or a table like { spin_us = 100, yields = true }",
        )
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<WaitPolicy, E> {
        match word {
            "spin" => Ok(WaitPolicy::SPIN),
            "yield" => Ok(WaitPolicy::YIELD),
            "block" => Ok(WaitPolicy::BLOCK),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WaitPolicy, A::Error> {
        let spins = Spins::deserialize(MapAccessDeserializer::new(map))?;
        if !(0.0..=LONGEST_SPIN_US).contains(&spins.spin_us) {
            let why = "spin_us is 0 to 3,600,000,000 (to spin for ever: wait = \"spin\")";
            return Err(A::Error::custom(why));
        }
        Ok(WaitPolicy {
            spin_ns: Some((spins.spin_us * 1000.0) as u64),
            yields: spins.yields,
        })
    }
}

/// How often something is done: a number, or `"forever"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// So many times.
    Times(u64),
    /// Without end.
    Forever,
}

impl<'de> Deserialize<'de> for Repeat {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Repeat, D::Error> {
        from.deserialize_any(ReadsRepeat)
    }
}

struct ReadsRepeat;

impl Visitor<'_> for ReadsRepeat {
    type Value = Repeat;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("how many times, at least 1, or \"forever\"")
    }

    fn visit_i64<E: Error>(self, times: i64) -> Result<Repeat, E> {
        match u64::try_from(times) {
            Ok(times @ 1..) => Ok(Repeat::Times(times)),
            _ => Err(E::invalid_value(Unexpected::Signed(times), &self)),
        }
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Repeat, E> {
        match word {
            "forever" => Ok(Repeat::Forever),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }
}

/// How many threads a stage has: a number, or `"team"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageThreads {
    /// So many.
    Fixed(u32),
    /// As many as the program was given.
    Team,
}

impl<'de> Deserialize<'de> for StageThreads {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StageThreads, D::Error> {
        from.deserialize_any(ReadsStageThreads)
    }
}

struct ReadsStageThreads;

impl Visitor<'_> for ReadsStageThreads {
    type Value = StageThreads;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of threads from 1 to 65536, or \"team\" for the program's own number")
    }

    fn visit_i64<E: Error>(self, threads: i64) -> Result<StageThreads, E> {
        match u32::try_from(threads) {
            Ok(threads @ 1..=65_536) => Ok(StageThreads::Fixed(threads)),
            _ => Err(E::invalid_value(Unexpected::Signed(threads), &self)),
        }
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<StageThreads, E> {
        match word {
            "team" => Ok(StageThreads::Team),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Line {
        wait: WaitPolicy,
    }

    #[test]
    fn waiting_is_said_with_a_word_or_a_table() {
        let wait = |text: &str| toml::from_str::<Line>(text).map(|line| line.wait);
        assert_eq!(wait("wait = \"spin\""), Ok(WaitPolicy::SPIN));
        assert_eq!(wait("wait = \"block\""), Ok(WaitPolicy::BLOCK));
        let limited = wait("wait = { spin_us = 1.5, yields = true }");
        let expected = WaitPolicy {
            yields: true,
            ..WaitPolicy::spin_then_block(1500)
        };
        assert_eq!(limited, Ok(expected));
        for wrong in [
            "\"sleep\"",
            "3",
            "{ spin = 1 }",
            "{ spin_us = -1 }",
            "{ spin_us = nan }",
        ] {
            assert!(wait(&format!("wait = {wrong}")).is_err(), "{wrong}");
        }
    }
}
