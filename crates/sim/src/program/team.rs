//! A process's team: workers that stay, the regions that they are forked into, and how these end.
//!
//! Between regions, workers wait at the *dock* by the team's wait policy, as OpenMP runtimes have it: with
//! spinning workers this uses CPUs in serial parts, too. Workers that the next region does not need are
//! *parked*: they block, whatever the policy.
//!
//! GNU's runtime ends a region with one barrier and begins the next with another at the dock, so that the
//! leader waits for every worker twice; LLVM's only gathers at the end and releases at the beginning; a
//! team that steals work waits for the work alone ([`Join`]).

use super::plan::RegionPlan;
use super::share::Cut;
use super::spec::Join;
use super::task::{Context, Id, On, Role};
use super::wait::WaitPolicy;

mod region;

/// The bounds of a team.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) least: u32,
    pub(super) most: u32,
    /// It follows the number of its claim.
    pub(super) follows: bool,
}

#[derive(Debug)]
pub(super) struct Team {
    process: usize,
    /// Threads, with the leader, that the next region has; and this one, if it follows within regions.
    size: u32,
    bounds: Bounds,
    wait: WaitPolicy,
    /// Whether `wait` goes before what a region says.
    overrides: bool,
    workers: Vec<Worker>,
    run: Option<Run>,
    /// Workers that the leader waits for at the dock.
    awaited: u32,
    closing: bool,
}

#[derive(Debug)]
struct Worker {
    task: Id,
    at: At,
    /// Waiting at the dock, or parked.
    resting: bool,
    parked: bool,
    /// Belongs to the region that is being forked.
    member: bool,
    /// To begin with the region.
    assigned: bool,
    /// The leader waits for it.
    awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Rest,
    Work,
    Joined,
}

/// A region that runs.
#[derive(Debug)]
struct Run {
    cut: Cut,
    /// What the region says.
    units: Option<u64>,
    /// Members, with the leader.
    active: u32,
    arrived: u32,
    /// The next unit of a dynamic region.
    next: u64,
    /// Units that are being done.
    in_hand: u32,
    /// Those that wait for its end.
    waiting: Vec<Id>,
    dynamic: bool,
    join: Join,
}

impl Run {
    fn units_left(&self) -> u64 {
        self.cut.pieces.saturating_sub(self.next)
    }
}

impl Team {
    pub(super) fn new(
        process: usize,
        size: u32,
        bounds: Bounds,
        wait: WaitPolicy,
        overrides: bool,
    ) -> Team {
        Team {
            process,
            size,
            bounds,
            wait,
            overrides,
            workers: Vec::new(),
            run: None,
            awaited: 0,
            closing: false,
        }
    }

    /// Threads that the next region has.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Threads that run in the region, 1 between regions.
    pub(super) fn active(&self) -> u32 {
        self.run.as_ref().map_or(1, |run| run.active)
    }

    /// Units that are being done, of the region that runs.
    #[cfg(test)]
    pub(super) fn in_hand(&self) -> u32 {
        self.run.as_ref().map_or(0, |run| run.in_hand)
    }

    /// As a team that is linked says it: what is left and what is being done, at least 1. For a static
    /// region: whatever it may have.
    pub(super) fn could_use(&self) -> u32 {
        let most = u64::from(self.bounds.most);
        match &self.run {
            None => 1,
            Some(run) if run.dynamic => {
                let wide = run.units_left() + u64::from(run.active);
                wide.clamp(1, most.max(1)) as u32
            }
            Some(run) => run.units.unwrap_or(most).clamp(1, most.max(1)) as u32,
        }
    }

    /// Takes the number of a claim: for the next region, or for this one if its units are dynamic.
    pub(super) fn follow(&mut self, cx: &mut Context<'_>, threads: u32, leader: Id) {
        if !self.bounds.follows {
            return;
        }
        self.size = threads.clamp(self.bounds.least, self.bounds.most);
        let Some(run) = self.run.as_ref().filter(|run| run.dynamic) else {
            return;
        };
        let (active, left) = (run.active, run.units_left());
        let wide = u64::from(active).saturating_add(left);
        let wanted = u64::from(self.size).min(wide) as u32;
        let missing = wanted.saturating_sub(active);
        for _ in 0..missing {
            let idle = |w: &Worker| w.at == At::Rest && !w.assigned;
            let index = match self.workers.iter().position(idle) {
                Some(index) => index,
                None => self.hire(cx, leader),
            };
            self.assign(cx, index, None);
            if let Some(run) = &mut self.run {
                run.active += 1;
            }
        }
    }

    /// No more regions: the workers end.
    pub(super) fn close(&mut self, cx: &mut Context<'_>, leader: Id) {
        self.closing = true;
        for worker in &mut self.workers {
            if std::mem::take(&mut worker.resting) {
                cx.release(worker.task, Some(leader));
            }
        }
    }

    fn policy(&self, region: &RegionPlan) -> WaitPolicy {
        match region.wait {
            Some(wait) if !self.overrides => wait,
            _ => self.wait,
        }
    }

    /// A new worker; its index.
    fn hire(&mut self, cx: &mut Context<'_>, leader: Id) -> usize {
        let index = self.workers.len();
        let task = cx.start(self.process, Role::Worker(index), Some(leader), 0);
        self.workers.push(Worker {
            task,
            at: At::Rest,
            resting: false,
            parked: false,
            member: false,
            assigned: false,
            awaited: false,
        });
        index
    }

    /// The worker is to take part in the region.
    fn assign(&mut self, cx: &mut Context<'_>, index: usize, by: Option<Id>) {
        let worker = &mut self.workers[index];
        worker.assigned = true;
        worker.parked = false;
        if std::mem::take(&mut worker.resting) {
            cx.release(worker.task, by);
        }
    }

    /// The leader comes to a region. Whether all workers that it needs are at the dock; otherwise the
    /// leader waits.
    pub(super) fn fork(&mut self, cx: &mut Context<'_>, leader: Id, region: &RegionPlan) -> bool {
        let threads = self.width(region);
        while self.workers.len() + 1 < threads as usize {
            self.hire(cx, leader);
        }
        self.choose(threads as usize - 1);
        let gathers = region.join == Join::All;
        for worker in &mut self.workers {
            let is_at_dock = worker.resting && !worker.parked;
            if !worker.member {
                worker.assigned = false;
                worker.parked = true;
                if is_at_dock && !cx.tasks.get(worker.task).is_asleep() {
                    worker.resting = false;
                    cx.release(worker.task, Some(leader));
                }
            } else if gathers && !worker.resting {
                worker.awaited = true;
                self.awaited += 1;
            }
        }
        if self.awaited > 0 {
            cx.wait(leader, self.policy(region), On::Fork);
        }
        self.awaited == 0
    }

    fn width(&self, region: &RegionPlan) -> u32 {
        let threads = region.threads.unwrap_or(self.size).max(1);
        match (region.join, region.units) {
            (Join::Work, Some(units)) => u64::from(threads).min(units) as u32,
            _ => threads,
        }
    }

    /// Chooses the members: those that are about, then parked ones.
    fn choose(&mut self, mut count: usize) {
        for worker in &mut self.workers {
            worker.member = !worker.parked && count > 0;
            count -= usize::from(worker.member);
        }
        for worker in self.workers.iter_mut().filter(|w| w.parked) {
            worker.member = count > 0;
            count -= usize::from(worker.member);
        }
    }

    /// Begins the region with the members that were chosen.
    pub(super) fn launch(
        &mut self,
        cx: &mut Context<'_>,
        leader: Id,
        region: &RegionPlan,
        seed: u64,
    ) {
        let members = self.workers.iter().filter(|w| w.member).count();
        let threads = members as u32 + 1;
        self.run = Some(Run {
            cut: region.cut(threads, seed),
            units: region.units,
            active: threads,
            arrived: 0,
            next: 0,
            in_hand: 0,
            waiting: Vec::new(),
            dynamic: region.dynamic,
            join: region.join,
        });
        cx.demand(leader, region.demand);
        let share = |index| match region.dynamic {
            true => 0..0,
            false => region.units_of(index, threads, seed),
        };
        cx.tasks.get_mut(leader).share = share(0);
        let mut place = 0;
        for index in 0..self.workers.len() {
            if self.workers[index].member {
                place += 1;
                cx.tasks.get_mut(self.workers[index].task).share = share(place);
                self.assign(cx, index, Some(leader));
            }
        }
    }
}
