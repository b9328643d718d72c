//! What the library keeps for its process: the claim and what hangs on it. Made at the first call, and
//! never freed.
//!
//! A forked child goes on with its parent's (whose claim then says the effective CPUs) until it joins.
//! It must not wait for a lock of its parent's, which a thread that does not exist in it may hold: what
//! takes locks asks [`in_child`] first.
//!
//! Safety: pointers are null or made from leaked boxes. The handler of fork(2) only stores to an atomic.
#![allow(unsafe_code)]

use crate::change::Callbacks;
use corewise_abi::claim::ClaimPage;
use corewise_program::{ChangeFd, Claim, Team};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// See the module.
pub(crate) struct Process {
    pub(crate) claim: Claim,
    pub(crate) callbacks: Mutex<Callbacks>,
    team: OnceLock<Team>,
    event: OnceLock<ChangeFd>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// Where the address of the claim page to be read now stands; for the header's own reading. The
/// process's claim has such a place, and another one when a forked child has joined.
static SLOT: AtomicPtr<AtomicPtr<ClaimPage>> = AtomicPtr::new(std::ptr::null_mut());
static CHILD: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

extern "C" fn in_forked_child() {
    CHILD.store(true, Ordering::Release);
}

impl Process {
    fn new(claim: Claim) -> &'static Process {
        HANDLER.call_once(|| {
            // SAFETY: a function of this library, which is never unloaded (see build.rs). Where there
            // is no memory for it, forked children keep reading their parent's claim.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
        });
        let slot = std::ptr::from_ref(claim.page_slot()).cast_mut();
        let process: &'static Process = Box::leak(Box::new(Process {
            claim,
            callbacks: Mutex::default(),
            team: OnceLock::new(),
            event: OnceLock::new(),
        }));
        let made = std::ptr::from_ref(process).cast_mut();
        let null = std::ptr::null_mut();
        match PROCESS.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                SLOT.store(slot, Ordering::Release);
                process
            }
            // Another thread was first. Both have handles of the process's one claim.
            // SAFETY: see the module.
            Err(first) => unsafe { &*first },
        }
    }

    /// The process's. Joins at the first call.
    pub(crate) fn get() -> &'static Process {
        // SAFETY: see the module.
        match unsafe { PROCESS.load(Ordering::Acquire).as_ref() } {
            Some(process) => process,
            None => Process::new(Claim::current()),
        }
    }

    /// Joins under a name; in a forked child, again.
    pub(crate) fn join(name: Option<&str>) -> &'static Process {
        if CHILD.swap(false, Ordering::AcqRel) {
            // The parent's stays in memory: other threads of this child may be looking at it.
            PROCESS.store(std::ptr::null_mut(), Ordering::Release);
        }
        if PROCESS.load(Ordering::Acquire).is_null() {
            return Process::new(match name {
                Some(name) => Claim::join(name),
                None => Claim::current(),
            });
        }
        Process::get()
    }

    /// The workers; none are made before there is work.
    pub(crate) fn team(&self) -> &Team {
        self.team.get_or_init(|| Team::new(&self.claim))
    }

    /// The descriptor that becomes readable.
    pub(crate) fn event(&self) -> std::io::Result<&ChangeFd> {
        if let Some(event) = self.event.get() {
            return Ok(event);
        }
        let made = self.claim.change_fd()?;
        Ok(self.event.get_or_init(|| made))
    }

    pub(crate) fn callbacks(&self) -> MutexGuard<'_, Callbacks> {
        self.callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this is a forked child that has not joined.
pub(crate) fn in_child() -> bool {
    CHILD.load(Ordering::Acquire)
}

/// Where the place of the claim page's address stands.
pub(crate) fn slot() -> &'static AtomicPtr<AtomicPtr<ClaimPage>> {
    while SLOT.load(Ordering::Acquire).is_null() {
        // Made now, or by another thread that is about to store it.
        Process::get();
        std::thread::yield_now();
    }
    &SLOT
}
