//! The two threads of a claim.
//!
//! The listener (`corewise`) owns the manager's socket: it answers requests, notices when the manager
//! is gone, and tries to join the next one. The watcher (`corewise-claim`) sleeps on the claim page and
//! reacts to changes; it is started by the first who wants to hear of them. They are two because Linux
//! cannot sleep on a futex and a socket at once.
//!
//! Neither handles a signal. Neither is waited for when the program ends.

use crate::pages::Look;
use crate::shared::Shared;
use crate::sys::BlockedSignals;
use corewise_abi::message::ToProgram;
use corewise_wire::{Channel, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Enough for callbacks of some depth; only what is touched is memory.
const STACK_BYTES: usize = 256 * 1024;

/// How soon after a manager's end joining is tried again, and how often at last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Starts a thread of ours, unpinned and with these signals blocked, whatever its parent has.
pub(crate) fn start(
    builder: Builder,
    shared: &Arc<Shared>,
    blocked: BlockedSignals,
    body: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    blocked.while_starting(|| {
        builder.spawn(move || {
            shared.adopt_thread();
            let _ = catch_unwind(AssertUnwindSafe(|| body(&shared)));
            shared.release_thread();
        })
    })
}

fn small(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES)
}

/// Starts the listener, on a connection if there is one. If it cannot be started the claim is
/// unmanaged.
pub(crate) fn listen(shared: &Arc<Shared>, first: Option<Arc<Channel>>) {
    let started = start(
        small("corewise"),
        shared,
        BlockedSignals::all(),
        move |shared| {
            listener(shared, first);
        },
    );
    if started.is_err() {
        shared.fail_open();
    }
}

fn listener(shared: &Shared, first: Option<Arc<Channel>>) {
    let mut channel = first;
    let mut pause = FIRST_PAUSE;
    while !shared.is_closing() {
        if let Some(channel) = channel.take() {
            attend(shared, &channel);
            shared.fail_open();
            drop(channel);
            pause = FIRST_PAUSE;
        }
        sleep(shared, None, Some(pause));
        if shared.is_closing() {
            break;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        channel = shared.try_join();
        if channel.is_none() {
            // Quotas and affinity change while a program runs.
            shared.renew_own();
        }
    }
}

/// Hears the manager until it is gone or the claim ends.
fn attend(shared: &Shared, channel: &Channel) {
    loop {
        sleep(shared, Some(channel), None);
        if shared.is_closing() || shared.pages.has_ended() {
            return;
        }
        loop {
            match channel.receive::<ToProgram>() {
                Ok(received) => shared.hear(channel, received),
                Err(Error::WouldBlock) => break,
                // Closed, or of no more use.
                Err(_) => return,
            }
        }
    }
}

/// Until the alarm, something on the channel, or the time.
fn sleep(shared: &Shared, channel: Option<&Channel>, time: Option<Duration>) {
    // Without an alarm, look up from time to time.
    let time = match shared.alarm() {
        Some(_) => time,
        None => Some(time.unwrap_or(LONGEST_PAUSE)),
    };
    let mut fds = Vec::with_capacity(2);
    if let Some(channel) = channel {
        fds.push(PollFd::new(channel, PollFlags::IN));
    }
    if let Some(alarm) = shared.alarm() {
        fds.push(PollFd::new(alarm, PollFlags::IN));
    }
    let time = time.and_then(|t| Timespec::try_from(t).ok());
    let _ = poll(&mut fds, time.as_ref());
    if let Some(alarm) = shared.alarm() {
        let _ = rustix::io::read(alarm, &mut [0_u8; 8]);
    }
}

/// Has a watcher run from now on. What changes after this call is reacted to.
pub(crate) fn watch(shared: &Arc<Shared>) {
    if shared.pages.is_orphan() || shared.watched.swap(true, Ordering::AcqRel) {
        return;
    }
    let before = shared.pages.look();
    let thread = small("corewise-claim");
    let started = start(thread, shared, BlockedSignals::all(), move |shared| {
        watcher(shared, &before);
    });
    if started.is_err() {
        // The next who asks tries again.
        shared.watched.store(false, Ordering::Release);
    }
}

fn watcher(shared: &Arc<Shared>, before: &Look) {
    let mut last = before.generation();
    while !shared.is_closing() {
        let look = shared.pages.look();
        if look.generation() == last {
            shared.pages.wait(&look, None);
            continue;
        }
        last = look.generation();
        if shared.pages.has_ended() {
            shared.alert();
        }
        shared.saw(&look);
        shared.pins.follow(shared);
        shared.team.changed();
        shared.reactions.changed(shared.now(&look));
    }
}
