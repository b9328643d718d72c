//! The permits of this process behind their lock, and the callbacks that happen without it.
//!
//! Safety: a process's place is never freed. A callback is the client's function as long as one of its
//! permits is there, and whoever takes the last one away waits for those that have begun.

use super::abi::{Callback, NEW_NUMBER, NEW_STATE, PermitHandle};
use super::masks::Hwloc;
use super::permits::{Handle, Notice, Permits, Thread};
use crate::{follower, link};
use corewise_abi::reports::adapters;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the lock guards.
pub(super) struct Shared {
    pub(super) permits: Permits,
    /// Callbacks that have begun, and who runs them.
    running: Vec<(Handle, Thread)>,
    pub(super) hwloc: Option<Hwloc>,
}

/// A process's own. A forked child has none of its parent's threads, and begins anew: one of those could
/// have held the lock.
struct Place {
    shared: Mutex<Shared>,
    /// Some callback has ended.
    ended: Condvar,
}

static PLACE: AtomicPtr<Place> = AtomicPtr::new(null_mut());

extern "C" fn begin_anew() {
    PLACE.store(null_mut(), Ordering::Release);
}

fn place() -> &'static Place {
    let known = PLACE.load(Ordering::Acquire);
    // SAFETY: null, or one that was leaked below.
    match unsafe { known.as_ref() } {
        Some(place) => place,
        None => new_place(),
    }
}

#[cold]
fn new_place() -> &'static Place {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::AcqRel) {
        // SAFETY: a function that stays, and that takes no lock. Children inherit it, and WATCHED.
        unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
    }
    let new = Box::into_raw(Box::new(Place {
        shared: Mutex::new(Shared {
            permits: Permits::new(),
            running: Vec::new(),
            hwloc: None,
        }),
        ended: Condvar::new(),
    }));
    let before = PLACE.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    match before {
        // SAFETY: just made, and never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: nobody else has seen ours; the other is another thread's of this process.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

pub(super) fn shared() -> MutexGuard<'static, Shared> {
    // Nothing in there panics while it holds the lock.
    place()
        .shared
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Who calls.
pub(super) fn thread() -> Thread {
    // SAFETY: no arguments, no way to fail. Asks the kernel nothing.
    unsafe { libc::pthread_self() as Thread }
}

/// The claim has changed, or may have; the follower calls.
pub(crate) fn bound() {
    if PLACE.load(Ordering::Acquire).is_null() {
        // oneTBB has not been here.
        return;
    }
    let mut shared = shared();
    let notices = look(&mut shared);
    if notices.is_empty() {
        return;
    }
    report(&shared.permits);
    drop(shared);
    follower::as_program(|| call_back(&notices));
}

/// Looks at the claim, which must happen under the lock: nobody may come with an older one afterwards. Gives
/// whom to tell.
pub(super) fn look(shared: &mut Shared) -> Vec<Notice> {
    shared.permits.set_limit(link::limit())
}

/// Tells the local manager.
pub(super) fn report(permits: &Permits) {
    let Some(report) = link::report() else {
        return;
    };
    let (asked, given) = permits.threads();
    if asked > 0 {
        report
            .adapters
            .fetch_or(adapters::ONETBB, Ordering::Relaxed);
        report.note(asked, given.min(asked));
    }
}

/// Tells the clients, one after the other, without the lock.
pub(super) fn call_back(notices: &[Notice]) {
    let own = thread();
    for notice in notices {
        let mut before = shared();
        let Some(argument) = before.permits.argument(notice.handle) else {
            continue;
        };
        before.running.push((notice.handle, own));
        drop(before);
        // SAFETY: the client gave it as a function of this type when it connected; it stays until its
        // permits are gone, for which `running` makes them wait.
        let callback: Callback = unsafe { std::mem::transmute(notice.callback) };
        let why =
            (NEW_NUMBER * u32::from(notice.new_number)) | (NEW_STATE * u32::from(notice.new_state));
        // SAFETY: as above; the argument is the client's own.
        unsafe {
            callback(
                pointer(notice.handle),
                without_provenance_mut(argument),
                why,
            )
        };
        let mut after = shared();
        let ended = after
            .running
            .iter()
            .position(|r| *r == (notice.handle, own));
        if let Some(ended) = ended {
            after.running.swap_remove(ended);
        }
        drop(after);
        place().ended.notify_all();
    }
}

/// Waits until no other thread runs a callback about one of these permits, which are gone.
pub(super) fn wait_for_callbacks(mut shared: MutexGuard<'static, Shared>, gone: &[Handle]) {
    let own = thread();
    let concerned = |(handle, thread): &(Handle, Thread)| gone.contains(handle) && *thread != own;
    while shared.running.iter().any(concerned) {
        let waited = place().ended.wait(shared);
        shared = waited.unwrap_or_else(PoisonError::into_inner);
    }
}

pub(super) fn pointer(handle: Handle) -> PermitHandle {
    without_provenance_mut(usize::try_from(handle).unwrap_or(0))
}

pub(super) fn handle(pointer: PermitHandle) -> Option<Handle> {
    match pointer.addr() as Handle {
        0 => None,
        handle => Some(handle),
    }
}
