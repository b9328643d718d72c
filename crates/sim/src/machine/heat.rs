//! Power and temperature of a machine.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What warms cores, what cools them, and what the hardware does when they are too hot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeatModel {
    /// The air, in °C.
    pub air_c: f64,
    /// Power of a core that is idle, in W.
    pub idle_w: f64,
    /// What a core uses in addition while it works at full speed, in W.
    pub busy_w: f64,
    /// What the processors use besides their cores, in W.
    pub uncore_w: f64,
    /// By how much a core's own power warms it, in °C/W.
    pub own_c_per_w: f64,
    /// By how much the power of all cores warms each, in °C/W.
    pub shared_c_per_w: f64,
    /// Time in which a core comes nearer to its goal by a factor of e, in seconds.
    pub seconds: f64,
    /// From here on the hardware lowers a core's frequency, in °C.
    pub slows_at_c: f64,
    /// From here on the hardware stops a core until it is below `slows_at_c`, in °C.
    pub stops_at_c: f64,
    /// The full frequency is back when the core is so much below `slows_at_c`, in °C.
    pub cooler_by_c: f64,
    /// Speed at the lower frequency, as a part of the full one.
    pub slow_speed: f64,
    /// Power at the lower frequency, as a part of `busy_w`.
    pub slow_power: f64,
    /// By how much more than others some CPUs are warmed by their own power, as a factor: where a screw is
    /// broken.
    #[serde(default)]
    pub worse: BTreeMap<u32, f64>,
}

impl HeatModel {
    /// How warm a CPU gets in the long run with that power of its own, and that of all.
    pub fn celsius(&self, cpu: u32, own_w: f64, all_w: f64) -> f64 {
        let worse = self.worse.get(&cpu).copied().unwrap_or(1.0);
        self.air_c + self.own_c_per_w * worse * own_w + self.shared_c_per_w * all_w
    }

    /// The first value out of its range: its key and the reason.
    pub(super) fn wrong(&self) -> Option<(&'static str, String)> {
        let ranges = [
            ("air_c", self.air_c, -50.0, 100.0),
            ("idle_w", self.idle_w, 0.0, 1e4),
            ("busy_w", self.busy_w, 0.0, 1e4),
            ("uncore_w", self.uncore_w, 0.0, 1e4),
            ("own_c_per_w", self.own_c_per_w, 0.0, 1e3),
            ("shared_c_per_w", self.shared_c_per_w, 0.0, 1e3),
            ("seconds", self.seconds, 0.01, 1e5),
            ("slows_at_c", self.slows_at_c, self.air_c, 1e3),
            ("stops_at_c", self.stops_at_c, self.slows_at_c, 1e3),
            ("cooler_by_c", self.cooler_by_c, 0.0, 100.0),
            ("slow_speed", self.slow_speed, 0.01, 1.0),
            ("slow_power", self.slow_power, 0.0, 1.0),
        ];
        let mut worse = self.worse.values();
        let wrong = ranges
            .into_iter()
            .find(|(_, value, least, most)| !(*least..=*most).contains(value));
        match wrong {
            Some((key, value, least, most)) => {
                Some((key, format!("{value} is not between {least} and {most}")))
            }
            None => worse
                .find(|factor| !(0.01..=100.0).contains(*factor))
                .map(|factor| ("worse", format!("{factor} is not between 0.01 and 100"))),
        }
    }
}
