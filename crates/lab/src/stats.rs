//! Medians with confidence intervals, and ratios of interleaved runs.
//!
//! Run times on a shared machine have long tails, so everything here is about medians, and about
//! pairs that were measured next to each other. Intervals come from resampling with a fixed seed:
//! the same samples always give the same interval.

use std::ops::Range;

/// How often an interval's samples are drawn again.
const RESAMPLES: usize = 2000;

/// A median, and the interval that holds the true one with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median of the samples.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use crate::experiment::number;
        write!(
            f,
            "{} [{}, {}]",
            number(self.median),
            number(self.low),
            number(self.high)
        )
    }
}

/// The middle value, or the mean of the two in the middle; NaN of nothing. Infinite samples
/// (runs that were cut) are sorted to the end like any other.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The value that this part (0 to 1) of the samples does not exceed: one of them; NaN of nothing.
pub fn percentile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let index = (last as f64 * part).ceil() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

/// The slope of the line through points (x, y) that is best by least squares.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|p| p.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|p| p.1).sum::<f64>() / count;
    let above: f64 = points
        .iter()
        .map(|(x, y)| (x - mean_x) * (y - mean_y))
        .sum();
    let below: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    above / below
}

/// The geometric mean of positive numbers; NaN of nothing.
pub fn geometric_mean(samples: &[f64]) -> f64 {
    (samples.iter().map(|sample| sample.ln()).sum::<f64>() / samples.len() as f64).exp()
}

/// The median with a bootstrap interval (percentiles of the medians of 2,000 resamples). With fewer
/// than about six samples the interval is hardly more than their range, and should be read so.
pub fn estimate(samples: &[f64]) -> Estimate {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut drawn = vec![0.0; samples.len()];
    if !samples.is_empty() {
        for _ in 0..RESAMPLES {
            drawn.fill_with(|| samples[random.usize(..samples.len())]);
            medians.push(median(&drawn));
        }
    }
    medians.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let last = medians.len().saturating_sub(1) as f64;
        let index = (part * last).round() as usize;
        medians.get(index).copied().unwrap_or(f64::NAN)
    };
    Estimate {
        median: median(samples),
        low: at(0.025),
        high: at(0.975),
    }
}

/// The ratio of two things that were measured in the same rounds, one sample each a round: the
/// median of the rounds' ratios. What slowed both in a round cancels out.
pub fn paired_ratio(above: &[f64], below: &[f64]) -> Estimate {
    let ratios = above
        .iter()
        .zip(below)
        .map(|(above, below)| above / below)
        .collect::<Vec<_>>();
    estimate(&ratios)
}

/// The difference of two things that were measured in the same rounds (see [`paired_ratio`]).
pub fn paired_difference(left: &[f64], right: &[f64]) -> Estimate {
    let differences = left
        .iter()
        .zip(right)
        .map(|(left, right)| left - right)
        .collect::<Vec<_>>();
    estimate(&differences)
}

/// Every cell once a round, in an order of its own each round: (round, cell), the same for the same
/// seed. Interleaving spreads what drifts (other guests, heat, caches) over all cells alike.
pub fn interleaved(cells: Range<usize>, rounds: u32, seed: u64) -> Vec<(u32, usize)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut order = Vec::new();
    for round in 0..rounds {
        let mut cells = cells.clone().collect::<Vec<_>>();
        random.shuffle(&mut cells);
        order.extend(cells.into_iter().map(|cell| (round, cell)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 1.0), 100.0);
        assert_eq!(percentile(&values, 0.99), 100.0);
        assert_eq!(percentile(&values, 0.5), 51.0);
    }

    #[test]
    fn medians_of_odd_even_and_no_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[1.0, f64::INFINITY, 2.0]), 2.0);
    }

    #[test]
    fn geometric_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!((geometric_mean(&[4.0, 0.25]) - 1.0).abs() < 1e-12);
        assert!(geometric_mean(&[]).is_nan());
    }

    #[test]
    fn an_interval_holds_its_median_and_is_the_same_each_time() {
        let samples = [5.0, 6.0, 5.5, 9.0, 5.2, 5.1, 5.3];
        let first = estimate(&samples);
        assert!(first.low <= first.median && first.median <= first.high);
        assert!(first.low >= 5.0 && first.high <= 9.0);
        assert_eq!(first, estimate(&samples));
    }

    #[test]
    fn intervals_cover_the_true_median_about_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(7);
        let trials = 200;
        let covered = (0..trials)
            .filter(|_| {
                let samples = (0..25).map(|_| random.f64()).collect::<Vec<_>>();
                let estimate = estimate(&samples);
                estimate.low <= 0.5 && 0.5 <= estimate.high
            })
            .count();
        assert!(covered >= trials * 88 / 100, "{covered} of {trials}");
    }

    #[test]
    fn pairs_cancel_what_slows_a_whole_round() {
        let slow = [1.0, 5.0, 1.0, 8.0];
        let above = slow.map(|round| round * 1.2);
        let ratio = paired_ratio(&above, &slow);
        assert!((ratio.median - 1.2).abs() < 1e-12 && ratio.high - ratio.low < 1e-12);
        assert_eq!(paired_difference(&[3.0, 4.0], &[1.0, 2.0]).median, 2.0);
    }

    #[test]
    fn each_round_has_each_cell_once_in_an_order_of_its_own() {
        let order = interleaved(0..8, 5, 1);
        assert_eq!(order, interleaved(0..8, 5, 1));
        assert_ne!(order, interleaved(0..8, 5, 2));
        for (round, cells) in order.chunks(8).enumerate() {
            let mut seen = cells.to_vec();
            seen.sort();
            let all = (0..8).map(|cell| (round as u32, cell)).collect::<Vec<_>>();
            assert_eq!(seen, all);
        }
        assert_ne!(
            order[..8].iter().map(|cell| cell.1).collect::<Vec<_>>(),
            order[8..16].iter().map(|cell| cell.1).collect::<Vec<_>>()
        );
    }
}
