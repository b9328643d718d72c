//! What the scheduler gives to a group in the long run.
//!
//! Linux shares CPUs out among *groups* first (a session where autogroup is on, a cgroup with a weight),
//! and within a group among its threads. Beside a neighbour in another group, threads beyond the group's
//! share win nothing: for a moment one of them may have a part of the neighbour's CPU, until the load is
//! balanced, and then they take turns on what the group has. Nine of nine real programs on two CPUs were
//! no faster with two threads than with one beside a busy process in another session, and four of them
//! were slower by 14 % and more.

/// CPUs that a group gets if it wants all, where the other groups want `others` (1.0 = one CPU busy): each
/// gets what it wants, but none more than what is equal for all who want more. All weights are equal.
///
/// Cost: sorts the groups.
pub fn fair_share(cpus: f64, others: &[f64]) -> f64 {
    let mut others: Vec<f64> = others.iter().copied().filter(|use_| *use_ > 0.0).collect();
    others.sort_by(f64::total_cmp);
    let mut left = cpus;
    let mut waiting = others.len() as f64 + 1.0;
    for wanted in others {
        let equal = left / waiting;
        if wanted >= equal {
            return equal;
        }
        left -= wanted;
        waiting -= 1.0;
    }
    left.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_group_does_not_want_is_left() {
        assert_eq!(fair_share(2.0, &[]), 2.0);
        assert_eq!(fair_share(2.0, &[1.0]), 1.0);
        assert_eq!(fair_share(24.0, &[1.0, 2.5]), 20.5);
    }

    #[test]
    fn no_group_gets_more_than_what_is_equal_for_all() {
        // A build with a thread for each CPU has half of the machine, not all.
        assert_eq!(fair_share(24.0, &[24.0]), 12.0);
        assert_eq!(fair_share(24.0, &[24.0, 2.0]), 11.0);
        assert_eq!(fair_share(2.0, &[1.0, 1.0, 1.0]), 0.5);
    }
}
