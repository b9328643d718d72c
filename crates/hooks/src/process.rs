//! This process: its environment of deferred calls, and what happens at its start, its forks and its end.
//!
//! **Why it is sound.** The state is leaked, so that hooks may use it at any moment; a forked child makes a
//! new one and leaves its parent's alone, whose locks and buffers are not its own.

use crate::thread::{Front, Thread};
use corewise_analyses::inside::{Next, Quiet, Recording, word};
use corewise_analyses::profile::{CallsBuffer, Coalesced, Profile, Window};
use corewise_analyses::region::{Entered, Manner, Region, VARIABLE};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A process that is profiled.
pub(crate) struct Process {
    pub(crate) recording: Recording<CallsBuffer>,
    pub(crate) profile: Profile<'static>,
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
        // SAFETY: looks at what the kernel told this process.
        let window = Window::around(unsafe { libc::getauxval(libc::AT_ENTRY) });
        entered
            .image
            .window
            .store(window.start(), Ordering::Relaxed);
        let tables = entered.tables()?;
        let process = Box::leak(Box::new(Process {
            recording: Recording::new(region, entered),
            profile: Profile { tables, window },
        }));
        CURRENT.store(process, Ordering::Release);
        Some(())
    }

    /// Where a thread of this process records its calls.
    pub(crate) fn front(&'static self) -> Front {
        match self.recording.region.wanted().manner {
            Manner::Sequential => Front::Sequential(self.profile),
            Manner::Nothing => Front::Nothing,
            _ => Front::Deferred(self.recording.producer(Coalesced(self.profile))),
        }
    }

    /// A call came in the middle of another's being recorded.
    #[cold]
    pub(crate) fn interrupted(&self) {
        self.recording
            .entered
            .image
            .interrupted
            .fetch_add(1, Ordering::Relaxed);
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
    current()?.recording.look_at_modules();
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
        process.recording.finish();
    }
}

/// In the child, before `fork` returns there.
unsafe extern "C" fn forked() {
    Next::forked();
    if let Some(parent) = current() {
        let thread = word::get().cast::<Thread>();
        // SAFETY: null, or this thread's own.
        if let Some(thread) = unsafe { thread.as_mut() } {
            thread.abandon_front();
        }
        INHERITED.store(thread, Ordering::Release);
        word::set(null_mut());
        let _ = Process::begin(parent.recording.region, parent.recording.entered);
    }
}
