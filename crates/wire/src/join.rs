//! How a program becomes a managed one.

use crate::{Channel, ClaimReader, Error, Folder, ProgressWriter};
use corewise_abi::message::{Join, LocalRule, MAX_TEXT, ToManager, ToProgram};
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
    /// How its threads are to be placed within the claim.
    pub rule: LocalRule,
}

/// Connects to the manager of a runtime folder, and checks whose it is.
///
/// # Errors
/// [`Error::NoManager`] if none listens, [`Error::ForeignPeer`] if whoever listens is neither this
/// user nor root, and others.
pub fn connect(folder: &Folder) -> Result<Channel, Error> {
    let channel = Channel::connect(&folder.socket())?;
    let uid = channel.peer()?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(Error::ForeignPeer { uid });
    }
    Ok(channel)
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
    let (program, rule) = match received.message {
        ToProgram::Welcome { program, rule, .. } => (program, rule),
        ToProgram::Refused(why) => return Err(Error::Refused(why)),
        _ => {
            let what = "neither a welcome nor a refusal";
            return Err(Error::Unexpected { what });
        }
    };
    let mut pages = received.fds.into_iter();
    let (Some(claim), Some(progress), None) = (pages.next(), pages.next(), pages.next()) else {
        let what = "a welcome without its two pages";
        return Err(Error::Unexpected { what });
    };
    Ok(Joined {
        channel,
        claim: ClaimReader::map(claim)?,
        progress: ProgressWriter::map(progress)?,
        program,
        rule,
    })
}
