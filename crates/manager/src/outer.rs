//! The outer claim: what root's manager, the system's, grants to this one.
//!
//! While there are programs here, this manager is a program there: a malleable one that wants what its
//! programs want together, and at least one thread, so that nobody gets more by having many programs or
//! by demanding. What it is granted bounds what it grants. Which of its processes use CPUs it says too,
//! since nobody else could know (see `members`).
//!
//! Fails open: where no manager of root's is, where it refuses, and when it is gone, the effective CPUs
//! are the bound. It is looked for when the first program joins, and at every ordinary look at the
//! machine after that; nobody waits for it, except that the very first claims are held back for a moment
//! ([`HELD_BACK_NS`]) while it is being asked, since a rigid program cannot follow a second one.
//!
//! Nothing of it is kept: when the last program has left, the connection is closed.

mod sum;

use crate::machine::OuterClaim;
use crate::waiter::Waiter;
use crate::world::{LinuxWorld, OUTER, OUTER_GRANTS};
use corewise_abi::claim::State;
use corewise_abi::message::{Join, ToManager, ToProgram, features};
use corewise_abi::{MAX_CPUS, VERSION};
use corewise_decide::world::Input;
use corewise_wire::{
    Answer, Channel, ClaimReader, Error as WireError, Joined, Joining, ProgressWriter, System,
    Welcomed,
};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) use sum::Sum;

/// How long the first claims are held back for the outer one's sake, in nanoseconds. It takes some
/// hundred microseconds where the other manager lives.
const HELD_BACK_NS: u64 = 50_000_000;

/// Who has refused, or is gone before it answered, is asked again after so long, then after twice as long
/// each time, in nanoseconds.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
const LONGEST_PAUSE_NS: u64 = 64_000_000_000;

/// The thread that sleeps on the claim page looks so often whether there is still somebody to tell.
const SLEEP: Duration = Duration::from_secs(5);

/// It needs hardly any.
const STACK_BYTES: usize = 64 << 10;

/// Messages that are heard before others have their turn.
const AT_A_TURN: u32 = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Outer {
    /// Where to look. `None`: this is the system's manager itself, or is to stand alone.
    system: Option<System>,
    link: Link,
    /// Readable when there was a grant. Made when it is needed first.
    grants: Option<OwnedFd>,
    held_until_ns: u64,
    next_try_ns: u64,
    pause_ns: u64,
    sum: Sum,
}

#[derive(Debug)]
enum Link {
    Nobody,
    /// With the threads that were asked for.
    Asked(Joining, u32),
    Within(Box<Within>),
}

/// The time as another manager's program.
#[derive(Debug)]
struct Within {
    channel: Channel,
    claim: Arc<ClaimReader>,
    progress: ProgressWriter,
    /// This manager's number there.
    program: u64,
    /// Whether it can be told who uses the CPUs.
    hears_of_members: bool,
    /// What it was told last.
    told: Sum,
}

impl Outer {
    /// Looks for nobody yet.
    pub(crate) fn new(system: Option<System>) -> Outer {
        Outer {
            system,
            link: Link::Nobody,
            grants: None,
            held_until_ns: 0,
            next_try_ns: 0,
            pause_ns: FIRST_PAUSE_NS,
            sum: Sum::default(),
        }
    }

    /// Whether somebody was asked, or grants.
    pub(crate) fn is_linked(&self) -> bool {
        !matches!(self.link, Link::Nobody)
    }

    /// The first program joins, and wants so many threads: asks, and holds claims back for a moment.
    pub(crate) fn first_program(&mut self, waiter: &Waiter, most: u32, now_ns: u64) {
        self.sum = Sum {
            most,
            could_use: most,
            ..Sum::default()
        };
        self.seek(waiter, now_ns);
        if matches!(self.link, Link::Asked(..)) {
            self.held_until_ns = now_ns.saturating_add(HELD_BACK_NS);
        }
    }

    /// Asks if nobody is there yet. Costs a system call where there is nobody, some 30 µs otherwise.
    pub(crate) fn seek(&mut self, waiter: &Waiter, now_ns: u64) {
        if !matches!(self.link, Link::Nobody) || now_ns < self.next_try_ns {
            return;
        }
        let Some(folder) = self.system.as_ref().and_then(System::folder) else {
            return;
        };
        // Nobody listens, or not to us: the next look shows whether that has changed.
        let Some(joining) = join(&self.sum).and_then(|join| {
            let joining = Joining::with_system(&folder, join).ok()?;
            waiter.add(&joining, OUTER).ok()?;
            Some(joining)
        }) else {
            return;
        };
        self.link = Link::Asked(joining, self.sum.most);
    }

    /// There are no programs any more.
    pub(crate) fn leave(&mut self) {
        self.link = Link::Nobody;
    }

    /// Until when the first claims are held back for the outer one; `None`: they are not.
    pub(crate) fn held_back_until_ns(&self, now_ns: u64) -> Option<u64> {
        let waits = match &self.link {
            Link::Nobody => false,
            Link::Asked(..) => true,
            Link::Within(within) => within.claim.state() == State::Waiting,
        };
        (waits && now_ns < self.held_until_ns).then_some(self.held_until_ns)
    }

    /// There is something to be heard. True if there is somebody new, who is to be told all there is to know.
    pub(crate) fn hear(&mut self, waiter: &Waiter, now_ns: u64) -> bool {
        match std::mem::replace(&mut self.link, Link::Nobody) {
            Link::Nobody => {}
            Link::Asked(joining, most) => match joining.answer() {
                Ok(Answer::NotYet(joining)) => self.link = Link::Asked(joining, most),
                Ok(Answer::Joined(joined)) => {
                    self.pause_ns = FIRST_PAUSE_NS;
                    self.within(*joined, most, waiter);
                    return true;
                }
                // Not again at once: it would refuse again.
                Err(_) => {
                    self.next_try_ns = now_ns.saturating_add(self.pause_ns);
                    self.pause_ns = (self.pause_ns * 2).min(LONGEST_PAUSE_NS);
                }
            },
            Link::Within(mut within) => {
                // An error: it is gone, and with it its claim.
                if let Ok(renewed) = within.hear(&self.sum) {
                    if renewed {
                        self.sleep_on(&within.claim, waiter);
                    }
                    self.link = Link::Within(within);
                    return renewed;
                }
            }
        }
        false
    }

    /// There was a grant, or the other manager has ended.
    pub(crate) fn hear_grant(&mut self) {
        if let Some(grants) = &self.grants {
            // Only its being readable matters.
            let _ = rustix::io::read(grants, &mut [0; 8]);
        }
        if let Link::Within(within) = &self.link
            && within.claim.state() == State::Ended
        {
            self.link = Link::Nobody;
        }
    }

    fn within(&mut self, joined: Joined, most: u32, waiter: &Waiter) {
        let claim = Arc::new(joined.claim);
        self.sleep_on(&claim, waiter);
        let within = Within {
            channel: joined.channel,
            claim,
            progress: joined.progress,
            program: joined.program,
            hears_of_members: joined.features & features::MEMBERS != 0,
            told: Sum {
                most,
                ..Sum::default()
            },
        };
        self.link = Link::Within(Box::new(within));
    }

    /// Has a thread sleep on the claim page, which cannot be waited for together with other things. Where
    /// no thread or descriptor is to be had, grants are seen at the next look at the machine.
    fn sleep_on(&mut self, claim: &Arc<ClaimReader>, waiter: &Waiter) {
        if self.grants.is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let grants = eventfd(0, flags).ok();
            self.grants = grants.filter(|grants| waiter.add(grants, OUTER_GRANTS).is_ok());
        }
        let Some(tell) = self.grants.as_ref().and_then(|fd| fd.try_clone().ok()) else {
            return;
        };
        let claim = Arc::downgrade(claim);
        let sleeper = std::thread::Builder::new()
            .name("outer-claim".to_owned())
            .stack_size(STACK_BYTES);
        // Signals are blocked already, by who waits for them.
        let _ = sleeper.spawn(move || {
            let mut seen = 0;
            while let Some(claim) = claim.upgrade() {
                if claim.wait(seen, Some(SLEEP)) {
                    seen = claim.granted().generation;
                    // A counter that is full says the same as one that is not.
                    let _ = rustix::io::write(&tell, &1_u64.to_ne_bytes());
                }
            }
        });
    }

    /// The claim that binds; `None`: the effective CPUs are the bound.
    pub(crate) fn claim(&self) -> Option<OuterClaim> {
        let Link::Within(within) = &self.link else {
            return None;
        };
        if within.claim.state() != State::Managed {
            return None;
        }
        let mut words = [0; MAX_CPUS as usize / 64];
        // No whole set is left by a manager that was killed while it wrote: nobody keeps it.
        let generation = within.claim.cpus(&mut words)?;
        let seen = &within.progress.seen_generation;
        seen.store(generation, Ordering::Relaxed);
        let cpus = words.iter().zip(0_u32..).flat_map(|(word, index)| {
            let set = (0..64).filter(move |bit| word >> bit & 1 == 1);
            set.map(move |bit| index * 64 + bit)
        });
        Some(OuterClaim {
            cpus: cpus.collect(),
            threads: within.claim.granted().threads,
        })
    }

    /// This is what the programs want and are now: tells it, as far as it has changed.
    pub(crate) fn tell(&mut self, sum: Sum) {
        self.sum = sum;
        if let Link::Within(within) = &mut self.link {
            within.tell(&self.sum);
        }
    }

    /// For the status.
    pub(crate) fn json(&self, claim: Option<&OuterClaim>) -> Value {
        match (&self.link, claim) {
            (Link::Within(within), Some(claim)) => json!({
                "program": within.program,
                "cpus": claim.cpus,
                "threads": claim.threads,
            }),
            _ => Value::Null,
        }
    }
}

impl Within {
    /// Hears what the other manager says. True if it has given other pages.
    ///
    /// # Errors
    /// It is gone, or wants no more of us.
    fn hear(&mut self, sum: &Sum) -> Result<bool, WireError> {
        let mut renewed = false;
        for _ in 0..AT_A_TURN {
            let received = match self.channel.receive::<ToProgram>() {
                Ok(received) => received,
                Err(WireError::WouldBlock) => break,
                Err(error) => return Err(error),
            };
            match received.message {
                ToProgram::Request { request, what } => {
                    let yes = sum.would(what, self.claim.granted().threads);
                    let answer = ToManager::Answer { request, yes };
                    // Who does not read is not answered.
                    let _ = self.channel.send(&answer, &[]);
                }
                ToProgram::Refused(why) => return Err(WireError::Refused(why)),
                ToProgram::Again => {
                    if let Some(join) = join(sum) {
                        self.channel.send(&ToManager::Join(join), &[])?;
                    }
                }
                ToProgram::Welcome { .. } => {
                    let welcomed = Welcomed::by(received)?;
                    self.claim = Arc::new(welcomed.claim);
                    self.progress = welcomed.progress;
                    self.program = welcomed.program;
                    self.hears_of_members = welcomed.features & features::MEMBERS != 0;
                    self.told = Sum::default();
                    renewed = true;
                }
                ToProgram::Done | ToProgram::Part { .. } | ToProgram::Rule(_) => {}
            }
        }
        Ok(renewed)
    }

    /// What cannot be sent now is sent the next time: it still differs then.
    fn tell(&mut self, sum: &Sum) {
        for (field, value) in [
            (&self.progress.team, sum.threads),
            (&self.progress.could_use, sum.could_use),
            (&self.progress.blocked, sum.blocked),
        ] {
            field.store(value, Ordering::Relaxed);
        }
        let told = &mut self.told;
        let send = |message| self.channel.send(&message, &[]).is_ok();
        if told.most != sum.most && send(ToManager::Ask(sum.wants())) {
            told.most = sum.most;
        }
        if told.threads != sum.threads && send(ToManager::Threads(sum.threads)) {
            told.threads = sum.threads;
        }
        if self.hears_of_members
            && told.members != sum.members
            && send(ToManager::Members(sum.members.clone()))
        {
            told.members.clone_from(&sum.members);
        }
    }
}

fn join(sum: &Sum) -> Option<Join> {
    let uid = rustix::process::geteuid().as_raw();
    Some(Join {
        version: VERSION,
        features: features::RULE | features::AGAIN,
        pid: i32::try_from(std::process::id()).ok()?,
        name: format!("manager of user {uid}"),
        wants: sum.wants(),
    })
}

impl LinuxWorld<'_> {
    /// Until when nothing is decided, since soon more will be known; `None`: at once.
    pub(crate) fn held_back_until_ns(&self, now_ns: u64) -> Option<u64> {
        let restored = self.restored_until_ns;
        let waits = now_ns < restored && self.connections.values().any(|c| c.restored);
        let outer = self.outer.held_back_until_ns(now_ns);
        outer.max(waits.then_some(restored))
    }

    /// What may be used is what the outer claim leaves; it may have changed.
    pub(crate) fn follow_outer(&mut self) {
        let claim = self.outer.claim();
        if let Some(machine) = self.machine.within(claim) {
            // What was known before, and is not handed over yet, need not be: who joins meanwhile is
            // granted the right thing at once.
            self.inputs
                .retain(|input| !matches!(input, Input::Machine(_)));
            self.inputs.insert(0, Input::Machine(machine));
        }
    }
}

#[cfg(test)]
mod tests;
