//! `balanced`, the default: malleable programs share the CPUs by what they can use, rigid ones and what is
//! not under management are left room, nobody is starved, and an idle machine is one program's whole.
//!
//! *How many threads.* From the CPUs (within the quota) goes what a person has set, and room for threads
//! that cannot be told to be fewer (see `room`): those of rigid programs, and of what is not under
//! management. The rest is shared by the malleable programs, thread by thread, to whoever has fewest and
//! can use more; everyone has their minimum in any case. Programs that do nothing do not count, and what
//! nobody could use at present is still shared, so that who wakes up alone has all. A rigid program is given
//! its share when it joins or asks, and keeps it: it could not follow.
//!
//! Two things are more important than that everybody's threads fit on the CPUs:
//! - *Nobody starves.* Where room for rigid programs leaves the malleable ones less than half of what would be
//!   theirs if all shared alike, the kernel divides the CPUs. It divides them by threads: so each program
//!   has as many as there are CPUs, as a rigid one has. With fewer it would have a smaller part than the
//!   rigid ones, which, if their threads spin, waste most of what they get beside others. (Not under a
//!   quota: threads that are too many use it up. Nor where the program's own threads spin, and it is in another
//!   session or control group than the rigid ones: groups share first, so that it has most of its part with
//!   fewer threads, too, and wastes nothing on waiting for those that have no CPU.)
//! - *No CPU is idle in the mean* while somebody could use it: then threads beyond the CPUs are shared, see
//!   `idle`.
//!
//! *Which CPUs.* If everybody's threads fit, and it is known that nothing else runs, each program has CPUs of
//! its own, and keeps them as far as its number allows. Otherwise all share all CPUs and the numbers of
//! threads keep the peace: a fixed CPU with someone else's thread on it would hold its program up, where
//! the kernel can move a thread that may run anywhere. When what was in the way is gone, that must last for
//! a moment. A single program has all CPUs, unless it asks for a placement.
//!
//! *When.* What programs say and do (join, ask, leave, create the threads that they were started for) counts at
//! once, in the same event.
//! What is only seen in readings must last: see `room` for others' load; that a program could use fewer
//! threads than it has must be so as long, too; and longer where it was believed too soon before, see
//! `patience`. Readings come every 10 ms after something
//! has changed or while they are in doubt, and half as often each time when they show nothing new.

use crate::cpus::CpuSet;
use crate::policy::memory::Memory;
use crate::policy::plan::{Planned, carry_out};
use crate::policy::{Decides, Event, Orders, Policy};
use crate::status::{Claim, Placement, Program, ProgramId, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod activity;
mod apart;
mod divide;
mod idle;
mod patience;
mod room;
mod shares;

use activity::Activities;
use divide::unused;
use idle::Idle;
use room::Room;
use shares::share;

/// The shortest and the longest time between readings, in nanoseconds; and the longest while room is left
/// to threads whose end others wait for, or while someone has less than they may soon be able to use.
const SHORTEST_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 250_000_000;
const LONGEST_WAITING_NS: u64 = 50_000_000;

/// After something else ran, or threads beyond the CPUs, all share all CPUs for so long, in nanoseconds.
const SHARED_NS: u64 = 500_000_000;
const SHARED_LENDING_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balanced {
    room: Room,
    activities: Activities,
    idle: Idle,
    /// Whether rigid programs have to share, since they left the others too little.
    rigid_share: bool,
    /// How many threads programs have at most meanwhile whose share does not depend on it.
    #[serde(default)]
    at_most: BTreeMap<ProgramId, u32>,
    /// Before, no program gets CPUs of its own.
    shared_until_ns: u64,
    /// The room that the numbers of threads rest on.
    room_used: u32,
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

/// A program that shares, and the threads that it has.
type Sharing<'a> = (&'a ProgramId, &'a Program, u32);

impl Default for Balanced {
    fn default() -> Balanced {
        Balanced {
            room: Room::default(),
            activities: Activities::default(),
            idle: Idle::default(),
            rigid_share: false,
            at_most: BTreeMap::new(),
            shared_until_ns: 0,
            room_used: 0,
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

    fn decides(&self) -> Decides {
        Decides {
            own_cpus: true,
            ..Decides::default()
        }
    }

    fn memory(&self) -> Memory {
        Memory::Balanced(Box::new(self.clone()))
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
                let is_lent = self.idle.is_lending();
                self.activities.on_readings(status, is_lent);
                let asleep = |id| self.activities.is_asleep(id);
                note = self.room.on_readings(status, asleep);
                let more = self
                    .idle
                    .on_readings(status, self.may_grow(status), unused(status));
                note = note.or(more);
                for (id, program) in &rigid {
                    self.room.rigid_has(*id, at_once(program, program.threads));
                }
            }
            Event::Threads {
                program,
                before,
                now,
            } if rigid.contains_key(program) => {
                let now = rigid.get(program).map_or(*now, |p| at_once(p, *now));
                match before {
                    0 => self.room.rigid_says(*program, now),
                    _ => self.room.rigid_has(*program, now),
                }
            }
            Event::Joined(id) if !rigid.contains_key(id) && !open.contains_key(id) => {
                self.idle.forget();
            }
            Event::Overridden(_) | Event::Machine => self.idle.forget(),
            Event::Left { .. } => self.room.somebody_left(status.time_ns),
            _ => {}
        }
        let plan = self.plan(status, &rigid, &open, matches!(event, Event::Readings));
        let resized = plan.iter().any(|planned| {
            let claim = status
                .programs
                .get(&planned.program)
                .and_then(|p| p.claim.as_ref());
            claim.is_none_or(|claim| claim.threads != planned.claim.threads)
        });
        let changed = carry_out(plan, status, orders);
        if changed {
            if resized {
                self.idle.claims_changed();
                self.room.claims_changed();
            }
            note.into_iter().for_each(|note| orders.note(note));
        }
        self.period_ns = match event {
            Event::Readings if !changed && !self.room.is_in_doubt() => {
                let waits = self.room.cpus() > 0
                    || self.activities.may_wake(status)
                    || self.may_grow(status) && self.idle.is_in_doubt();
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
    fn plan(
        &mut self,
        status: &Status,
        rigid: &Programs<'_>,
        open: &Programs<'_>,
        is_readings: bool,
    ) -> Vec<Planned> {
        let basis = self.basis(status, rigid, open, is_readings);
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

    fn basis(
        &mut self,
        status: &Status,
        rigid: &Programs<'_>,
        open: &Programs<'_>,
        is_readings: bool,
    ) -> Basis {
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
        self.follow_room(is_readings, status.time_ns);
        let on_cpus = machine.allowed.count().saturating_sub(self.room_used);
        let available = within_quota.min(on_cpus).saturating_sub(by_people);
        let available = self.at_least_fair(available, by_people, status, rigid);

        let malleable = |p: &Program| p.wants.malleable && !p.overridden;
        let malleable = status.programs.iter().filter(|(_, p)| malleable(p));
        let malleable = malleable.map(|(id, p)| (id, p, p.claim.as_ref().map_or(0, |c| c.threads)));
        let open_ones = open.iter().map(|(id, p)| (id, *p, 0));
        let programs: Vec<_> = malleable.chain(open_ones).collect();
        if let Some(idle) = self.idle.take_unfilled() {
            let beyond = self.fills(idle, available, machine.one_per_cpu(), &programs);
            self.idle.lends(beyond, status.time_ns);
        }
        let with = available.saturating_add(self.idle.threads());
        let given = share(with, &self.awake(machine.one_per_cpu(), &programs));
        let given = given.into_values().fold(0, u32::saturating_add);
        let lent = given.saturating_sub(available);
        self.idle.are_lent(lent, status.time_ns);
        let mut threads = self.shares(machine.one_per_cpu(), available, with, &programs);
        let available = with;
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
        let shared_ns = match (self.idle.is_lending(), self.room.others_run()) {
            (true, _) => SHARED_LENDING_NS,
            (false, true) => SHARED_NS,
            (false, false) => 0,
        };
        let until = status.time_ns.saturating_add(shared_ns);
        self.shared_until_ns = self.shared_until_ns.max(until);
        let apart = fits && !people_share && self.room.is_known();
        Basis {
            apart: apart && status.time_ns >= self.shared_until_ns,
            cpus,
            available,
            threads,
        }
    }

    /// Takes in what room is left. While threads are lent, a few CPUs of room more or less make no difference,
    /// and what was lent of room that is no longer left need not be lent.
    fn follow_room(&mut self, is_readings: bool, now_ns: u64) {
        let room = self.room.cpus();
        let lent = self.idle.threads();
        if is_readings && room.abs_diff(self.room_used) <= lent / 2 {
            return;
        }
        let less = self.room_used.saturating_sub(room);
        if is_readings && lent > 0 && less > 0 {
            self.idle.lends(lent.saturating_sub(less), now_ns);
        }
        self.room_used = room;
    }

    /// How many CPUs of its own a program needs.
    fn size(&self, id: ProgramId, threads: u32) -> u32 {
        self.room.of_rigid(id).unwrap_or(threads).max(threads)
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
            let of = match self.idle.threads() {
                0 => format!("{available} CPUs"),
                beyond => format!("{available} threads, {beyond} beyond the CPUs,"),
            };
            format!("{threads} of the {of} that {programs} programs share")
        };
        let room = self.room.cpus();
        if self.rigid_share && wants.malleable {
            reason += "; rigid programs would leave too little and have to share";
        } else if room > 0 && wants.malleable {
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

/// How many of a rigid program's threads room is made for at once: those that it was started for. Many programs
/// have more, which read, write, or wait for the others: room is made for those of them that readings show
/// running.
fn at_once(program: &Program, threads: u32) -> u32 {
    let claim = program.claim.as_ref();
    claim.map_or(threads, |claim| threads.min(claim.threads))
}

/// A number with its noun.
fn counted(number: u32, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
