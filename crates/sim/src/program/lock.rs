//! Locks and semaphores.
//!
//! A lock is as one on a futex: whoever gives it back lets one that waits try again, and the lock is free
//! until then, so that another one who comes may have it first (barging). Of those who spin, one that has
//! a CPU sees that it is free; only where none does, the one that has waited longest is let go.
//!
//! A *fifo* lock is a ticket lock: it goes to the one that has waited longest, whether or not that one has a
//! CPU, and nobody else can have it before.

use super::task::{Context, Id, On, Tasks};
use crate::kernel::ThreadState;
use std::collections::VecDeque;

/// Of those that wait, so many are looked at for one that spins on a CPU: bounds the cost.
const LOOKED_AT: usize = 16;

#[derive(Clone, Debug, Default)]
struct Lock {
    holder: Option<Id>,
    /// The holder was given it while it waited, and has yet to see that.
    handed_over: bool,
    waiting: VecDeque<Id>,
}

/// A process's locks.
#[derive(Clone, Debug)]
pub(super) struct Locks(Vec<Lock>);

impl Locks {
    pub(super) fn new(count: usize) -> Locks {
        Locks(vec![Lock::default(); count])
    }

    pub(super) fn holder(&self, lock: usize) -> Option<Id> {
        self.0.get(lock)?.holder
    }

    /// Whether the thread has the lock now; otherwise it waits, and tries again when it goes on.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, id: Id, lock: usize) -> bool {
        let own = &mut self.0[lock];
        let handed_over = own.holder == Some(id) && std::mem::take(&mut own.handed_over);
        if own.holder.is_none() || handed_over {
            own.holder = Some(id);
            return true;
        }
        own.waiting.push_back(id);
        cx.wait(id, cx.plan.locks[lock].wait, On::Lock(lock));
        if let Some(circle) = self.circle(cx.tasks, id) {
            cx.tasks.found_circle(circle);
        }
        false
    }

    pub(super) fn give_back(&mut self, cx: &mut Context<'_>, id: Id, lock: usize) {
        let own = &mut self.0[lock];
        own.holder = None;
        if cx.plan.locks[lock].fifo {
            own.holder = own.waiting.pop_front();
            own.handed_over = own.holder.is_some();
            if let Some(next) = own.holder {
                cx.release(next, Some(id));
            }
            return;
        }
        let spins_on_cpu = |waiting: &Id| {
            let task = cx.tasks.get(*waiting);
            let state = || cx.kernel.thread(task.thread).state;
            !task.is_asleep() && state() == Some(ThreadState::Running)
        };
        let next = own.waiting.iter().take(LOOKED_AT).position(spins_on_cpu);
        if let Some(next) = own.waiting.remove(next.unwrap_or(0)) {
            cx.release(next, Some(id));
        }
    }

    /// Threads that wait for each other, if `id` is one of them: each for a lock that the next one holds.
    pub(super) fn circle(&self, tasks: &Tasks, id: Id) -> Option<Vec<Id>> {
        let mut circle = vec![id];
        let mut at = id;
        // A chain without a circle ends after as many locks as there are.
        for _ in 0..self.0.len() {
            let Some(On::Lock(lock)) = tasks.get(at).waits_on() else {
                return None;
            };
            at = self.holder(lock)?;
            if at == id {
                return Some(circle);
            }
            circle.push(at);
        }
        None
    }
}

/// Counts what was posted and not yet waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct Semaphore {
    posted: u64,
    waiting: VecDeque<Id>,
}

impl Semaphore {
    /// Whether the thread can go on; otherwise it waits until somebody posts for it.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>, id: Id, semaphore: usize) -> bool {
        if self.posted > 0 {
            self.posted -= 1;
            return true;
        }
        self.waiting.push_back(id);
        cx.wait(id, super::WaitPolicy::BLOCK, On::Semaphore(semaphore));
        false
    }

    pub(super) fn post(&mut self, cx: &mut Context<'_>, by: Id) {
        match self.waiting.pop_front() {
            Some(next) => cx.release(next, Some(by)),
            None => self.posted += 1,
        }
    }
}
