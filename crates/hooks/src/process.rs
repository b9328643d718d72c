//! This process: its environment of deferred calls, and what happens at its start, its forks and its end.
//!
//! **Why it is sound.** The state is leaked, so that hooks may use it at any moment; a forked child makes a
//! new one and leaves its parent's alone, whose locks and buffers are not its own.

use crate::thread::{Front, Thread};
use corewise_analyses::inside::{Lasting, Quiet, modules, word};
use corewise_analyses::profile::{CallsBuffer, Coalesced, Profile};
use corewise_analyses::region::{Entered, Manner, Region, VARIABLE};
use corewise_defer::Environment;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A process that is profiled.
pub(crate) struct Process {
    region: &'static Region,
    entered: Entered<'static>,
    profile: Profile<'static>,
    /// Made by the first thread that needs it: a forked child often only executes something else.
    environment: OnceLock<Environment<CallsBuffer>>,
    pub(crate) modules: modules::Seen,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());
/// In a forked child: what its thread was in the parent.
static INHERITED: AtomicPtr<Thread> = AtomicPtr::new(null_mut());

/// This process, if it is profiled.
pub(crate) fn current() -> Option<&'static Process> {
    // SAFETY: null, or leaked.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// What the only thread of a forked child had in its parent, once.
pub(crate) fn inherited() -> Option<&'static mut Thread> {
    // SAFETY: null, or the forking thread's own in this process's copy of memory; taken once.
    unsafe { INHERITED.swap(null_mut(), Ordering::AcqRel).as_mut() }
}

impl Process {
    fn begin(region: &'static Region, entered: Entered<'static>) -> Option<()> {
        let process = Box::leak(Box::new(Process {
            region,
            entered,
            profile: Profile(entered.tables()?),
            environment: OnceLock::new(),
            modules: modules::Seen::default(),
        }));
        CURRENT.store(process, Ordering::Release);
        Some(())
    }

    /// Where a thread of this process records its calls.
    pub(crate) fn front(&'static self) -> Front {
        match self.region.wanted().manner {
            Manner::Sequential => Front::Sequential(self.profile),
            Manner::Nothing => Front::Nothing,
            _ => Front::Deferred(
                self.environment
                    .get_or_init(|| self.environment())
                    .producer(),
            ),
        }
    }

    fn environment(&self) -> Environment<CallsBuffer> {
        let settings = self.region.wanted().settings();
        let settings = settings.memory(Lasting::new(self.entered)).without_end();
        settings.environment_around(Coalesced(self.profile))
    }

    /// A call came in the middle of another's being recorded.
    #[cold]
    pub(crate) fn interrupted(&self) {
        self.entered
            .image
            .interrupted
            .fetch_add(1, Ordering::Relaxed);
    }

    /// What is done whenever a buffer is handed over: looks whether libraries came or went, and says how
    /// many buffers wait.
    pub(crate) fn at_exchange(&self) {
        self.look_at_modules();
        if let Some(environment) = self.environment.get() {
            self.entered.set_queued(environment.strategy().queued());
        }
    }

    fn look_at_modules(&self) {
        self.modules.look(&self.entered);
    }

    fn finish(&self) {
        self.look_at_modules();
        let Some(environment) = self.environment.get() else {
            return;
        };
        environment.finish();
        self.entered.account(&environment.report());
    }
}

/// The loader calls it before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let _ = begun();
}

fn begun() -> Option<()> {
    let value = std::env::var(VARIABLE).ok()?;
    let region: &'static Region = Box::leak(Box::new(Region::open(&value)?));
    let entered = region.enter()?;
    Process::begin(region, entered)?;
    current()?.look_at_modules();
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
    if let Some(process) = current() {
        let _quiet = Quiet::now();
        process.finish();
    }
}

/// In the child, before `fork` returns there.
unsafe extern "C" fn forked() {
    if let Some(parent) = current() {
        let thread = word::get().cast::<Thread>();
        // SAFETY: null, or this thread's own.
        if let Some(thread) = unsafe { thread.as_mut() } {
            thread.abandon_front();
        }
        INHERITED.store(thread, Ordering::Release);
        word::set(null_mut());
        let _ = Process::begin(parent.region, parent.entered);
    }
}
