//! Pipelines, and jobs.

use super::super::error::Fault;
use super::super::plan::{JobsPlan, MOST_THREADS, Op, PipelinePlan, StagePlan};
use super::super::spec::{Jobs, Pipeline, Stage};
use super::super::wait::StageThreads;
use super::numbers::{count, fault, product, spread, time};
use super::{Compiler, MOST_STARTS, MOST_UNITS, MS, Sum, US, name};
use std::ops::Range;
use toml::Spanned;

const MOST_STAGES: usize = 64;

impl Compiler {
    pub(super) fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        span: &Range<usize>,
        memory: usize,
    ) -> Result<Sum, Fault> {
        let items = count(&pipeline.items, 1..=MOST_UNITS, "items")?;
        let in_flight = pipeline.in_flight.as_ref();
        let in_flight = in_flight.map(|n| count(n, 1..=MOST_UNITS, "in_flight"));
        let in_flight = in_flight.transpose()?;
        if pipeline.stages.is_empty() || pipeline.stages.len() > MOST_STAGES {
            let reason = format!("a pipeline has 1 to {MOST_STAGES} stages");
            return Err(fault(span, reason));
        }
        let mut sum = Sum::NOTHING;
        let mut stages = Vec::new();
        let (mut fixed, mut team_stages) = (0u64, 0u32);
        for (index, spanned) in pipeline.stages.iter().enumerate() {
            let last = index + 1 == pipeline.stages.len();
            let stage = self.stage(spanned, items, last, memory)?;
            if index == 0 && spanned.get_ref().queue.is_some() {
                let reason = "nothing waits for the first stage: it makes the items";
                return Err(fault(&spanned.span(), reason));
            }
            let held = stage.unit.held_ns().saturating_mul(items);
            let work = Sum::work(stage.work_ns.saturating_add(held));
            let starts = u64::from(stage.threads.unwrap_or(self.team));
            sum = sum.and(Sum { starts, ..work });
            match stage.threads {
                Some(threads) => fixed += u64::from(threads),
                None => team_stages += 1,
            }
            stages.push(stage);
        }
        self.team_stages = self.team_stages.max(team_stages);
        self.few_enough(fixed, span)?;
        self.ops.push(Op::Pipeline(PipelinePlan {
            items,
            in_flight,
            stages,
        }));
        Ok(sum)
    }

    pub(super) fn stage(
        &mut self,
        spanned: &Spanned<Stage>,
        items: u64,
        last: bool,
        memory: usize,
    ) -> Result<StagePlan, Fault> {
        let (stage, span) = (spanned.get_ref(), spanned.span());
        name(&stage.name, &span)?;
        let threads = match stage.threads.as_ref().map(Spanned::get_ref) {
            None => Some(1),
            Some(StageThreads::Fixed(threads)) => Some(*threads),
            Some(StageThreads::Team) => None,
        };
        let ordered = stage.ordered.as_ref();
        let is_ordered = ordered.is_some_and(|o| *o.get_ref());
        if let Some(ordered) = ordered.filter(|_| is_ordered) {
            if !last || threads != Some(1) {
                let reason = "only the last stage can be ordered, with one thread";
                return Err(fault(&ordered.span(), reason));
            }
            if let Some(queue) = &stage.queue {
                let reason =
                    "an ordered stage has no bound of its own: bound the pipeline's in_flight";
                return Err(fault(&queue.span(), reason));
            }
        }
        let each = time(&stage.work_us, US, 1, "work_us")?;
        let queue = stage.queue.as_ref();
        Ok(StagePlan {
            name: stage.name.clone(),
            threads,
            work_ns: product(each, items, &stage.work_us.span())?,
            variation: spread(stage.variation.as_ref(), "variation")?,
            queue: queue
                .map(|n| count(n, 1..=MOST_UNITS, "queue"))
                .transpose()?,
            ordered: is_ordered,
            unit: self.unit(&stage.locks, stage.io_us.as_ref())?,
            demand: self.memory(&stage.memory, memory)?,
        })
    }

    pub(super) fn jobs(&mut self, jobs: &Jobs, demand: usize) -> Result<Sum, Fault> {
        let number = count(&jobs.count, 1..=MOST_STARTS, "count")?;
        let each = time(&jobs.work_ms, MS, 1, "work_ms")?;
        let work_ns = product(each, number, &jobs.work_ms.span())?;
        let waves = match (&jobs.wave, &jobs.every_ms) {
            (None, None) => None,
            (Some(wave), Some(every)) => Some((
                count(wave, 1..=MOST_STARTS, "wave")?,
                time(every, MS, 1, "every_ms")?,
            )),
            (Some(at), None) => {
                return Err(fault(
                    &at.span(),
                    "`wave` needs `every_ms`: when the next one comes",
                ));
            }
            (None, Some(at)) => {
                return Err(fault(
                    &at.span(),
                    "`every_ms` needs `wave`: how many come each time",
                ));
            }
        };
        let at_once = jobs.at_once.as_ref();
        let most = MOST_THREADS / self.processes;
        self.ops.push(Op::Jobs(JobsPlan {
            count: number,
            at_once: at_once.map(|n| count(n, 1..=most, "at_once")).transpose()?,
            work_ns,
            variation: spread(jobs.variation.as_ref(), "variation")?,
            waves,
            demand,
        }));
        let starts = number;
        Ok(Sum {
            starts,
            ..Sum::work(work_ns)
        })
    }
}
