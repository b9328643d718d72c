//! Policies: who may use which CPUs, and when that changes.
//!
//! As in REEact (section 2.1 of its paper) a policy has a global part, which sees all programs, and a
//! local part, which lives with each program. The global part is [`Policy::on`]. The local part is the
//! [`LocalRule`] by which a local manager places its program's threads (see [`crate::local`]), and the
//! program's own answer when it is asked to expand or shrink.

use crate::cpus::CpuSet;
use crate::status::{Claim, LocalRule, ProgramId, Request, Status};
use crate::world::Action;
use memory::Memory;

pub mod automax;
pub mod balanced;
pub mod broken_screw;
pub mod choose;
pub mod combined;
#[cfg(feature = "scripts")]
pub mod configuration;
pub mod fcfs;
pub mod memory;
pub mod observe;
mod plan;
pub mod prefetch;
mod recent;
#[cfg(feature = "scripts")]
pub mod script;
pub mod source;

/// The names of the built-in policies, the default first.
pub const NAMES: [&str; 7] = [
    "balanced",
    "automax",
    "automax-paper",
    "fcfs",
    "broken-screw",
    "prefetch",
    "observe",
];

/// The built-in policy of this name, if there is one.
pub fn built_in(name: &str) -> Option<Box<dyn Policy>> {
    Some(match name {
        "balanced" => Box::new(balanced::Balanced::default()),
        "automax" => Box::new(automax::AutoMax::default()),
        "automax-paper" => Box::new(automax::AutoMax::paper()),
        "fcfs" => Box::new(fcfs::Fcfs::default()),
        "broken-screw" => Box::new(broken_screw::BrokenScrew::default()),
        "prefetch" => Box::new(prefetch::Prefetch::default()),
        "observe" => Box::new(observe::Observe::default()),
        _ => return None,
    })
}

/// What has happened, after the status was brought up to date.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The machine is known, or what of it may be used has changed.
    Machine,
    /// A program has joined. It has no claim yet: the policy must grant it one.
    Joined(ProgramId),
    /// A program asks for something else.
    Asked(ProgramId),
    /// A program has `now` threads; it had `before`.
    Threads {
        /// Which program.
        program: ProgramId,
        /// How many it had.
        before: u32,
        /// How many it has.
        now: u32,
    },
    /// A program has answered the policy's request.
    Answered {
        /// Which program.
        program: ProgramId,
        /// What it was asked.
        what: Request,
        /// Whether it did it.
        yes: bool,
    },
    /// A program has left; its claim is gone from the status, and given here.
    Left {
        /// Which program.
        program: ProgramId,
        /// What it had.
        claim: Option<Claim>,
    },
    /// There are new readings.
    Readings,
    /// A person has set a program's claim, or given it back to the policy.
    Overridden(ProgramId),
    /// Something that was ordered could not be done.
    Failed(String),
}

/// One thing that a policy wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Grant a claim.
    Grant {
        /// To whom.
        program: ProgramId,
        /// What.
        claim: Claim,
        /// Why, for the journal.
        reason: String,
    },
    /// Ask a program to expand or shrink.
    Ask {
        /// Whom.
        program: ProgramId,
        /// What.
        what: Request,
        /// Why, for the journal.
        reason: String,
    },
    /// Set something of the machine.
    Act {
        /// What.
        action: Action,
        /// Why, for the journal.
        reason: String,
    },
    /// Say something in the journal.
    Note(String),
}

/// What a policy wants done, in order.
#[derive(Debug, Default)]
pub struct Orders {
    pub(crate) list: Vec<Order>,
}

impl Orders {
    /// Grants `cpus` and `threads` to a program, for itself alone if `exclusive`.
    pub fn grant(&mut self, program: ProgramId, claim: Claim, reason: impl Into<String>) {
        let reason = reason.into();
        self.list.push(Order::Grant {
            program,
            claim,
            reason,
        });
    }

    /// Grants CPUs that others may have too.
    pub fn grant_shared(
        &mut self,
        program: ProgramId,
        cpus: CpuSet,
        threads: u32,
        reason: impl Into<String>,
    ) {
        let claim = Claim {
            cpus,
            threads,
            exclusive: false,
        };
        self.grant(program, claim, reason);
    }

    /// Asks a program to expand or shrink; its answer comes as [`Event::Answered`].
    pub fn ask(&mut self, program: ProgramId, what: Request, reason: impl Into<String>) {
        let reason = reason.into();
        self.list.push(Order::Ask {
            program,
            what,
            reason,
        });
    }

    /// Sets something of the machine.
    pub fn act(&mut self, action: Action, reason: impl Into<String>) {
        let reason = reason.into();
        self.list.push(Order::Act { action, reason });
    }

    /// Says something in the journal.
    pub fn note(&mut self, text: impl Into<String>) {
        self.list.push(Order::Note(text.into()));
    }

    /// The orders so far.
    pub fn list(&self) -> &[Order] {
        &self.list
    }
}

/// What a policy sets beyond claims, and what it judges by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decides {
    /// It keeps CPUs of one program from others.
    pub own_cpus: bool,
    /// It switches prefetchers.
    pub prefetchers: bool,
    /// It limits frequencies.
    pub frequencies: bool,
    /// It sets duty cycles.
    pub duty_cycles: bool,
    /// It judges by the instructions that the whole machine retires.
    pub instructions: bool,
}

/// A policy: its global part, and which local part goes with it.
pub trait Policy: Send {
    /// Its name, as in `--policy NAME`.
    fn name(&self) -> String;

    /// How local managers place threads within a claim.
    fn local_rule(&self) -> LocalRule {
        LocalRule::Whole
    }

    /// How long until the next readings, in nanoseconds; `None`: none are needed. Asked after every
    /// event. The manager never reads more often than every 10 ms, and not at all without programs.
    fn period_ns(&self, status: &Status) -> Option<u64>;

    /// How local managers place the threads of the program of this name; as
    /// [`local_rule`](Policy::local_rule) says, unless several policies decide together.
    fn local_rule_of(&self, _name: &str) -> LocalRule {
        self.local_rule()
    }

    /// Whether it decides by temperatures: they are read only where it does, as that costs some microseconds a
    /// core.
    fn wants_heat(&self) -> bool {
        false
    }

    /// What it sets beyond claims, and what it judges by: so it is known before they begin whether two
    /// policies can decide at the same time. Instructions are counted only where a policy judges by them.
    fn decides(&self) -> Decides {
        Decides::default()
    }

    /// What it knows beyond the status: with it, another one made from the same source goes on as this
    /// one would have ([`Source::remake`](source::Source::remake)). A policy that decides by event and
    /// status alone knows nothing.
    fn memory(&self) -> Memory {
        Memory::Nothing
    }

    /// Something has happened. Whatever is ordered is checked before it is done: a claim never has
    /// fewer threads than the program's minimum, nor CPUs that are another's alone.
    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders);
}
