//! Where a thread goes that wakes up or is new (`select_task_rq_fair`).
//!
//! A wake-up goes to the CPU that the thread was on, or towards the waker's (`wake_affine`), and there to
//! an idle CPU of the same last-level cache (`select_idle_sibling`). A new thread goes to the idlest CPU
//! of the idlest group of each domain, from the largest down (`sched_balance_find_dst_cpu`).
//!
//! Left out: the limit on how many CPUs are looked at on a busy machine (SIS_UTIL), synchronous wake-ups,
//! and clusters within a cache.

use super::Kernel;
use super::queue::{Coming, Entity};
use super::switch::GROUP;
use super::thread::ThreadState;

/// A thread's changes of whom it wakes are halved this often (a second).
const FLIPS_FADE_NS: u64 = 1_000_000_000;

impl Kernel {
    /// The CPU for a thread that wakes up.
    pub(super) fn place_awake(&mut self, thread: usize, by: Option<usize>) -> usize {
        let previous = self.threads[thread].cpu;
        let t = &self.threads[thread];
        if t.allowed_count == 1 {
            return t.allowed.iter().next().unwrap_or(previous);
        }
        if self.quantum_ns().is_some() {
            return self.place_by_turns(thread);
        }
        let waker_cpu = by.map(|by| self.threads[by].cpu);
        let wide = by.is_some_and(|by| self.wakes_many(by, thread));
        let t = &self.threads[thread];
        let near = waker_cpu.filter(|cpu| !wide && t.allowed.has(*cpu));
        let target = near.map_or(previous, |cpu| self.towards(thread, cpu, previous));
        self.idle_near(thread, previous, target)
    }

    /// `record_wakee` and `wake_wide`: whether waker and wakee are one of few who wake many, so that
    /// pulling them together does no good.
    fn wakes_many(&mut self, waker: usize, wakee: usize) -> bool {
        let now = self.now_ns;
        let t = &mut self.threads[waker];
        if now - t.flips_since_ns >= FLIPS_FADE_NS {
            t.flips /= 2;
            t.flips_since_ns = now;
        }
        if t.last_wakee != Some(wakee as u32) {
            t.last_wakee = Some(wakee as u32);
            t.flips = t.flips.saturating_add(1);
        }
        let factor = self.domains.cache(t.cpu).count();
        let (a, b) = (self.threads[waker].flips, self.threads[wakee].flips);
        let (most, least) = (a.max(b), a.min(b));
        !(least < factor || most < least.saturating_mul(factor))
    }

    fn is_idle_cpu(&self, cpu: usize) -> bool {
        self.domains.idle.has(cpu)
    }

    /// `wake_affine`: the waker's CPU or the previous one, by who is idle, or else by load.
    fn towards(&mut self, thread: usize, waker: usize, previous: usize) -> usize {
        if waker == previous {
            return previous;
        }
        if self.is_idle_cpu(waker) && self.domains.share_cache(waker, previous) {
            return if self.is_idle_cpu(previous) {
                previous
            } else {
                waker
            };
        }
        if self.is_idle_cpu(previous) {
            return previous;
        }
        self.freshen(waker);
        self.freshen(previous);
        let own = self.load_of(thread as u32);
        let here = (self.cpus[waker].load.mean(self.now_ns) + own) * 100.0;
        // Half of the domain's imbalance of 17 % in favour of pulling.
        let there = (self.cpus[previous].load.mean(self.now_ns) - own) * 108.0;
        if here < there { waker } else { previous }
    }

    /// `select_idle_sibling`: an idle CPU at the target's cache, or the target.
    fn idle_near(&mut self, thread: usize, previous: usize, target: usize) -> usize {
        let recent = self.threads[thread].recent_cpu;
        let t = &self.threads[thread];
        let domains = &self.domains;
        let free = |cpu: usize| domains.idle.has(cpu) && t.allowed.has(cpu);
        if free(target) {
            return target;
        }
        if previous != target && domains.share_cache(previous, target) && free(previous) {
            return previous;
        }
        if recent != previous
            && recent != target
            && domains.share_cache(recent, target)
            && free(recent)
        {
            return recent;
        }
        let cache = domains.cache(target);
        let from = target + 1;
        if domains.has_smt {
            let idle_core = domains.has_idle_core(target);
            if !idle_core && domains.share_cache(previous, target) {
                let core = domains.core(previous);
                if let Some(cpu) = core.first_common(&domains.idle, &t.allowed, 0) {
                    return cpu;
                }
            }
            let core = cache.first_common(&domains.idle_cores, &t.allowed, from);
            if let Some(cpu) = core.filter(|_| idle_core) {
                return cpu;
            }
        }
        if let Some(cpu) = cache.first_common(&domains.idle, &t.allowed, from) {
            return cpu;
        }
        if t.allowed.has(target) {
            return target;
        }
        self.somewhere(thread, target)
    }

    /// A CPU for one that is not allowed where it was (`select_fallback_rq`): an idle one near, else any
    /// of its node, else any; these are dealt out in turn, as the kernel does.
    pub(super) fn somewhere(&mut self, thread: usize, near: usize) -> usize {
        let t = &self.threads[thread];
        let domains = &self.domains;
        let levels = domains.of_cpu(near).iter();
        let members = levels.map(|domain| &domains.all[*domain].members);
        let idle = members
            .chain([&domains.everything])
            .find_map(|members| members.first_common(&domains.idle, &t.allowed, near));
        if let Some(idle) = idle {
            return idle;
        }
        self.deal_out(thread)
    }

    /// The next of its CPUs in turn (`cpumask_any_and_distribute`).
    pub(super) fn deal_out(&mut self, thread: usize) -> usize {
        let t = &self.threads[thread];
        let all = self.all_cpus();
        let cpu = t
            .allowed
            .first_common(all, all, (self.dealt + 1) % self.cpus.len());
        let cpu = cpu.unwrap_or(t.cpu);
        self.dealt = cpu;
        cpu
    }

    /// The CPU for a new thread, created on `from`.
    pub(super) fn place_new(&mut self, thread: usize, from: usize) -> usize {
        let t = &self.threads[thread];
        if t.allowed_count == 1 {
            return t.allowed.iter().next().unwrap_or(from);
        }
        let mut here = if t.allowed.has(from) {
            from
        } else {
            self.somewhere(thread, from)
        };
        let mut domain = self.domains.of_cpu(here).last().copied();
        while let Some(number) = domain {
            let (part, cpu) = self.idlest_part(number, thread, here);
            here = cpu;
            domain = self.domains.all[number].groups[part].domain;
        }
        here
    }

    /// The group of a domain with most idle CPUs, or with the least load where none is idle; the one that
    /// `here` is in unless another is better. And a CPU of it.
    fn idlest_part(&self, domain: usize, thread: usize, here: usize) -> (usize, usize) {
        let t = &self.threads[thread];
        let domain = &self.domains.all[domain];
        let mut best: Option<(u32, f64, usize, usize)> = None;
        for (number, part) in domain.groups.iter().enumerate() {
            let (mut idle, mut load, mut cpus, mut running) = (0, 0.0, 0, 0);
            let mut first: Option<(bool, f64, usize)> = None;
            for cpu in part.cpus.iter().filter(|cpu| t.allowed.has(**cpu)) {
                let own = self.cpus[*cpu].load.mean(self.now_ns);
                let is_idle = self.is_idle_cpu(*cpu);
                idle += u32::from(is_idle);
                load += own;
                running += self.cpus[*cpu].count;
                cpus += 1;
                let better = first.is_none_or(|(i, l, _)| (is_idle, -own) > (i, -l));
                if better {
                    first = Some((is_idle, own, *cpu));
                }
            }
            let Some((_, _, cpu)) = first else { continue };
            let is_local = part.cpus.contains(&here);
            let load = load / f64::from(cpus);
            let (idle, load) = match is_local {
                true if idle > 0 => (idle + domain.tolerates(running + 1), load),
                true => (idle, load * 100.0 / 117.0),
                false => (idle, load),
            };
            let cpu = if is_local && self.is_idle_cpu(here) {
                here
            } else {
                cpu
            };
            let better = best.is_none_or(|(i, l, _, _)| {
                idle > i || (idle == i && ((idle == 0 && load < l) || (is_local && load <= l)))
            });
            if better {
                best = Some((idle, load, number, cpu));
            }
        }
        best.map_or((0, here), |(_, _, part, cpu)| (part, cpu))
    }

    /// A thread has come to a CPU's queue: is it to run at once (`wakeup_preempt_fair`)?
    pub(super) fn may_preempt(&mut self, thread: usize) {
        let cpu = self.threads[thread].cpu;
        if self.cpus[cpu].resched {
            return;
        }
        let Some(current) = self.cpus[cpu].current else {
            self.touch(cpu);
            return;
        };
        let (new, old) = (&self.threads[thread], &self.threads[current as usize]);
        if new.state != ThreadState::Waiting || old.state != ThreadState::Running {
            self.touch(cpu);
            return;
        }
        if self.quantum_ns().is_some() {
            if old.used_quantum && !new.used_quantum {
                self.reschedule(cpu);
            } else {
                self.touch(cpu);
            }
            return;
        }
        let (group, old_group) = (new.group, old.group);
        if group != 0 && self.groups[group].cpus[cpu].throttled {
            return;
        }
        let picked = if group == old_group && group != 0 {
            let mut running = old.entity;
            let queue = &mut self.groups[group].cpus[cpu].queue;
            challenge(queue, &mut running, &new.entity);
            let picked = queue.pick(Some((current, &running)));
            self.threads[current as usize].entity.protected = running.protected;
            picked == Some(thread as u32)
        } else {
            let key = if group == 0 {
                thread as u32
            } else {
                group as u32 | GROUP
            };
            let Some((running_key, mut running)) = self.outer_running(cpu) else {
                self.reschedule(cpu);
                return;
            };
            let entity = *self.outer_entity(cpu, key);
            let queue = &mut self.cpus[cpu].queue;
            challenge(queue, &mut running, &entity);
            let picked = queue.pick(Some((running_key, &running)));
            self.outer_entity_mut(cpu, running_key).protected = running.protected;
            picked == Some(key)
        };
        if picked {
            self.reschedule(cpu);
        } else {
            self.touch(cpu);
        }
    }

    /// Puts a thread that wakes up, or is new, into a queue, and has it run at once if it may.
    pub(super) fn activate(&mut self, thread: usize, cpu: usize, coming: Coming) {
        self.enqueue(thread, cpu, coming);
        self.may_preempt(thread);
    }
}

/// One with a shorter slice ends the protection of the one that runs (`PREEMPT_SHORT`).
fn challenge(queue: &super::queue::FairQueue, running: &mut Entity, new: &Entity) {
    if new.slice >= running.slice {
        return;
    }
    let eligible = queue.is_eligible(new, Some(running));
    let first = new.deadline < running.deadline || !queue.is_eligible(running, Some(running));
    if eligible && first {
        running.protected = running.vruntime;
    } else {
        let end = running.vruntime + super::queue::virtual_ns(new.slice, running.weight);
        running.protected = running.protected.min(end);
    }
}
