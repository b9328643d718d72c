//! Programs as data, and their execution on the simulated kernel.
//!
//! A program's file ([`ProgramSpec`]) says what its threads do: phases in sequence, perhaps many times,
//! each of which is work of one thread, a region of a team, a pipeline, groups of threads with locks and
//! semaphores, one-thread jobs, sleep or input and output. It is checked, and compiled to a list of
//! operations (`plan`). Each process's first thread, the leader, goes through the operations; other
//! threads help: workers of its team (`team`), stages (`pipeline`), groups (`groups`), jobs (`jobs`).
//!
//! Execution is a matter of answering the kernel: a thread that has done what it was told is told the
//! next thing (`process`), and on the way may let others go on, which then come themselves. All waiting
//! goes through one place (`task`), so that it is known at any moment which threads can move: a program
//! none of whose threads can is stuck for good, as nobody else will help it, and so are threads that wait
//! for each other's locks in a circle.
//!
//! How work is cut never depends on who does it or when: the pieces of a region or a pipeline are the same
//! for every schedule and number of threads, and add up to what the file says (`share`).

mod compile;
mod error;
mod execution;
mod groups;
mod jobs;
mod lock;
mod pipeline;
mod plan;
mod process;
pub mod share;
pub mod spec;
mod stuck;
mod task;
mod team;
mod unit;
mod wait;

#[cfg(test)]
mod tests;

pub use error::{Error, Fault};
pub use spec::ProgramSpec;
pub use stuck::{Stuck, Waits};
pub use wait::{Repeat, StageThreads, WaitPolicy};

use crate::kernel::{Event, GroupId, Kernel, ProcessId, ThreadCounters, ThreadId, ThreadState};
use corewise_decide::cpus::CpuSet;
use corewise_decide::reading::{ProgramReading, ThreadReading};
use execution::Program;
use rand_core::Rng as _;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Timer tokens with this bit belong to programs.
pub const PROGRAM_TIMER: u64 = 1 << 63;

/// A program of a simulation, numbered in the order of their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramNumber(pub u32);

/// How a program is started.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its number of threads; `None`: its own, or one for each allowed CPU. It is brought within its bounds.
    pub threads: Option<u32>,
    /// The scheduling group of its threads.
    pub group: GroupId,
    /// Where they may run.
    pub allowed: CpuSet,
    /// Whether, if it is malleable, it follows the number of its claim.
    pub malleable_under_claim: bool,
    /// How its teams wait, instead of what its file says.
    pub wait: Option<WaitPolicy>,
}

/// What a program's environment is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its last thread has ended.
    Ended(ProgramNumber),
    /// It has so many threads now.
    Threads(ProgramNumber, u32),
}

/// How a program is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramState {
    /// Threads that it has.
    pub threads: u32,
    /// Threads that work in its region; 1 for each process that is not in one.
    pub team: u32,
    /// Threads that it could use now; of a program that follows its claim.
    pub could_use: Option<u32>,
    /// Threads that wait for a device, a time, a lock, a post or an item.
    pub blocked: u32,
    /// Pieces of work that are done: serial parts, units, regions without units, items, rounds, jobs.
    pub progress: u64,
    /// When it started, in nanoseconds.
    pub started_ns: u64,
    /// When its last thread ended.
    pub ended_ns: Option<u64>,
}

/// All programs of a simulation.
#[derive(Debug)]
pub struct Programs {
    random: Pcg64Mcg,
    list: Vec<Program>,
    /// The program of each thread, and its number there; by the kernel's numbers.
    threads: Vec<Option<(u32, task::Id)>>,
    notices: Vec<Notice>,
    /// Those that have not ended.
    running: BTreeSet<ProgramNumber>,
}

impl Programs {
    /// No programs yet; what is drawn at random comes from `seed`.
    pub fn new(seed: u64) -> Programs {
        Programs {
            random: Pcg64Mcg::new(u128::from(seed)),
            list: Vec::new(),
            threads: Vec::new(),
            notices: Vec::new(),
            running: BTreeSet::new(),
        }
    }

    /// Starts a program; it is process `ProcessId(number)` of the kernel, whatever the number of its own
    /// processes. A description that does not pass its check does nothing.
    pub fn start(
        &mut self,
        kernel: &mut Kernel,
        spec: &Arc<ProgramSpec>,
        start: Start,
    ) -> ProgramNumber {
        let number = ProgramNumber(self.list.len() as u32);
        let seed = self.random.next_u64();
        self.list
            .push(Program::start(kernel, number, spec, &start, seed));
        self.running.insert(number);
        self.settle(number);
        number
    }

    /// Handles an event of the kernel: whether it is about a program (timers are if [`PROGRAM_TIMER`]
    /// is set). What others should know is in [`Programs::notices`] then. Costs O(log threads), but for
    /// the beginning and the end of regions, which cost a step for each of their threads.
    ///
    /// # Errors
    /// A program, or threads of it, cannot go on from now on. It is said once for each program; others
    /// go on.
    pub fn on(&mut self, kernel: &mut Kernel, event: Event) -> Result<bool, Stuck> {
        let thread = match event {
            Event::Timer(token) => return Ok(token & PROGRAM_TIMER != 0),
            Event::Ready(ThreadId(thread)) => thread,
        };
        let Some((program, task)) = self.threads.get(thread as usize).copied().flatten() else {
            return Ok(false);
        };
        let went_on = self.list[program as usize].ready(kernel, task);
        self.settle(ProgramNumber(program));
        went_on.map(|()| true)
    }

    /// What has happened since this was last asked for, in order.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Gives a program a claim: all of its threads may run on `cpus` (empty: as before), and one that is
    /// malleable follows the number, from its next unit of work or region on.
    pub fn set_claim(
        &mut self,
        kernel: &mut Kernel,
        p: ProgramNumber,
        cpus: &CpuSet,
        threads: u32,
    ) {
        if let Some(program) = self.list.get_mut(p.0 as usize).filter(|p| !p.has_ended()) {
            program.set_claim(kernel, cpus, threads);
            self.settle(p);
        }
    }

    /// Gives each thread of a program a place of its own, in the order of their start.
    pub fn place(&mut self, kernel: &mut Kernel, p: ProgramNumber, places: &[CpuSet]) {
        if let Some(program) = self.list.get_mut(p.0 as usize) {
            program.tasks.place(kernel, places);
        }
    }

    /// How a program is doing. Costs a step for each of its threads.
    pub fn state(&self, p: ProgramNumber) -> ProgramState {
        self.get(p)
            .map_or_else(ProgramState::default, Program::state)
    }

    /// What all of its threads have used together, also those that have ended; without state and CPU.
    /// Costs a step for each of its threads.
    pub fn counters(&self, kernel: &Kernel, p: ProgramNumber) -> ThreadCounters {
        let program = self.get(p);
        program.map_or_else(ThreadCounters::default, |p| p.tasks.counters(kernel))
    }

    /// All threads that a program has had, in the order of their start.
    pub fn threads(&self, p: ProgramNumber) -> Vec<ThreadId> {
        self.get(p)
            .map_or_else(Vec::new, |program| program.tasks.all().collect())
    }

    /// What Linux would say of it and its threads at this moment. Costs a step for each thread that it has had.
    pub fn reading(&self, kernel: &Kernel, p: ProgramNumber) -> ProgramReading {
        let (mut threads, mut ended) = (Vec::new(), ThreadReading::default());
        for thread in self.threads(p) {
            let used = kernel.thread(thread);
            let reading = ThreadReading {
                pid: i32::try_from(p.0).unwrap_or(i32::MAX),
                tid: i32::try_from(thread.0).unwrap_or(i32::MAX),
                run_ns: used.run_ns,
                cpu_wait_ns: used.wait_ns,
                user_ns: None,
                system_ns: None,
                voluntary_switches: Some(used.voluntary),
                involuntary_switches: Some(used.involuntary),
                migrations: Some(used.migrations),
                lock_ns: Some(used.lock_ns),
                spin_ns: Some(used.spin_ns),
            };
            match used.state {
                Some(ThreadState::Exited) | None => ended.add(&reading),
                Some(_) => threads.push(reading),
            }
        }
        ProgramReading {
            time_ns: kernel.now(),
            threads,
            ended,
            regions: None,
        }
    }

    /// What a thread is in its program, for people: `main`, `worker 3`. `None`: it is of no program.
    pub fn thread_name(&self, thread: ThreadId) -> Option<String> {
        let (program, task) = self.threads.get(thread.0 as usize).copied().flatten()?;
        let program = self.list.get(program as usize)?;
        Some(program.name_of(program.tasks.get(task)))
    }

    /// Sets the weight of a program's scheduling group (1024 is usual): of all that is in it.
    pub fn set_weight(&self, kernel: &mut Kernel, p: ProgramNumber, weight: u32) {
        if let Some(program) = self.get(p) {
            kernel.set_weight(program.tasks.group(), weight);
        }
    }

    /// Stops all of a program's threads, or lets them go on.
    pub fn freeze(&self, kernel: &mut Kernel, p: ProgramNumber, frozen: bool) {
        if self.get(p).is_some() {
            kernel.freeze(ProcessId(p.0), frozen);
        }
    }

    /// Sets the slice of all of a program's threads, also of those to come.
    pub fn set_slice(&mut self, kernel: &mut Kernel, p: ProgramNumber, slice_ns: u64) {
        if let Some(program) = self.list.get_mut(p.0 as usize) {
            program.tasks.set_slice(kernel, slice_ns);
        }
    }

    /// Programs that have not ended.
    pub fn running(&self) -> impl Iterator<Item = ProgramNumber> + '_ {
        self.running.iter().copied()
    }

    /// The first program that cannot go on; also one that gets no CPU although the kernel is idle.
    pub fn stuck(&self, kernel: &Kernel) -> Option<Stuck> {
        let running = || self.running.iter().map(|p| &self.list[p.0 as usize]);
        let waits = running().find_map(|program| program.stuck(kernel));
        waits.or_else(|| {
            let starved = running().next().filter(|_| kernel.is_idle())?;
            Some(starved.report(kernel, Vec::new()))
        })
    }

    fn get(&self, p: ProgramNumber) -> Option<&Program> {
        self.list.get(p.0 as usize)
    }

    /// Takes note of threads that a program has started, and of what is to be said of it.
    fn settle(&mut self, p: ProgramNumber) {
        let program = &mut self.list[p.0 as usize];
        for (thread, task) in program.take_started() {
            let thread = thread.0 as usize;
            if self.threads.len() <= thread {
                self.threads.resize(thread + 1, None);
            }
            self.threads[thread] = Some((p.0, task));
        }
        if let Some(threads) = program.says_threads() {
            self.notices.push(Notice::Threads(p, threads));
        }
        if program.has_ended() && self.running.remove(&p) {
            self.notices.push(Notice::Ended(p));
        }
    }
}
