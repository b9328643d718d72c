//! A pipeline: stages with threads of their own, and bounded queues between them.
//!
//! Queues are a lock and two condition variables: whoever puts an item wakes one that waits for it, who
//! looks again when it runs, as others may have been faster. An ordered last stage keeps what comes early
//! in a buffer, which is bounded because the first stage begins no item while too many are under way;
//! bounding the buffer itself could deadlock, if all threads before it held later items.

use super::lock::Locks;
use super::plan::{PipelinePlan, StagePlan};
use super::share::Cut;
use super::task::{Context, Id, On, Role};
use super::unit::{self, Unit};
use super::wait::WaitPolicy;
use std::collections::{BTreeSet, VecDeque};

/// Where a stage's thread is.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtStage {
    /// The pipeline's place in the plan.
    pub(super) op: usize,
    pub(super) stage: usize,
    /// Its number within the stage.
    pub(super) index: u32,
    pub(super) item: u64,
    does: Does,
}

#[derive(Clone, Copy, Debug)]
enum Does {
    Take,
    Work,
    Put,
}

/// What waits for a stage.
#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<u64>,
    /// Of an ordered stage.
    early: BTreeSet<u64>,
    bound: u64,
    takers: VecDeque<Id>,
    putters: VecDeque<Id>,
    /// Threads of the stage before.
    feeding: u32,
}

/// A pipeline that runs.
#[derive(Debug)]
pub(super) struct Flow {
    /// One for each stage; nothing waits for the first one.
    queues: Vec<Queue>,
    seed: u64,
    /// Items that were begun, and that have left the last stage.
    begun: u64,
    finished: u64,
    in_flight: u64,
    /// Threads of the first stage that wait for others to finish items.
    waiting: VecDeque<Id>,
}

impl Flow {
    /// Starts the threads of all stages; how many.
    pub(super) fn start(
        cx: &mut Context<'_>,
        (op, plan): (usize, &PipelinePlan),
        process: usize,
        leader: Id,
        team: u32,
        seed: u64,
    ) -> (Flow, u32) {
        let threads = |stage: &StagePlan| stage.threads.unwrap_or(team);
        let mut queues = Vec::new();
        let mut feeding = 0;
        let (mut all, mut places) = (0u64, 0u64);
        for stage in &plan.stages {
            let own = threads(stage);
            let bound = stage.queue.unwrap_or(2 * u64::from(own));
            all += u64::from(own);
            places = places.saturating_add(bound);
            queues.push(Queue {
                bound,
                feeding,
                ..Queue::default()
            });
            feeding = own;
        }
        let is_ordered = plan.stages.last().is_some_and(|stage| stage.ordered);
        let room = match is_ordered {
            true => places.saturating_add(all),
            false => u64::MAX,
        };
        for (stage, plan) in plan.stages.iter().enumerate() {
            for index in 0..threads(plan) {
                let role = Role::Stage(AtStage {
                    op,
                    stage,
                    index,
                    item: 0,
                    does: Does::Take,
                });
                cx.start(process, role, Some(leader), plan.demand);
            }
        }
        let flow = Flow {
            queues,
            seed,
            begun: 0,
            finished: 0,
            in_flight: plan.in_flight.unwrap_or(room),
            waiting: VecDeque::new(),
        };
        (flow, all as u32)
    }

    /// A stage's thread goes on. Whether it has been told something; otherwise it has ended.
    pub(super) fn go_on(
        &mut self,
        cx: &mut Context<'_>,
        locks: &mut Locks,
        id: Id,
        at: AtStage,
        plan: &PipelinePlan,
    ) -> bool {
        let mut at = at;
        let own = &plan.stages[at.stage];
        loop {
            let goes_on = match at.does {
                Does::Take => match self.take(cx, id, at.stage, plan) {
                    Taken::Item(item) => {
                        at.item = item;
                        at.does = Does::Work;
                        cx.tasks.get_mut(id).unit = Unit::of(self.work(own, plan, item, at.stage));
                        true
                    }
                    Taken::Waits => false,
                    Taken::NoMore => {
                        self.leave(cx, id, at.stage);
                        return false;
                    }
                },
                Does::Work => {
                    let told = unit::go_on(cx, locks, id, &own.unit);
                    if !told {
                        at.does = Does::Put;
                    }
                    !told
                }
                Does::Put => {
                    let put = self.put(cx, id, at, plan);
                    if put {
                        at.does = Does::Take;
                    }
                    put
                }
            };
            if !goes_on {
                cx.tasks.get_mut(id).role = Role::Stage(at);
                return true;
            }
        }
    }

    /// Items that have left the last stage.
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// The longest that a bounded queue is now, against its bound.
    #[cfg(test)]
    pub(super) fn is_within_bounds(&self) -> bool {
        let fits = |queue: &Queue| queue.items.len() as u64 <= queue.bound;
        self.queues.iter().all(fits) && self.begun - self.finished <= self.in_flight
    }

    fn work(&self, stage: &StagePlan, plan: &PipelinePlan, item: u64, index: usize) -> u64 {
        let cut = Cut {
            total: stage.work_ns,
            pieces: plan.items,
            spread: stage.variation,
            seed: self.seed.wrapping_add(index as u64),
        };
        cut.size(item)
    }

    fn take(&mut self, cx: &mut Context<'_>, id: Id, stage: usize, plan: &PipelinePlan) -> Taken {
        if stage == 0 {
            if self.begun == plan.items {
                return Taken::NoMore;
            }
            if self.begun - self.finished >= self.in_flight {
                self.waiting.push_back(id);
                cx.wait(id, WaitPolicy::BLOCK, On::Window);
                return Taken::Waits;
            }
            self.begun += 1;
            return Taken::Item(self.begun - 1);
        }
        let ordered = plan.stages[stage].ordered;
        let queue = &mut self.queues[stage];
        let item = match ordered {
            true => queue.early.take(&self.finished),
            false => queue.items.pop_front(),
        };
        if let Some(item) = item {
            if let Some(putter) = queue.putters.pop_front() {
                cx.release(putter, Some(id));
            }
            return Taken::Item(item);
        }
        if queue.feeding == 0 {
            return Taken::NoMore;
        }
        queue.takers.push_back(id);
        cx.wait(id, WaitPolicy::BLOCK, On::Item(stage));
        Taken::Waits
    }

    /// Whether the item could be handed on; otherwise the thread waits for room.
    fn put(&mut self, cx: &mut Context<'_>, id: Id, at: AtStage, plan: &PipelinePlan) -> bool {
        let next = at.stage + 1;
        let Some(stage) = plan.stages.get(next) else {
            self.finished += 1;
            if let Some(first) = self.waiting.pop_front() {
                cx.release(first, Some(id));
            }
            return true;
        };
        let queue = &mut self.queues[next];
        let wakes = match stage.ordered {
            true => {
                queue.early.insert(at.item);
                at.item == self.finished
            }
            false if queue.items.len() as u64 >= queue.bound => {
                queue.putters.push_back(id);
                cx.wait(id, WaitPolicy::BLOCK, On::Room(next));
                return false;
            }
            false => {
                queue.items.push_back(at.item);
                true
            }
        };
        if wakes && let Some(taker) = queue.takers.pop_front() {
            cx.release(taker, Some(id));
        }
        true
    }

    /// A thread of the stage ends; with the last one, the next stage gets no more items.
    fn leave(&mut self, cx: &mut Context<'_>, id: Id, stage: usize) {
        if stage == 0 {
            // Others that wait for room under way would not be let go: nothing begins any more.
            for other in std::mem::take(&mut self.waiting) {
                cx.release(other, Some(id));
            }
        }
        if let Some(queue) = self.queues.get_mut(stage + 1) {
            queue.feeding -= 1;
            if queue.feeding == 0 {
                for taker in std::mem::take(&mut queue.takers) {
                    cx.release(taker, Some(id));
                }
            }
        }
        cx.exit(id);
    }
}

enum Taken {
    Item(u64),
    Waits,
    NoMore,
}
