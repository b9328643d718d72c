//! What OpenSolaris' dispatcher does differently, for machines whose published figures come from it.
//!
//! Each CPU has a queue, as in Linux, but nothing balances them from time to time, and shares are not
//! weighed. A thread has its CPU for a *quantum*. When that is over and others wait for the CPU, it goes to the
//! end of the queue of the next CPU that has a shorter one (`setbackdq`): where there are more threads than
//! CPUs, who shares a CPU with whom changes all the time, so that all threads get about as much. A CPU that
//! becomes idle takes a thread from any other one's queue, near ones first (`disp_getwork`).
//!
//! Of the sixty priorities of the time-sharing class there are two here: threads that have used up a quantum
//! since they last slept, and the others, who go first, and take the CPU away when they wake up
//! (`ts_slpret`). One that has waited for a second goes first, too (`ts_maxwait`).
//!
//! Left out: quanta that differ by priority, nice values, home groups of threads (lgroups; a new thread goes where
//! it is idlest, as in Linux), and caches that are left in peace for a while (`nosteal_nsec`). Groups have no
//! shares, but their quotas hold.

use super::Kernel;
use super::thread::ThreadState;
use crate::machine::Scheduler;

/// One that has waited so long goes first.
const LONGEST_WAIT_NS: u64 = 1_000_000_000;

/// Who goes first: the smaller.
type Rank = (bool, u64, u32);

impl Kernel {
    /// The quantum, if this is how the machine's CPUs are dealt out.
    pub(super) fn quantum_ns(&self) -> Option<u64> {
        match self.machine.scheduler {
            Scheduler::Linux => None,
            Scheduler::Solaris { quantum_ns } => Some(quantum_ns),
        }
    }

    /// The thread on the CPU may have used up its quantum.
    pub(super) fn quantum_may_be_over(&mut self, cpu: usize) {
        let (Some(quantum), Some(current)) = (self.quantum_ns(), self.cpus[cpu].current) else {
            return;
        };
        if self.now_ns >= self.cpus[cpu].quantum_ends_ns {
            self.cpus[cpu].quantum_ends_ns = self.now_ns + quantum;
            self.cpus[cpu].quantum_over = true;
            self.threads[current as usize].used_quantum = true;
            self.reschedule(cpu);
        }
    }

    fn rank(&self, thread: u32) -> Rank {
        let t = &self.threads[thread as usize];
        let waited_ns = self.now_ns - t.last_ran_ns;
        let later = t.used_quantum && waited_ns < LONGEST_WAIT_NS;
        (later, t.last_ran_ns, thread)
    }

    /// Of those that wait in a CPU's queue and may run on `to`, the first.
    fn first_waiting(&self, cpu: usize, to: usize) -> Option<Rank> {
        let waits = |thread: &&u32| {
            let t = &self.threads[**thread as usize];
            t.state == ThreadState::Waiting && t.allowed.has(to)
        };
        let tasks = self.cpus[cpu].tasks.iter().filter(waits);
        tasks.map(|thread| self.rank(*thread)).min()
    }

    /// Who is to run on the CPU; and the one that is to go to another CPU's queue, as its quantum is over.
    pub(super) fn next_by_turns(&mut self, cpu: usize) -> (Option<u32>, Option<u32>) {
        let over = std::mem::take(&mut self.cpus[cpu].quantum_over);
        let runs = |t: &u32| {
            let t = &self.threads[*t as usize];
            t.state == ThreadState::Running && t.cpu == cpu
        };
        let current = self.cpus[cpu].current.filter(runs);
        let Some((later, _, first)) = self.first_waiting(cpu, cpu) else {
            return (current.or_else(|| self.take_from_others(cpu)), None);
        };
        let Some(current) = current else {
            return (Some(first), None);
        };
        if over {
            return (Some(first), Some(current));
        }
        let gives_way = !later && self.threads[current as usize].used_quantum;
        (Some(if gives_way { first } else { current }), None)
    }

    /// Takes a thread that waits for another CPU, of the nearest domain in which there is one. Which.
    fn take_from_others(&mut self, cpu: usize) -> Option<u32> {
        let first = self.domains.of_cpu(cpu).iter().find_map(|domain| {
            let members = &self.domains.all[*domain].members;
            let crowded = self.domains.overloaded.common(members);
            crowded.filter_map(|c| self.first_waiting(c, cpu)).min()
        });
        let (_, _, thread) = first?;
        self.migrate(thread as usize, cpu);
        // Where its group's quota is used up, it does not run here either.
        self.first_waiting(cpu, cpu).map(|(_, _, thread)| thread)
    }

    /// The CPU for a thread that wakes up (`cpu_choose`): its own or an idle one, near ones first; or one that it may
    /// take from a thread that has used up its quantum; or its own.
    pub(super) fn place_by_turns(&mut self, thread: usize) -> usize {
        let t = &self.threads[thread];
        let own = t.cpu;
        if self.domains.idle.has(own) && t.allowed.has(own) {
            return own;
        }
        let members = |d: &usize| &self.domains.all[*d].members;
        let mut domains = self.domains.of_cpu(own).iter().map(members);
        let idle = domains.find_map(|m| m.first_common(&self.domains.idle, &t.allowed, own));
        if let Some(idle) = idle {
            return idle;
        }
        let gives_way = |c: &usize| {
            let current = self.cpus[*c].current.map(|t| &self.threads[t as usize]);
            t.allowed.has(*c) && current.is_some_and(|t| t.used_quantum)
        };
        let cache = self.domains.cache(own).iter();
        let near = [own].into_iter().chain(cache).find(gives_way);
        match near {
            Some(cpu) => cpu,
            None if t.allowed.has(own) => own,
            None => self.somewhere(thread, own),
        }
    }

    /// Puts a thread that waits for a CPU into the queue of the next CPU of its cache that has a shorter one.
    pub(super) fn put_behind(&mut self, thread: u32) {
        let t = &self.threads[thread as usize];
        let cpu = t.cpu;
        let cache: Vec<usize> = self.domains.cache(cpu).iter().collect();
        let at = cache.iter().position(|c| *c == cpu).unwrap_or(0);
        let mut after = cache
            .iter()
            .copied()
            .cycle()
            .skip(at + 1)
            .take(cache.len() - 1);
        let count = |c: usize| self.cpus[c].count;
        let to = after.find(|c| t.allowed.has(*c) && count(*c) < count(cpu));
        if let Some(to) = to {
            self.migrate(thread as usize, to);
        }
    }
}
