//! Which of two numbers of threads is faster, by runs that take turns: what drifts or comes and goes in the
//! meantime meets both alike. The test is sequential: a clear difference is found after two windows, a small
//! one takes up to [`MOST_WINDOWS`].

/// Runs and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// How many.
    pub runs: u64,
    /// Their time, in nanoseconds.
    pub time_ns: u64,
}

impl Runs {
    /// Mean time of a run, in nanoseconds; `None` without runs.
    pub fn mean_ns(self) -> Option<f64> {
        (self.runs > 0).then(|| self.time_ns as f64 / self.runs as f64)
    }

    pub(super) fn since(self, before: Runs) -> Runs {
        Runs {
            runs: self.runs.saturating_sub(before.runs),
            time_ns: self.time_ns.saturating_sub(before.time_ns),
        }
    }
}

/// A window has so many runs of each side, and so much time of both in nanoseconds...
const WINDOW_RUNS: u64 = 3;
const WINDOW_NS: u64 = 2_000_000;
/// ... or so much time of each, whatever the number of runs.
const LONG_WINDOW_NS: u64 = 40_000_000;
/// After so many windows the better of the two is taken, however little it is better.
const MOST_WINDOWS: usize = 24;
/// A difference (of logarithms) is clear that is seen in each of the first two windows, or of the first three.
const CLEAR_IN_TWO: f64 = 0.6;
const CLEAR_IN_THREE: f64 = 0.3;
/// The difference is to be so many standard errors away from what would change the answer.
const ERRORS: f64 = 3.0;
/// How far windows are apart (of logarithms) at least, and what is assumed while there are few of them.
const LEAST_SPREAD: f64 = 0.02;
const ASSUMED_SPREAD: f64 = 0.14;

/// What was seen of two numbers so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparison {
    /// Logarithms of the second side's mean time over the first's, a window each.
    windows: Vec<f64>,
    /// What had been seen when the present window began.
    from: [Runs; 2],
    seen: [Runs; 2],
}

/// The answer: the logarithm of the second side's time over the first's.
pub(super) type Difference = f64;

impl Comparison {
    /// Takes in what was seen of both since they began to take turns. Answers as soon as it is clear on
    /// which side of `worth`, a logarithm, the difference is.
    pub(super) fn look(&mut self, seen: [Runs; 2], worth: f64) -> Option<Difference> {
        self.seen = seen;
        let window = [0, 1].map(|side| seen[side].since(self.from[side]));
        let both_ns = window[0].time_ns + window[1].time_ns;
        let many = window.iter().all(|side| side.runs >= WINDOW_RUNS) && both_ns >= WINDOW_NS;
        let long = |side: &Runs| side.runs > 0 && side.time_ns >= LONG_WINDOW_NS;
        if !many && !window.iter().all(long) {
            return None;
        }
        self.from = seen;
        let [first, second] = window.map(|side| side.mean_ns().unwrap_or(0.0).max(1.0));
        self.windows.push((second / first).ln());
        self.answer(worth)
    }

    fn answer(&self, worth: f64) -> Option<Difference> {
        let n = self.windows.len();
        let middle = median(&self.windows);
        let enough = if n < 3 { CLEAR_IN_TWO } else { CLEAR_IN_THREE };
        let clear = |difference: &f64| (difference - worth).abs() > enough;
        let one_side = |all: &[f64]| all.iter().all(|d| (*d > worth) == (middle > worth));
        if n >= 2 && one_side(&self.windows) && self.windows.iter().all(clear) {
            return Some(middle);
        }
        if n < 3 {
            return None;
        }
        if n >= MOST_WINDOWS {
            return Some(middle);
        }
        let away: Vec<f64> = self.windows.iter().map(|d| (d - middle).abs()).collect();
        // Of a normal distribution the median distance is 0.67 deviations, and a median of n is 1.25 times
        // as uncertain as a mean.
        let spread = (1.48 * median(&away)).max(LEAST_SPREAD);
        let spread = (spread * spread + ASSUMED_SPREAD * ASSUMED_SPREAD / n as f64).sqrt();
        let error = 1.25 * spread / (n as f64).sqrt();
        ((middle - worth).abs() > ERRORS * error).then_some(middle)
    }

    /// Time lost so far by the slower side, in nanoseconds, if the second side takes `difference` longer.
    pub(super) fn lost_ns(&self, difference: Difference) -> u64 {
        let slower = match difference > 0.0 {
            true => self.seen[1],
            false => self.seen[0],
        };
        (slower.time_ns as f64 * (1.0 - (-difference.abs()).exp())) as u64
    }

    /// What seems to be the difference now; 0 where nothing is known.
    pub(super) fn so_far(&self) -> Difference {
        match self.windows[..] {
            [] => 0.0,
            _ => median(&self.windows),
        }
    }

    /// The mean time of a side, in nanoseconds.
    pub(super) fn mean_ns(&self, side: usize) -> Option<f64> {
        self.seen.get(side)?.mean_ns()
    }
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (Some(before), Some(after)) if sorted.len().is_multiple_of(2) => (before + after) / 2.0,
        (_, Some(middle)) => *middle,
        (_, None) => 0.0,
    }
}
