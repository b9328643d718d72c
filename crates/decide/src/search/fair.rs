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

/// A program that wants its share has at least this part of it, or the kernel shares CPUs out differently here.
const HELD: f64 = 0.75;

/// It wants its share if it uses, or waits for, at least this part of it.
const WANTED: f64 = 0.9;

/// Where more than this is idle, a thread that waits has only not been moved there yet.
const NOT_IDLE: f64 = 0.15;

/// What a program used for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Its threads.
    pub threads: u32,
    /// CPUs that it used.
    pub cpu_util: f64,
    /// Threads that waited for a CPU, on average.
    pub cpu_wait: f64,
    /// CPUs that were idle.
    pub idle: f64,
}

/// Whether a program was denied the share that [`fair_share`] promised. Beside groups whose threads sleep and wake up
/// thousands of times a second (a database server and its clients), a kernel may give a busy thread next to
/// nothing of the CPU that it shares with them: then the share is what more threads can get.
pub fn is_denied(fair: f64, used: &Used) -> bool {
    let share = f64::from(used.threads).min(fair);
    let wanted = used.cpu_util + used.cpu_wait >= WANTED * share;
    wanted && used.cpu_util < HELD * share && used.idle < NOT_IDLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_its_share_is_denied_it_and_who_sleeps_is_not() {
        let used = |threads, cpu_util, cpu_wait, idle| Used {
            threads,
            cpu_util,
            cpu_wait,
            idle,
        };
        assert!(is_denied(1.0, &used(1, 0.4, 0.6, 0.0)));
        assert!(!is_denied(1.0, &used(1, 0.9, 0.1, 0.0)));
        assert!(
            !is_denied(1.0, &used(1, 0.4, 0.1, 0.0)),
            "it does not want more"
        );
        assert!(
            !is_denied(1.0, &used(1, 0.5, 0.5, 0.9)),
            "there is an idle CPU"
        );
        assert!(
            !is_denied(1.0, &used(2, 0.98, 1.0, 0.0)),
            "it has what one CPU is worth"
        );
        assert!(!is_denied(3.0, &used(2, 1.9, 0.1, 0.0)));
    }

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
