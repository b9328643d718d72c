//! What to choose where no probe can be made, and what past runs suggest to try first: by rules, from
//! what is known without running the program.

use super::{Choice, NEIGHBOUR_MIN, Objective, Space, StopReason};
use crate::setting::{Setting, WaitPolicy};

/// What is known of a program from past runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    /// What was chosen then.
    pub setting: Setting,
    /// CPUs that others used then.
    pub others: f64,
    /// Whether its threads spun.
    pub spins: bool,
}

/// The setting to try first, given `past` of the same program on another input or beside another
/// load. A program that spins wants only CPUs that are free; one that does not, all.
pub fn prior(space: &Space, past: &Past) -> Setting {
    if (past.others - space.others).abs() < 0.5 {
        return past.setting;
    }
    let threads = if past.spins && space.others >= NEIGHBOUR_MIN {
        space.free_cpus(space.others)
    } else {
        space.one_per_cpu()
    };
    Setting {
        threads: threads.clamp(space.min, space.max),
        wait: past.setting.wait,
    }
}

/// The choice for a program that cannot be probed. `may_spin`: it has a runtime whose threads spin
/// while they wait.
///
/// Without neighbours, one thread for each CPU. Beside neighbours, a program that may spin gets the
/// CPUs that are free and waits passively where it can; others keep one thread for each CPU that their
/// scheduling group gets, and the kernel shares the CPUs out.
pub fn choice(space: &Space, may_spin: bool) -> Choice {
    let crowded = space.others >= NEIGHBOUR_MIN;
    let threads = if space.objective == Objective::Share || (crowded && may_spin) {
        space.free_cpus(space.others)
    } else {
        space.one_per_cpu()
    };
    let threads = threads.min(space.most_by_group().unwrap_or(u32::MAX));
    let passive = crowded && may_spin && space.passive && threads > 1;
    Choice {
        setting: Setting {
            threads: threads.clamp(space.min, space.max),
            wait: if passive {
                WaitPolicy::Passive
            } else {
                WaitPolicy::Default
            },
        },
        stop: StopReason::Blind,
        confidence: if crowded { 0.4 } else { 0.6 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(others: f64) -> Space {
        Space {
            others,
            passive: true,
            ..Space::for_cpus(4.0)
        }
    }

    #[test]
    fn beside_another_scheduling_group_nobody_gets_more_than_the_own_group_has() {
        let space = Space {
            fair: 3.0,
            ..beside(1.0)
        };
        assert_eq!(choice(&space, false).setting, Setting::threads(3));
    }

    #[test]
    fn alone_a_program_gets_one_thread_for_each_cpu() {
        assert_eq!(choice(&beside(0.0), true).setting, Setting::threads(4));
    }

    #[test]
    fn beside_a_neighbour_what_may_spin_gets_the_free_cpus_and_sleeps_while_it_waits() {
        assert_eq!(choice(&beside(1.0), true).setting, Setting::passive(3));
        assert_eq!(choice(&beside(1.0), false).setting, Setting::threads(4));
    }

    #[test]
    fn a_full_machine_still_gives_one_thread() {
        assert_eq!(choice(&beside(4.0), true).setting, Setting::threads(1));
    }

    #[test]
    fn a_spinner_known_from_a_quiet_machine_is_tried_on_the_free_cpus() {
        let past = Past {
            setting: Setting::threads(4),
            others: 0.0,
            spins: true,
        };
        assert_eq!(prior(&beside(1.0), &past), Setting::threads(3));
        assert_eq!(prior(&beside(0.0), &past), Setting::threads(4));
        let worker = Past {
            spins: false,
            ..past
        };
        assert_eq!(prior(&beside(1.0), &worker), Setting::threads(4));
    }
}
