//! The Universal Scalability Law (N. J. Gunther, "Guerrilla Capacity Planning", 2007): the speed of N
//! threads is `λN / (1 + σ(N−1) + κN(N−1))`, σ for what is serial, κ for what is exchanged between
//! all pairs. It is linear after division: `N / speed = a + b(N−1) + cN(N−1)` with a, b, c ≥ 0, so it
//! is fitted by least squares without iteration.

/// A fitted curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usl {
    a: f64,
    b: f64,
    c: f64,
}

impl Usl {
    /// Fits to `(threads, speed)` points. With two points κ is taken as zero (Amdahl's law); with
    /// fewer than two different numbers there is no curve.
    pub fn fit(points: &[(u32, f64)]) -> Option<Usl> {
        let mut numbers: Vec<u32> = points.iter().map(|p| p.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() < 2 || points.iter().any(|p| p.1 <= 0.0 || p.0 == 0) {
            return None;
        }
        let rows: Vec<([f64; 3], f64)> = points
            .iter()
            .map(|&(n, speed)| {
                let n = f64::from(n);
                ([1.0, n - 1.0, n * (n - 1.0)], n / speed)
            })
            .collect();
        // Three unknowns that may not be negative: the best fit has some subset of them at zero, so
        // try the subsets and keep the best that is allowed. `a` is the time of one thread: never 0.
        let subsets: &[&[usize]] = if numbers.len() >= 3 {
            &[&[0, 1, 2], &[0, 1], &[0, 2], &[0]]
        } else {
            &[&[0, 1], &[0]]
        };
        subsets
            .iter()
            .filter_map(|subset| least_squares(&rows, subset))
            .filter(|(x, _)| x.iter().all(|v| *v >= 0.0) && x[0] > 0.0)
            .min_by(|p, q| p.1.total_cmp(&q.1))
            .map(|(x, _)| Usl {
                a: x[0],
                b: x[1],
                c: x[2],
            })
    }

    /// The speed of `threads` threads, in the unit of the points.
    pub fn speed(&self, threads: u32) -> f64 {
        let n = f64::from(threads);
        n / (self.a + self.b * (n - 1.0) + self.c * n * (n - 1.0))
    }
}

/// Solves the normal equations for the unknowns in `subset`; the others are zero. Residuals are
/// weighed relative to the right side, since speeds are compared as ratios.
fn least_squares(rows: &[([f64; 3], f64)], subset: &[usize]) -> Option<([f64; 3], f64)> {
    let k = subset.len();
    let mut m = vec![vec![0.0; k + 1]; k];
    for (x, y) in rows {
        for (i, &p) in subset.iter().enumerate() {
            for (j, &q) in subset.iter().enumerate() {
                m[i][j] += x[p] * x[q] / (y * y);
            }
            m[i][k] += x[p] / y;
        }
    }
    for i in 0..k {
        let pivot = (i..k).max_by(|&p, &q| m[p][i].abs().total_cmp(&m[q][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-12 {
            return None;
        }
        for r in 0..k {
            if r != i {
                let factor = m[r][i] / m[i][i];
                let pivot_row = m[i].clone();
                for (cell, p) in m[r].iter_mut().zip(&pivot_row).skip(i) {
                    *cell -= factor * p;
                }
            }
        }
    }
    let mut solution = [0.0; 3];
    for (i, &p) in subset.iter().enumerate() {
        solution[p] = m[i][k] / m[i][i];
    }
    let residual = rows
        .iter()
        .map(|(x, y)| {
            let fitted: f64 = x.iter().zip(&solution).map(|(a, b)| a * b).sum();
            ((fitted - y) / y).powi(2)
        })
        .sum();
    Some((solution, residual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_made_by_the_law_is_found_again() {
        let truth = |n: f64| 2.0 * n / (1.0 + 0.05 * (n - 1.0) + 0.002 * n * (n - 1.0));
        let points: Vec<(u32, f64)> = [1, 4, 8, 16, 24]
            .iter()
            .map(|&n| (n, truth(f64::from(n))))
            .collect();
        let fit = Usl::fit(&points).unwrap();
        for n in [2, 12, 32] {
            let (found, true_speed) = (fit.speed(n), truth(f64::from(n)));
            assert!((found / true_speed - 1.0).abs() < 1e-6, "{n}: {found}");
        }
    }

    #[test]
    fn two_points_give_amdahls_law() {
        let fit = Usl::fit(&[(1, 1.0), (4, 2.0)]).unwrap();
        assert!((fit.speed(1) - 1.0).abs() < 1e-9);
        assert!((fit.speed(4) - 2.0).abs() < 1e-9);
        assert!(fit.speed(64) < 3.1 && fit.speed(64) > 2.5);
    }

    #[test]
    fn a_superlinear_curve_is_fitted_without_negative_terms() {
        let fit = Usl::fit(&[(1, 1.0), (2, 2.5), (4, 6.0)]).unwrap();
        assert!(fit.speed(8) > fit.speed(4));
    }

    #[test]
    fn one_number_is_no_curve() {
        assert_eq!(Usl::fit(&[(2, 1.0), (2, 1.1)]), None);
        assert_eq!(Usl::fit(&[(1, 1.0), (2, 0.0)]), None);
    }
}
