//! Groups of threads and their steps.

use super::super::error::Fault;
use super::super::plan::{GroupPlan, MOST_THREADS, Op, StepPlan};
use super::super::spec::{Group, Step};
use super::super::wait::Repeat;
use super::numbers::{count, fault, time};
use super::{Compiler, MOST_REPEATS, Sum, US, name};
use crate::kernel::Why;
use std::ops::Range;
use toml::Spanned;

const MOST_GROUPS: usize = 256;
const MOST_STEPS: usize = 4096;

impl Compiler {
    pub(super) fn groups(
        &mut self,
        groups: &[Spanned<Group>],
        span: &Range<usize>,
        demand: usize,
    ) -> Result<Sum, Fault> {
        if groups.is_empty() || groups.len() > MOST_GROUPS {
            let reason = format!("a phase has 1 to {MOST_GROUPS} groups");
            return Err(fault(span, reason));
        }
        let mut plans = Vec::new();
        let mut sum = Sum::NOTHING;
        for group in groups {
            let (plan, of_group) = self.group(group, demand)?;
            plans.push(plan);
            sum = sum.and(of_group);
        }
        self.few_enough(sum.starts, span)?;
        self.ops.push(Op::Groups(plans));
        Ok(sum)
    }

    fn group(
        &mut self,
        spanned: &Spanned<Group>,
        demand: usize,
    ) -> Result<(GroupPlan, Sum), Fault> {
        let (group, span) = (spanned.get_ref(), spanned.span());
        name(&group.name, &span)?;
        let threads = group.threads.as_ref();
        let threads = threads.map(|n| count(n, 1..=MOST_THREADS, "threads"));
        let threads = threads.transpose()?.unwrap_or(1);
        if group.steps.is_empty() || group.steps.len() > MOST_STEPS {
            let reason = format!("a group has 1 to {MOST_STEPS} steps");
            return Err(fault(&span, reason));
        }
        let mut held = Vec::new();
        let mut steps = Vec::new();
        for step in &group.steps {
            let plan = self.step(step)?;
            match plan {
                StepPlan::Lock(lock) => held.push(lock),
                StepPlan::Unlock(lock) => match held.iter().rposition(|h| *h == lock) {
                    Some(index) => drop(held.remove(index)),
                    None => {
                        let reason = "the thread does not hold this lock here";
                        return Err(fault(&step.span(), reason));
                    }
                },
                _ => {}
            }
            steps.push(plan);
        }
        let repeat = match group.repeat.as_ref().map(|r| (*r.get_ref(), r.span())) {
            None => Some(1),
            Some((Repeat::Forever, _)) => None,
            Some((Repeat::Times(times), _)) if times <= MOST_REPEATS => Some(times),
            Some((_, span)) => {
                let reason = format!("at most {MOST_REPEATS} times, or \"forever\"");
                return Err(fault(&span, reason));
            }
        };
        let takes_time = |step: &StepPlan| matches!(step, StepPlan::Work(_) | StepPlan::Pause(..));
        if repeat != Some(1) && !steps.iter().any(takes_time) {
            let reason = "steps that repeat must take time: add work_us, sleep_us or io_us";
            return Err(fault(&span, reason));
        }
        let work = steps.iter().map(|step| match step {
            StepPlan::Work(ns) => *ns,
            _ => 0,
        });
        let work = work.fold(0, u64::saturating_add);
        let work = work.saturating_mul(u64::from(threads));
        let sum = Sum {
            work_ns: repeat.map(|times| work.saturating_mul(times)),
            starts: u64::from(threads),
        };
        let plan = GroupPlan {
            name: group.name.clone(),
            threads,
            repeat,
            steps,
            demand,
        };
        Ok((plan, sum))
    }

    fn step(&mut self, spanned: &Spanned<Step>) -> Result<StepPlan, Fault> {
        let (step, span) = (spanned.get_ref(), spanned.span());
        let mut plans = Vec::new();
        if let Some(us) = &step.work_us {
            plans.push(StepPlan::Work(time(us, US, 1, "work_us")?));
        }
        if let Some(us) = &step.sleep_us {
            plans.push(StepPlan::Pause(time(us, US, 1, "sleep_us")?, Why::Sleep));
        }
        if let Some(us) = &step.io_us {
            plans.push(StepPlan::Pause(time(us, US, 1, "io_us")?, Why::Io));
        }
        if let Some(lock) = &step.lock {
            plans.push(StepPlan::Lock(self.lock(lock.get_ref(), &lock.span())?));
        }
        if let Some(lock) = &step.unlock {
            plans.push(StepPlan::Unlock(self.lock(lock.get_ref(), &lock.span())?));
        }
        if let Some(post) = &step.wait {
            plans.push(StepPlan::Wait(self.semaphore(post)?));
        }
        if let Some(post) = &step.post {
            plans.push(StepPlan::Post(self.semaphore(post)?));
        }
        match plans.as_slice() {
            [plan] => Ok(*plan),
            _ => {
                let reason = "a step says exactly one of work_us, lock, unlock, wait, post, sleep_us, \
                              io_us";
                Err(fault(&span, reason))
            }
        }
    }

    fn semaphore(&mut self, spanned: &Spanned<String>) -> Result<usize, Fault> {
        name(spanned.get_ref(), &spanned.span())?;
        let next = self.semaphores.len();
        Ok(*self
            .semaphores
            .entry(spanned.get_ref().clone())
            .or_insert(next))
    }
}
