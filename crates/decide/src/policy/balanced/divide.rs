//! How many threads there are to share, and who gets how many.

use super::shares::{Wish, share};
use super::{Balanced, Programs, Sharing};
use crate::status::{Program, ProgramId, Status};
use std::collections::BTreeMap;

impl Balanced {
    /// Whether some malleable program is short of threads.
    pub(super) fn may_grow(&self, status: &Status) -> bool {
        let cpus = status.machine.one_per_cpu();
        let mut programs = status.programs.iter();
        programs.any(|(id, p)| p.wants.malleable && !p.overridden && self.is_short(*id, p, cpus))
    }

    /// Whether a program could use more than it has, and does not leave most of that unused. Which CPUs a
    /// team's threads use in the mean says little of how wide its next region is.
    pub(super) fn is_short(&self, id: ProgramId, program: &Program, cpus: u32) -> bool {
        let has = program.claim.as_ref().map_or(0, |c| c.threads);
        let uses = |uses| uses > f64::from(has) * 0.5;
        program.uses.is_some_and(uses) && has < self.could_use(id, program).min(cpus)
    }

    /// How many threads a program could use: by its own word, or what it wants; none while it does
    /// nothing.
    pub(super) fn could_use(&self, id: ProgramId, program: &Program) -> u32 {
        let wants = &program.wants;
        match self.activities.could_use(id) {
            _ if self.activities.is_asleep(id) => wants.min_threads,
            Some(could) => could.clamp(wants.min_threads, wants.max_threads),
            None => wants.max_threads,
        }
    }

    /// What malleable programs share: what room for rigid ones leaves, unless that is less than half of what
    /// they would have if everybody shared alike; then a thread for each CPU, each of them, or their share where
    /// the kernel gives it to them however many threads they have.
    pub(super) fn at_least_fair(
        &mut self,
        available: u32,
        by_people: u32,
        status: &Status,
        rigid: &Programs<'_>,
    ) -> u32 {
        let unmanaged = self.room.cpus().saturating_sub(self.room.for_rigid());
        let cpus = status.machine.one_per_cpu();
        let cpus = cpus.saturating_sub(unmanaged.saturating_add(by_people));
        let malleable = |p: &Program| p.wants.malleable && !p.overridden;
        let flexible = status.programs.iter().filter(|(_, p)| malleable(p));
        let flexible: Vec<_> = flexible
            .map(|(id, p)| (*id, self.could_use(*id, p)))
            .collect();
        let malleables = flexible.len() as u32;
        let flexible = flexible.into_iter();
        let fixed = rigid
            .keys()
            .filter_map(|id| Some((*id, self.room.of_rigid(*id)?)));
        let wishes: Vec<Wish> = flexible
            .chain(fixed)
            .map(|(program, most)| Wish {
                program,
                least: 1.min(most),
                most,
                has: most,
                busy: false,
            })
            .collect();
        let shares = share(cpus, &wishes);
        let of_flexible = shares.iter().filter(|(id, _)| !rigid.contains_key(id));
        let fair: u32 = of_flexible.map(|(_, share)| *share).sum();
        // More than half, before it is as it was: no going to and fro.
        self.rigid_share = match self.rigid_share {
            _ if rigid.is_empty() => false,
            true => available.saturating_mul(4) < fair.saturating_mul(3),
            false => available.saturating_mul(2) < fair,
        };
        self.room.keep(self.rigid_share, self.idle.is_lending());
        self.at_most.clear();
        if !self.rigid_share {
            return available;
        }
        for (id, program) in status.programs.iter().filter(|(_, p)| malleable(p)) {
            if program.spins && is_grouped_apart(program, rigid) {
                let share = shares.get(id).copied().unwrap_or(1);
                self.at_most.insert(*id, share.max(1));
            }
        }
        if status.machine.one_per_cpu() < status.machine.allowed.count() {
            return cpus.max(available);
        }
        let one_per_cpu = status.machine.one_per_cpu();
        let apart: u32 = self.at_most.values().sum();
        let together = malleables - self.at_most.len() as u32;
        apart.saturating_add(one_per_cpu.saturating_mul(together))
    }

    /// The most threads that a program may have now, of those that it wants and the `cpus`.
    fn most(&self, id: ProgramId, wants: u32, least: u32, cpus: u32) -> u32 {
        let at_most = self.at_most.get(&id).copied().unwrap_or(cpus);
        wants.min(cpus).min(at_most).max(least)
    }

    /// First those who are awake share, by what they could use, `with_lent` threads. What they leave of the
    /// CPUs is everybody's, by what they want: nobody loses anything if nobody needs it. Nobody has more
    /// threads than there are CPUs, but for its minimum.
    pub(super) fn shares(
        &self,
        cpus: u32,
        available: u32,
        with_lent: u32,
        programs: &[Sharing<'_>],
    ) -> BTreeMap<ProgramId, u32> {
        let of_awake = share(with_lent, &self.awake(cpus, programs));
        let wishes = programs.iter().map(|(id, program, has)| Wish {
            program: **id,
            least: of_awake
                .get(id)
                .copied()
                .unwrap_or(program.wants.min_threads),
            most: self.most(
                **id,
                program.wants.max_threads,
                program.wants.min_threads,
                cpus,
            ),
            has: *has,
            busy: is_busy(program),
        });
        share(available, &wishes.collect::<Vec<Wish>>())
    }

    /// As many threads beyond the CPUs as let those who are short of threads have `idle` more; and each
    /// time half as many more than before, so that it does not take many changes.
    pub(super) fn fills(
        &self,
        idle: f64,
        available: u32,
        cpus: u32,
        programs: &[Sharing<'_>],
    ) -> u32 {
        let short = programs
            .iter()
            .filter(|(id, p, _)| self.is_short(**id, p, cpus));
        let short: Vec<ProgramId> = short.map(|(id, ..)| **id).collect();
        let awake = self.awake(cpus, programs);
        let have = |beyond: u32| {
            let shares = share(available.saturating_add(beyond), &awake);
            let have = short.iter().filter_map(|id| shares.get(id));
            have.fold(0, |sum: u32, threads| sum.saturating_add(*threads))
        };
        let lent = self.idle.threads();
        let most = cpus.saturating_mul(programs.len() as u32);
        let enough = have(lent).saturating_add((idle.round() as u32).max(1));
        let enough = enough.min(have(lent.max(most)));
        let (mut low, mut high) = (lent, lent.max(most));
        while low < high {
            let middle = low + (high - low) / 2;
            match have(middle) >= enough {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low.max(lent.saturating_add(lent.div_ceil(2)))
            .min(lent.max(most))
    }

    /// What those who are awake could use.
    pub(super) fn awake(&self, cpus: u32, programs: &[Sharing<'_>]) -> Vec<Wish> {
        let awake = programs
            .iter()
            .filter(|(id, ..)| !self.activities.is_asleep(**id));
        let wishes = awake.map(|(id, program, has)| Wish {
            program: **id,
            least: program.wants.min_threads,
            most: self.most(
                **id,
                self.could_use(**id, program),
                program.wants.min_threads,
                cpus,
            ),
            has: *has,
            busy: is_busy(program),
        });
        wishes.collect()
    }
}

/// How many threads of malleable programs are not running, in the mean since the last reading.
pub(super) fn unused(status: &Status) -> f64 {
    let malleable = |p: &&Program| p.wants.malleable && !p.overridden;
    let programs = status.programs.values().filter(malleable);
    let unused = programs.map(|p| {
        let has = p.claim.as_ref().map_or(0, |c| c.threads);
        p.uses.map_or(0.0, |uses| (f64::from(has) - uses).max(0.0))
    });
    unused.sum()
}

/// Whether the kernel shares CPU time out between a program's group and those of all rigid programs, before it
/// does among threads.
fn is_grouped_apart(program: &Program, rigid: &Programs<'_>) -> bool {
    let apart = |other: &Program| other.group.is_some() && other.group != program.group;
    program.group.is_some() && rigid.values().all(|other| apart(other))
}

/// Whether a program uses all that it has.
fn is_busy(program: &Program) -> bool {
    let has = program.claim.as_ref().map_or(0, |c| c.threads);
    program.uses.is_some_and(|uses| uses > f64::from(has) - 0.5)
}
