//! What connections say, and what follows from it.

use crate::admit::{self, admit, is_served};
use crate::connection::{Connection, Follows, Managed};
use crate::listen::Accepted;
use crate::members::Members;
use crate::waiter::now_ns;
use crate::world::{LinuxWorld, of_connection, of_process};
use corewise_abi::VERSION;
use corewise_abi::message::{
    Gang, Join, LocalRule, MAX_NAME, MAX_TEXT, MOST_NAMES, ToManager, ToProgram, TurnsBy, features,
};
use corewise_decide::gang::{MOST_WEIGHT, USUAL_WEIGHT};
use corewise_decide::global::GlobalManager;
use corewise_decide::status::ProgramId;
use corewise_decide::world::Input;
use corewise_machine::program::TreeClock;
use corewise_wire::{ClaimWriter, Error as WireError, ProgressReader};
use std::os::fd::AsFd;

/// Messages of one connection that are heard before the others have their turn.
const AT_A_TURN: u32 = 16;

/// Connections of one user that root's manager keeps, of all that it can.
const SHARE_OF_A_USER: usize = 4;

/// Whoever sent it is not talked to any more.
struct Unwelcome;

impl LinuxWorld<'_> {
    /// Accepts all who wait.
    pub(crate) fn accept_all(&mut self) {
        loop {
            let channel = match self.listener.accept() {
                Accepted::Channel(channel) => channel,
                Accepted::TurnedAway => continue,
                Accepted::Nobody => return,
            };
            // Dropped: the connection is closed.
            let Ok(peer) = channel.peer() else { continue };
            if !is_served(self.uid, peer.uid) || !self.has_room_for(peer.uid) {
                continue;
            }
            let id = self.next_connection;
            self.next_connection += 1;
            if self.waiter.add(&channel, of_connection(id)).is_ok() {
                self.connections.insert(id, Connection::new(channel, peer));
            }
        }
    }

    fn has_room_for(&self, uid: u32) -> bool {
        if self.connections.len() >= self.most_connections {
            return false;
        }
        if uid == self.uid {
            return true;
        }
        let of_user = self.connections.values().filter(|c| c.peer.uid == uid);
        of_user.count() < self.most_connections / SHARE_OF_A_USER
    }

    /// Hears what a connection says, a bounded number of messages; with `all`, up to its end.
    pub(crate) fn hear(&mut self, id: u64, all: bool) {
        let now = now_ns();
        let mut turns = 0;
        while all || turns < AT_A_TURN {
            turns += 1;
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            if connection.paused && !all {
                return;
            }
            match connection.channel.receive::<ToManager>() {
                // Descriptors that came with it are closed: nobody was asked for any.
                Ok(received) => {
                    let enough = connection.has_said_enough(&received.message, now);
                    if self.on_message(id, received.message).is_err() {
                        return self.close(id);
                    }
                    // At its end the kernel holds a bounded number of messages.
                    if enough
                        && !all
                        && let Some(connection) = self.connections.get_mut(&id)
                    {
                        connection.paused = true;
                        return self.pause(id, now);
                    }
                }
                Err(WireError::WouldBlock) => return,
                Err(_) => return self.close(id),
            }
        }
    }

    fn on_message(&mut self, id: u64, message: ToManager) -> Result<(), Unwelcome> {
        let connection = self.connections.get(&id).ok_or(Unwelcome)?;
        let peer = connection.peer;
        // What only a program may say.
        let program = connection.program.ok_or(Unwelcome);
        match message {
            ToManager::Join(_) if program.is_ok() => return Err(Unwelcome),
            ToManager::Join(join) => {
                let restored = connection.restored;
                if let Err(why) = self.join(id, join) {
                    self.say(id, [ToProgram::Refused(why)]);
                    // It follows the old claim as long as there is a connection.
                    if restored {
                        return Err(Unwelcome);
                    }
                }
            }
            // It was meant for the manager before us.
            _ if connection.restored => {}
            ToManager::Ask(wants) => {
                let program = program?;
                self.inputs.push(Input::Asked { program, wants });
                // So that it need not wait where nothing changes. Not to one who does not read.
                if !connection.has_more_to_say() {
                    self.afterwards.done.push(id);
                }
            }
            ToManager::Threads(count) => {
                let program = program?;
                self.inputs.push(Input::Threads { program, count });
            }
            ToManager::Answer { request, yes } => {
                let program = program?;
                self.inputs.push(Input::Answered {
                    program,
                    request,
                    yes,
                });
            }
            ToManager::Status => {
                // One answer at a time: who does not read does not fill our memory.
                if connection.has_more_to_say() || self.afterwards.status.contains(&id) {
                    return Err(Unwelcome);
                }
                self.afterwards.status.push(id);
            }
            ToManager::Override { pid, threads, cpus } => {
                let found = self.present().find(|(_, managed)| managed.pid == pid);
                match found.map(|(program, managed)| (program, managed.uid)) {
                    None => {
                        let why = format!("process {pid} is not managed");
                        self.say(id, [ToProgram::Refused(why)]);
                    }
                    Some((_, uid)) if peer.uid != uid && peer.uid != 0 => {
                        let why = format!("process {pid} belongs to another user");
                        self.say(id, [ToProgram::Refused(why)]);
                    }
                    // It would be taken from others, and stay theirs whatever the policy says.
                    Some(_) if self.options.everyone && peer.uid != 0 => {
                        let why = "this is the system's manager, whose policy decides between users: \
                                   only root sets claims here; set them in a manager of your own";
                        self.say(id, [ToProgram::Refused(why.to_owned())]);
                    }
                    Some((program, _)) => {
                        let cpus = cpus.into_iter().collect();
                        let claim = (threads > 0).then_some((cpus, threads));
                        self.inputs.push(Input::Overridden { program, claim });
                        self.afterwards.done.push(id);
                    }
                }
            }
            ToManager::Stop if peer.uid == self.uid || peer.uid == 0 => {
                self.say(id, [ToProgram::Done]);
                self.stopping = true;
            }
            ToManager::Stop => {
                let why = "only its own user or root ends a manager".to_owned();
                self.say(id, [ToProgram::Refused(why)]);
            }
            ToManager::Follows { runtimes, stay } => {
                if let Some(managed) = self.programs.get_mut(&program?) {
                    managed.follows = Some(Follows {
                        runtimes: names(runtimes),
                        stay: names(stay),
                    });
                }
            }
            ToManager::Spins(spins) => {
                let program = program?;
                self.inputs.push(Input::Spins { program, spins });
            }
            ToManager::Waits(waits) => {
                let program = program?;
                self.inputs.push(Input::Waits { program, waits });
            }
            ToManager::TurnsBy(by) => {
                if let Some(managed) = self.programs.get_mut(&program?) {
                    managed.turns_by = Some(shown(by));
                }
            }
            ToManager::Gang(gang) => {
                let program = program?;
                // Between users nobody takes more than the usual share for himself.
                let most = match self.options.everyone && peer.uid != 0 {
                    true => USUAL_WEIGHT,
                    false => MOST_WEIGHT,
                };
                let gang = gang.map(|gang| own(gang, peer.uid, most));
                self.inputs.push(Input::Gang { program, gang });
            }
            ToManager::Members(pids) => {
                let managed = self.programs.get_mut(&program?);
                if let Some(managed) = managed.filter(|managed| managed.itself) {
                    let pid = managed.pid;
                    let members = managed.members.get_or_insert_with(|| {
                        let readable = admit::numbers_as_we(pid);
                        Members::of(peer.uid, readable)
                    });
                    members.are(pids);
                }
            }
        }
        Ok(())
    }

    /// Programs that have not left.
    fn present(&self) -> impl Iterator<Item = (ProgramId, &Managed)> {
        let here = |managed: &Managed| self.connections.contains_key(&managed.connection);
        let programs = self.programs.iter();
        programs
            .filter(move |(_, managed)| here(managed))
            .map(|(id, managed)| (*id, managed))
    }

    /// Takes a program in; why not, for people.
    fn join(&mut self, id: u64, join: Join) -> Result<(), String> {
        let peer = match self.connections.get(&id) {
            Some(connection) => connection.peer,
            None => return Ok(()),
        };
        if join.version == 0 {
            return Err("it speaks no version of the protocol".to_owned());
        }
        if join.name.len() > MAX_TEXT {
            return Err(format!("its name is longer than {MAX_TEXT} bytes"));
        }
        let admitted = admit(peer, join.pid)?;
        let pid = admitted.pid;
        self.settle_who_speaks_for(pid, admitted.itself)?;
        let refused = |error: WireError| error.to_string();
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let (claim, claim_page) = ClaimWriter::create(own).map_err(refused)?;
        let (progress, progress_page) = ProgressReader::create().map_err(refused)?;
        if let Some(pidfd) = &admitted.pidfd {
            let watched = self.waiter.add(pidfd, of_process(id));
            watched.map_err(|error| error.to_string())?;
        }
        if self.programs.is_empty() {
            // Nobody has looked at the machine while there were none.
            let _ = self.look_at_machine();
            let most = join.wants.max_threads;
            self.outer.first_program(&self.waiter, most, now_ns());
        }
        let program = ProgramId(self.next_program);
        self.next_program += 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.program = Some(program);
            connection.restored = false;
        }
        let managed = Managed {
            connection: id,
            pid,
            uid: peer.uid,
            itself: admitted.itself,
            rule: (join.features & features::RULE != 0).then_some(LocalRule::Leave),
            tree: TreeClock::default(),
            joins_again: join.features & features::AGAIN != 0,
            members: None,
            follows: None,
            turns_by: None,
            claim,
            progress,
            pages: Some([claim_page, progress_page]),
            pidfd: admitted.pidfd,
        };
        self.programs.insert(program, managed);
        self.inputs.push(Input::Joined {
            program,
            pid,
            name: printable(&join.name),
            wants: join.wants,
        });
        self.afterwards.welcome.push(program);
        self.afterwards.group.push(program);
        Ok(())
    }

    /// A process that links the library knows better what it needs than who stands beside it: once it
    /// has joined itself, nobody else speaks for it. It may do so several times, as when two of its
    /// libraries do: those are several programs.
    fn settle_who_speaks_for(&mut self, pid: i32, itself: bool) -> Result<(), String> {
        let same = self.present().filter(|(_, managed)| managed.pid == pid);
        let others: Vec<(u64, bool)> = same.map(|(_, m)| (m.connection, m.itself)).collect();
        if !itself && !others.is_empty() {
            return Err(format!("process {pid} has joined already"));
        }
        for (beside, _) in others.into_iter().filter(|(_, itself)| !itself) {
            let why = "the program has joined itself".to_owned();
            self.say(beside, [ToProgram::Refused(why)]);
            self.close(beside);
        }
        Ok(())
    }

    /// Sends a program its pages. By now they hold its first claim.
    pub(crate) fn welcome(&mut self, program: ProgramId, rule: LocalRule) {
        let Some(managed) = self.programs.get_mut(&program) else {
            return;
        };
        let id = managed.connection;
        let (Some(connection), Some(pages)) = (self.connections.get_mut(&id), managed.pages.take())
        else {
            return;
        };
        managed.rule = managed.rule.map(|_| rule);
        let welcome = ToProgram::Welcome {
            version: VERSION,
            features: features::RULE
                | features::MEMBERS
                | features::FOLLOWS
                | features::GANGS
                | features::SPINS
                | features::WAITS
                | features::TURNS_BY,
            program: program.0,
            rule,
        };
        let pages = [pages[0].as_fd(), pages[1].as_fd()];
        if connection.channel.send(&welcome, &pages).is_err() {
            self.close(id);
        } else if managed.joins_again && !connection.kept {
            connection.kept = self.service.keep(&connection.channel);
        }
    }

    /// The policy's rule, which may be another than before: tells those who have been told another and
    /// understand that it changes. What the rule was before is `self.rule`, so that this costs a
    /// comparison otherwise.
    pub(crate) fn tell_rule(&mut self, rule: LocalRule, manager: &GlobalManager) {
        if self.rule.replace(rule) == Some(rule) {
            return;
        }
        let mut others = Vec::new();
        for (program, managed) in &mut self.programs {
            let rule = manager.local_rule_of(*program);
            // Who is not welcomed yet is told then.
            if managed.rule.is_some_and(|told| told != rule) && managed.pages.is_none() {
                managed.rule = Some(rule);
                others.push((managed.connection, rule));
            }
        }
        for (id, rule) in others {
            self.say(id, [ToProgram::Rule(rule)]);
        }
    }

    /// Sends answers, now or when there is room.
    pub(crate) fn say(&mut self, id: u64, answers: impl IntoIterator<Item = ToProgram>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.say(answers) {
            Ok(()) if connection.has_more_to_say() => self.renew_interest(id),
            Ok(()) => {}
            Err(_) => self.close(id),
        }
    }

    /// There is room again for a connection's answers.
    pub(crate) fn say_more(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.say_more() {
            Ok(()) if connection.has_more_to_say() => {}
            Ok(()) => self.renew_interest(id),
            Err(_) => self.close(id),
        }
    }

    /// Ends a connection, and with it its program.
    pub(crate) fn close(&mut self, id: u64) {
        // Closing takes it out of epoll, too.
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        connection.end();
        let Some(program) = connection.program else {
            return;
        };
        if let Some(managed) = self.programs.get_mut(&program) {
            // Its end would wake us up again and again.
            managed.pidfd = None;
        }
        self.inputs.push(Input::Left { program });
        self.afterwards.gone.push(program);
    }
}

/// A name without what would move a terminal's cursor.
fn printable(name: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    name.chars().map(printable).collect()
}

/// Names that may be shown, and no more than a message should have.
fn names(said: Vec<String>) -> Vec<String> {
    let short = said.iter().filter(|name| name.len() <= MAX_NAME);
    short.take(MOST_NAMES).map(|name| printable(name)).collect()
}

/// What was said of a program's turns, as it may be shown: nothing that is too long.
fn shown(said: TurnsBy) -> TurnsBy {
    let short = |text: Option<String>, most: usize| {
        let text = text.filter(|text| text.len() <= most)?;
        Some(printable(&text))
    };
    TurnsBy {
        means: short(said.means, MAX_NAME),
        why_not: short(said.why_not, MAX_TEXT),
    }
}

/// A gang as it is decided on: programs of different users are never one set, nor within one, whatever they call it.
fn own(gang: Gang, uid: u32, most_weight: u32) -> Gang {
    let name = match gang.name.is_empty() || gang.name.len() > MAX_NAME {
        true => String::new(),
        false => {
            let name = printable(&gang.name);
            let (outermost, within) = name.split_at(name.find('/').unwrap_or(name.len()));
            format!("{outermost} of user {uid}{within}")
        }
    };
    Gang {
        name,
        weight: gang.weight.clamp(1, most_weight),
        ..gang
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_paint_on_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nü"), "a?[2Jb?ü");
    }

    #[test]
    fn a_gang_is_of_one_user_and_its_weight_within_bounds() {
        let said = |name: &str| Gang {
            name: name.to_owned(),
            keeps_idle: true,
            weight: 0,
        };
        assert_eq!(own(said("mpi"), 7, 100).name, "mpi of user 7");
        assert_eq!(own(said("job/a/b"), 7, 100).name, "job of user 7/a/b");
        assert_eq!(own(said("mpi"), 7, 100).weight, 1);
        let heavy = Gang {
            weight: 5_000,
            ..said("")
        };
        assert_eq!(own(heavy.clone(), 7, 100).weight, 100);
        assert_eq!(own(heavy, 0, MOST_WEIGHT).weight, 5_000);
        assert_ne!(own(said("mpi"), 7, 100), own(said("mpi"), 8, 100));
        assert_eq!(own(said(""), 7, 100).name, "");
        assert_eq!(own(said(&"x".repeat(1_000)), 7, 100).name, "");
    }

    #[test]
    fn of_names_only_those_within_bounds_are_kept() {
        let said = |name: &str, times: usize| names(vec![name.to_owned(); times]);
        assert_eq!(said("lib\ngomp", 1), ["lib?gomp"]);
        assert_eq!(said("x", 10_000).len(), MOST_NAMES);
        assert!(said(&"x".repeat(MAX_NAME + 1), 1).is_empty());
    }
}
