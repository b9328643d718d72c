//! What can be read, as Linux has it in schedstat, stat and pressure: cumulative, and exact now.

use super::thread::ThreadState;
use super::{Kernel, ThreadId};

/// What a thread has used since it was created. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadCounters {
    /// On a CPU.
    pub run_ns: u64,
    /// Waiting for a CPU, also because its group's quota was used up.
    pub wait_ns: u64,
    /// Of `run_ns`: waiting in a loop.
    pub spin_ns: u64,
    /// Of `run_ns`: for switches, refilling caches, and waking others.
    pub stall_ns: u64,
    /// Blocked on a futex.
    pub lock_ns: u64,
    /// Blocked on a device.
    pub io_ns: u64,
    /// Asleep.
    pub sleep_ns: u64,
    /// Frozen, while it would have run.
    pub frozen_ns: u64,
    /// Switches because it blocked.
    pub voluntary: u64,
    /// Switches because another was to run.
    pub involuntary: u64,
    /// Moves to another CPU.
    pub migrations: u64,
    /// Work done, in nanoseconds at full speed.
    pub work_ns: u64,
    /// What it is doing; `None` if there is no such thread.
    pub state: Option<ThreadState>,
    /// The CPU that it runs or waits on.
    pub cpu: Option<u32>,
}

/// What a CPU has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// It ran threads, for so long, in nanoseconds.
    pub busy_ns: u64,
    /// It was idle, for so long, in nanoseconds.
    pub idle_ns: u64,
}

/// Pressure: time in which somebody waits for a CPU, weighted over CPUs as PSI does: by which of those
/// that are not idle have someone waiting. PSI weights over windows of two seconds; here they are
/// infinitely short.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    /// CPUs that have someone waiting, and CPUs that are not idle.
    pub(super) waiting: u32,
    pub(super) busy: u32,
    pub(super) runnable: u32,
    some_ns: f64,
}

impl Pressure {
    pub(super) fn passes(&mut self, delta_ns: u64) {
        if self.waiting > 0 {
            let share = f64::from(self.waiting) / f64::from(self.busy.max(self.waiting));
            self.some_ns += share * delta_ns as f64;
        }
    }
}

impl Kernel {
    /// What a thread has used; nothing, if there is no such thread.
    pub fn thread(&self, thread: ThreadId) -> ThreadCounters {
        let Some(thread) = self.threads.get(thread.0 as usize) else {
            return ThreadCounters::default();
        };
        let mut used = thread.used;
        match thread.state {
            ThreadState::Running => {
                let cpu = &self.cpus[thread.cpu];
                let (mut stall, mut job) = (thread.stall_ns, thread.job);
                used.ran(
                    self.now_ns - cpu.settled_ns,
                    cpu.speed,
                    &mut stall,
                    &mut job,
                );
            }
            state => used.was(state, self.now_ns - thread.since_ns),
        }
        let has_cpu = matches!(thread.state, ThreadState::Running | ThreadState::Waiting);
        ThreadCounters {
            run_ns: used.run_ns,
            wait_ns: used.wait_ns,
            spin_ns: used.spin_ns,
            stall_ns: used.stall_ns,
            lock_ns: used.lock_ns,
            io_ns: used.io_ns,
            sleep_ns: used.sleep_ns,
            frozen_ns: used.frozen_ns,
            voluntary: used.voluntary,
            involuntary: used.involuntary,
            migrations: used.migrations,
            work_ns: (used.work_ns + 0.5) as u64,
            state: Some(thread.state),
            cpu: has_cpu.then_some(thread.cpu as u32),
        }
    }

    /// How many threads there have been: their numbers are below this.
    pub fn threads(&self) -> u32 {
        self.threads.len() as u32
    }

    /// What a CPU has done; nothing, if there is no such CPU.
    pub fn cpu(&self, cpu: u32) -> CpuCounters {
        let Some(cpu) = self.cpus.get(cpu as usize) else {
            return CpuCounters::default();
        };
        let running = if cpu.current.is_some() {
            self.now_ns - cpu.settled_ns
        } else {
            0
        };
        let busy_ns = cpu.busy_ns + running;
        CpuCounters {
            busy_ns,
            idle_ns: self.now_ns - busy_ns,
        }
    }

    /// How many threads run or wait for a CPU now; without those whose group's quota is used up.
    pub fn runnable(&self) -> u32 {
        self.pressure.runnable
    }

    /// For how long somebody has waited for a CPU (PSI's `cpu some`), in nanoseconds.
    pub fn pressure_ns(&self) -> u64 {
        self.pressure.some_ns as u64
    }
}
