//! How a program becomes a managed one.

use crate::{Channel, ClaimReader, Error, Folder, ProgressWriter, Received};
use corewise_abi::message::{Join, LocalRule, MAX_TEXT, ToManager, ToProgram};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// How long a manager may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A managed program's side.
#[derive(Debug)]
pub struct Joined {
    /// The connection: its end is the end of the claim, on either side.
    pub channel: Channel,
    /// What the program may use.
    pub claim: ClaimReader,
    /// What it says of itself.
    pub progress: ProgressWriter,
    /// Its number in `corewise status`.
    pub program: u64,
    /// How its threads are to be placed within the claim, until the manager says otherwise
    /// ([`ToProgram::Rule`]; only to who joined with [`corewise_abi::message::features::RULE`]).
    pub rule: LocalRule,
    /// What the manager understands; see [`corewise_abi::message::features`].
    pub features: u64,
}

/// Connects to the manager of a runtime folder, and checks whose it is.
///
/// # Errors
/// [`Error::NoManager`] if none listens, [`Error::ForeignPeer`] if whoever listens is neither this
/// user nor root, and others.
pub fn connect(folder: &Folder) -> Result<Channel, Error> {
    let channel = Channel::connect(&folder.socket())?;
    let own = rustix::process::geteuid().as_raw();
    checked(channel, |uid| uid == 0 || uid == own)
}

/// The channel, if whoever listens there may be talked to.
fn checked(channel: Channel, trusted: impl Fn(u32) -> bool) -> Result<Channel, Error> {
    match channel.peer()?.uid {
        uid if trusted(uid) => Ok(channel),
        uid => Err(Error::ForeignPeer { uid }),
    }
}

/// What a manager gives to a program that it welcomes.
#[derive(Debug)]
pub struct Welcomed {
    /// What the program may use.
    pub claim: ClaimReader,
    /// What it says of itself.
    pub progress: ProgressWriter,
    /// Its number in `corewise status`.
    pub program: u64,
    /// How its threads are to be placed.
    pub rule: LocalRule,
    /// What the manager understands; see [`corewise_abi::message::features`].
    pub features: u64,
}

impl Welcomed {
    /// What the manager's answer to a [`Join`] says.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Unexpected`] and [`Error::Page`] for what is no welcome.
    pub fn by(answer: Received<ToProgram>) -> Result<Welcomed, Error> {
        let (program, rule, features) = match answer.message {
            ToProgram::Welcome {
                program,
                rule,
                features,
                ..
            } => (program, rule, features),
            ToProgram::Refused(why) => return Err(Error::Refused(why)),
            _ => {
                let what = "neither a welcome nor a refusal";
                return Err(Error::Unexpected { what });
            }
        };
        let mut pages = answer.fds.into_iter();
        let (Some(claim), Some(progress), None) = (pages.next(), pages.next(), pages.next()) else {
            let what = "a welcome without its two pages";
            return Err(Error::Unexpected { what });
        };
        Ok(Welcomed {
            claim: ClaimReader::map(claim)?,
            progress: ProgressWriter::map(progress)?,
            program,
            rule,
            features,
        })
    }

    fn on(self, channel: Channel) -> Joined {
        Joined {
            channel,
            claim: self.claim,
            progress: self.progress,
            program: self.program,
            rule: self.rule,
            features: self.features,
        }
    }
}

/// Joins the manager of a runtime folder. Takes some hundred microseconds, and two seconds at most.
/// A name longer than the protocol allows is cut. The claim page may be without a grant for some
/// microseconds after this returns.
///
/// # Errors
/// [`Error::NoManager`] if none listens, [`Error::ForeignPeer`] if whoever listens is neither this
/// user nor root, [`Error::Refused`], [`Error::Silent`], [`Error::Closed`] and others: in each case
/// the program runs on unmanaged, and may try again later.
pub fn join(folder: &Folder, mut join: Join) -> Result<Joined, Error> {
    let channel = connect(folder)?;
    join.name.truncate(join.name.floor_char_boundary(MAX_TEXT));
    channel.send(&ToManager::Join(join), &[])?;
    let received = match channel.receive_within::<ToProgram>(ANSWER_WITHIN) {
        Err(Error::WouldBlock) => {
            let seconds = ANSWER_WITHIN.as_secs_f64();
            return Err(Error::Silent { seconds });
        }
        other => other?,
    };
    Ok(Welcomed::by(received)?.on(channel))
}

/// A join that was asked for, without waiting for its answer: for who has other things to wait for.
/// The descriptor becomes readable when there is something to be heard.
#[derive(Debug)]
pub struct Joining {
    channel: Channel,
}

/// How far a [`Joining`] has come.
#[derive(Debug)]
pub enum Answer {
    /// It is done.
    Joined(Box<Joined>),
    /// The manager has not answered yet.
    NotYet(Joining),
}

impl Joining {
    /// Asks the system's manager, in `folder`, to be joined. Never waits; nor does what is sent on the
    /// channel later. Costs some 20 µs.
    ///
    /// # Errors
    /// As [`join`]; [`Error::ForeignPeer`] if whoever listens is not root, [`Error::Silent`] if the queue
    /// of connections is full.
    pub fn with_system(folder: &Folder, mut join: Join) -> Result<Joining, Error> {
        let channel = Channel::connect_within(&folder.socket(), Duration::ZERO)?;
        let channel = checked(channel, |uid| uid == 0)?;
        join.name.truncate(join.name.floor_char_boundary(MAX_TEXT));
        channel.send(&ToManager::Join(join), &[])?;
        Ok(Joining { channel })
    }

    /// Takes the answer, if it is there.
    ///
    /// # Errors
    /// As [`join`].
    pub fn answer(self) -> Result<Answer, Error> {
        match self.channel.receive::<ToProgram>() {
            Ok(received) => {
                let joined = Welcomed::by(received)?.on(self.channel);
                Ok(Answer::Joined(Box::new(joined)))
            }
            Err(Error::WouldBlock) => Ok(Answer::NotYet(self)),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Joining {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
