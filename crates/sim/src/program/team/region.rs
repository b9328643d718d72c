//! Within a region: taking units, coming to its end.

use super::super::lock::Locks;
use super::super::plan::RegionPlan;
use super::super::spec::Join;
use super::super::task::{Context, Id, On};
use super::super::unit::{self, Unit};
use super::super::wait::WaitPolicy;
use super::{At, Team};

impl Team {
    /// A worker goes on. `region` is what the leader is at, if it is at a region. Counts units in `done`.
    pub(in super::super) fn worker(
        &mut self,
        cx: &mut Context<'_>,
        locks: &mut Locks,
        index: usize,
        leader: Id,
        region: Option<&RegionPlan>,
        done: &mut u64,
    ) {
        let worker = &mut self.workers[index];
        let id = worker.task;
        if worker.at != At::Work {
            if self.closing {
                return cx.exit(id);
            }
            // Who comes from the end of a region may already belong to the next one.
            worker.at = At::Rest;
            let begins = std::mem::take(&mut worker.assigned);
            if let Some(region) = region.filter(|_| begins && self.run.is_some()) {
                worker.at = At::Work;
                cx.demand(id, region.demand);
            }
        }
        // Nobody is in a region that the leader has left.
        let Some(region) = region.filter(|_| self.workers[index].at == At::Work) else {
            return self.rest(cx, index, leader);
        };
        loop {
            if unit::go_on(cx, locks, id, &region.unit) {
                return;
            }
            self.finished_unit(cx, id, leader, region, done);
            if self.is_too_many() {
                self.workers[index].parked = true;
                self.leave(cx, id);
                return self.rest(cx, index, leader);
            }
            if !self.next_unit(cx, id) {
                break;
            }
        }
        self.workers[index].at = At::Rest;
        if self.arrive(cx, id, leader, region) {
            self.workers[index].at = At::Joined;
        } else {
            self.rest(cx, index, leader);
        }
    }

    /// The leader goes on within the region. Whether it has been told something; otherwise the region is at
    /// its end.
    pub(in super::super) fn leader(
        &mut self,
        cx: &mut Context<'_>,
        locks: &mut Locks,
        id: Id,
        region: &RegionPlan,
        done: &mut u64,
    ) -> bool {
        loop {
            if unit::go_on(cx, locks, id, &region.unit) {
                return true;
            }
            self.finished_unit(cx, id, id, region, done);
            if !self.next_unit(cx, id) {
                return self.arrive(cx, id, id, region);
            }
        }
    }

    /// The leader has come through the end.
    pub(in super::super) fn end_region(&mut self, region: &RegionPlan, done: &mut u64) {
        self.run = None;
        if region.units.is_none() {
            *done += 1;
        }
    }

    /// Takes the next unit in hand, if there is one for this thread.
    fn next_unit(&mut self, cx: &mut Context<'_>, id: Id) -> bool {
        let Some(run) = &mut self.run else {
            return false;
        };
        let task = cx.tasks.get_mut(id);
        let next = match run.dynamic {
            true if run.next < run.cut.pieces => {
                run.next += 1;
                Some(run.next - 1)
            }
            true => None,
            false => task.share.next(),
        };
        let Some(next) = next else {
            return false;
        };
        run.in_hand += 1;
        task.holds_unit = true;
        task.unit = Unit::of(run.cut.size(next));
        true
    }

    /// If the thread had a unit in hand, it is done.
    fn finished_unit(
        &mut self,
        cx: &mut Context<'_>,
        id: Id,
        leader: Id,
        region: &RegionPlan,
        done: &mut u64,
    ) {
        let had = std::mem::take(&mut cx.tasks.get_mut(id).holds_unit);
        let Some(run) = self.run.as_mut().filter(|_| had) else {
            return;
        };
        run.in_hand -= 1;
        if region.units.is_some() {
            *done += 1;
        }
        let last = run.in_hand == 0 && run.units_left() == 0;
        if run.join == Join::Work && last && id != leader {
            release_joined(cx, leader, id);
        }
    }

    /// Whether a worker between two units is one too many.
    fn is_too_many(&self) -> bool {
        let run = self.run.as_ref();
        self.bounds.follows && run.is_some_and(|run| run.dynamic && run.active > self.size)
    }

    /// A worker leaves the region before its end.
    fn leave(&mut self, cx: &mut Context<'_>, id: Id) {
        if let Some(run) = &mut self.run {
            run.active -= 1;
        }
        self.complete(cx, id);
    }

    /// A thread finds no more units. Whether it waits now.
    fn arrive(&mut self, cx: &mut Context<'_>, id: Id, leader: Id, region: &RegionPlan) -> bool {
        let policy = self.policy(region);
        let Some(run) = &mut self.run else {
            return false;
        };
        match run.join {
            Join::Work => {
                let waits = id == leader && run.in_hand > 0;
                if waits {
                    cx.wait(id, policy, On::Join);
                } else if id != leader {
                    run.active -= 1;
                }
                waits
            }
            Join::All | Join::Leader => {
                run.arrived += 1;
                if self.complete(cx, id) || (region.join == Join::Leader && id != leader) {
                    return false;
                }
                if let Some(run) = &mut self.run {
                    run.waiting.push(id);
                }
                cx.wait(id, policy, On::Join);
                true
            }
        }
    }

    /// Whether all have arrived; if so, those that wait are let go.
    fn complete(&mut self, cx: &mut Context<'_>, by: Id) -> bool {
        let Some(run) = self.run.as_mut().filter(|run| run.join != Join::Work) else {
            return false;
        };
        let all = run.arrived == run.active;
        if all {
            for id in std::mem::take(&mut run.waiting) {
                cx.release(id, Some(by));
            }
        }
        all
    }

    /// A worker waits for the next region.
    fn rest(&mut self, cx: &mut Context<'_>, index: usize, leader: Id) {
        if self.closing {
            return cx.exit(self.workers[index].task);
        }
        let worker = &mut self.workers[index];
        worker.at = At::Rest;
        worker.resting = true;
        let policy = match worker.parked {
            true => WaitPolicy::BLOCK,
            false => self.wait,
        };
        let id = worker.task;
        if std::mem::take(&mut worker.awaited) {
            self.awaited -= 1;
            if self.awaited == 0 {
                cx.release(leader, Some(id));
            }
        }
        cx.wait(id, policy, On::Dock);
    }
}

/// Lets the leader go on, if it waits for the end of a region.
fn release_joined(cx: &mut Context<'_>, leader: Id, by: Id) {
    if cx.tasks.get(leader).waits_on() == Some(On::Join) {
        cx.release(leader, Some(by));
    }
}
