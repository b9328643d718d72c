//! How fast a thread runs: SMT siblings and memory.
//!
//! Where the threads whose memory is on a node ask for more bytes than it carries, what they wait for
//! memory takes longer by the same factor for all of them, such that what they still get is what it
//! carries. A thread on another node waits longer by the node's remote factor. A thread's memory is on
//! the node that it ran on first (Linux's first touch), and stays there.
//!
//! The factor is found anew at most once in 50 µs, and counts only if it has changed by more than 1 %.
//! Left out: caches' own bandwidth, links between nodes, and who loses the L3 to whom.

use super::thread::Job;
use super::{Kernel, thread::ThreadState};
use crate::machine::SimMachine;

/// How often a node's factor is found anew, at most.
const EVERY_NS: u64 = 50_000;

/// Waiting for memory is not stretched more than this.
const MOST_STRETCH: f64 = 1000.0;

/// Steps of Newton's method. It comes from below, and is a thousandth away after three or four.
const STEPS: u32 = 8;

#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) nodes: Vec<Node>,
    /// What runs on a CPU, if it needs memory: where from, and how it uses it.
    users: Vec<Option<(usize, Use)>>,
    /// Position of a CPU in its node's list.
    at: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) slot: usize,
    bandwidth: f64,
    remote: f64,
    stretch: f64,
    found_ns: u64,
    /// CPUs that use it, in no order.
    users: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Use {
    bandwidth: f64,
    share: f64,
    /// How much longer it waits for being elsewhere.
    far: f64,
}

impl Memory {
    pub(super) fn of(machine: &SimMachine) -> Memory {
        let node = |n: &crate::machine::Node| Node {
            slot: 0,
            bandwidth: n.bandwidth_bytes_per_s,
            remote: n.remote_factor,
            stretch: 1.0,
            found_ns: 0,
            users: Vec::new(),
        };
        Memory {
            nodes: machine.nodes.iter().map(node).collect(),
            users: vec![None; machine.places.len()],
            at: vec![0; machine.places.len()],
        }
    }

    fn speed(&self, cpu: usize) -> f64 {
        match &self.users[cpu] {
            None => 1.0,
            Some((node, used)) => used.speed(self.nodes[*node].stretch),
        }
    }

    fn set_user(&mut self, cpu: usize, user: Option<(usize, Use)>) {
        if let Some((node, _)) = self.users[cpu].take() {
            let (at, users) = (self.at[cpu], &mut self.nodes[node].users);
            users.swap_remove(at);
            if let Some(moved) = users.get(at) {
                self.at[*moved] = at;
            }
        }
        if let Some((node, _)) = user {
            self.at[cpu] = self.nodes[node].users.len();
            self.nodes[node].users.push(cpu);
        }
        self.users[cpu] = user;
    }

    /// By how much waiting for a node's memory is stretched such that no more is asked of it than it
    /// carries. What is asked falls, and flattens, as the stretch grows.
    fn find_stretch(&self, node: usize) -> f64 {
        let node = &self.nodes[node];
        let mut cpus = node.users.clone();
        // Sums of floating-point numbers depend on their order, and that of the list on history.
        cpus.sort_unstable();
        let users: Vec<Use> = cpus
            .iter()
            .filter_map(|c| self.users[*c])
            .map(|u| u.1)
            .collect();
        let mut stretch = 1.0;
        for _ in 0..STEPS {
            let (mut asked, mut falls) = (0.0, 0.0);
            for used in &users {
                let speed = used.speed(stretch);
                asked += used.bandwidth * speed;
                falls += used.bandwidth * speed * speed * used.share * used.far;
            }
            let over = asked - node.bandwidth;
            if over <= node.bandwidth * 1e-4 || falls <= 0.0 {
                break;
            }
            stretch += over / falls;
            if stretch >= MOST_STRETCH {
                return MOST_STRETCH;
            }
        }
        stretch
    }
}

impl Use {
    fn speed(&self, stretch: f64) -> f64 {
        1.0 / ((1.0 - self.share) + self.share * self.far * stretch)
    }
}

impl Kernel {
    /// What runs on the CPU, or what it does, may have changed.
    pub(super) fn uses_memory(&mut self, cpu: usize) {
        let user = self.cpus[cpu].current.and_then(|t| {
            let thread = &self.threads[t as usize];
            let works = matches!(thread.job, Job::Work { .. })
                && thread.state == ThreadState::Running
                && thread.demand.memory_share > 0.0;
            let node = thread.home.filter(|_| works)?;
            let there = self.machine.places[cpu].node as usize;
            Some((
                node,
                Use {
                    bandwidth: thread.demand.bandwidth_bytes_per_s,
                    share: thread.demand.memory_share,
                    far: if there == node {
                        1.0
                    } else {
                        self.memory.nodes[node].remote
                    },
                },
            ))
        });
        let before = self.memory.users[cpu];
        if before == user {
            return;
        }
        self.memory.set_user(cpu, user);
        let concerned = [before, user].into_iter().flatten();
        for (node, used) in concerned {
            let node = &self.memory.nodes[node];
            if used.bandwidth > 0.0 && self.agenda.slot(node.slot).is_none() {
                let at = (node.found_ns + EVERY_NS).max(self.now_ns);
                self.agenda.set_slot(node.slot, Some(at));
            }
        }
    }

    /// A node's stretch is to be found anew.
    pub(super) fn node_is_due(&mut self, node: usize) {
        let stretch = self.memory.find_stretch(node);
        let now = self.now_ns;
        let of = &mut self.memory.nodes[node];
        of.found_ns = now;
        let change = stretch / of.stretch;
        if (0.99..=1.01).contains(&change) && stretch > 1.0 || stretch == of.stretch {
            return;
        }
        of.stretch = stretch;
        let mut users = of.users.clone();
        users.sort_unstable();
        for cpu in users {
            self.settle(cpu, false);
            self.find_speed(cpu);
            self.touch(cpu);
        }
    }

    /// How fast the CPU runs what it runs. It is accounted up to now.
    pub(super) fn find_speed(&mut self, cpu: usize) {
        let busy = |c: &usize| *c != cpu && self.cpus[*c].current.is_some();
        let shared = self.domains.siblings(cpu).iter().any(busy);
        let smt = if shared { self.machine.smt } else { 1.0 };
        let (hot, power) = self.hot_speed(cpu);
        self.cpus[cpu].speed = smt * self.memory.speed(cpu) * hot * self.prefetch_speed(cpu);
        self.cpus[cpu].power = power;
    }

    /// The CPU has become busy or idle: its SMT siblings become slower or faster.
    pub(super) fn siblings_change(&mut self, cpu: usize) {
        if self.machine.smt >= 1.0 {
            return;
        }
        for at in 0..self.domains.siblings(cpu).len() {
            let sibling = self.domains.siblings(cpu)[at];
            if sibling != cpu && self.cpus[sibling].current.is_some() {
                self.settle(sibling, false);
                self.find_speed(sibling);
                self.touch(sibling);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_users(share: f64) -> Memory {
        let mut memory = Memory::of(&SimMachine::flat(2));
        memory.nodes[0].bandwidth = 10e9;
        let used = Use {
            bandwidth: 10e9,
            share,
            far: 1.0,
        };
        memory.set_user(0, Some((0, used)));
        memory.set_user(1, Some((0, used)));
        memory
    }

    #[test]
    fn two_that_ask_for_all_the_bandwidth_each_get_half() {
        for share in [0.3, 0.7, 1.0] {
            let mut memory = two_users(share);
            memory.nodes[0].stretch = memory.find_stretch(0);
            assert!((memory.speed(0) - 0.5).abs() < 1e-3, "{share}");
        }
    }

    #[test]
    fn one_that_gets_what_it_asks_for_is_not_stretched() {
        let mut memory = two_users(0.5);
        memory.set_user(1, None);
        assert_eq!(memory.find_stretch(0), 1.0);
    }
}
