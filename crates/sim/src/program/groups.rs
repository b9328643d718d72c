//! Groups of threads that do steps.

use super::lock::{Locks, Semaphore};
use super::plan::{GroupPlan, StepPlan};
use super::task::{Context, Id, Role};

/// Where a group's thread is.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtSteps {
    /// The groups' place in the plan.
    pub(super) op: usize,
    pub(super) group: usize,
    /// Its number within the group.
    pub(super) index: u32,
    round: u64,
    step: usize,
    /// It has waited for a post, and goes on because of one.
    waited: bool,
}

/// Starts the threads of all groups; how many.
pub(super) fn start(
    cx: &mut Context<'_>,
    (op, groups): (usize, &[GroupPlan]),
    process: usize,
    leader: Id,
) -> u32 {
    for (group, plan) in groups.iter().enumerate() {
        for index in 0..plan.threads {
            let role = Role::Member(AtSteps {
                op,
                group,
                index,
                round: 0,
                step: 0,
                waited: false,
            });
            cx.start(process, role, Some(leader), plan.demand);
        }
    }
    groups.iter().map(|plan| plan.threads).sum()
}

/// A group's thread goes on. Whether it has been told something; otherwise it has ended. Counts rounds in
/// `done`.
pub(super) fn go_on(
    cx: &mut Context<'_>,
    (locks, semaphores): (&mut Locks, &mut [Semaphore]),
    id: Id,
    at: AtSteps,
    groups: &[GroupPlan],
    done: &mut u64,
) -> bool {
    let mut at = at;
    let plan = &groups[at.group];
    loop {
        let Some(step) = plan.steps.get(at.step) else {
            *done += 1;
            at.round += 1;
            at.step = 0;
            if plan.repeat == Some(at.round) {
                cx.exit(id);
                return false;
            }
            continue;
        };
        // Whether the step is done, or will be when the thread goes on; and whether it is told something.
        let (done, told) = match *step {
            StepPlan::Work(ns) => {
                cx.run(id, ns);
                (true, true)
            }
            StepPlan::Pause(ns, why) => {
                cx.pause(id, ns, why);
                (true, true)
            }
            StepPlan::Lock(lock) => {
                let has = locks.take(cx, id, lock);
                (has, !has)
            }
            StepPlan::Unlock(lock) => {
                locks.give_back(cx, id, lock);
                (true, false)
            }
            StepPlan::Post(semaphore) => {
                semaphores[semaphore].post(cx, id);
                (true, false)
            }
            StepPlan::Wait(_) if std::mem::take(&mut at.waited) => (true, false),
            StepPlan::Wait(semaphore) => {
                let goes_on = semaphores[semaphore].wait(cx, id, semaphore);
                at.waited = !goes_on;
                (goes_on, !goes_on)
            }
        };
        at.step += usize::from(done);
        if told {
            cx.tasks.get_mut(id).role = Role::Member(at);
            return true;
        }
    }
}
