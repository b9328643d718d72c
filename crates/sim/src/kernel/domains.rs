//! Scheduling domains (`kernel/sched/topology.c`): nested sets of CPUs over which load is balanced, and
//! what is counted in them. The levels are SMT, last-level cache (MC), NUMA node (PKG) and machine
//! (NUMA); a level that adds nothing is left out.
//!
//! The kernel has a copy of each domain for each of its CPUs; here there is one, with a part for each of
//! its groups. Left out: asymmetric capacities, overlapping NUMA groups of machines with several hops, and
//! the limit on the distance over which wake-ups look.

use super::bits::Bits;
use crate::machine::SimMachine;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

/// The interval between two balancings is at least as many milliseconds as the domain has CPUs, and at
/// most so many times that (`sd->max_interval`).
pub(super) const MOST_INTERVAL: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Smt,
    Cache,
    Node,
    Machine,
}

/// CPUs over which load is balanced, in groups that are balanced against each other.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub(super) level: Level,
    pub(super) cpus: Vec<usize>,
    pub(super) members: Bits,
    pub(super) groups: Vec<Part>,
    /// Its groups have several CPUs each and are domains themselves.
    pub(super) has_children: bool,
    /// Of its CPUs: those without a runnable thread, and those with more than one; and all threads.
    pub(super) idle: u32,
    pub(super) overloaded: u32,
    pub(super) running: u32,
    pub(super) slot: usize,
    /// When the first of its groups is to be balanced: of those with an idle CPU, if all had one, and of
    /// those without.
    pub(super) idle_due_ns: u64,
    pub(super) busy_due_ns: u64,
}

/// A group of a domain.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) cpus: Vec<usize>,
    /// If it is itself a domain: which.
    pub(super) domain: Option<usize>,
    /// How often nothing could be moved to it although there was something (`nr_balance_failed`).
    pub(super) failed: u32,
    /// When it was last balanced.
    pub(super) done_ns: u64,
    /// Milliseconds between; doubled, up to a point, while nothing is to be done.
    pub(super) interval_ms: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Domains {
    /// From small to large within each branch.
    pub(super) all: Vec<Domain>,
    /// A CPU's domains, from small to large.
    of_cpu: Vec<Vec<usize>>,
    /// Every CPU.
    pub(super) everything: Bits,
    /// CPUs without a runnable thread, with more than one, and of cores that are all idle.
    pub(super) idle: Bits,
    pub(super) overloaded: Bits,
    pub(super) idle_cores: Bits,
    /// Idle cores of a cache.
    cache_idle_cores: Vec<u32>,
    caches: Vec<Bits>,
    cache_of: Vec<usize>,
    cores: Vec<Core>,
    core_of: Vec<usize>,
    pub(super) has_smt: bool,
}

#[derive(Clone, Debug)]
struct Core {
    cpus: Vec<usize>,
    members: Bits,
    busy: u32,
}

/// CPUs by what they have in common, each in ascending order, in the order of their first CPUs.
fn parts<K: PartialEq>(cpus: &[usize], key: impl Fn(usize) -> K) -> Vec<Vec<usize>> {
    let mut found: Vec<(K, Vec<usize>)> = Vec::new();
    for cpu in cpus {
        let key = key(*cpu);
        // The last ones first: neighbours mostly have neighbouring numbers.
        match found.iter_mut().rev().find(|(k, _)| *k == key) {
            Some((_, part)) => part.push(*cpu),
            None => found.push((key, vec![*cpu])),
        }
    }
    found.into_iter().map(|(_, part)| part).collect()
}

impl Domain {
    /// By how many idle CPUs a group with so many threads may be worse than another one without losing
    /// any to it (`adjust_numa_imbalance`): the kernel keeps a small program on its node.
    pub(super) fn tolerates(&self, running: u32) -> u32 {
        let small = running as usize <= self.cpus.len() / 8;
        if self.level == Level::Machine && small {
            2
        } else {
            0
        }
    }
}

impl Domains {
    pub(super) fn of(machine: &SimMachine, seed: u64) -> Domains {
        let count = machine.places.len();
        let all: Vec<usize> = (0..count).collect();
        // Nested, whatever the topology says: a cache that spans nodes counts for each of them.
        let node = |c: usize| machine.places[c].node;
        let cache = |c: usize| (node(c), machine.last_level_cache(c as u32));
        let core = |c: usize| (cache(c), machine.places[c].core);
        let levels = [
            (Level::Smt, parts(&all, core)),
            (Level::Cache, parts(&all, cache)),
            (Level::Node, parts(&all, node)),
            (Level::Machine, vec![all.clone()]),
        ];
        let bits = |cpus: &[usize]| {
            let mut bits = Bits::new(count);
            cpus.iter().for_each(|cpu| bits.set(*cpu, true));
            bits
        };
        let index = |parts: &[Vec<usize>]| {
            let mut of = vec![0; count];
            for (at, part) in parts.iter().enumerate() {
                part.iter().for_each(|cpu| of[*cpu] = at);
            }
            of
        };
        let (cores, caches) = (&levels[0].1, &levels[1].1);
        let (core_of, cache_of) = (index(cores), index(caches));
        let mut cache_idle_cores = vec![0; caches.len()];
        cores
            .iter()
            .for_each(|c| cache_idle_cores[cache_of[c[0]]] += 1);
        let core = |cpus: &Vec<usize>| Core {
            cpus: cpus.clone(),
            members: bits(cpus),
            busy: 0,
        };
        let mut domains = Domains {
            all: Vec::new(),
            of_cpu: vec![Vec::new(); count],
            everything: Bits::all(count),
            idle: Bits::all(count),
            overloaded: Bits::new(count),
            idle_cores: Bits::all(count),
            cache_idle_cores,
            caches: caches.iter().map(|cpus| bits(cpus)).collect(),
            cores: cores.iter().map(core).collect(),
            has_smt: cores.iter().any(|c| c.len() > 1),
            cache_of,
            core_of,
        };
        let mut random = Pcg32::seed_from_u64(seed);
        for (level, parts) in &levels {
            for cpus in parts {
                let members = bits(cpus);
                domains.add(*level, cpus, members, &mut random);
            }
        }
        domains
    }

    fn add(&mut self, level: Level, cpus: &[usize], members: Bits, random: &mut Pcg32) {
        let groups = parts(cpus, |cpu| {
            let inner = self.of_cpu[cpu].last();
            inner.map_or((true, cpu), |domain| (false, *domain))
        });
        if groups.len() < 2 {
            return;
        }
        let number = self.all.len();
        let weight = cpus.len() as u64;
        // Machines have been up for some time when programs start: balancing is anywhere in its round, and
        // as seldom as it becomes.
        let interval_ms = MOST_INTERVAL * weight;
        let part = |cpus: Vec<usize>| Part {
            domain: self.of_cpu[cpus[0]].last().copied(),
            cpus,
            failed: 0,
            done_ns: ((u64::from(random.next_u32()) * interval_ms * 16_000) >> 32) * 1_000,
            interval_ms,
        };
        let groups: Vec<Part> = groups.into_iter().map(part).collect();
        self.all.push(Domain {
            level,
            cpus: cpus.to_vec(),
            members,
            has_children: groups.iter().any(|g| g.domain.is_some()),
            groups,
            idle: weight as u32,
            overloaded: 0,
            running: 0,
            slot: 0,
            idle_due_ns: 0,
            busy_due_ns: 0,
        });
        for cpu in cpus {
            self.of_cpu[*cpu].push(number);
        }
    }

    /// A CPU's domains, from small to large.
    pub(super) fn of_cpu(&self, cpu: usize) -> &[usize] {
        &self.of_cpu[cpu]
    }

    /// CPUs of the same core, itself too.
    pub(super) fn siblings(&self, cpu: usize) -> &[usize] {
        &self.cores[self.core_of[cpu]].cpus
    }

    pub(super) fn core(&self, cpu: usize) -> &Bits {
        &self.cores[self.core_of[cpu]].members
    }

    /// CPUs of the same last-level cache, itself too.
    pub(super) fn cache(&self, cpu: usize) -> &Bits {
        &self.caches[self.cache_of[cpu]]
    }

    pub(super) fn share_cache(&self, a: usize, b: usize) -> bool {
        self.cache_of[a] == self.cache_of[b]
    }

    /// Whether some core of the CPU's cache is all idle.
    pub(super) fn has_idle_core(&self, cpu: usize) -> bool {
        self.cache_idle_cores[self.cache_of[cpu]] > 0
    }

    /// A CPU has another number of runnable threads.
    pub(super) fn count(&mut self, cpu: usize, before: u32, now: u32) {
        let idle = i32::from(now == 0) - i32::from(before == 0);
        let overloaded = i32::from(now > 1) - i32::from(before > 1);
        for domain in &self.of_cpu[cpu] {
            let domain = &mut self.all[*domain];
            domain.running = domain.running + now - before;
            domain.idle = domain.idle.saturating_add_signed(idle);
            domain.overloaded = domain.overloaded.saturating_add_signed(overloaded);
        }
        if overloaded != 0 {
            self.overloaded.set(cpu, now > 1);
        }
        if idle == 0 {
            return;
        }
        self.idle.set(cpu, now == 0);
        let core = &mut self.cores[self.core_of[cpu]];
        let was_idle = core.busy == 0;
        core.busy = core.busy.saturating_add_signed(-idle);
        let is_idle = core.busy == 0;
        if was_idle != is_idle {
            core.cpus
                .iter()
                .for_each(|c| self.idle_cores.set(*c, is_idle));
            let cores = &mut self.cache_idle_cores[self.cache_of[cpu]];
            *cores = if is_idle { *cores + 1 } else { *cores - 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(synthetic: &str) -> Domains {
        let text = format!("name = \"m\"\ntopology = {{ synthetic = \"{synthetic}\" }}");
        let none = |_: &str| Err::<String, _>("none");
        Domains::of(&SimMachine::from_toml(&text, none).unwrap(), 1)
    }

    fn levels(domains: &Domains, cpu: usize) -> Vec<(Level, usize, usize)> {
        let all = domains.of_cpu(cpu).iter().map(|d| &domains.all[*d]);
        all.map(|d| (d.level, d.cpus.len(), d.groups.len()))
            .collect()
    }

    #[test]
    fn a_big_server_has_every_level_that_adds_something() {
        let domains = of("package:4 [numa] l3:1 core:8 pu:2");
        assert_eq!(
            levels(&domains, 5),
            [
                (Level::Smt, 2, 2),
                (Level::Cache, 16, 8),
                (Level::Machine, 64, 4)
            ]
        );
    }

    #[test]
    fn without_an_l3_the_l2_is_the_last_level() {
        let domains = of("[numa] package:2 l2:2 core:2 pu:1");
        assert_eq!(
            levels(&domains, 0),
            [(Level::Cache, 2, 2), (Level::Node, 8, 4)]
        );
        assert!(domains.share_cache(0, 1) && !domains.share_cache(1, 2));
    }

    #[test]
    fn counts_follow_the_threads() {
        let mut domains = of("l3:1 core:2 pu:2");
        domains.count(0, 0, 2);
        let top = domains.all.last().unwrap();
        assert_eq!((top.idle, top.overloaded, top.running), (3, 1, 2));
        assert!(domains.has_idle_core(0));
        domains.count(2, 0, 1);
        assert!(!domains.has_idle_core(0));
        domains.count(0, 2, 0);
        assert!(domains.has_idle_core(0));
    }
}
