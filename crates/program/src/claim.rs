//! The claim of this process, as programs see it.

use crate::error::MemoryError;
use crate::gang::Gang;
use crate::mask::Mask;
use crate::memory::{self, Moved};
use crate::pages::Pages;
use crate::reactions::{CallbackId, ChangeFd};
use crate::service;
use crate::shared::Shared;
use crate::wants::{Cpus, Granted, Numa};
use corewise_abi::claim::ClaimPage;
use corewise_abi::message::{Request, ToManager};
use corewise_wire::Folder;
use current::CURRENT;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

pub(crate) use current::forget as forget_current;

/// What this process may use now: a number of threads and a set of CPUs. Under a manager it is what
/// the manager grants; without one it is what Linux gives the process (its effective CPUs).
///
/// A handle: cloning it gives another one to the same claim. A process has one claim
/// ([`Claim::join`], [`Claim::current`]), which it keeps until it ends.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Those of `shared`, one load nearer.
    pages: &'static Pages,
    shared: Arc<Shared>,
    /// The last handle ends a claim that is not the process's.
    _handles: Arc<Handles>,
}

#[derive(Debug)]
struct Handles(Arc<Shared>);

impl Drop for Handles {
    fn drop(&mut self) {
        if !self.0.pages.is_orphan() {
            self.0.close();
        }
    }
}

impl Claim {
    /// The process's claim, as `name` (for people) the first time. Joins the user's manager if one
    /// listens; otherwise the claim is unmanaged, and joins as soon as one does. Never fails.
    ///
    /// Takes some hundred microseconds the first time, 2 s at most (a manager that does not answer),
    /// and starts a thread. Afterwards it costs a load, and `name` is ignored.
    pub fn join(name: &str) -> Claim {
        current::get_or_join(name)
    }

    /// The process's claim. Joins under the name of the process's program, the first time.
    pub fn current() -> Claim {
        if !CURRENT.load(Ordering::Acquire).is_null() {
            return current::get_or_join("");
        }
        let arguments = std::env::args_os().next();
        let path = arguments.map(std::path::PathBuf::from).unwrap_or_default();
        let name = path.file_name().map(|name| name.to_string_lossy());
        current::get_or_join(name.as_deref().unwrap_or("program"))
    }

    /// A claim beside the process's own, at the manager of `folder`: for tests, and for a process that
    /// stands for several programs. It ends with its last handle.
    pub fn join_at(folder: &Folder, name: &str) -> Claim {
        let claim = Claim::unmanaged(name, Some(folder.clone()));
        claim.start();
        claim
    }

    fn unmanaged(name: &str, folder: Option<Folder>) -> Claim {
        let shared = Shared::new(name, folder);
        Claim {
            pages: shared.pages,
            _handles: Arc::new(Handles(Arc::clone(&shared))),
            shared,
        }
    }

    fn start(&self) {
        let channel = self.shared.try_join();
        service::listen(&self.shared, channel);
    }

    /// Whether a manager keeps the claim now.
    pub fn is_managed(&self) -> bool {
        self.shared.pages.is_managed()
    }

    /// Threads that the program may run at the same time, at least 1. Costs two loads (one of the
    /// claim word, with acquire ordering), about a nanosecond: ask before every piece of work.
    #[inline]
    pub fn threads(&self) -> u32 {
        self.pages.claim().granted().threads.max(1)
    }

    /// Changes whenever the claim does; compare for equality only. Costs about as much as
    /// [`Claim::threads`].
    #[inline]
    pub fn generation(&self) -> u64 {
        self.pages.look().generation()
    }

    /// Threads, generation, and whether there is a manager.
    pub fn now(&self) -> Granted {
        self.shared.now(&self.shared.pages.look())
    }

    /// Copies the claim's CPUs into `words` (64 CPUs in each; those that do not fit are left out), all
    /// of one grant. `false` if no consistent set can be read, as when the manager was killed while it
    /// wrote: then the claim does not bind. Costs a few nanoseconds for a word or two.
    #[inline]
    pub fn cpus_into(&self, words: &mut [u64]) -> bool {
        self.pages.claim().cpus(words).is_some()
    }

    /// The claim's CPUs, all of one grant; where no consistent set can be read, those on which the
    /// calling thread may run. Allocates; see [`Claim::cpus_into`] for what is called often.
    pub fn cpus(&self) -> Mask {
        let claimed = self.shared.cpus().filter(|cpus| !cpus.is_empty());
        claimed.unwrap_or_else(|| crate::sys::affinity(0).unwrap_or_default())
    }

    /// Asks for `cpus` threads, placed as `numa` says, and goes on with what it is given (Hollmann &
    /// Gerndt, section 2: "otherwise an application has to continue with the already allocated
    /// resources"). Under a manager a claim starts with one thread, until it invades.
    ///
    /// Waits at most 50 ms for the manager, and not at all without one or if this was asked for
    /// already. What is granted may change later: read [`Claim::threads`] rather than keeping it. The
    /// beginning of `cpus` is a demand: a manager never grants fewer threads than that, even if they
    /// have to share CPUs.
    pub fn invade(&self, cpus: Cpus, numa: Numa) -> Granted {
        let (min, max) = (*cpus.0.start(), *cpus.0.end());
        let granted = self.shared.ask(min, max, numa.into());
        self.shared.pins.follow(&self.shared);
        granted
    }

    /// Gives back all but `to` threads (at least 1), and waits at most 50 ms for the manager to take
    /// them. With `to` 1 the program's threads are no longer pinned.
    pub fn retreat(&self, to: u32) -> Granted {
        let wants = self.shared.wants.get();
        let most = match self.shared.wants.is_set() {
            true => wants.max_threads,
            false => self.threads(),
        };
        let to = to.clamp(1, most.max(1));
        let granted = self
            .shared
            .ask(wants.min_threads.min(to), to, wants.placement);
        self.shared.pins.follow(&self.shared);
        granted
    }

    /// Waits until the claim is not that of `generation`, or for at most `timeout`; whether it is
    /// another now.
    pub fn wait_change(&self, generation: u64, timeout: Option<Duration>) -> bool {
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let look = self.shared.pages.look();
            if look.generation() != generation {
                self.shared.saw(&look);
                return true;
            }
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            self.shared.pages.wait(&look, left);
        }
    }

    /// Calls back after every change, on a thread of ours, with the claim as it is then; changes that
    /// follow each other closely may be told as one. A callback may use the claim; a panic in it is
    /// caught.
    pub fn on_change(&self, callback: impl Fn(Granted) + Send + Sync + 'static) -> CallbackId {
        let id = self.shared.reactions.add(Arc::new(callback));
        service::watch(&self.shared);
        id
    }

    /// Takes a callback back; whether it was there. One that is running meanwhile runs to its end.
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        self.shared.reactions.remove(id)
    }

    /// A descriptor that becomes readable when the claim changes.
    ///
    /// # Errors
    /// Where there are too many open files.
    pub fn change_fd(&self) -> io::Result<ChangeFd> {
        let fd = self.shared.reactions.descriptor()?;
        service::watch(&self.shared);
        Ok(fd)
    }

    /// Says whether the program does as the manager asks: to run one thread more or less. Called on a
    /// thread of ours. Without this it says yes within what was asked for by [`Claim::invade`] and
    /// what the team could use.
    pub fn on_request(&self, answer: impl Fn(Request, Granted) -> bool + Send + Sync + 'static) {
        self.shared.reactions.set_request(Some(Arc::new(answer)));
    }

    /// Takes the answer of [`Claim::on_request`] back: the rule without it holds again.
    pub fn remove_on_request(&self) {
        self.shared.reactions.set_request(None);
    }

    /// Keeps all threads of the process on the claim's CPUs while a manager keeps the claim and it is
    /// invaded (more than one thread was asked for), whatever runtime made the threads. Where they ran
    /// before is put back on [`Claim::retreat`] to 1, on `false`, and when the manager is gone. New
    /// threads inherit the place of the thread that starts them, as Linux has it. Costs a few
    /// microseconds for each thread at each change.
    ///
    /// A team places its own workers as the manager's rule has it, with or without this; where the rule
    /// is to leave them, this gives each a CPU of the claim, round robin.
    pub fn pin_threads(&self, pinned: bool) {
        if self.shared.pages.is_orphan() {
            return;
        }
        if pinned {
            service::watch(&self.shared);
        }
        self.shared.pins.set_wanted(&self.shared, pinned);
    }

    /// Says that the workers of the process's teams need each other: they run at the same time, or not at all
    /// (`None`: they do so no longer). Where CPUs are short the program takes turns with other gangs, if there is
    /// a manager that knows gangs (the user's own, as `corewise manage`).
    ///
    /// Turns are kept between units of a [`Team`](crate::Team)'s work, so that units should be short against 50
    /// ms, the longest turn. The program's other threads run always. Costs a message, and before each unit a load
    /// (some 30 ns where there are turns).
    pub fn coschedule(&self, gang: Option<Gang>) {
        self.shared.coschedule(gang);
    }

    /// Moves the process's memory to the NUMA nodes of the claim's CPUs. For a claim that has moved:
    /// memory touched first afterwards is there anyway. Takes about a microsecond for each page.
    ///
    /// The pages of a node stay together: those of each node without a CPU of the claim go to one with
    /// (migrate_pages(2)), in turn where there are several. Pages that other processes use as well stay
    /// where they are.
    ///
    /// Tried on machines of one node only so far: which nodes' pages go where is tested on made
    /// machines, and the kernel takes the calls, but no page was seen moving.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing has been moved then, or only a part.
    pub fn move_memory(&self) -> Result<Moved, MemoryError> {
        memory::follow(&self.cpus())
    }

    /// Says on the progress page that so many more pieces of work are done, in the program's own unit.
    /// A [`Team`](crate::Team) does this itself. Costs an atomic addition.
    #[inline]
    pub fn add_progress(&self, pieces: u64) {
        let progress = &self.shared.pages.progress().progress;
        progress.fetch_add(pieces, Ordering::Relaxed);
    }

    /// Says on the progress page how many threads the program could use now; 0: it does not say. A
    /// [`Team`](crate::Team) does this itself. Costs a store.
    #[inline]
    pub fn set_could_use(&self, threads: u32) {
        let could_use = &self.shared.pages.progress().could_use;
        could_use.store(threads, Ordering::Relaxed);
    }

    /// Tells the manager how many threads the program has, for policies that count them (`fcfs`). A
    /// message: for when threads are made or end, not for every piece of work.
    pub fn tell_threads(&self, threads: u32) {
        if !self.shared.pages.is_orphan() {
            self.shared.tell(&ToManager::Threads(threads));
        }
    }

    /// Where the address of the claim page to be read now stands, for readers in other languages. It is
    /// never null, and a page whose address once stood here is never unmapped. Only to be read.
    #[doc(hidden)]
    pub fn page_slot(&self) -> &'static AtomicPtr<ClaimPage> {
        self.shared.pages.slot()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// The process's claim: made once, never freed.
///
/// Safety: the pointer is null or made from a leaked box.
mod current {
    #![allow(unsafe_code)]

    use super::Claim;
    use std::sync::atomic::{AtomicPtr, Ordering};

    pub(super) static CURRENT: AtomicPtr<Claim> = AtomicPtr::new(std::ptr::null_mut());

    /// Not a `OnceLock`: a child that was forked while one was being set would wait for ever.
    pub(super) fn get_or_join(name: &str) -> Claim {
        // SAFETY: see the module.
        if let Some(claim) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
            return claim.clone();
        }
        let made = Box::into_raw(Box::new(Claim::unmanaged(name, None)));
        let null = std::ptr::null_mut();
        match CURRENT.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: just made, and leaked from now on.
                let claim = unsafe { &*made };
                claim.start();
                claim.clone()
            }
            Err(other) => {
                // SAFETY: `made` was never shared; `other` is leaked.
                let (ours, claim) = unsafe { (Box::from_raw(made), &*other) };
                drop(ours);
                claim.clone()
            }
        }
    }

    /// In a forked child: the claim is the parent's. Leaks it; only stores.
    pub(crate) fn forget() {
        CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    }
}
