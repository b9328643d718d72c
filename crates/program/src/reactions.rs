//! What is to be done when a claim changes, or when the manager asks.

use crate::shared::lock;
use crate::wants::Granted;
use corewise_abi::message::Request;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};

type OnChange = Arc<dyn Fn(Granted) + Send + Sync>;
type OnRequest = Arc<dyn Fn(Request, Granted) -> bool + Send + Sync>;

/// A callback that was given to [`Claim::on_change`](crate::Claim::on_change), to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallbackId(u64);

/// A descriptor that becomes readable when the claim changes: for poll(2), epoll(7) and event loops.
/// Closed when dropped.
#[derive(Debug)]
pub struct ChangeFd(Arc<OwnedFd>);

impl ChangeFd {
    /// Makes it unreadable until the next change; whether there was a change since the last time.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for ChangeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Default)]
struct Known {
    last_id: u64,
    callbacks: Vec<(CallbackId, OnChange)>,
    fds: Vec<Weak<OwnedFd>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Reactions {
    known: Mutex<Known>,
    request: Mutex<Option<OnRequest>>,
}

impl Reactions {
    pub(crate) fn add(&self, callback: OnChange) -> CallbackId {
        let mut known = lock(&self.known);
        known.last_id += 1;
        let id = CallbackId(known.last_id);
        known.callbacks.push((id, callback));
        id
    }

    /// Whether it was there.
    pub(crate) fn remove(&self, id: CallbackId) -> bool {
        let mut known = lock(&self.known);
        let before = known.callbacks.len();
        known.callbacks.retain(|(other, _)| *other != id);
        known.callbacks.len() < before
    }

    pub(crate) fn descriptor(&self) -> io::Result<ChangeFd> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut known = lock(&self.known);
        known.fds.retain(|fd| fd.strong_count() > 0);
        known.fds.push(Arc::downgrade(&fd));
        Ok(ChangeFd(fd))
    }

    pub(crate) fn set_request(&self, answer: Option<OnRequest>) {
        *lock(&self.request) = answer;
    }

    /// The claim has changed. Calls back without a lock held, so that callbacks may use the claim.
    pub(crate) fn changed(&self, now: Granted) {
        let (callbacks, fds): (Vec<OnChange>, Vec<Arc<OwnedFd>>) = {
            let known = lock(&self.known);
            let callbacks = known.callbacks.iter().map(|(_, c)| Arc::clone(c));
            let fds = known.fds.iter().filter_map(Weak::upgrade);
            (callbacks.collect(), fds.collect())
        };
        for fd in fds {
            // It fails only where it is readable already.
            let _ = rustix::io::write(&fd, &1_u64.to_ne_bytes());
        }
        for callback in callbacks {
            // Its panic was reported by the panic hook; the claim goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(now)));
        }
    }

    /// What the program's own callback answers, if it has one (and it does not panic).
    pub(crate) fn asked(&self, what: Request, now: Granted) -> Option<bool> {
        let answer = lock(&self.request).clone()?;
        catch_unwind(AssertUnwindSafe(|| answer(what, now))).ok()
    }
}

impl std::fmt::Debug for Reactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactions").finish_non_exhaustive()
    }
}
