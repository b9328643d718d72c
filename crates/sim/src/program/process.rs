//! A process: its first thread does the phases in sequence, others help.

use super::groups;
use super::jobs::Running;
use super::lock::{Locks, Semaphore};
use super::pipeline::Flow;
use super::plan::{Op, Plan, UnitPlan};
use super::task::{Context, Id, On, Role};
use super::team::Team;
use super::unit;
use super::wait::WaitPolicy;
use rand_core::Rng as _;
use rand_pcg::Lcg64Xsh32;

#[derive(Debug)]
pub(super) struct Process {
    index: usize,
    leader: Id,
    /// The leader's place in the plan's operations.
    at: usize,
    does: Does,
    counters: Vec<u64>,
    /// Drawn from by the leader only, so that work does not depend on who was faster.
    random: Lcg64Xsh32,
    pub(super) locks: Locks,
    semaphores: Vec<Semaphore>,
    pub(super) team: Team,
    pub(super) flow: Option<Flow>,
    jobs: Option<Running>,
    /// Threads that the leader has started for this phase.
    children: u32,
    /// Pieces of work that are done.
    done: u64,
}

/// Where the leader is in its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Begin,
    /// What it was told is what there is to do.
    Finish,
    Fork,
    Region,
    Join,
}

impl Process {
    pub(super) fn start(cx: &mut Context<'_>, index: usize, team: Team, seed: u64) -> Process {
        let plan = cx.plan;
        Process {
            index,
            leader: cx.start(index, Role::Leader, None, 0),
            at: 0,
            does: Does::Begin,
            counters: vec![0; plan.loops],
            random: Lcg64Xsh32::new(seed, index as u64),
            locks: Locks::new(plan.locks.len()),
            semaphores: vec![Semaphore::default(); plan.semaphores.len()],
            team,
            flow: None,
            jobs: None,
            children: 0,
            done: 0,
        }
    }

    /// Pieces of work that are done: serial parts, units, regions without units, items, rounds, jobs.
    pub(super) fn done(&self) -> u64 {
        self.done + self.flow.as_ref().map_or(0, Flow::finished)
    }

    /// What its leader is at.
    pub(super) fn op<'a>(&self, plan: &'a Plan) -> Option<&'a Op> {
        plan.ops.get(self.at)
    }

    /// Threads that it could use now.
    pub(super) fn could_use(&self) -> u32 {
        self.team.could_use().max(self.children)
    }

    /// Takes the number of a claim.
    pub(super) fn follow(&mut self, cx: &mut Context<'_>, threads: u32) {
        if !cx.tasks.get(self.leader).has_ended() {
            self.team.follow(cx, threads, self.leader);
        }
    }

    /// A thread has done what it was told, and is told what to do next.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>, id: Id) {
        let plan = cx.plan;
        let op = plan.ops.get(self.at);
        match (cx.tasks.get(id).role.clone(), op) {
            (Role::Leader, _) => self.leader(cx, plan),
            (Role::Worker(index), op) => {
                let region = match op {
                    Some(Op::Region(region)) => Some(region),
                    _ => None,
                };
                let (locks, done) = (&mut self.locks, &mut self.done);
                self.team
                    .worker(cx, locks, index, self.leader, region, done);
            }
            (Role::Stage(at), Some(Op::Pipeline(pipeline))) => {
                if let Some(flow) = &mut self.flow
                    && !flow.go_on(cx, &mut self.locks, id, at, pipeline)
                {
                    self.child_ended(cx, id);
                }
            }
            (Role::Member(at), Some(Op::Groups(plans))) => {
                let shared = (&mut self.locks, self.semaphores.as_mut_slice());
                if !groups::go_on(cx, shared, id, at, plans, &mut self.done) {
                    self.child_ended(cx, id);
                }
            }
            (Role::Job(_), _) => {
                if !unit::go_on(cx, &mut self.locks, id, &UnitPlan::default()) {
                    self.done += 1;
                    cx.exit(id);
                    if let Some(jobs) = &mut self.jobs {
                        jobs.ended(cx, self.leader, id);
                    }
                }
            }
            // The leader is at its operation for as long as there are threads of it.
            (Role::Stage(_) | Role::Member(_), _) => cx.exit(id),
        }
    }

    fn child_ended(&mut self, cx: &mut Context<'_>, id: Id) {
        self.children -= 1;
        if self.children == 0 {
            cx.release(self.leader, Some(id));
        }
    }

    /// The leader goes from operation to operation until it has been told something.
    fn leader(&mut self, cx: &mut Context<'_>, plan: &Plan) {
        let id = self.leader;
        while let Some(op) = plan.ops.get(self.at) {
            let told = match op {
                Op::Repeat { times, counter } => {
                    self.counters[*counter] = times.unwrap_or(u64::MAX);
                    false
                }
                Op::Again { start, counter } => {
                    let left = &mut self.counters[*counter];
                    let is_endless = matches!(plan.ops[*start], Op::Repeat { times: None, .. });
                    *left -= u64::from(!is_endless);
                    if *left > 0 {
                        self.at = *start;
                    }
                    false
                }
                Op::Serial { work_ns, demand } => self.once(
                    |cx| {
                        cx.demand(id, *demand);
                        cx.run(id, *work_ns);
                    },
                    cx,
                    1,
                ),
                Op::Pause { ns, why } => self.once(|cx| cx.pause(id, *ns, *why), cx, 0),
                Op::Region(region) => self.region(cx, region),
                Op::Pipeline(pipeline) => {
                    let (index, team) = (self.index, self.team.size());
                    if self.does == Does::Begin {
                        let seed = self.random.next_u64();
                        let started = Flow::start(cx, (self.at, pipeline), index, id, team, seed);
                        self.flow = Some(started.0);
                        self.children = started.1;
                    } else {
                        self.done += self.flow.take().map_or(0, |flow| flow.finished());
                    }
                    self.children(cx)
                }
                Op::Groups(plans) => {
                    if self.does == Does::Begin {
                        self.children = groups::start(cx, (self.at, plans), self.index, id);
                    }
                    self.children(cx)
                }
                Op::Jobs(jobs) => {
                    let (index, team) = (self.index, self.team.size());
                    let random = &mut self.random;
                    let begun = || Running::new(cx, random.next_u64());
                    let running = self.jobs.get_or_insert_with(begun);
                    let told = running.go_on(cx, jobs, index, id, team);
                    if !told {
                        self.jobs = None;
                    }
                    told
                }
            };
            if told {
                return;
            }
            self.at += 1;
        }
        self.team.close(cx, id);
        cx.exit(id);
    }

    /// What is done by telling the leader once. Whether it was told now.
    fn once(
        &mut self,
        tell: impl FnOnce(&mut Context<'_>),
        cx: &mut Context<'_>,
        pieces: u64,
    ) -> bool {
        if self.does == Does::Begin {
            tell(cx);
            self.does = Does::Finish;
            return true;
        }
        self.does = Does::Begin;
        self.done += pieces;
        false
    }

    /// Waits for threads that were started, if it does not already.
    fn children(&mut self, cx: &mut Context<'_>) -> bool {
        let leader = self.leader;
        self.once(|cx| cx.wait(leader, WaitPolicy::BLOCK, On::Children), cx, 0)
    }

    fn region(&mut self, cx: &mut Context<'_>, region: &super::plan::RegionPlan) -> bool {
        let id = self.leader;
        if self.does == Does::Begin && !self.team.fork(cx, id, region) {
            self.does = Does::Fork;
            return true;
        }
        if matches!(self.does, Does::Begin | Does::Fork) {
            self.team.launch(cx, id, region, self.random.next_u64());
            self.does = Does::Region;
        }
        let (locks, done) = (&mut self.locks, &mut self.done);
        let told = match self.does {
            Does::Join => false,
            _ => self.team.leader(cx, locks, id, region, done),
        };
        if told {
            if cx.tasks.get(id).waits_on() == Some(On::Join) {
                self.does = Does::Join;
            }
        } else {
            self.team.end_region(region, done);
            self.does = Does::Begin;
        }
        told
    }
}
