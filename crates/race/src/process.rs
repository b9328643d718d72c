//! This process: its search and its environment of deferred calls, and what happens at its start, its forks
//! and its end.
//!
//! **Why it is sound.** The state is leaked, so that it may be used at any moment; a forked child makes a new
//! one and leaves its parent's alone, whose locks and buffers are not its own.

use crate::create::{self, Kept};
use crate::handlers;
use crate::lives;
use crate::locks;
use crate::order::Releases;
use crate::recorder::Front;
use crate::thread::Thread;
use crate::versions;
use corewise_analyses::inside::{Next, Quiet, Recording, word};
use corewise_analyses::race::{AccessesBuffer, Counter, Deferred, Order, Reserve, Search};
use corewise_analyses::region::{Entered, Manner, RACE_VARIABLE, Region};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A process whose races are searched for.
pub(crate) struct Process {
    pub(crate) recording: Recording<AccessesBuffer>,
    pub(crate) search: &'static Search<'static>,
    pub(crate) releases: Releases,
    pub(crate) threads: Kept,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// This process, if its races are searched for.
pub(crate) fn current() -> Option<&'static Process> {
    // SAFETY: null, or leaked.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

impl Process {
    fn begin(region: &'static Region, entered: Entered<'static>) -> Option<()> {
        let order = Order::of(region.wanted().order);
        let search = Search::new(entered.words()?, Reserve::Region(entered), order)?;
        let process = Box::leak(Box::new(Process {
            recording: Recording::new(region, entered),
            search: Box::leak(Box::new(search)),
            releases: Releases::new(),
            threads: Kept::default(),
        }));
        CURRENT.store(process, Ordering::Release);
        Some(())
    }

    /// Where a thread of this process records its accesses.
    pub(crate) fn front(&'static self) -> Front {
        match self.recording.region.wanted().manner {
            Manner::Sequential => Front::Sequential(self.search),
            Manner::Nothing => Front::Nothing,
            _ => Front::Deferred(self.recording.producer(Deferred(self.search))),
        }
    }

    /// What is done whenever a buffer is handed over.
    pub(crate) fn at_exchange(&self, recorded: u64) {
        self.search.words.add(Counter::Recorded, recorded);
        self.recording.at_exchange();
    }
}

/// The loader calls it before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    versions::begin();
    let _ = begun();
}

fn begun() -> Option<()> {
    let value = std::env::var(RACE_VARIABLE).ok()?;
    let region: &'static Region = Box::leak(Box::new(Region::open(&value)?));
    let entered = region.enter()?;
    Process::begin(region, entered)?;
    lives::begin();
    locks::begin();
    let process = current()?;
    process.recording.look_at_modules();
    create::adopt(process)?;
    // SAFETY: functions of this library, which is never unloaded (it is preloaded). The allocator's own
    // handlers come first, so that ours can allocate.
    unsafe {
        dlmalloc::enable_alloc_after_fork();
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(end);
    }
    Some(())
}

extern "C" fn end() {
    let Some(process) = current() else {
        return;
    };
    match Thread::existing() {
        Some(thread) => thread.quietly(|thread| {
            let _quiet = Quiet::now();
            thread.hand_over();
            process.recording.finish();
        }),
        None => {
            let _quiet = Quiet::now();
            process.recording.finish();
        }
    }
}

/// The C library's `fork`, under the other's name: a child of `vfork` runs in its parent's memory, so that what
/// it does before it executes another program or ends would be taken for its parent's. It has a memory of its own
/// here, and its parent does not wait for it. (ThreadSanitizer's runtime does the same.)
#[unsafe(no_mangle)]
extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: what a child may do after `vfork` it may do after `fork`.
    unsafe { libc::fork() }
}

/// In the child, before `fork` returns there.
unsafe extern "C" fn forked() {
    Next::forked();
    let Some(parent) = current() else {
        return;
    };
    handlers::forked();
    // Its memory stays: it is the parent's in all but place.
    if let Some(thread) = Thread::existing() {
        thread.abandon_front();
    }
    word::set(null_mut());
    CURRENT.store(null_mut(), Ordering::Release);
    let region = parent.recording.region;
    let _ = region
        .enter()
        .and_then(|entered| Process::begin(region, entered));
    if let Some(process) = current() {
        process.recording.look_at_modules();
    }
    create::adopt_child();
}
