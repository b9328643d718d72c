//! This process: its search and its environment of deferred calls, and what happens at its start, its forks
//! and its end.
//!
//! **Why it is sound.** The state is leaked, so that it may be used at any moment; a forked child makes a new
//! one and leaves its parent's alone, whose locks and buffers are not its own.

use crate::create::{self, Kept};
use crate::lives;
use crate::locks;
use crate::order::Releases;
use crate::thread::{Front, Thread};
use crate::versions;
use corewise_analyses::inside::{Lasting, Quiet, modules, word};
use corewise_analyses::race::{AccessesBuffer, Counter, Deferred, Order, Reserve, Search};
use corewise_analyses::region::{Entered, Manner, RACE_VARIABLE, Region};
use corewise_defer::{Environment, Settings};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A process whose races are searched for.
pub(crate) struct Process {
    region: &'static Region,
    entered: Entered<'static>,
    pub(crate) search: &'static Search<'static>,
    /// Made by the first thread that needs it.
    environment: OnceLock<Environment<AccessesBuffer>>,
    pub(crate) releases: Releases,
    pub(crate) threads: Kept,
    modules: modules::Seen,
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
            region,
            entered,
            search: Box::leak(Box::new(search)),
            environment: OnceLock::new(),
            releases: Releases::new(),
            threads: Kept::default(),
            modules: modules::Seen::default(),
        }));
        CURRENT.store(process, Ordering::Release);
        Some(())
    }

    /// Where a thread of this process records its accesses.
    pub(crate) fn front(&'static self) -> Front {
        match self.region.wanted().manner {
            Manner::Sequential => Front::Sequential(self.search),
            Manner::Nothing => Front::Nothing,
            _ => Front::Deferred(
                self.environment
                    .get_or_init(|| self.environment())
                    .producer(),
            ),
        }
    }

    fn environment(&self) -> Environment<AccessesBuffer> {
        let settings: Settings = self.region.wanted().settings();
        let settings = settings.memory(Lasting::new(self.entered)).without_end();
        settings.environment_around(Deferred(self.search))
    }

    /// What is done whenever a buffer is handed over.
    pub(crate) fn at_exchange(&self, recorded: u64) {
        self.search.words.add(Counter::Recorded, recorded);
        self.modules.look(&self.entered);
        if let Some(environment) = self.environment.get() {
            self.entered.set_queued(environment.strategy().queued());
        }
    }

    fn finish(&self) {
        self.modules.look(&self.entered);
        if let Some(environment) = self.environment.get() {
            environment.finish();
            self.entered.account(&environment.report());
        }
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
    process.modules.look(&process.entered);
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
            process.finish();
        }),
        None => {
            let _quiet = Quiet::now();
            process.finish();
        }
    }
}

/// In the child, before `fork` returns there.
unsafe extern "C" fn forked() {
    let Some(parent) = current() else {
        return;
    };
    // Its memory stays: it is the parent's in all but place.
    if let Some(thread) = Thread::existing() {
        thread.abandon_front();
    }
    word::set(null_mut());
    CURRENT.store(null_mut(), Ordering::Release);
    let _ = parent
        .region
        .enter()
        .and_then(|entered| Process::begin(parent.region, entered));
    if let Some(process) = current() {
        process.modules.look(&process.entered);
    }
    create::adopt_child();
}
