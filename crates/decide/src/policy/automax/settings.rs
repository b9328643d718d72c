//! What may be set of `automax`.

use serde::{Deserialize, Serialize};

/// What may be set of the policy. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// ε1: below this many CPUs less than there are, programs are asked to expand.
    pub below: f64,
    /// ε2: above this many CPUs more than there are, programs are asked to shrink.
    pub above: f64,
    /// The pause after each round.
    pub pause_ns: u64,
    /// The longest pause, after rounds in which nobody said yes.
    pub longest_pause_ns: u64,
    /// Time between readings, while the load is within the bounds.
    pub reading_ns: u64,
    /// Time between readings, while it is not.
    pub hurried_ns: u64,
    /// The load is the mean over this many readings, or as many as there were since the pause, but at
    /// least over `least_readings`.
    pub readings: usize,
    /// See `readings`.
    pub least_readings: usize,
    /// A mean over so few readings is enough for shrinking: who came to a full machine should not wait,
    /// and a thread given back too soon is soon asked for again.
    pub crowded_readings: usize,
    /// How long a program may take to answer.
    pub answer_ns: u64,
    /// A program that has said yes to shrinking and still runs its threads (it finishes the work that
    /// they have) makes the others wait this long at most: the load before that says nothing.
    pub follow_ns: u64,
}

impl Default for Settings {
    /// Fast: a new thread on the machine is noticed within 30 ms, by two readings with a thread too many;
    /// a free CPU within 60 ms. What runs only for a moment changes nothing.
    fn default() -> Settings {
        Settings {
            below: 0.5,
            above: 0.5,
            pause_ns: 20_000_000,
            longest_pause_ns: 320_000_000,
            reading_ns: 20_000_000,
            hurried_ns: 10_000_000,
            readings: 5,
            least_readings: 3,
            crowded_readings: 2,
            answer_ns: 100_000_000,
            follow_ns: 500_000_000,
        }
    }
}

impl Settings {
    /// The paper's: five seconds between rounds.
    pub fn paper() -> Settings {
        Settings {
            pause_ns: 5_000_000_000,
            longest_pause_ns: 5_000_000_000,
            reading_ns: 100_000_000,
            hurried_ns: 100_000_000,
            crowded_readings: 5,
            answer_ns: 1_000_000_000,
            ..Settings::default()
        }
    }
}
