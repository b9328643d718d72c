//! Fitting what the kernel's work costs on this machine: a coordinate search, always the same.
//!
//! Some costs come only together in what is fitted on: where whoever is woken always comes to an idle CPU,
//! waking and its interrupt are one. So the machine file's figures, which are measured one by one, count too:
//! the search leaves them where that makes the workloads' times better, and not for nothing (`AWAY`).

use anyhow::Result;
use corewise_sim::machine::Costs;

/// A cost that is fitted, and the bounds within which it makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Fitted {
    /// Its key in a machine's file.
    pub name: &'static str,
    /// From, to; in nanoseconds.
    pub bounds: (u64, u64),
    get: fn(&Costs) -> u64,
    set: fn(&mut Costs, u64),
}

/// What is fitted. The tick is known (CONFIG_HZ), and with two CPUs of one L3 nothing else matters.
pub const FITTED: [Fitted; 8] = [
    Fitted {
        name: "idle_wake_ns",
        bounds: (500, 200_000),
        get: |costs| costs.idle_wake_ns,
        set: |costs, ns| costs.idle_wake_ns = ns,
    },
    Fitted {
        name: "nap_wake_ns",
        bounds: (500, 100_000),
        get: |costs| costs.nap_wake_ns,
        set: |costs, ns| costs.nap_wake_ns = ns,
    },
    Fitted {
        name: "idle_ipi_ns",
        bounds: (100, 30_000),
        get: |costs| costs.idle_ipi_ns,
        set: |costs, ns| costs.idle_ipi_ns = ns,
    },
    Fitted {
        name: "wake_ns",
        bounds: (300, 50_000),
        get: |costs| costs.wake_ns,
        set: |costs, ns| costs.wake_ns = ns,
    },
    Fitted {
        name: "switch_ns",
        bounds: (300, 20_000),
        get: |costs| costs.switch_ns,
        set: |costs, ns| costs.switch_ns = ns,
    },
    Fitted {
        name: "line_l3_ns",
        bounds: (20, 2_000),
        get: |costs| costs.line_l3_ns,
        set: |costs, ns| costs.line_l3_ns = ns,
    },
    Fitted {
        name: "spawn_ns",
        bounds: (5_000, 500_000),
        get: |costs| costs.spawn_ns,
        set: |costs, ns| costs.spawn_ns = ns,
    },
    Fitted {
        name: "yield_ns",
        bounds: (100, 5_000),
        get: |costs| costs.yield_ns,
        set: |costs, ns| costs.yield_ns = ns,
    },
];

/// A cost that is e times what it was is as bad as a root mean square error that grows from 0 to this.
const AWAY: f64 = 0.01;

/// Factors that are tried of each cost, a finer pair in each pass.
const STEPS: [f64; 4] = [4.0, 2.0, 1.4, 1.15];

impl Fitted {
    /// What it is.
    pub fn of(&self, costs: &Costs) -> u64 {
        (self.get)(costs)
    }

    fn times(&self, costs: &Costs, factor: f64) -> Costs {
        let mut costs = *costs;
        let ns = (self.of(&costs) as f64 * factor).round() as u64;
        (self.set)(&mut costs, ns.clamp(self.bounds.0, self.bounds.1));
        costs
    }
}

/// The costs, near `from`, for which `loss`, a root mean square error, is least: of each cost in turn larger
/// and smaller values are tried, and kept while they are better, in steps that become finer. With them
/// comes their loss.
///
/// # Errors
/// As `loss`.
pub fn fit(from: Costs, mut loss: impl FnMut(&Costs) -> Result<f64>) -> Result<(Costs, f64)> {
    let mut score =
        |costs: &Costs| Ok::<f64, anyhow::Error>(loss(costs)?.powi(2) + away(costs, &from));
    let mut best = (from, score(&from)?);
    for step in STEPS {
        for _ in 0..2 {
            let before = best.1;
            for cost in FITTED {
                for factor in [step, 1.0 / step] {
                    loop {
                        let next = cost.times(&best.0, factor);
                        if next == best.0 {
                            break;
                        }
                        let now = score(&next)?;
                        if now >= best.1 {
                            break;
                        }
                        best = (next, now);
                    }
                }
            }
            if best.1 == before {
                break;
            }
        }
    }
    let found = best.0;
    Ok((found, loss(&found)?))
}

/// How far costs are from where they were, as the square of an error.
fn away(costs: &Costs, from: &Costs) -> f64 {
    let ns = |cost: &Fitted, costs| cost.of(costs).max(1) as f64;
    let part = |cost: &Fitted| {
        let ratio = ns(cost, costs) / ns(cost, from);
        (AWAY * ratio.ln()).powi(2)
    };
    FITTED.iter().map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a model that is right at these costs.
    fn error(costs: &Costs, wanted: &Costs) -> f64 {
        away(costs, wanted).sqrt() / AWAY
    }

    #[test]
    fn the_least_value_is_found_in_a_smooth_valley() {
        let wanted = Costs {
            idle_wake_ns: 42_000,
            switch_ns: 900,
            line_l3_ns: 333,
            idle_ipi_ns: 5_000,
            ..Costs::default()
        };
        let (found, loss) = fit(Costs::default(), |costs| Ok(error(costs, &wanted))).unwrap();
        for cost in FITTED {
            let ratio = cost.of(&found) as f64 / cost.of(&wanted) as f64;
            assert!((0.9..1.1).contains(&ratio), "{} {ratio}", cost.name);
        }
        assert!(loss < 0.2);
    }

    #[test]
    fn a_cost_that_hardly_matters_is_left_as_it_was() {
        let hardly = |costs: &Costs| 0.02 - 1e-8 * costs.wake_ns as f64;
        let (found, _) = fit(Costs::default(), |costs| Ok(hardly(costs))).unwrap();
        assert_eq!(found, Costs::default());
    }

    #[test]
    fn costs_stay_within_their_bounds() {
        let (low, _) = fit(Costs::default(), |costs| Ok(costs.idle_wake_ns as f64)).unwrap();
        assert_eq!(low.idle_wake_ns, 500);
        let (high, _) = fit(Costs::default(), |costs| Ok(1e6 - costs.wake_ns as f64)).unwrap();
        assert_eq!(high.wake_ns, 50_000);
    }
}
