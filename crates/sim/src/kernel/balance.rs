//! Moving threads between queues: what a CPU pulls that becomes idle (`sched_balance_newidle`), and what
//! may be moved at all (`can_migrate_task`, `detach_tasks`).

use super::Kernel;
use super::domains::Level;
use super::thread::ThreadState;

/// So many threads of a queue are looked at, at most (`sched_nr_migrate`).
const LOOKS: usize = 32;

/// A thread that ran this recently has a warm cache (`sched_migration_cost`).
const WARM_NS: u64 = 500_000;

/// What new-idle balancing is taken to cost: a CPU that is idle for less does not begin. The kernel
/// measures it.
const NEW_IDLE_NS: u64 = 1_000;
const NEW_IDLE_PER_CPU_NS: u64 = 30;

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    /// So many threads.
    Threads(u32),
    /// So much load.
    Load(f64),
}

impl Kernel {
    /// A CPU has nothing to run: pulls one thread from the busiest CPU of the nearest domain that has one
    /// to spare. Whether it did.
    pub(super) fn pull_newly_idle(&mut self, cpu: usize) -> bool {
        let mut cost = 0;
        for at in 0..self.domains.of_cpu(cpu).len() {
            let number = self.domains.of_cpu(cpu)[at];
            let domain = &self.domains.all[number];
            cost += NEW_IDLE_NS + NEW_IDLE_PER_CPU_NS * domain.cpus.len() as u64;
            if self.cpus[cpu].mean_idle_ns < cost {
                return false;
            }
            if domain.overloaded == 0 {
                continue;
            }
            let Some(busiest) = self.busiest_for(number, cpu) else {
                continue;
            };
            if self.pull(
                busiest,
                cpu,
                Amount::Threads(1),
                0,
                domain_level_hot(domain.level),
            ) > 0
            {
                return true;
            }
        }
        false
    }

    /// The CPU of a domain with most threads, where two or more are, in a group that has too many for
    /// itself: more than CPUs, or so many that its idle CPUs are fewer by two than those here.
    fn busiest_for(&self, domain: usize, cpu: usize) -> Option<usize> {
        let domain = &self.domains.all[domain];
        let busy = self.domains.overloaded.common(&domain.members);
        let busiest = busy
            .filter(|c| *c != cpu)
            .map(|c| (self.cpus[c].count, std::cmp::Reverse(c)))
            .max()?;
        let std::cmp::Reverse(busiest) = busiest.1;
        if domain.has_children {
            let part = |c: usize| domain.groups.iter().find(|p| p.cpus.contains(&c));
            let (theirs, own) = (part(busiest)?, part(cpu)?);
            let idle = |cpus: &[usize]| cpus.iter().filter(|c| self.domains.idle.has(**c)).count();
            let running: u32 = theirs.cpus.iter().map(|c| self.cpus[*c].count).sum();
            let enough =
                running as usize > theirs.cpus.len() || idle(&own.cpus) > idle(&theirs.cpus) + 1;
            return enough.then_some(busiest);
        }
        Some(busiest)
    }

    /// Moves waiting threads from one CPU to another, as far as they may and as it takes. With every
    /// failure so far, warmer and heavier ones may be moved. How many were moved.
    pub(super) fn pull(
        &mut self,
        from: usize,
        to: usize,
        amount: Amount,
        failed: u32,
        patience: Option<u32>,
    ) -> u32 {
        let mut left = amount;
        let mut moved = 0;
        let looks = self.cpus[from].tasks.len().min(LOOKS);
        for _ in 0..looks {
            let c = &mut self.cpus[from];
            if c.count <= 1 {
                break;
            }
            let at = c.cursor % c.tasks.len();
            c.cursor = at + 1;
            let thread = c.tasks[at];
            let t = &self.threads[thread as usize];
            if t.state != ThreadState::Waiting || !t.allowed.has(to) {
                continue;
            }
            let warm = self.now_ns - t.last_ran_ns < WARM_NS && t.last_ran_ns > 0;
            if warm && patience.is_some_and(|patience| failed <= patience) {
                continue;
            }
            match &mut left {
                Amount::Threads(n) => *n = n.saturating_sub(1),
                Amount::Load(load) => {
                    let own = self.load_of(thread).max(1.0);
                    if (own / f64::from(1_u32 << failed.min(20))).floor() > *load {
                        continue;
                    }
                    *load -= own;
                }
            }
            self.migrate(thread as usize, to);
            moved += 1;
            let enough = match left {
                Amount::Threads(n) => n == 0,
                Amount::Load(load) => load <= 0.0,
            };
            if enough {
                break;
            }
        }
        moved
    }
}

/// How many failures it takes before threads with a warm cache are moved (`cache_nice_tries`); among SMT
/// siblings there is nothing to lose.
pub(super) fn domain_level_hot(level: Level) -> Option<u32> {
    match level {
        Level::Smt => None,
        Level::Cache | Level::Node => Some(1),
        Level::Machine => Some(2),
    }
}
