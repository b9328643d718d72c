//! This process: its environment of deferred calls, and what happens at its start, its forks and its end.
//!
//! **Why it is sound.** The state is leaked, so that hooks may use it at any moment; a forked child makes a
//! new one and leaves its parent's alone, whose locks and buffers are not its own.

use crate::modules;
use crate::thread::{Front, Thread};
use corewise_analyses::profile::{CallsBuffer, Coalesced, Profile};
use corewise_analyses::region::{Entered, Manner, Region, VARIABLE};
use corewise_defer::{Adaptive, Environment, Memory, Pool, Settings, Synchronous, available};
use std::alloc::Layout;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

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
        let wanted = self.region.wanted();
        let or = |number: u32, default: u32| if number == 0 { default } else { number };
        let queue = or(wanted.queue, 16) as usize;
        let threads = or(wanted.threads, available());
        let settings = match wanted.manner {
            Manner::Synchronous => Settings::new(Synchronous),
            Manner::Pool => Settings::new(Pool::new(threads, queue)),
            Manner::LowestPool => Settings::new(Pool::at_lowest_priority(threads, queue)),
            _ => Settings::new(Adaptive::with_queue(queue)),
        };
        let settings = settings.memory(Lasting::new(self.entered)).without_end();
        let settings = match wanted.capacity {
            0 => settings,
            calls => settings.capacity(calls),
        };
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
        let report = environment.report();
        let account = &self.entered.image.account;
        let sums = [
            report.by_producers,
            report.by_consumers,
            report.by_waiters,
            nanoseconds(report.helping),
            nanoseconds(report.waiting),
        ];
        for (total, sum) in account.iter().zip(sums) {
            total.fetch_add(sum, Ordering::Relaxed);
        }
        account[5].fetch_max(report.most_bytes, Ordering::Relaxed);
        // What panicked did so because the program wrote over our memory.
        count(&self.entered.image.lost, report.lost + report.panics);
    }
}

fn nanoseconds(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Memory of the region: the command processes what is in it when this process cannot any more.
struct Lasting {
    entered: Entered<'static>,
    free: Mutex<Vec<(Layout, usize)>>,
}

impl Lasting {
    fn new(entered: Entered<'static>) -> Lasting {
        Lasting {
            entered,
            free: Mutex::new(Vec::new()),
        }
    }
}

// SAFETY: pieces of the region are nobody else's until they are freed here.
unsafe impl Memory for Lasting {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.iter().position(|(known, _)| *known == layout) {
            let (_, address) = free.swap_remove(index);
            return NonNull::new(address as *mut u8);
        }
        drop(free);
        self.entered.take_buffer(layout)
    }

    unsafe fn free(&self, memory: NonNull<u8>, layout: Layout) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push((layout, memory.as_ptr() as usize));
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
        let _quiet = crate::thread::Quiet::now();
        process.finish();
    }
}

/// In the child, before `fork` returns there.
unsafe extern "C" fn forked() {
    if let Some(parent) = current() {
        let thread = crate::word::get();
        // SAFETY: null, or this thread's own.
        if let Some(thread) = unsafe { thread.as_mut() } {
            thread.abandon_front();
        }
        INHERITED.store(thread, Ordering::Release);
        crate::word::set(null_mut());
        let _ = Process::begin(parent.region, parent.entered);
    }
}
