//! The world: where inputs come from and outputs go, and the one loop between it and the decisions.
//!
//! The Linux world (the manager) and the simulated one implement [`World`] and are driven by
//! [`drive`]; there is no other way to a policy, so that the two cannot drift apart.

use crate::cpus::CpuSet;
use crate::global::GlobalManager;
use crate::policy::source::Source;
use crate::reading::MachineReading;
use crate::status::{Gang, Machine, ProgramId, Request, Waits, Wants};
use corewise_abi::turn::Turn;
use serde::{Deserialize, Serialize};

mod action;

pub use action::Action;

/// What a program has used and said, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramUse {
    /// Which program.
    pub program: ProgramId,
    /// CPU time that it has used since it started, in nanoseconds.
    pub run_ns: u64,
    /// Pieces of work done so far.
    pub progress: u64,
    /// Workers that it runs.
    pub team: u32,
    /// Threads that it could use; 0: it does not say.
    pub could_use: u32,
    /// Workers that are blocked.
    pub blocked: u32,
}

/// Readings of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Readings {
    /// Of the machine.
    pub machine: MachineReading,
    /// Of the programs; of those that could be read.
    pub programs: Vec<ProgramUse>,
}

/// What comes in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// The machine, at first and whenever what may be used of it has changed.
    Machine(Machine),
    /// A program joins.
    Joined {
        /// Its number from now on.
        program: ProgramId,
        /// Its process.
        pid: i32,
        /// Its name, for people.
        name: String,
        /// What it asks for.
        wants: Wants,
    },
    /// A program asks for something else.
    Asked {
        /// Which program.
        program: ProgramId,
        /// What it asks for now.
        wants: Wants,
    },
    /// A program has this many threads now.
    Threads {
        /// Which program.
        program: ProgramId,
        /// How many.
        count: u32,
    },
    /// A program answers a request.
    Answered {
        /// Which program.
        program: ProgramId,
        /// Which request.
        request: u32,
        /// Whether it did as asked.
        yes: bool,
    },
    /// A program has ended, or its connection has.
    Left {
        /// Which program.
        program: ProgramId,
    },
    /// Readings that were due.
    Readings(Readings),
    /// A person sets a program's claim; `None` gives it back to the policy.
    Overridden {
        /// Which program.
        program: ProgramId,
        /// CPUs (empty: all) and threads.
        claim: Option<(CpuSet, u32)>,
    },
    /// A program is a gang from now on; `None`: no longer.
    Gang {
        /// Which program.
        program: ProgramId,
        /// What it says of itself. Programs whose gangs have the same name, unless it is empty, are one set.
        gang: Option<Gang>,
    },
    /// The group with which a program shares CPU time ([`Program::group`](crate::status::Program::group)). It is
    /// not known at once: finding out takes longer than a join may.
    Group {
        /// Which program.
        program: ProgramId,
        /// Its group's name.
        group: String,
    },
    /// Whether a program's threads wait for each other in loops.
    Spins {
        /// Which program.
        program: ProgramId,
        /// Whether they do.
        spins: bool,
    },
    /// How a program's threads wait for each other, as who keeps its turns has seen.
    Waits {
        /// Which program.
        program: ProgramId,
        /// How.
        waits: Waits,
    },
    /// An output could not be carried out.
    Failed {
        /// Whose output it was.
        program: Option<ProgramId>,
        /// What failed, and why.
        what: String,
    },
    /// Another policy decides from now on. All of it is here, so that a journal replays.
    Policy(Source),
}

/// What goes out. Every output carries the policy's reason into the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// A program's claim is this from now on.
    Grant {
        /// Whose.
        program: ProgramId,
        /// CPUs.
        cpus: CpuSet,
        /// Threads, at least 1.
        threads: u32,
        /// Why.
        reason: String,
    },
    /// Ask a program something.
    Tell {
        /// Whom.
        program: ProgramId,
        /// The request's number.
        request: u32,
        /// What.
        what: Request,
        /// Why.
        reason: String,
    },
    /// A program runs by turns from now on; `None`: always.
    Turn {
        /// Which program.
        program: ProgramId,
        /// When.
        turn: Option<Turn>,
        /// Why.
        reason: String,
    },
    /// Set something.
    Act {
        /// What.
        action: Action,
        /// Why.
        reason: String,
    },
    /// Nothing to be done: for the journal.
    Note(String),
}

/// Inputs of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    /// When, monotonic, in nanoseconds; never before an earlier one.
    pub time_ns: u64,
    /// What, in order. None: it was just time to wake.
    pub inputs: Vec<Input>,
}

/// One line of the journal: an input, and what was decided on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, monotonic, in nanoseconds.
    pub time_ns: u64,
    /// What came in.
    pub input: Input,
    /// What went out.
    pub outputs: Vec<Output>,
}

/// A world: Linux, or a simulated machine.
pub trait World {
    /// Why it can go on no longer.
    type Error;

    /// Waits until something happens, or until `read_at_ns`; then it gives readings, too. `None`: the
    /// world ends.
    ///
    /// # Errors
    /// When the world cannot go on.
    fn next(&mut self, read_at_ns: Option<u64>) -> Result<Option<Happened>, Self::Error>;

    /// Carries an output out.
    ///
    /// # Errors
    /// What failed and why: it comes back as [`Input::Failed`].
    fn carry_out(&mut self, output: &Output) -> Result<(), String>;

    /// Keeps a line of the journal.
    fn record(&mut self, entry: &Entry);

    /// All inputs of a moment have been decided on and carried out: the time to answer people's
    /// questions about the status, and for what nobody waits for.
    fn decided(&mut self, _manager: &GlobalManager) {}
}

/// The driver loop: hands what happens in `world` to the decisions, and what they say to `world`,
/// until the world ends.
///
/// # Errors
/// The world's.
pub fn drive<W: World>(world: &mut W, manager: &mut GlobalManager) -> Result<(), W::Error> {
    while let Some(happened) = world.next(manager.next_reading_ns())? {
        for input in happened.inputs {
            hand_over(world, manager, happened.time_ns, input);
        }
        world.decided(manager);
    }
    Ok(())
}

/// One input and what follows from it. What cannot be carried out is an input of its own, once: a
/// failure of what is done about a failure is only kept in the journal.
fn hand_over<W: World>(world: &mut W, manager: &mut GlobalManager, time_ns: u64, input: Input) {
    let outputs = manager.on(time_ns, &input);
    let failed = carry_all(world, &outputs);
    world.record(&Entry {
        time_ns,
        input,
        outputs,
    });
    for input in failed {
        let outputs = manager.on(time_ns, &input);
        carry_all(world, &outputs);
        world.record(&Entry {
            time_ns,
            input,
            outputs,
        });
    }
}

fn carry_all<W: World>(world: &mut W, outputs: &[Output]) -> Vec<Input> {
    let mut failed = Vec::new();
    for output in outputs {
        if let Err(what) = world.carry_out(output) {
            failed.push(Input::Failed {
                program: output.program(),
                what,
            });
        }
    }
    failed
}

impl Output {
    /// Which program it concerns.
    pub fn program(&self) -> Option<ProgramId> {
        match self {
            Output::Grant { program, .. }
            | Output::Tell { program, .. }
            | Output::Turn { program, .. } => Some(*program),
            Output::Act { action, .. } => action.program(),
            Output::Note(_) => None,
        }
    }
}
