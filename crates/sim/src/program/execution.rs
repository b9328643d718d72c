//! One program that runs: its processes and threads.

use super::plan::Plan;
use super::process::Process;
use super::task::{Context, Id, Tasks};
use super::team::{Bounds, Team};
use super::{ProgramNumber, ProgramSpec, ProgramState, Start, Stuck};
use crate::kernel::{Kernel, ProcessId, ThreadId};
use corewise_decide::cpus::CpuSet;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Program {
    number: ProgramNumber,
    name: String,
    malleable: bool,
    pub(super) plan: Arc<Plan>,
    pub(super) tasks: Tasks,
    pub(super) processes: Vec<Process>,
    started_ns: u64,
    ended_ns: Option<u64>,
    /// Its threads when it last said so.
    said: u32,
    /// It was reported as stuck.
    reported: bool,
    /// Threads that wait for each other.
    circle: Vec<Id>,
}

impl Program {
    pub(super) fn start(
        kernel: &mut Kernel,
        number: ProgramNumber,
        spec: &ProgramSpec,
        start: &Start,
        seed: u64,
    ) -> Program {
        // What does not pass its check does nothing.
        let plan = Arc::new(Plan::of(spec).unwrap_or_default());
        let allowed = start.allowed.clone();
        let threads = spec.threads_at_start(start.threads, &allowed);
        let follows = spec.malleable && start.malleable_under_claim;
        let mut program = Program {
            number,
            name: spec.name.clone(),
            malleable: follows,
            tasks: Tasks::new(ProcessId(number.0), start.group, allowed),
            processes: Vec::new(),
            started_ns: kernel.now(),
            ended_ns: None,
            said: 0,
            reported: false,
            circle: Vec::new(),
            plan: Arc::clone(&plan),
        };
        let most = spec.max_threads.as_ref().map_or(u32::MAX, |n| *n.get_ref());
        let most = most.min(plan.most_team).max(1);
        let least = spec.min_threads.as_ref().map_or(1, |n| *n.get_ref());
        let bounds = Bounds {
            least: least.clamp(1, most),
            most,
            follows,
        };
        let mut cx = Context {
            kernel,
            plan: &plan,
            tasks: &mut program.tasks,
        };
        let wait = start.wait.unwrap_or(plan.wait);
        for index in 0..plan.processes as usize {
            let size = threads.min(most);
            let team = Team::new(index, size, bounds, wait, start.wait.is_some());
            let process = Process::start(&mut cx, index, team, seed);
            program.processes.push(process);
        }
        if program.tasks.count() == 0 {
            program.ended_ns = Some(program.started_ns);
        }
        program
    }

    /// A thread has done what it was told.
    ///
    /// # Errors
    /// When by what it does next the program cannot go on; once.
    pub(super) fn ready(&mut self, kernel: &mut Kernel, id: Id) -> Result<(), Stuck> {
        let plan = Arc::clone(&self.plan);
        let mut cx = Context {
            kernel,
            plan: &plan,
            tasks: &mut self.tasks,
        };
        if !cx.ready(id) {
            return Ok(());
        }
        let process = cx.tasks.get(id).process;
        if let Some(process) = self.processes.get_mut(process) {
            process.go_on(&mut cx, id);
        }
        if self.tasks.count() == 0 {
            self.ended_ns.get_or_insert(kernel.now());
        }
        if let Some(circle) = self.tasks.take_circle() {
            self.circle = circle;
        }
        match self.stuck(kernel) {
            Some(stuck) if !self.reported => {
                self.reported = true;
                Err(stuck)
            }
            _ => Ok(()),
        }
    }

    /// Why the program, or a part of it, cannot go on.
    pub(super) fn stuck(&self, kernel: &Kernel) -> Option<Stuck> {
        if self.circle.is_empty() && !self.tasks.is_stuck() {
            return None;
        }
        Some(self.report(kernel, self.waits(&self.circle)))
    }

    pub(super) fn report(&self, kernel: &Kernel, mut waits: Vec<super::Waits>) -> Stuck {
        if !self.tasks.is_stuck() {
            waits.truncate(self.circle.len());
        }
        Stuck {
            program: self.number,
            name: self.name.clone(),
            time_ns: kernel.now(),
            waits,
            circle: self.circle.len(),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended_ns.is_some()
    }

    pub(super) fn take_started(&mut self) -> Vec<(ThreadId, Id)> {
        self.tasks.take_started()
    }

    /// Its number of threads, if it is not what it last said.
    pub(super) fn says_threads(&mut self) -> Option<u32> {
        let now = self.tasks.count();
        let before = std::mem::replace(&mut self.said, now);
        (before != now).then_some(now)
    }

    pub(super) fn set_claim(&mut self, kernel: &mut Kernel, cpus: &CpuSet, threads: u32) {
        self.tasks.allow(kernel, cpus);
        let plan = Arc::clone(&self.plan);
        let mut cx = Context {
            kernel,
            plan: &plan,
            tasks: &mut self.tasks,
        };
        // What does not divide goes to the first ones.
        let processes = self.processes.len().max(1) as u32;
        for (index, process) in self.processes.iter_mut().enumerate() {
            let one_more = u32::from((index as u32) < threads % processes);
            process.follow(&mut cx, threads / processes + one_more);
        }
    }

    pub(super) fn state(&self) -> ProgramState {
        let processes = || self.processes.iter();
        let could_use = || processes().map(Process::could_use);
        ProgramState {
            threads: self.tasks.count(),
            team: match self.ended_ns {
                None => processes().map(|process| process.team.active()).sum(),
                Some(_) => 0,
            },
            could_use: self
                .malleable
                .then(|| could_use().fold(0, u32::saturating_add)),
            blocked: self.tasks.alive().filter(|task| task.is_blocked()).count() as u32,
            progress: processes().map(Process::done).sum(),
            started_ns: self.started_ns,
            ended_ns: self.ended_ns,
        }
    }
}
