//! Programs that cannot go on: which thread waits for what, and who has it.

use super::ProgramNumber;
use super::plan::Op;
use super::task::{Id, On, Role, Task};
use crate::kernel::ThreadId;
use std::fmt;

/// Threads that a message lists.
const LISTED: usize = 16;

/// A program whose threads wait for each other, or for what nobody will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which program.
    pub program: ProgramNumber,
    /// What it is called.
    pub name: String,
    /// When it was seen, virtual time in nanoseconds.
    pub time_ns: u64,
    /// Threads that wait; those of the circle first, in its order.
    pub waits: Vec<Waits>,
    /// How many of them are a circle: each waits for what the next one holds, and the last for what the
    /// first one holds. 0: there is none.
    pub circle: usize,
}

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The thread.
    pub thread: ThreadId,
    /// What it is in its program: `main`, `worker 3`, `writer 0`.
    pub name: String,
    /// What it waits for: ``lock `a` ``, `the end of the region`.
    pub what: String,
    /// Who holds that, where somebody does.
    pub held_by: Option<String>,
}

impl std::error::Error for Stuck {}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time_ns as f64 / 1e9;
        write!(f, "{} is stuck at {seconds:.6} s: ", self.name)?;
        if self.waits.is_empty() {
            return f.write_str("its threads could run, but are given no CPU");
        }
        let listed = self.waits.iter().take(LISTED);
        for (index, waits) in listed.enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{} waits for {}", waits.name, waits.what)?;
            if let Some(holder) = &waits.held_by {
                write!(f, ", held by {holder}")?;
            }
        }
        if self.waits.len() > LISTED {
            write!(f, "; and {} more", self.waits.len() - LISTED)?;
        }
        if self.circle > 0 {
            f.write_str(" (a circle: ")?;
            for waits in self.waits.iter().take(self.circle) {
                write!(f, "{} → ", waits.name)?;
            }
            let first = self.waits.first().map_or("", |waits| waits.name.as_str());
            write!(f, "{first})")?;
        }
        Ok(())
    }
}

impl super::execution::Program {
    /// The program's threads that wait, those of `circle` first.
    pub(super) fn waits(&self, circle: &[Id]) -> Vec<Waits> {
        let of_circle = circle.iter().map(|id| self.tasks.get(*id));
        let others = self.tasks.alive();
        let others = others.filter(|task| !circle.contains(&(task.index as Id)));
        of_circle
            .chain(others)
            .filter_map(|task| self.waits_of(task))
            .collect()
    }

    fn waits_of(&self, task: &Task) -> Option<Waits> {
        let process = self.processes.get(task.process);
        let op = process.and_then(|process| process.op(&self.plan));
        let stage = |index: usize| match op {
            Some(Op::Pipeline(pipeline)) => pipeline.stages[index].name.as_str(),
            _ => "",
        };
        let mut held_by = None;
        let what = match task.waits_on()? {
            On::Fork => "its workers to come back".to_owned(),
            On::Join => "the end of the region".to_owned(),
            On::Dock => "the next region".to_owned(),
            On::Lock(lock) => {
                let holder = process.and_then(|process| process.locks.holder(lock));
                held_by = holder.map(|holder| self.holder(holder));
                format!("lock `{}`", self.plan.locks[lock].name)
            }
            On::Semaphore(semaphore) => {
                format!("somebody to post `{}`", self.plan.semaphores[semaphore])
            }
            On::Item(index) => format!("an item for stage `{}`", stage(index)),
            On::Room(index) => format!("room in the queue of stage `{}`", stage(index)),
            On::Window => "items under way to be finished".to_owned(),
            On::Children => "the threads that it has started".to_owned(),
        };
        Some(Waits {
            thread: task.thread,
            name: self.name_of(task),
            what,
            held_by,
        })
    }

    fn holder(&self, id: Id) -> String {
        let task = self.tasks.get(id);
        let ended = if task.has_ended() {
            ", which has ended"
        } else {
            ""
        };
        format!("{}{ended}", self.name_of(task))
    }

    /// What a thread is, for people.
    pub(super) fn name_of(&self, task: &Task) -> String {
        let plan = &self.plan;
        let name = match &task.role {
            Role::Leader => "main".to_owned(),
            Role::Worker(index) => format!("worker {}", index + 1),
            Role::Job(number) => format!("job {number}"),
            Role::Stage(at) => {
                let stage = match plan.ops.get(at.op) {
                    Some(Op::Pipeline(pipeline)) => pipeline.stages[at.stage].name.as_str(),
                    _ => "stage",
                };
                format!("{stage} {}", at.index)
            }
            Role::Member(at) => {
                let group = match plan.ops.get(at.op) {
                    Some(Op::Groups(groups)) => groups[at.group].name.as_str(),
                    _ => "thread",
                };
                format!("{group} {}", at.index)
            }
        };
        match self.processes.len() {
            0 | 1 => name,
            _ => format!("process {}'s {name}", task.process),
        }
    }
}
