//! A team: workers that stay, and the regions that they are forked into.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use corewise_sim::program::WaitPolicy;
use corewise_sim::program::share::{Cut, Spread};

use super::Hand;
use super::script::Region;
use super::seat::Seat;

pub(super) struct Team<'a> {
    wait: WaitPolicy,
    leader: Seat,
    workers: Vec<Worker<'a>>,
    /// The region before; none before the first, when there are no workers yet.
    last: Mutex<Option<Arc<Run<'a>>>>,
    /// Regions so far: each is cut in its own way.
    regions: AtomicU64,
}

#[derive(Default)]
struct Worker<'a> {
    /// Where it waits for the next region. Another than where it waits at a region's end, which it may not
    /// have left when it is called to the next one.
    dock: Seat,
    join: Seat,
    /// What it is to take part in next; nothing when it is called: it is to end.
    next: Mutex<Option<Arc<Run<'a>>>>,
}

/// A region that runs.
struct Run<'a> {
    region: &'a Region,
    /// Threads, with the leader.
    threads: usize,
    /// The cut of its work into units, and of its units into shares.
    work: Cut,
    shares: Cut,
    next: AtomicU64,
    arrived: AtomicUsize,
    /// Who has come back to the dock, and the leader when it waits for that.
    returned: AtomicUsize,
}

impl<'a> Run<'a> {
    fn new(region: &'a Region, threads: usize, seed: u64) -> Run<'a> {
        let many = threads as u64;
        let cut = |total, pieces, spread| Cut {
            total,
            pieces,
            spread,
            seed,
        };
        let even_units = !region.dynamic && region.units.is_some();
        let spread = if even_units {
            Spread::NONE
        } else {
            region.spread
        };
        let units = region.units.unwrap_or(many).max(1);
        let shares = if even_units {
            region.spread
        } else {
            Spread::NONE
        };
        Run {
            region,
            threads,
            work: cut(region.work_ns, units, spread),
            shares: cut(units, many, shares),
            next: AtomicU64::new(0),
            arrived: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
        }
    }

    /// Whether everybody has come to the dock, the leader included.
    fn returns(&self) -> bool {
        self.returned.fetch_add(1, Ordering::AcqRel) + 1 == self.threads
    }

    fn units(&self, hand: &Hand<'_>, index: u64) {
        let mut own = self.shares.begin(index)..self.shares.begin(index + 1);
        loop {
            let unit = match self.region.dynamic {
                true => {
                    let unit = self.next.fetch_add(1, Ordering::Relaxed);
                    (unit < self.work.pieces).then_some(unit)
                }
                false => own.next(),
            };
            let Some(unit) = unit else { return };
            hand.unit(self.work.size(unit), &self.region.unit);
            hand.count(u64::from(self.region.units.is_some()));
        }
    }
}

impl<'a> Team<'a> {
    pub(super) fn new(threads: u32, wait: WaitPolicy) -> Team<'a> {
        Team {
            wait,
            leader: Seat::default(),
            workers: (1..threads.max(1)).map(|_| Worker::default()).collect(),
            last: Mutex::new(None),
            regions: AtomicU64::new(0),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The leader goes through a region.
    pub(super) fn region<'scope, 'env: 'scope>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        leader: &Hand<'env>,
        region: &'a Region,
    ) where
        'a: 'scope,
    {
        let looks = leader.stage.looks_per_us;
        let seed = region.seed + self.regions.fetch_add(1, Ordering::Relaxed);
        let run = Arc::new(Run::new(region, self.threads(), seed));
        let before = lock(&self.last).replace(Arc::clone(&run));
        let before = before.unwrap_or_else(|| {
            // What new workers come from, before they first come to the dock.
            let none = Arc::new(Run::new(region, self.threads(), 0));
            for (index, worker) in self.workers.iter().enumerate() {
                let (none, stage) = (Arc::clone(&none), leader.stage);
                scope.spawn(move || self.worker(worker, index as u64 + 1, none, stage));
            }
            none
        });
        if region.joins_all && !before.returns() {
            self.leader.wait(region.wait, looks);
        }
        for worker in &self.workers {
            *lock(&worker.next) = Some(Arc::clone(&run));
            worker.dock.call();
        }
        run.units(leader, 0);
        self.arrive(&run, 0, looks);
        leader.count(u64::from(region.units.is_none()));
    }

    fn worker(&self, worker: &Worker<'a>, index: u64, before: Arc<Run<'a>>, stage: &super::Stage) {
        let hand = Hand::new(stage);
        let mut before = before;
        loop {
            if before.returns() {
                self.leader.call();
            }
            worker.dock.wait(self.wait, stage.looks_per_us);
            let Some(run) = lock(&worker.next).take() else {
                return;
            };
            run.units(&hand, index);
            self.arrive(&run, index as usize, stage.looks_per_us);
            before = run;
        }
    }

    /// A thread comes to the region's end.
    fn arrive(&self, run: &Run<'a>, own: usize, looks: f64) {
        let last = run.arrived.fetch_add(1, Ordering::AcqRel) + 1 == run.threads;
        let seat = |index: usize| match index {
            0 => &self.leader,
            _ => &self.workers[index - 1].join,
        };
        let waits = |index: usize| index == 0 || run.region.joins_all;
        if last {
            let others = (0..run.threads).filter(|index| *index != own && waits(*index));
            others.for_each(|index| seat(index).call());
        } else if waits(own) {
            seat(own).wait(run.region.wait, looks);
        }
    }

    /// No more regions: the workers end.
    pub(super) fn close(&self) {
        if lock(&self.last).is_some() {
            for worker in &self.workers {
                worker.dock.call();
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
