//! How many CPUs to leave to threads that cannot be told to be fewer: those of rigid programs, and of what
//! is not under management.
//!
//! Two measurements, of which the larger counts:
//! - *wanting*: threads that run or are runnable, less the workers of malleable programs. It is there
//!   at once and also sees threads that wait for a CPU; but workers that only wait for each other are
//!   subtracted although they do not run.
//! - *using*: busy CPUs, less those that malleable programs used. It is exact, but moves in clock ticks,
//!   so that it takes long to say something, and does not see who waits.
//!
//! Room is made soon and taken back slowly: a mean over a few readings makes it, half a CPU above what is
//! left already; only if less than three quarters is wanted for [`LASTING_NS`] is it taken back; for longer,
//! if what was taken back was soon needed again (see `patience`). What rigid programs do not use of their room
//! while threads are lent beyond the CPUs is lent already, and stays theirs. What programs say themselves
//! (a rigid one joins, creates the threads that it was started for, or leaves) counts at once.

use super::patience::Patience;
use crate::policy::recent::Recent;
use crate::status::{Program, ProgramId, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is to be believed must last this long before less room is left, in nanoseconds.
pub(super) const LASTING_NS: u64 = 150_000_000;

/// CPU time is counted in ticks of 10 ms: over this long, it is within a tenth of a CPU.
const TICKS_NS: u64 = 200_000_000;

/// How long a program is given to follow its claim, in nanoseconds.
const FOLLOW_NS: u64 = 100_000_000;

/// Room is made for what is wanted in the mean of so many readings, or since the last change.
const LEAST_READINGS: usize = 3;
const READINGS: usize = 5;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Room {
    /// CPUs that are left.
    cpus: u32,
    /// How many there are at all.
    most: u32,
    rigid: BTreeMap<ProgramId, Rigid>,
    wanting: Recent,
    using: Recent,
    /// What nobody under management used.
    others: Recent,
    others_quiet_ns: u64,
    others_busy: bool,
    last_reading_ns: u64,
    /// When a program left, if that was after the last reading.
    left_ns: Option<u64>,
    /// Readings of the machine since there were programs.
    readings: usize,
    /// No more room is made before.
    hold_until_ns: u64,
    /// How long less must be wanted.
    patience: Patience,
    /// No less is left at present.
    kept: bool,
    /// No less is left to rigid programs at present.
    of_rigid_kept: bool,
}

/// What is known of a rigid program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Rigid {
    /// Its threads for which room was made.
    threads: u32,
    /// CPUs that it used when it was read last.
    uses: Option<f64>,
}

impl Room {
    /// The machine has this many CPUs, and these rigid programs have claims: one that is not known yet
    /// is taken in with the threads that it has, one that is no longer among them is forgotten, and what
    /// it used is free.
    pub(super) fn sees(&mut self, status: &Status, rigid: &BTreeMap<ProgramId, &Program>) {
        if status.load.is_none() {
            self.readings = 0;
        }
        self.most = status.machine.allowed.count();
        self.cpus = self.cpus.min(self.most);
        let gone: Vec<ProgramId> = self.rigid.keys().copied().collect();
        for id in gone.into_iter().filter(|id| !rigid.contains_key(id)) {
            self.rigid_left(id);
        }
        for (id, program) in rigid {
            if !self.rigid.contains_key(id) {
                let claim = program.claim.as_ref().map(|c| c.threads);
                self.rigid_has(*id, claim.unwrap_or(program.threads));
            }
        }
    }

    /// CPUs that are to be left.
    pub(super) fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Threads of a rigid program for which room is made; none if it is not known.
    pub(super) fn of_rigid(&self, id: ProgramId) -> Option<u32> {
        self.rigid.get(&id).map(|r| r.threads)
    }

    /// The part of it for rigid programs.
    pub(super) fn for_rigid(&self) -> u32 {
        let rigid = self.rigid.values();
        let threads = rigid.fold(0_u32, |sum, r| sum.saturating_add(r.threads));
        self.cpus.min(threads)
    }

    /// Whether readings would have shown what else runs.
    pub(super) fn is_known(&self) -> bool {
        self.readings >= LEAST_READINGS
    }

    /// Whether something runs that is not under management.
    pub(super) fn others_run(&self) -> bool {
        self.others_busy || self.cpus > self.for_rigid()
    }

    /// Whether the last reading was far from what is left: another should follow soon. More than all CPUs cannot
    /// be left, however many want one.
    pub(super) fn is_in_doubt(&self) -> bool {
        let wanting = self.wanting.last().unwrap_or(0.0);
        let using = self.using.mean_over(TICKS_NS).unwrap_or(0.0);
        let wanted = wanting.max(using).min(f64::from(self.most));
        let off = wanted - f64::from(self.cpus);
        !(-0.8..=0.5).contains(&off) || self.wanting.mean_of(READINGS, READINGS).is_none()
    }

    /// A rigid program has this many threads now, by its claim or by its own word. Fewer than before
    /// make no difference until readings show it: threads that come and go must not move others.
    pub(super) fn rigid_has(&mut self, id: ProgramId, threads: u32) {
        let before = self.of_rigid(id).unwrap_or(0);
        if threads > before {
            self.note_rigid(id, threads);
            self.set(self.cpus.saturating_add(threads - before));
        }
    }

    /// What a rigid program really has, where only its claim was known.
    pub(super) fn rigid_says(&mut self, id: ProgramId, threads: u32) {
        let before = self.of_rigid(id).unwrap_or(0);
        self.note_rigid(id, threads);
        self.set(
            self.cpus
                .saturating_sub(before.min(self.most))
                .saturating_add(threads),
        );
    }

    /// A program is rigid no longer, or gone: what it used is free, and what it did not use, but what was
    /// left for it, unless others need it.
    pub(super) fn rigid_left(&mut self, id: ProgramId) {
        let for_others = self.cpus - self.for_rigid();
        if let Some(Rigid { threads, uses }) = self.rigid.remove(&id) {
            let used = uses.map_or(threads, |u| (u - 0.2).ceil().max(0.0) as u32);
            let left = self.cpus.saturating_sub(used.min(threads));
            let rest = self.rigid.values();
            let rest = rest.fold(0_u32, |sum, r| sum.saturating_add(r.threads));
            let others = self.others.mean_over(TICKS_NS).unwrap_or(0.0);
            let others = for_others.max(whole(others));
            self.set(left.min(rest.saturating_add(others)));
        }
    }

    fn note_rigid(&mut self, id: ProgramId, threads: u32) {
        let unknown = Rigid {
            threads,
            uses: None,
        };
        self.rigid.entry(id).or_insert(unknown).threads = threads;
    }

    /// A program that does not say how many workers it has must shrink. Until it has, some of its threads
    /// look like others'.
    pub(super) fn wait_for_followers(&mut self, now_ns: u64) {
        self.hold_until_ns = now_ns.saturating_add(FOLLOW_NS);
    }

    /// While rigid programs have to share their CPUs, fewer of their threads want any: they wait for those
    /// that have none. That says nothing of what they would want, and no room is taken back (`kept`). Nor is
    /// room of rigid programs (`of_rigid`) while threads are lent; what was seen meanwhile is forgotten.
    pub(super) fn keep(&mut self, kept: bool, of_rigid: bool) {
        if self.of_rigid_kept && !of_rigid {
            self.wanting.clear();
            self.using.clear();
        }
        self.kept = kept;
        self.of_rigid_kept = of_rigid;
    }

    /// Numbers of threads have changed: what wanted CPUs before may be one that follows.
    pub(super) fn claims_changed(&mut self) {
        self.wanting.clear();
    }

    /// A program is gone: what it used since the last reading would seem to be another's.
    pub(super) fn somebody_left(&mut self, now_ns: u64) {
        self.wanting.clear();
        self.left_ns = Some(now_ns);
    }

    fn set(&mut self, cpus: u32) {
        self.cpus = cpus.min(self.most);
        self.wanting.clear();
        self.using.clear();
    }

    /// There are new readings; what to tell people if the room has changed. Workers of programs that are
    /// `asleep` do not want CPUs.
    pub(super) fn on_readings(
        &mut self,
        status: &Status,
        asleep: impl Fn(ProgramId) -> bool,
    ) -> Option<String> {
        let now = status.time_ns;
        let span = now.saturating_sub(self.last_reading_ns);
        self.last_reading_ns = now;
        let load = status.load.as_ref()?;
        self.readings = self.readings.saturating_add(1);
        for (id, rigid) in &mut self.rigid {
            rigid.uses = status.programs.get(id).and_then(|p| p.uses);
        }
        let programs = status.programs.values();
        let is_ours = |p: &Program| p.wants.malleable || p.overridden;
        let (ours, rigid): (Vec<&Program>, Vec<&Program>) = programs.partition(|p| is_ours(p));
        if let Some(threads) = load.on_allowed_cpus() {
            let programs = status.programs.iter().filter(|(_, p)| is_ours(p));
            let workers = programs.map(|(id, p)| match asleep(*id) {
                true => p.uses.unwrap_or(0.0),
                false => workers(p),
            });
            let workers: f64 = workers.sum();
            self.wanting.push(now, span, threads - workers);
        }
        let used = |programs: &[&Program]| programs.iter().map(|p| p.uses).sum::<Option<f64>>();
        // As long as one has not been read twice, what it uses would seem to be another's.
        let whole_span = self.left_ns.take().is_none();
        if let Some(ours) = used(&ours).filter(|_| whole_span) {
            self.using.push(now, span, load.busy - ours);
            if let Some(rigid) = used(&rigid) {
                self.others.push(now, span, load.busy - ours - rigid);
            }
        }
        self.watch_others(now);
        self.follow(status)
    }

    fn watch_others(&mut self, now: u64) {
        let Some(others) = self.others.mean_over(TICKS_NS) else {
            return;
        };
        if others > 0.2 {
            self.others_quiet_ns = now;
        }
        if others > 0.4 {
            self.others_busy = true;
        } else if now.saturating_sub(self.others_quiet_ns) > 2 * TICKS_NS {
            self.others_busy = false;
        }
    }

    fn follow(&mut self, status: &Status) -> Option<String> {
        let larger = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        let using = self.using.mean_over(TICKS_NS);
        let soon = larger(self.wanting.mean_of(LEAST_READINGS, READINGS), using);
        let more = |w: &f64| *w > f64::from(self.cpus) + 0.5;
        if status.time_ns < self.hold_until_ns {
            // What is seen now is not to be seen later.
            self.wanting.clear();
        } else if let Some(wanted) = soon.filter(more) {
            let cpus = ((wanted - 0.5).ceil().max(0.0) as u32).min(self.most);
            if cpus > self.cpus {
                self.patience.gives(status.time_ns, LASTING_NS);
                self.set(cpus);
                return Some(format!(
                    "{wanted:.1} threads that cannot be told to be fewer want CPUs: {cpus} are left to them"
                ));
            }
        }
        if self.kept {
            return None;
        }
        let lasting_ns = self.patience.of(LASTING_NS);
        let wanting = self.wanting.mean_since(READINGS, lasting_ns);
        let using = self.using.mean_over(TICKS_NS.max(lasting_ns));
        // Either measurement alone may be the only one that there is, but if CPU time is measured, it
        // has to agree.
        let lasting = match self.using.last() {
            Some(_) => using.and_then(|u| larger(wanting, Some(u))),
            None => wanting,
        }?;
        let mut cpus = whole(lasting).min(self.most);
        if self.of_rigid_kept {
            cpus = cpus.max(self.for_rigid());
        }
        if cpus.saturating_add(self.cpus / 4) >= self.cpus {
            return None;
        }
        self.patience.takes(status.time_ns);
        self.set(cpus);
        // From here on, what they have is what they had for some time.
        for (id, rigid) in &mut self.rigid {
            if let Some(program) = status.programs.get(id).filter(|p| p.threads > 0) {
                rigid.threads = program.threads;
            }
        }
        Some(format!(
            "only {:.1} threads that cannot be told to be fewer want CPUs: {cpus} are left to them",
            lasting.max(0.0)
        ))
    }
}

/// CPUs for threads that want so many in the mean: a third of one makes no difference.
fn whole(cpus: f64) -> u32 {
    (cpus - 0.35).ceil().max(0.0) as u32
}

/// How many threads of a program that follows its claim, or that a person has set, want CPUs. Those that it
/// says are blocked have given their places to others: they are not among its workers.
fn workers(program: &Program) -> f64 {
    let claim = program.claim.as_ref().map_or(0, |c| c.threads);
    let has = match program.threads {
        0 => claim,
        said => said,
    };
    f64::from(has).max(program.uses.unwrap_or(0.0))
}
