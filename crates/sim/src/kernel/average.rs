//! Averages of what is runnable, as the kernel keeps them for its balancing: an exponential mean that
//! halves every 32 periods of about a millisecond (`kernel/sched/pelt.c`).
//!
//! The kernel adds up geometric series at every tick. Here an average is what it tends to plus a rest
//! that fades, so that it needs no work while nothing changes.

/// A period: 2^20 ns where the kernel has 1,024 µs.
const PERIOD_BITS: u32 = 20;

/// 0.5^(n/32). Spelled out, since `powf` differs between platforms.
const FADES: [f64; 32] = [
    1.0,
    0.9785720620877001,
    0.9576032806985737,
    0.93708381705515,
    0.9170040432046712,
    0.8973545375015536,
    0.8781260801866497,
    0.859309649061239,
    0.8408964152537145,
    0.8228777390769825,
    0.8052451659746271,
    0.7879904225539432,
    0.7711054127039704,
    0.7545822137967114,
    0.7384130729697497,
    0.7225904034885233,
    std::f64::consts::FRAC_1_SQRT_2,
    0.691954940981916,
    0.6771277734684463,
    0.6626183215798707,
    0.6484197773255048,
    0.6345254785958666,
    0.620928906036742,
    0.6076236799902345,
    0.5946035575013605,
    0.5818624293887887,
    0.5693943173783458,
    0.5571933712979462,
    0.5452538663326288,
    0.5335702003384118,
    0.5221368912137069,
    0.5109485743270583,
];

/// A value and its fading mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    value: f64,
    /// The mean at `period`, less the value.
    rest: f64,
    period: u64,
}

impl Average {
    /// One that has been `value` for ever.
    pub(super) fn of(value: f64, now_ns: u64) -> Average {
        Average {
            value,
            rest: 0.0,
            period: now_ns >> PERIOD_BITS,
        }
    }

    /// The value now, which is not faded.
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// The value is another from now on.
    pub(super) fn set(&mut self, value: f64, now_ns: u64) {
        let period = now_ns >> PERIOD_BITS;
        self.rest = self.rest * fade(period - self.period) + (self.value - value);
        self.period = period;
        self.value = value;
    }

    /// The mean becomes larger by `by` at once: a thread comes with what it has been.
    pub(super) fn shift(&mut self, by: f64, now_ns: u64) {
        self.set(self.value, now_ns);
        self.rest += by;
    }

    /// The mean now.
    pub(super) fn mean(&self, now_ns: u64) -> f64 {
        if self.rest == 0.0 {
            return self.value;
        }
        let periods = (now_ns >> PERIOD_BITS).saturating_sub(self.period);
        (self.value + self.rest * fade(periods)).max(0.0)
    }
}

fn fade(periods: u64) -> f64 {
    let halvings = periods / 32;
    if halvings > 40 {
        return 0.0;
    }
    FADES[(periods % 32) as usize] / (1_u64 << halvings) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1 << PERIOD_BITS;

    #[test]
    fn a_mean_halves_its_distance_in_32_periods() {
        let mut load = Average::default();
        load.set(1024.0, 0);
        assert_eq!(load.mean(0), 0.0);
        assert_eq!(load.mean(32 * MS), 512.0);
        assert_eq!(load.mean(64 * MS), 768.0);
        assert!(load.mean(2_000 * MS) > 1023.99);
        load.set(0.0, 64 * MS);
        assert_eq!(load.mean(96 * MS), 384.0);
    }

    #[test]
    fn setting_the_same_value_again_changes_nothing() {
        let mut once = Average::default();
        once.set(1024.0, 0);
        let mut often = once;
        for ms in 0..50 {
            often.set(1024.0, ms * MS + ms);
        }
        let (a, b) = (once.mean(50 * MS), often.mean(50 * MS));
        assert!((a - b).abs() < 1e-9, "{a} {b}");
    }
}
