//! Periodic balancing of the domains (`sched_balance_domains`, `sched_balance_rq`).
//!
//! In each domain, each group looks for the busiest other one and pulls from it: threads, while it has
//! CPUs idle, or load, when everybody is busy. It does so every so many milliseconds as the domain has
//! CPUs, or twice as many while it finds nothing to do, if it has an idle CPU, and 16 times more seldom if
//! not. A domain where nobody has two threads sleeps.
//!
//! The kernel lets each CPU look at times of its own; here each group of a domain does. Left out: asymmetric packing, NUMA preferences, and misfits.

use super::Kernel;
use super::balance::{Amount, domain_level_hot};
use super::domains::{Level, MOST_INTERVAL};
use super::thread::ThreadState;

const MS: u64 = 1_000_000;

/// Balancing is a soft interrupt: by the time that it looks at other CPUs, they have switched at the same
/// tick. (Seen on Linux 6.18: of forty threads that were pulled so, thirty had left their CPU 4 to 40 µs
/// before.)
const AFTER_TICK_NS: u64 = 5_000;

/// `sd->busy_factor`.
const BUSY_FACTOR: u64 = 16;

/// A group of a domain, at one moment.
#[derive(Clone, Copy, Debug)]
struct Sum {
    cpus: u32,
    idle: u32,
    running: u32,
    /// Load for each CPU. A whole number, as the kernel has it: less than that is no imbalance.
    load: f64,
    kind: Kind,
}

/// `enum group_type`, as far as there is something to tell apart here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    HasSpare,
    FullyBusy,
    Overloaded,
}

impl Kernel {
    /// A CPU's number of threads has changed: domains in which there may be something to balance get a
    /// time for it.
    pub(super) fn plan_balancing(&mut self, cpu: usize) {
        for at in 0..self.domains.of_cpu(cpu).len() {
            self.plan_domain(self.domains.of_cpu(cpu)[at]);
        }
    }

    fn plan_domain(&mut self, number: usize) {
        let domain = &self.domains.all[number];
        // With one thread a CPU or fewer, threads may still crowd in one core or cache.
        let crowded = domain.has_children && domain.idle > 0 && domain.running > 1;
        let worth = (domain.overloaded > 0 || crowded) && self.quantum_ns().is_none();
        let planned = self.agenda.slot(domain.slot);
        if !worth {
            if planned.is_some() {
                self.agenda.set_slot(domain.slot, None);
            }
            return;
        }
        if planned.is_none() {
            self.catch_up(number);
        }
        let due = self.balancing_is_due_ns(number);
        let slot = self.domains.all[number].slot;
        // The earlier of the two, so that changes to and fro need not be followed.
        if planned.is_none_or(|planned| due < planned) {
            self.agenda.set_slot(slot, Some(due));
        }
    }

    fn balancing_is_due_ns(&self, number: usize) -> u64 {
        let domain = &self.domains.all[number];
        let tick = self.machine.costs.tick_ns;
        let due = match domain.idle {
            0 => domain.busy_due_ns,
            _ => domain.busy_due_ns.min(domain.idle_due_ns),
        };
        // It is found out at a tick.
        let soonest = due.max((self.now_ns + 1).saturating_sub(AFTER_TICK_NS));
        soonest.div_ceil(tick) * tick + AFTER_TICK_NS
    }

    /// A domain that has slept would have found, now and then, that there is nothing to do.
    fn catch_up(&mut self, number: usize) {
        if self.now_ns < self.domains.all[number].busy_due_ns {
            return;
        }
        let longest_ms = MOST_INTERVAL * self.domains.all[number].cpus.len() as u64;
        for at in 0..self.domains.all[number].groups.len() {
            let part = &self.domains.all[number].groups[at];
            let idle = self.idle_of(&part.cpus).is_some();
            let interval = self.interval_ns(longest_ms, idle);
            let missed = self.now_ns.saturating_sub(part.done_ns) / interval;
            if missed > 0 {
                let part = &mut self.domains.all[number].groups[at];
                part.done_ns += missed * interval;
                part.interval_ms = longest_ms;
                part.failed = 0;
            }
        }
        self.find_due(number);
    }

    /// Finds out when the first of a domain's groups is to be balanced.
    fn find_due(&mut self, number: usize) {
        let due = |idle| {
            let parts = self.domains.all[number].groups.iter();
            let due = parts.map(|part| part.done_ns + self.interval_ns(part.interval_ms, idle));
            due.min().unwrap_or(u64::MAX)
        };
        let (idle_due_ns, busy_due_ns) = (due(true), due(false));
        let domain = &mut self.domains.all[number];
        (domain.idle_due_ns, domain.busy_due_ns) = (idle_due_ns, busy_due_ns);
    }

    /// `get_sd_balance_interval`: from one balancing of a group to the next.
    fn interval_ns(&self, interval_ms: u64, idle: bool) -> u64 {
        let interval = interval_ms * MS;
        if idle {
            return interval;
        }
        let most = 100 * MS * self.cpus.len() as u64;
        (interval * BUSY_FACTOR)
            .saturating_sub(self.machine.costs.tick_ns)
            .clamp(MS, most)
    }

    /// Balances a domain, for those of its groups whose time it is.
    pub(super) fn balance(&mut self, number: usize) {
        let now = self.now_ns;
        let mut fresh = false;
        for part in 0..self.domains.all[number].groups.len() {
            let own = &self.domains.all[number].groups[part];
            let idle = self.idle_of(&own.cpus);
            if now < own.done_ns + self.interval_ns(own.interval_ms, idle.is_some()) {
                continue;
            }
            let to = idle.unwrap_or(own.cpus[0]);
            if !std::mem::replace(&mut fresh, true) {
                for at in 0..self.domains.all[number].cpus.len() {
                    self.freshen(self.domains.all[number].cpus[at]);
                }
            }
            let in_balance = !self.balance_part(number, part, to, idle.is_some());
            let domain = &mut self.domains.all[number];
            let least = domain.cpus.len() as u64;
            let part = &mut domain.groups[part];
            part.done_ns = now - AFTER_TICK_NS;
            // One that was out of balance looks again soon, whether or not anything could be moved.
            part.interval_ms = match in_balance {
                true => (part.interval_ms * 2).min(MOST_INTERVAL * least),
                false => least,
            };
        }
        self.find_due(number);
        self.plan_domain(number);
    }

    /// The idle CPU that pulls for a group: one of an idle core, or any.
    fn idle_of(&self, cpus: &[usize]) -> Option<usize> {
        let mut idle = cpus.iter().filter(|c| self.domains.idle.has(**c));
        let first = *idle.clone().next()?;
        let core = idle.find(|c| self.domains.idle_cores.has(**c));
        Some(core.copied().unwrap_or(first))
    }

    /// Pulls to one group from the busiest other one, unless they are in balance. Whether they were not.
    fn balance_part(&mut self, number: usize, own: usize, to: usize, idle: bool) -> bool {
        let Some((busiest, amount)) = self.imbalance(number, own, idle) else {
            return false;
        };
        let failed = self.domains.all[number].groups[own].failed;
        let patience = domain_level_hot(self.domains.all[number].level);
        let mut moved = 0;
        let mut tried = Vec::new();
        // A CPU all of whose threads are pinned is left out, and the next one tried.
        while let Some(from) = self.busiest_cpu(number, busiest, amount, &tried) {
            moved = self.pull(from, to, amount, failed, patience);
            if moved > 0 || tried.len() >= 8 {
                break;
            }
            tried.push(from);
        }
        if moved == 0 && failed > patience.unwrap_or(0) + 2 {
            moved = self.pull_running(number, busiest, to, amount);
        }
        let part = &mut self.domains.all[number].groups[own];
        part.failed = if moved > 0 {
            0
        } else {
            failed.saturating_add(1)
        };
        true
    }

    /// `find_busiest_group` and `calculate_imbalance`.
    fn imbalance(&mut self, number: usize, own: usize, idle: bool) -> Option<(usize, Amount)> {
        let parts = self.domains.all[number].groups.len();
        let sums: Vec<Sum> = (0..parts).map(|part| self.sum(number, part)).collect();
        let local = sums[own];
        let others = (0..parts).filter(|part| *part != own && sums[*part].running > 0);
        let busiest = others.reduce(|a, b| if busier(&sums[b], &sums[a]) { b } else { a })?;
        let found = self.amount(number, &sums, &local, &sums[busiest], idle);
        if found.is_none() {
            self.domains.all[number].groups[own].failed = 0;
        }
        found.map(|amount| (busiest, amount))
    }

    fn amount(
        &self,
        number: usize,
        sums: &[Sum],
        local: &Sum,
        busiest: &Sum,
        idle: bool,
    ) -> Option<Amount> {
        let domain = &self.domains.all[number];
        if local.kind > busiest.kind {
            return None;
        }
        let cpus: u32 = sums.iter().map(|s| s.cpus).sum();
        let all: f64 = sums.iter().map(|s| s.load * f64::from(s.cpus)).sum();
        let mean = all / f64::from(cpus);
        if local.kind == Kind::Overloaded {
            let percent = if domain.level == Level::Smt {
                1.10
            } else {
                1.17
            };
            let balanced = local.load >= busiest.load
                || local.load >= mean
                || busiest.load <= percent * local.load;
            if balanced {
                return None;
            }
        }
        // Over groups that are domains themselves, threads are spread evenly (SD_PREFER_SIBLING).
        let spreads = domain.has_children && domain.level != Level::Machine;
        let more = spread(local, busiest);
        let uneven = spreads && local.kind == Kind::HasSpare && more > 1.0;
        if !uneven && busiest.kind != Kind::Overloaded {
            let enough_idle = busiest.cpus > 1 && local.idle <= busiest.idle + 1;
            if !idle || enough_idle || busiest.running == 1 {
                return None;
            }
        }
        if local.kind == Kind::HasSpare {
            let shares_cache = matches!(domain.level, Level::Smt | Level::Cache);
            if busiest.kind == Kind::Overloaded && !shares_cache {
                let room = local.idle.clamp(1, busiest.running - busiest.cpus);
                return Some(Amount::Threads(room));
            }
            let difference = match busiest.cpus == 1 || spreads {
                true => more as u32,
                false => local.idle.saturating_sub(busiest.idle),
            };
            let difference = match difference <= domain.tolerates(local.running + 1) {
                true => 0,
                false => difference,
            };
            return (difference > 1).then_some(Amount::Threads(difference / 2));
        }
        if local.load >= busiest.load || local.load >= mean {
            return None;
        }
        let spare = (busiest.load - mean) * f64::from(busiest.cpus);
        let room = (mean - local.load) * f64::from(local.cpus);
        let load = spare.min(room).floor();
        (load > 0.0).then_some(Amount::Load(load))
    }

    fn sum(&self, number: usize, part: usize) -> Sum {
        let part = &self.domains.all[number].groups[part];
        let cpus = part.cpus.len() as u32;
        let (running, idle) = match part.domain {
            Some(domain) => (
                self.domains.all[domain].running,
                self.domains.all[domain].idle,
            ),
            None => {
                let of = |c: &usize| self.cpus[*c].count;
                let idle = part.cpus.iter().filter(|c| of(c) == 0).count();
                (part.cpus.iter().map(of).sum(), idle as u32)
            }
        };
        let load: f64 = part
            .cpus
            .iter()
            .map(|c| self.cpus[*c].load.mean(self.now_ns))
            .sum();
        let kind = match (running > cpus, idle > 0) {
            (true, _) => Kind::Overloaded,
            (false, false) => Kind::FullyBusy,
            (false, true) => Kind::HasSpare,
        };
        Sum {
            cpus,
            idle,
            running,
            load: (load / f64::from(cpus)).round(),
            kind,
        }
    }

    /// `sched_balance_find_src_rq`: the CPU of a group with most threads, or with most load.
    fn busiest_cpu(
        &self,
        number: usize,
        part: usize,
        amount: Amount,
        except: &[usize],
    ) -> Option<usize> {
        let cpus = &self.domains.all[number].groups[part].cpus;
        let candidates = cpus
            .iter()
            .filter(|c| self.cpus[**c].count > 1 && !except.contains(c));
        let weight = |c: usize| match amount {
            Amount::Threads(_) => f64::from(self.cpus[c].count),
            Amount::Load(_) => self.cpus[c].load.mean(self.now_ns),
        };
        candidates
            .copied()
            .reduce(|a, b| if weight(b) > weight(a) { b } else { a })
    }

    /// `active_load_balance_cpu_stop`: nothing that waits could be moved, often enough; moves one that
    /// runs. Only where threads are to be spread: moving load that way would not lessen it.
    fn pull_running(&mut self, number: usize, part: usize, to: usize, amount: Amount) -> u32 {
        if matches!(amount, Amount::Load(_)) || self.cpus[to].count > 0 {
            return 0;
        }
        let cpus = &self.domains.all[number].groups[part].cpus;
        let movable = |c: &&usize| {
            let current = self.cpus[**c].current.map(|t| &self.threads[t as usize]);
            current.is_some_and(|t| t.state == ThreadState::Running && t.allowed.has(to))
        };
        let most = cpus
            .iter()
            .filter(movable)
            .max_by_key(|c| (self.cpus[**c].count, std::cmp::Reverse(**c)));
        let Some(thread) = most.and_then(|c| self.cpus[*c].current) else {
            return 0;
        };
        self.migrate(thread as usize, to);
        1
    }
}

/// `sibling_imbalance`: by how many threads one group has more than the other, for as many CPUs.
fn spread(local: &Sum, busiest: &Sum) -> f64 {
    let (a, b) = (f64::from(local.cpus), f64::from(busiest.cpus));
    let more = f64::from(busiest.running) * a - f64::from(local.running) * b;
    let more = if a == b {
        more / a
    } else {
        more * 2.0 / (a + b)
    };
    // A whole core or cache with nothing to do is worth a thread of one that has two.
    if local.running == 0 && busiest.running > 1 {
        more.max(2.0)
    } else {
        more
    }
}

/// `update_sd_pick_busiest`.
fn busier(a: &Sum, b: &Sum) -> bool {
    if a.kind != b.kind {
        return a.kind > b.kind;
    }
    match a.kind {
        Kind::Overloaded | Kind::FullyBusy => a.load > b.load,
        Kind::HasSpare => (b.idle, a.running) > (a.idle, b.running),
    }
}
