//! One connection, and one program, as the manager holds them.

use crate::members::Members;
use corewise_abi::message::{LocalRule, ToManager, ToProgram, TurnsBy};
use corewise_decide::status::ProgramId;
use corewise_machine::program::TreeClock;
use corewise_wire::{Channel, ClaimWriter, Error, Peer, ProgressReader};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Messages that are heard from one connection in a window of time ([`WINDOW_NS`]); what is beyond
/// waits for the next window, so that one that floods costs a bounded part of a CPU.
const MOST_MESSAGES: u32 = 500;

/// A question for the status is as much work as so many other messages.
const STATUS_WEIGHS: u32 = 50;

/// A list of processes is as much work as so many other messages.
const MEMBERS_WEIGH: u32 = 10;

/// A window of time, in nanoseconds.
pub(crate) const WINDOW_NS: u64 = 100_000_000;

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    pub(crate) peer: Peer,
    /// The program that it is, once it has joined.
    pub(crate) program: Option<ProgramId>,
    /// Answers for which there was no room yet.
    outbox: VecDeque<ToProgram>,
    heard: u32,
    window_ns: u64,
    /// Whether it is not listened to until its window ends.
    pub(crate) paused: bool,
    /// Whether the service manager keeps it, too.
    pub(crate) kept: bool,
    /// Whether it was the connection of a program of the manager before us, which has not joined again.
    pub(crate) restored: bool,
}

impl Connection {
    pub(crate) fn new(channel: Channel, peer: Peer) -> Connection {
        Connection {
            channel,
            peer,
            program: None,
            outbox: VecDeque::new(),
            heard: 0,
            window_ns: 0,
            paused: false,
            kept: false,
            restored: false,
        }
    }

    /// One of the manager before us, kept by the service manager.
    pub(crate) fn restored(channel: Channel, peer: Peer) -> Connection {
        Connection {
            kept: true,
            restored: true,
            ..Connection::new(channel, peer)
        }
    }

    /// It is about to be closed: so that this is its end.
    pub(crate) fn end(&self) {
        if self.kept {
            self.channel.shut_down();
        }
    }

    /// Counts a message; whether no more are to be heard in this window.
    pub(crate) fn has_said_enough(&mut self, message: &ToManager, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.window_ns) >= WINDOW_NS {
            self.window_ns = now_ns;
            self.heard = 0;
        }
        self.heard += match message {
            ToManager::Status => STATUS_WEIGHS,
            ToManager::Members(_) => MEMBERS_WEIGH,
            _ => 1,
        };
        self.heard >= MOST_MESSAGES
    }

    /// Whether answers wait for room.
    pub(crate) fn has_more_to_say(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends answers, now or as soon as there is room: call [`say_more`](Connection::say_more) then.
    ///
    /// # Errors
    /// [`Error::Closed`] and others: the connection is of no more use.
    pub(crate) fn say(
        &mut self,
        answers: impl IntoIterator<Item = ToProgram>,
    ) -> Result<(), Error> {
        self.outbox.extend(answers);
        self.say_more()
    }

    /// Sends what waits, as far as there is room.
    ///
    /// # Errors
    /// As [`say`](Connection::say).
    pub(crate) fn say_more(&mut self) -> Result<(), Error> {
        while let Some(next) = self.outbox.front() {
            match self.channel.send(next, &[]) {
                Ok(()) => {
                    self.outbox.pop_front();
                }
                Err(Error::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What of a program follows its claim while it runs, for people.
#[derive(Debug)]
pub(crate) struct Follows {
    /// Runtimes whose number of threads follows.
    pub(crate) runtimes: Vec<String>,
    /// Those whose number stays.
    pub(crate) stay: Vec<String>,
}

/// One program.
#[derive(Debug)]
pub(crate) struct Managed {
    /// Its connection's number.
    pub(crate) connection: u64,
    /// Its process.
    pub(crate) pid: i32,
    /// Whose process it is.
    pub(crate) uid: u32,
    /// Whether the connection is the process's own.
    pub(crate) itself: bool,
    /// The rule that it was told, if it understands that the rule changes.
    pub(crate) rule: Option<LocalRule>,
    /// The time of its whole tree, if somebody joined for it.
    pub(crate) tree: TreeClock,
    /// Whether it joins again when it is asked to.
    pub(crate) joins_again: bool,
    /// Those that it manages, if it is a manager.
    pub(crate) members: Option<Members>,
    /// What of it follows, by its own account; `None`: it has not said.
    pub(crate) follows: Option<Follows>,
    /// How its turns are kept, by its own account.
    pub(crate) turns_by: Option<TurnsBy>,
    pub(crate) claim: ClaimWriter,
    pub(crate) progress: ProgressReader,
    /// The pages' descriptors, until the program is welcomed with them.
    pub(crate) pages: Option<[OwnedFd; 2]>,
    /// Readable when the process has ended.
    pub(crate) pidfd: Option<OwnedFd>,
}
