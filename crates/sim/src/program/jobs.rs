//! One-thread processes that a program starts and waits for.

use super::plan::JobsPlan;
use super::share::Cut;
use super::task::{Context, Id, On, Role};
use super::unit::Unit;
use super::wait::WaitPolicy;
use crate::kernel::Why;

/// Jobs that run.
#[derive(Debug)]
pub(super) struct Running {
    seed: u64,
    began_ns: u64,
    started: u64,
    running: u32,
}

impl Running {
    pub(super) fn new(cx: &Context<'_>, seed: u64) -> Running {
        Running {
            seed,
            began_ns: cx.kernel.now(),
            started: 0,
            running: 0,
        }
    }

    /// The leader goes on. Whether it has been told something; otherwise all jobs have ended.
    pub(super) fn go_on(
        &mut self,
        cx: &mut Context<'_>,
        plan: &JobsPlan,
        process: usize,
        leader: Id,
        team: u32,
    ) -> bool {
        let at_once = plan.at_once.unwrap_or(team).max(1);
        while self.started < plan.count {
            if let Some((wave, every_ns)) = plan.waves {
                let comes_ns = every_ns.saturating_mul(self.started / wave);
                let comes_ns = self.began_ns.saturating_add(comes_ns);
                if cx.kernel.now() < comes_ns {
                    cx.pause_until(leader, comes_ns, Why::Sleep);
                    return true;
                }
            }
            if self.running >= at_once {
                cx.wait(leader, WaitPolicy::BLOCK, On::Children);
                return true;
            }
            let job = cx.start(process, Role::Job(self.started), Some(leader), plan.demand);
            let cut = Cut {
                total: plan.work_ns,
                pieces: plan.count,
                spread: plan.variation,
                seed: self.seed,
            };
            cx.tasks.get_mut(job).unit = Unit::of(cut.size(self.started));
            self.started += 1;
            self.running += 1;
        }
        if self.running > 0 {
            cx.wait(leader, WaitPolicy::BLOCK, On::Children);
        }
        self.running > 0
    }

    /// A job has ended.
    pub(super) fn ended(&mut self, cx: &mut Context<'_>, leader: Id, by: Id) {
        self.running -= 1;
        if cx.tasks.get(leader).waits_on() == Some(On::Children) {
            cx.release(leader, Some(by));
        }
    }
}
