//! `balanced`, the default: malleable programs share the CPUs by what they can use, rigid ones and what is
//! not under management are left room, nobody is starved, and an idle machine is one program's whole.
//!
//! *How many threads.* From the CPUs (within the quota) goes what a person has set, and room for threads
//! that cannot be told to be fewer (see `room`): those of rigid programs, and of what is not under
//! management. The rest is shared by the malleable programs, thread by thread, to whoever has fewest and
//! can use more; everyone has their minimum in any case. Programs that do nothing do not count, and what
//! nobody could use at present is still shared, so that who wakes up alone has all. A rigid program is given its share when it joins
//! or asks, and keeps it: it could not follow.
//!
//! *Which CPUs.* If everybody's threads fit, and nothing else runs, each program has CPUs of its own, and
//! keeps them as far as its number allows. Otherwise all share all CPUs and the numbers of threads keep
//! the peace: a fixed CPU with someone else's thread on it would hold its program up, where the kernel
//! can move a thread that may run anywhere. A single program has all CPUs, unless it asks for a placement.
//!
//! *When.* What programs say and do (join, ask, leave, create threads) counts at once, in the same event.
//! What is only seen in readings must last: see `room` for others' load; that a program could use fewer
//! threads than it has must be so as long, too. Readings come every 10 ms after something
//! has changed or while they are in doubt, and half as often each time when they show nothing new.

use crate::cpus::CpuSet;
use crate::policy::plan::{Planned, carry_out};
use crate::policy::{Event, Orders, Policy, choose};
use crate::status::{Claim, Placement, Program, ProgramId, Status};
use std::collections::BTreeMap;

mod activity;
mod room;
mod shares;

use activity::Activities;
use room::Room;
use shares::{Wish, share};

/// The shortest and the longest time between readings, in nanoseconds; and the longest while room is left
/// to threads whose end others wait for, or while someone has less than they may soon be able to use.
const SHORTEST_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 250_000_000;
const LONGEST_WAITING_NS: u64 = 50_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub struct Balanced {
    room: Room,
    activities: Activities,
    period_ns: u64,
}

/// What a plan rests on.
struct Basis {
    /// CPUs that may be granted: without those that a person has given away.
    cpus: CpuSet,
    /// How many threads there are to share.
    available: u32,
    /// Each program's threads.
    threads: BTreeMap<ProgramId, u32>,
    /// Whether each has CPUs of its own.
    apart: bool,
}

type Programs<'a> = BTreeMap<ProgramId, &'a Program>;

impl Default for Balanced {
    fn default() -> Balanced {
        Balanced {
            room: Room::default(),
            activities: Activities::default(),
            period_ns: SHORTEST_NS,
        }
    }
}

impl Policy for Balanced {
    fn name(&self) -> String {
        "balanced".to_owned()
    }

    fn period_ns(&self, _: &Status) -> Option<u64> {
        Some(self.period_ns)
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        let is_rigid = |(_, p): &(&ProgramId, &Program)| !p.wants.malleable && !p.overridden;
        let rigid = status.programs.iter().filter(is_rigid);
        let mut rigid: Programs<'_> = rigid.map(|(id, p)| (*id, p)).collect();
        let asks = match event {
            Event::Joined(id) | Event::Asked(id) | Event::Overridden(id) => Some(*id),
            _ => None,
        };
        // Rigid programs whose number of threads is open: those that ask, and any without a claim.
        let open: Programs<'_> = rigid
            .extract_if(.., |id, p| asks == Some(*id) || p.claim.is_none())
            .collect();
        self.room.sees(status, &rigid);
        if let Some(id) = asks {
            self.activities.wakes(id);
        }
        let mut note = None;
        match event {
            Event::Failed(_) => return,
            Event::Readings => {
                self.activities.on_readings(status);
                let asleep = |id| self.activities.is_asleep(id);
                note = self.room.on_readings(status, asleep);
                for (id, program) in &rigid {
                    self.room.rigid_has(*id, program.threads);
                }
            }
            Event::Threads {
                program,
                before,
                now,
            } if rigid.contains_key(program) => match before {
                0 => self.room.rigid_says(*program, *now),
                _ => self.room.rigid_has(*program, *now),
            },
            _ => {}
        }
        let plan = self.plan(status, &rigid, &open);
        let changed = carry_out(plan, status, orders);
        if let Some(note) = note.filter(|_| changed) {
            orders.note(note);
        }
        self.period_ns = match event {
            Event::Readings if !changed && !self.room.is_in_doubt() => {
                let waits = self.room.cpus() > 0 || self.activities.may_wake(status);
                let longest = if waits {
                    LONGEST_WAITING_NS
                } else {
                    LONGEST_NS
                };
                (self.period_ns * 2).min(longest)
            }
            _ => SHORTEST_NS,
        };
    }
}

impl Balanced {
    fn plan(&mut self, status: &Status, rigid: &Programs<'_>, open: &Programs<'_>) -> Vec<Planned> {
        let basis = self.basis(status, rigid, open);
        let decided = status.programs.iter().filter(|(_, p)| !p.overridden);
        let programs: Programs<'_> = decided.map(|(id, p)| (*id, p)).collect();
        let mut sets = match basis.apart {
            true => self.sets_apart(status, &basis, &programs),
            false => BTreeMap::new(),
        };
        let whole = programs.len() == 1 && basis.cpus == status.machine.allowed;
        let mut plan = Vec::new();
        for (id, program) in &programs {
            let anywhere = program.wants.placement == Placement::Any;
            let own = sets.remove(id).filter(|_| !(whole && anywhere));
            let threads = basis.threads.get(id).copied().unwrap_or(1);
            let had = program.claim.as_ref().map_or(0, |c| c.threads);
            if program.wants.malleable && program.threads == 0 && threads < had {
                self.room.wait_for_followers(status.time_ns);
            }
            plan.push(Planned {
                program: *id,
                reason: self.reason(program, threads, &basis, programs.len()),
                claim: Claim {
                    exclusive: basis.apart && (own.is_some() || whole),
                    cpus: own.unwrap_or_else(|| basis.cpus.clone()),
                    threads,
                },
            });
        }
        plan
    }

    fn basis(&mut self, status: &Status, rigid: &Programs<'_>, open: &Programs<'_>) -> Basis {
        let machine = &status.machine;
        let mut cpus = machine.allowed.clone();
        let mut by_people = 0_u32;
        let mut people_share = false;
        for program in status.programs.values().filter(|p| p.overridden) {
            let Some(claim) = &program.claim else {
                continue;
            };
            by_people = by_people.saturating_add(claim.threads.min(claim.cpus.count()));
            match claim.threads >= claim.cpus.count() {
                true => cpus = cpus.difference(&claim.cpus),
                false => people_share = true,
            }
        }
        if cpus.is_empty() {
            cpus.clone_from(&machine.allowed);
            people_share = true;
        }
        let within_quota = machine.one_per_cpu().saturating_sub(self.room.for_rigid());
        let on_cpus = machine.allowed.count().saturating_sub(self.room.cpus());
        let available = within_quota.min(on_cpus).saturating_sub(by_people);

        let malleable = |p: &Program| p.wants.malleable && !p.overridden;
        let malleable = status.programs.iter().filter(|(_, p)| malleable(p));
        let malleable = malleable.map(|(id, p)| (id, p, p.claim.as_ref().map_or(0, |c| c.threads)));
        let open_ones = open.iter().map(|(id, p)| (id, *p, 0));
        let mut threads = self.shares(available, malleable.chain(open_ones));
        for (id, program) in open {
            let share = threads.get(id).copied().unwrap_or(1);
            self.room.rigid_has(*id, share.max(program.threads));
        }
        for (id, program) in rigid {
            let wants = &program.wants;
            let has = program.claim.as_ref().map_or(1, |c| c.threads);
            threads.insert(*id, has.clamp(wants.min_threads, wants.max_threads));
        }
        let needed = threads.iter().fold(0_u32, |sum, (id, threads)| {
            sum.saturating_add(self.size(*id, *threads))
        });
        let fits = needed <= cpus.count() && needed <= machine.one_per_cpu();
        Basis {
            apart: fits && !people_share && !self.room.others_run(),
            cpus,
            available,
            threads,
        }
    }

    /// How many CPUs of its own a program needs.
    fn size(&self, id: ProgramId, threads: u32) -> u32 {
        self.room.of_rigid(id).unwrap_or(threads).max(threads)
    }

    /// First those who are awake share, by what they could use. What they leave is everybody's, by what
    /// they want: nobody loses anything if nobody needs it.
    fn shares<'a>(
        &self,
        available: u32,
        programs: impl Iterator<Item = (&'a ProgramId, &'a Program, u32)>,
    ) -> BTreeMap<ProgramId, u32> {
        let wishes = programs.map(|(id, program, has)| Wish {
            program: *id,
            least: program.wants.min_threads,
            most: program.wants.max_threads,
            has,
        });
        let mut wishes: Vec<Wish> = wishes.collect();
        let awake = wishes
            .iter()
            .filter(|w| !self.activities.is_asleep(w.program));
        let awake = awake.map(|w| Wish {
            most: match self.activities.could_use(w.program) {
                Some(could) => could.clamp(w.least, w.most),
                None => w.most,
            },
            ..*w
        });
        let of_awake = share(available, &awake.collect::<Vec<Wish>>());
        for wish in &mut wishes {
            if let Some(share) = of_awake.get(&wish.program) {
                wish.least = *share;
            }
        }
        share(available, &wishes)
    }

    /// CPUs for each program that are no other's: first everyone keeps what they may keep, then those
    /// who need more get it from the rest.
    fn sets_apart(
        &self,
        status: &Status,
        basis: &Basis,
        programs: &Programs<'_>,
    ) -> BTreeMap<ProgramId, CpuSet> {
        let machine = &status.machine;
        let mut free = basis.cpus.clone();
        let mut sets = BTreeMap::new();
        let count = |id: &ProgramId| self.size(*id, basis.threads.get(id).copied().unwrap_or(1));
        // Those who were alone on their CPUs come first: their threads are there.
        for alone in [true, false] {
            for (id, program) in programs {
                let placement = program.wants.placement;
                let claim = program.claim.as_ref();
                if claim.is_some_and(|c| c.exclusive) != alone {
                    continue;
                }
                let has = claim.map_or_else(CpuSet::new, |c| c.cpus.intersection(&free));
                let count = count(id).min(has.count());
                let kept = choose::resize(machine, &has, &CpuSet::new(), count, placement);
                free = free.difference(&kept);
                sets.insert(*id, kept);
            }
        }
        for (id, program) in programs {
            let kept = sets.remove(id).unwrap_or_default();
            let set = choose::resize(machine, &kept, &free, count(id), program.wants.placement);
            free = free.difference(&set);
            sets.insert(*id, set);
        }
        sets
    }

    fn reason(&self, program: &Program, threads: u32, basis: &Basis, programs: usize) -> String {
        let wants = &program.wants;
        let available = basis.available;
        let could = match program.could_use {
            Some(could) => could.min(wants.max_threads),
            None => wants.max_threads,
        };
        let mut reason = if !wants.malleable {
            format!("rigid: room is left for its {}", counted(threads, "thread"))
        } else if threads >= could {
            format!("it can use {} and no more", counted(threads, "thread"))
        } else if threads > available {
            let left = match available {
                0 => "no CPU is".to_owned(),
                1 => "1 CPU is".to_owned(),
                more => format!("{more} CPUs are"),
            };
            format!("its minimum of {}: {left} left", counted(threads, "thread"))
        } else if programs == 1 {
            format!("alone: all that is left, {}", counted(available, "CPU"))
        } else {
            format!("{threads} of the {available} CPUs that {programs} programs share")
        };
        let room = self.room.cpus();
        if room > 0 && wants.malleable {
            let room = counted(room, "CPU");
            reason += &format!("; {room} for rigid and unmanaged threads");
        }
        reason += match (basis.apart, programs) {
            (true, 1) | (false, _) => "",
            (true, _) => "; on CPUs of its own",
        };
        reason
    }
}

/// A number with its noun.
fn counted(number: u32, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
