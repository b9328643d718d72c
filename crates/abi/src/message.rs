//! Messages on the manager's socket (SOCK_SEQPACKET: a packet is a message).
//!
//! They are for what is rare: joining, asking, leaving, and people's questions. What is read often is
//! on the pages. Every message is bounded by [`MAX_MESSAGE`]; enums only grow at their end, so that an
//! older side cannot mistake one message for another, only fail to read it.
//!
//! A connection is a program: it says [`ToManager::Join`] first and is welcomed with two descriptors
//! (claim page, progress page), or refused. When the connection ends, so does the claim. A connection
//! that only asks (`corewise status`) never joins.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The longest message, in bytes.
pub const MAX_MESSAGE: usize = 8192;

/// The longest text within a message, in bytes; longer ones are cut by their writer and refused by
/// their reader.
pub const MAX_TEXT: usize = 1024;

/// Names in one list of [`ToManager::Follows`], and the length of each in bytes. What is beyond is cut by
/// its writer and left out by its reader.
pub const MOST_NAMES: usize = 16;
/// See [`MOST_NAMES`].
pub const MAX_NAME: usize = 64;

/// Feature bits of [`Join`] and [`ToProgram::Welcome`]: what the sender understands beyond what every
/// version did from the start. Who does not say a bit is not sent what it stands for.
pub mod features {
    /// [`ToProgram::Rule`](super::ToProgram::Rule): a program reads it, a manager sends it.
    pub const RULE: u64 = 1;
    /// [`ToManager::Members`](super::ToManager::Members): a manager reads it.
    pub const MEMBERS: u64 = 1 << 1;
    /// [`ToProgram::Again`](super::ToProgram::Again): a program reads it, and does as it says.
    pub const AGAIN: u64 = 1 << 2;
    /// [`ToManager::Follows`](super::ToManager::Follows): a manager reads it.
    pub const FOLLOWS: u64 = 1 << 3;
    /// [`ToManager::Gang`](super::ToManager::Gang): a manager reads it, and a program that says it keeps the
    /// turns on its claim page.
    pub const GANGS: u64 = 1 << 4;
    /// [`ToManager::Spins`](super::ToManager::Spins): a manager reads it.
    pub const SPINS: u64 = 1 << 5;
    /// [`ToManager::Waits`](super::ToManager::Waits): a manager reads it.
    pub const WAITS: u64 = 1 << 6;
    /// [`ToManager::TurnsBy`](super::ToManager::TurnsBy): a manager reads it.
    pub const TURNS_BY: u64 = 1 << 7;
}

/// Where a claim's CPUs should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Wherever there is room.
    #[default]
    Any,
    /// Close together: caches and NUMA nodes shared by as many as possible.
    Compact,
    /// Spread over NUMA nodes and caches.
    Scatter,
}

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// Threads that it cannot do without, at least 1.
    pub min_threads: u32,
    /// Threads that it can use, at least `min_threads`.
    pub max_threads: u32,
    /// Where they should run.
    pub placement: Placement,
    /// Whether the number of its threads can change while it runs.
    pub malleable: bool,
}

/// A program joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The version that the sender speaks.
    pub version: u16,
    /// Feature bits of the sender; see [`features`].
    pub features: u64,
    /// The program: the sender itself, or a child of the sender (a local manager beside a program
    /// that nobody changed). As the sender's PID namespace numbers it.
    pub pid: i32,
    /// A name for people.
    pub name: String,
    /// What it asks for at first.
    pub wants: Wants,
}

/// The heaviest weight of a coscheduled set.
pub const MOST_WEIGHT: u32 = 10_000;

/// The weight of a coscheduled set of which nothing else was said.
pub const USUAL_WEIGHT: u32 = 100;

/// A program whose threads are to run at the same time, or not at all (a coscheduled set, or a part of one).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// Programs of one user with the same name are one set: they run in the same slices. Empty: the program
    /// is a set of its own. `job/stage` is a set within the set `job`. At most [`MAX_NAME`] bytes.
    pub name: String,
    /// CPUs of the set that its threads do not use stay idle in its slices, so that nothing interferes;
    /// otherwise other sets may use them.
    pub keeps_idle: bool,
    /// Its share of the time against other sets, 1 to [`MOST_WEIGHT`]; [`USUAL_WEIGHT`] is usual.
    pub weight: u32,
}

/// How a program's threads wait for each other, as who keeps its turns has seen it of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Threads that hardly sleep while the program runs: they compute, or wait in loops.
    pub awake: u32,
    /// The part of the program's CPU time that is spent waiting in loops, in thousandths; `None`: nobody has
    /// looked.
    pub spinning: Option<u32>,
    /// What it takes to stop all of its threads, in nanoseconds; 0: not known.
    pub switch_ns: u32,
}

/// From a program, or a person, to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToManager {
    /// The connection's first message, if it is a program.
    Join(Join),
    /// The program asks for something else: it invades or retreats. Answered with [`ToProgram::Done`]
    /// when the manager has decided, after the claim page says so; programs do not count on it.
    Ask(Wants),
    /// The program's threads have changed: how many it has now.
    Threads(u32),
    /// The answer to [`ToProgram::Request`].
    Answer {
        /// Which request.
        request: u32,
        /// Whether the program did as it was asked.
        yes: bool,
    },
    /// What the manager knows, as JSON in parts ([`ToProgram::Part`]).
    Status,
    /// A person sets a program's claim, whatever the policy says; 0 threads gives it back to the
    /// policy.
    Override {
        /// The program.
        pid: i32,
        /// How many threads it may run.
        threads: u32,
        /// On which CPUs; empty: any.
        cpus: Vec<u32>,
    },
    /// The manager should end.
    Stop,
    /// The program is a manager within the receiver's: it manages these processes, as its own PID
    /// namespace numbers them, and what they and those below them use is its use. Only sent to managers
    /// that welcomed with [`features::MEMBERS`].
    Members(Vec<i32>),
    /// What of the program follows its claim while it runs, for people: a manager decides nothing by it.
    /// Takes the place of what was said before. Only sent to managers that welcomed with
    /// [`features::FOLLOWS`].
    Follows {
        /// Runtimes whose number of threads follows, by the names that people know.
        runtimes: Vec<String>,
        /// Runtimes that it has, as far as that is known, and whose number of threads stays.
        stay: Vec<String>,
    },
    /// The program is a gang from now on, `None`: no longer. It keeps the turns that its claim page tells.
    /// Only sent to managers that welcomed with [`features::GANGS`].
    Gang(Option<Gang>),
    /// Whether the program's threads wait for each other in loops: those that have no CPU then cost it more than
    /// they bring. Only sent to managers that welcomed with [`features::SPINS`].
    Spins(bool),
    /// How its threads wait for each other. Who says it keeps the turns on its claim page, also where it has not
    /// said that it is a gang. Takes the place of what was said before. Only sent to managers that welcomed with
    /// [`features::WAITS`].
    Waits(Waits),
    /// How the program's turns are kept, for people: a manager decides nothing by it. Takes the place of what was said
    /// before. Only sent to managers that welcomed with [`features::TURNS_BY`].
    TurnsBy(TurnsBy),
}

/// By what a program is kept from running out of its turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnsBy {
    /// The means, by the name that people know, at most [`MAX_NAME`] bytes; `None`: there is none, it runs always.
    pub means: Option<String>,
    /// Why not by a better one, or by none at all. At most [`MAX_TEXT`] bytes.
    pub why_not: Option<String>,
}

/// What the manager asks of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Run one thread more.
    Expand,
    /// Run one thread less.
    Shrink,
}

/// How a local manager places its program's threads on the claim's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalRule {
    /// Leave them where they are.
    #[default]
    Leave,
    /// Every thread may run on every CPU of the claim.
    Whole,
    /// Each thread has one CPU of the claim, in the order of their creation; where there are more
    /// threads than CPUs, they share from the first one on.
    OneEach,
}

/// From the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProgram {
    /// The program is managed. Comes with two descriptors: claim page, progress page.
    Welcome {
        /// The version that the manager speaks.
        version: u16,
        /// Feature bits of the manager; see [`features`].
        features: u64,
        /// The program's number in `corewise status`.
        program: u64,
        /// How its threads are to be placed, until a [`ToProgram::Rule`] says otherwise.
        rule: LocalRule,
    },
    /// What was asked for cannot be; the text says why, for people.
    Refused(String),
    /// The manager asks; the program answers with [`ToManager::Answer`].
    Request {
        /// To be repeated in the answer.
        request: u32,
        /// What is asked.
        what: Request,
    },
    /// A part of an answer to a person's question; the last one is not followed by `more`.
    Part {
        /// Whether another part follows.
        more: bool,
        /// Bytes of the answer.
        bytes: Vec<u8>,
    },
    /// What was asked for is done.
    Done,
    /// The program's threads are to be placed otherwise from now on: the policy has changed. Only sent
    /// to programs that joined with [`features::RULE`].
    Rule(LocalRule),
    /// The manager has been started anew, and was given the connection of the one before: the program is
    /// to send [`ToManager::Join`] on it, once more, and is welcomed with new pages. Until then it follows
    /// its old claim. Only sent to programs that joined with [`features::AGAIN`].
    Again,
}

/// A message that cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Longer than [`MAX_MESSAGE`].
    TooLong,
    /// Not a message of this version, or followed by bytes that do not belong to it.
    Unreadable,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Malformed::TooLong => "the message is longer than 8,192 bytes",
            Malformed::Unreadable => "the message is not one of this version of the protocol",
        })
    }
}

impl core::error::Error for Malformed {}

/// The bytes of a message.
///
/// # Errors
/// [`Malformed::TooLong`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Malformed> {
    let bytes = postcard::to_allocvec(message).map_err(|_| Malformed::Unreadable)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(Malformed::TooLong);
    }
    Ok(bytes)
}

/// Reads a message from any bytes.
///
/// # Errors
/// [`Malformed`], whatever the bytes are; never a panic, and never more memory than the bytes
/// themselves would need.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    if bytes.len() > MAX_MESSAGE {
        return Err(Malformed::TooLong);
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed::Unreadable),
    }
}
