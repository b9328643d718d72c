//! A pipeline: stages with threads of their own, and bounded queues between them: one lock, and condition
//! variables for those that wait for items, for room, and for others to finish.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Hand;
use super::script::Pipeline;

#[derive(Default)]
struct Queue {
    items: VecDeque<u64>,
    /// Of an ordered stage.
    early: BTreeSet<u64>,
    /// Threads of the stage before.
    feeding: usize,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    begun: u64,
    finished: u64,
}

struct Flow<'a> {
    plan: &'a Pipeline,
    in_flight: u64,
    bounds: Vec<u64>,
    state: Mutex<State>,
    /// For each stage.
    items: Vec<Condvar>,
    room: Vec<Condvar>,
    window: Condvar,
}

/// Plays it, with as many threads where a stage has the team's.
pub(super) fn play_pipeline(leader: &Hand<'_>, plan: &Pipeline, team: usize) {
    let threads = |stage: usize| plan.stages[stage].threads.map_or(team, |n| n as usize);
    let count = plan.stages.len();
    let all = (0..count).map(threads).sum::<usize>() as u64;
    let bounds = (0..count).map(|stage| {
        plan.stages[stage]
            .queue
            .unwrap_or(2 * threads(stage) as u64)
    });
    let bounds = bounds.collect::<Vec<_>>();
    let is_ordered = plan.stages.last().is_some_and(|stage| stage.ordered);
    let room = match is_ordered {
        true => bounds
            .iter()
            .fold(all, |sum, bound| sum.saturating_add(*bound)),
        false => u64::MAX,
    };
    let queues = (0..count).map(|stage| Queue {
        feeding: stage.checked_sub(1).map_or(0, threads),
        ..Queue::default()
    });
    let flow = Flow {
        plan,
        in_flight: plan.in_flight.unwrap_or(room),
        bounds,
        state: Mutex::new(State {
            queues: queues.collect(),
            ..State::default()
        }),
        items: (0..count).map(|_| Condvar::new()).collect(),
        room: (0..count).map(|_| Condvar::new()).collect(),
        window: Condvar::new(),
    };
    let stage = leader.stage;
    std::thread::scope(|scope| {
        for index in 0..count {
            for _ in 0..threads(index) {
                let flow = &flow;
                scope.spawn(move || flow.stage(&Hand::new(stage), index));
            }
        }
    });
}

impl Flow<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self, hand: &Hand<'_>, index: usize) {
        let stage = &self.plan.stages[index];
        while let Some(item) = self.take(index) {
            hand.unit(stage.work.size(item), &stage.unit);
            self.put(hand, index + 1, item);
        }
        let mut state = self.state();
        if index == 0 {
            self.window.notify_all();
        }
        if let Some(queue) = state.queues.get_mut(index + 1) {
            queue.feeding -= 1;
            if queue.feeding == 0 {
                self.items[index + 1].notify_all();
            }
        }
    }

    /// The next item for a stage; `None`: there will be no more.
    fn take(&self, stage: usize) -> Option<u64> {
        let mut state = self.state();
        if stage == 0 {
            loop {
                if state.begun == self.plan.items {
                    return None;
                }
                if state.begun - state.finished < self.in_flight {
                    state.begun += 1;
                    return Some(state.begun - 1);
                }
                state = wait(&self.window, state);
            }
        }
        loop {
            let finished = state.finished;
            let queue = &mut state.queues[stage];
            let item = match self.plan.stages[stage].ordered {
                true => queue.early.take(&finished),
                false => queue.items.pop_front(),
            };
            if let Some(item) = item {
                self.room[stage].notify_one();
                return Some(item);
            }
            if queue.feeding == 0 {
                return None;
            }
            state = wait(&self.items[stage], state);
        }
    }

    /// Hands an item to a stage; past the last one, it is finished.
    fn put(&self, hand: &Hand<'_>, stage: usize, item: u64) {
        let mut state = self.state();
        let Some(plan) = self.plan.stages.get(stage) else {
            state.finished += 1;
            hand.count(1);
            self.window.notify_one();
            return;
        };
        if plan.ordered {
            state.queues[stage].early.insert(item);
            if item == state.finished {
                self.items[stage].notify_one();
            }
            return;
        }
        while state.queues[stage].items.len() as u64 >= self.bounds[stage] {
            state = wait(&self.room[stage], state);
        }
        state.queues[stage].items.push_back(item);
        self.items[stage].notify_one();
    }
}

fn wait<'a>(at: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    at.wait(state).unwrap_or_else(PoisonError::into_inner)
}
