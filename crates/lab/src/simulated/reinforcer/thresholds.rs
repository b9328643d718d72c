//! Choosing Thread Reinforcer's thresholds. Its paper chose them by three of its programs, and does not print
//! them. Here, of all combinations on a grid that lead most of these three to where the paper's search stopped,
//! and for its reasons, the one in the middle is taken: the least likely to be right by chance.

use corewise_decide::search::reinforcer::Thresholds;

/// What a threshold is tried at, in its unit.
const LOCK: [f64; 12] = [
    0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
];
const LOCK_CHANGE: [f64; 8] = [0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.17, 0.22];
const VCX_RATE: [f64; 4] = [100.0, 300.0, 1_000.0, 3_000.0];
const VCX_CHANGE: [f64; 8] = [50.0, 100.0, 200.0, 400.0, 800.0, 1_600.0, 3_200.0, 6_400.0];
const MIGRATION_CHANGE: [f64; 8] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
const CPU_UTIL_CHANGE: [f64; 10] = [
    0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07,
];

/// Every combination.
pub(super) fn all() -> impl Iterator<Item = Thresholds> {
    let last = CPU_UTIL_CHANGE.iter();
    last.flat_map(|&cpu_util_change| {
        MIGRATION_CHANGE.iter().flat_map(move |&migration_change| {
            VCX_CHANGE.iter().flat_map(move |&vcx_change| {
                VCX_RATE.iter().flat_map(move |&vcx_rate| {
                    LOCK_CHANGE.iter().flat_map(move |&lock_change| {
                        LOCK.iter().map(move |&lock| Thresholds {
                            lock,
                            lock_change,
                            vcx_rate,
                            vcx_change,
                            migration_change,
                            cpu_util_change,
                        })
                    })
                })
            })
        })
    })
}

/// A combination's six positions on the grid.
fn positions(of: &Thresholds) -> [f64; 6] {
    let at = |grid: &[f64], value: f64| {
        let position = grid.iter().position(|one| *one == value).unwrap_or(0);
        position as f64 / (grid.len() - 1) as f64
    };
    [
        at(&LOCK, of.lock),
        at(&LOCK_CHANGE, of.lock_change),
        at(&VCX_RATE, of.vcx_rate),
        at(&VCX_CHANGE, of.vcx_change),
        at(&MIGRATION_CHANGE, of.migration_change),
        at(&CPU_UTIL_CHANGE, of.cpu_util_change),
    ]
}

/// Of combinations that fit equally well, the one in their middle: nearest to the mean of their positions on
/// the grid. `None` of none.
pub(super) fn middle(fitting: &[Thresholds]) -> Option<Thresholds> {
    let count = fitting.len() as f64;
    let mut mean = [0.0; 6];
    for one in fitting {
        for (sum, at) in mean.iter_mut().zip(positions(one)) {
            *sum += at / count;
        }
    }
    let away = |one: &Thresholds| -> f64 {
        let pairs = positions(one).into_iter().zip(mean);
        pairs.map(|(at, mean)| (at - mean).powi(2)).sum()
    };
    let nearest = fitting.iter().min_by(|a, b| away(a).total_cmp(&away(b)));
    nearest.copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_fitting_thresholds_the_middle_one_is_chosen() {
        let with = |lock| Thresholds {
            lock,
            ..all().next().unwrap_or_default()
        };
        let fitting = [with(0.1), with(0.3), with(0.2)];
        assert_eq!(middle(&fitting).map(|t| t.lock), Some(0.2));
        assert_eq!(middle(&[]), None);
    }
}
