//! Asking a manager from outside: what people do with `corewise status`, `claim` and `manage --stop`.

use crate::Error;
use corewise_abi::message::{ToManager, ToProgram};
use corewise_wire::{Channel, Error as WireError, Folder};
use serde_json::Value;
use std::time::Duration;

/// How long a manager may take for an answer, or for a part of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer, in bytes.
const LONGEST: usize = 64 << 20;

/// What the manager of a folder knows; `None` if none listens. The keys are those of `corewise status
/// --json` (see DESIGN.md's list).
///
/// # Errors
/// [`Error::Wire`] if the manager cannot be talked to, [`Error::Answer`] if its answer is none.
pub fn status_json(folder: &Folder) -> Result<Option<Value>, Error> {
    let Some(channel) = manager(folder)? else {
        return Ok(None);
    };
    channel.send(&ToManager::Status, &[])?;
    let mut whole = Vec::new();
    loop {
        let part = match answer(&channel) {
            // It was about to leave.
            Err(Error::Wire(WireError::Closed)) if whole.is_empty() => return Ok(None),
            part => part?,
        };
        match part {
            ToProgram::Part { more, bytes } => {
                whole.extend(bytes);
                if whole.len() > LONGEST {
                    return Err(unexpected("it is too long"));
                }
                if !more {
                    break;
                }
            }
            other => return Err(refusal(other)),
        }
    }
    serde_json::from_slice(&whole)
        .map(Some)
        .map_err(|error| unexpected(&error.to_string()))
}

/// Sets the claim of the program with this process, whatever the policy says; 0 threads gives it back
/// to the policy, no CPUs mean any. Takes effect before this returns.
///
/// # Errors
/// [`Error::Wire`] if no manager listens, or if it refuses: the process is not managed, or another
/// user's.
pub fn override_claim(
    folder: &Folder,
    pid: i32,
    threads: u32,
    cpus: Vec<u32>,
) -> Result<(), Error> {
    let Some(channel) = manager(folder)? else {
        let path = folder.socket();
        return Err(WireError::NoManager { path }.into());
    };
    channel.send(&ToManager::Override { pid, threads, cpus }, &[])?;
    match answer(&channel)? {
        ToProgram::Done => Ok(()),
        other => Err(refusal(other)),
    }
}

/// Ends the manager of a folder in good order; whether there was one. When this returns, it has put
/// back what it set and is gone, or has not answered for five seconds.
///
/// # Errors
/// [`Error::Wire`] if it cannot be talked to, or refuses.
pub fn stop(folder: &Folder) -> Result<bool, Error> {
    let Some(channel) = manager(folder)? else {
        return Ok(false);
    };
    channel.send(&ToManager::Stop, &[])?;
    match answer(&channel)? {
        ToProgram::Done => {}
        other => return Err(refusal(other)),
    }
    // The end of the connection is the end of the manager.
    match answer(&channel) {
        Err(Error::Wire(WireError::Closed)) => Ok(true),
        Err(error) => Err(error),
        Ok(other) => Err(refusal(other)),
    }
}

/// The folder's manager; `None` if none listens.
fn manager(folder: &Folder) -> Result<Option<Channel>, Error> {
    match corewise_wire::connect(folder) {
        Ok(channel) => Ok(Some(channel)),
        Err(WireError::NoManager { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn answer(channel: &Channel) -> Result<ToProgram, Error> {
    match channel.receive_within(PATIENCE) {
        Ok(received) => Ok(received.message),
        Err(WireError::WouldBlock) => {
            let seconds = PATIENCE.as_secs_f64();
            Err(WireError::Silent { seconds }.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn refusal(answer: ToProgram) -> Error {
    match answer {
        ToProgram::Refused(why) => WireError::Refused(why).into(),
        other => unexpected(&format!("it answers {other:?}")),
    }
}

fn unexpected(why: &str) -> Error {
    let why = why.to_owned();
    Error::Answer { why }
}
