//! What the programs of a manager want and are, together: as one program of an outer manager.

use crate::members::MOST_MEMBERS;
use corewise_abi::message::{Placement, Request, Wants};
use corewise_decide::global::MOST_THREADS;
use corewise_decide::status::Status;

/// What this manager's programs want and are, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Threads that they can use; at least 1.
    pub(super) most: u32,
    /// Threads that they have, as far as they have said.
    pub(super) threads: u32,
    /// Threads that they could use now.
    pub(super) could_use: u32,
    /// Workers that are blocked.
    pub(super) blocked: u32,
    /// Their processes.
    pub(super) members: Vec<i32>,
}

impl Sum {
    /// Of all programs.
    pub(crate) fn of(status: &Status) -> Sum {
        let mut sum = Sum::default();
        for program in status.programs.values() {
            let most = program.wants.max_threads;
            let granted = program.claim.as_ref().map_or(0, |claim| claim.threads);
            let has = match program.threads {
                0 => granted,
                said => said,
            };
            let could_use = program.could_use.map_or(most, |could| could.min(most));
            sum.most = sum.most.saturating_add(most);
            sum.threads = sum.threads.saturating_add(has);
            sum.could_use = sum.could_use.saturating_add(could_use);
            sum.blocked = sum.blocked.saturating_add(program.blocked);
            if sum.members.len() < MOST_MEMBERS {
                sum.members.push(program.pid);
            }
        }
        // Two of a process's libraries may have joined.
        sum.members.sort_unstable();
        sum.members.dedup();
        sum
    }

    pub(super) fn wants(&self) -> Wants {
        Wants {
            min_threads: 1,
            max_threads: self.most.clamp(1, MOST_THREADS),
            placement: Placement::Any,
            malleable: true,
        }
    }

    /// What is answered if one thread more or less is to be run.
    pub(super) fn would(&self, what: Request, granted: u32) -> bool {
        match what {
            Request::Expand => granted < self.most && granted < self.could_use,
            Request::Shrink => granted > 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::status::{Claim, Program, ProgramId};

    fn program(pid: i32, max_threads: u32, threads: u32) -> Program {
        let wants = Wants {
            min_threads: max_threads,
            max_threads,
            placement: Placement::Compact,
            malleable: false,
        };
        Program {
            pid,
            name: String::new(),
            wants,
            claim: Some(Claim {
                threads: 2,
                ..Claim::default()
            }),
            group: None,
            spins: false,
            waits: None,
            overridden: false,
            joined_ns: 0,
            threads,
            could_use: None,
            blocked: 1,
            uses: None,
            progress_rate: None,
        }
    }

    fn status(programs: Vec<Program>) -> Status {
        Status {
            programs: (1..).map(ProgramId).zip(programs).collect(),
            ..Status::default()
        }
    }

    #[test]
    fn a_manager_wants_what_its_programs_want_and_demands_one_thread() {
        let mut third = program(8, 5, 0);
        third.could_use = Some(3);
        let sum = Sum::of(&status(vec![program(9, 4, 6), program(8, 2, 0), third]));
        let wants = sum.wants();
        assert_eq!((wants.min_threads, wants.max_threads), (1, 11));
        assert!(wants.malleable);
        assert_eq!((sum.threads, sum.could_use, sum.blocked), (10, 9, 3));
        assert_eq!(sum.members, [8, 9], "each process once");
    }

    #[test]
    fn sums_are_bounded_and_without_programs_there_is_still_one_thread() {
        assert_eq!(Sum::of(&status(vec![])).wants().max_threads, 1);
        let huge = (0..1_000).map(|pid| program(pid, u32::MAX, u32::MAX));
        let sum = Sum::of(&status(huge.collect()));
        assert_eq!(sum.wants().max_threads, MOST_THREADS);
        assert_eq!(sum.members.len(), MOST_MEMBERS);
    }

    #[test]
    fn one_thread_more_is_run_if_somebody_can_use_it_and_one_always_stays() {
        let mut idle = program(8, 8, 0);
        idle.could_use = Some(2);
        let sum = Sum::of(&status(vec![idle]));
        assert!(sum.would(Request::Expand, 1) && !sum.would(Request::Expand, 2));
        assert!(sum.would(Request::Shrink, 2) && !sum.would(Request::Shrink, 1));
    }
}
