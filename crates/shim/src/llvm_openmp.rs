//! The adapter for LLVM's OpenMP (libomp) and Intel's (libiomp5), which have the same functions.
//!
//! **The team of a region.** Compilers make of `parallel` a call of `__kmpc_fork_call`, and of its clause
//! `num_threads` a call of `__kmpc_push_num_threads` before it, whose number holds for that region alone.
//! Within a claim we make that call where the program made none: with the claim's number, never with more
//! threads than the runtime would have taken. When the region ends, nothing of it is left: what the program
//! sets, and is told by `omp_get_max_threads`, is its own all the time.
//!
//! **A number that the program demands** is changed where it may be (see [`listed`](crate::listed)) when the
//! program pushes it. That it has is kept for each thread of each runtime until its region begins.
//!
//! **Why this is no tool** in the sense of OpenMP's tools interface (OMPT): a tool can only change the team
//! by the setting of the task that begins the region. A team of one leaves no way to put that back (the
//! region's end is told while the region's own task is current), so the program would be told 1 from then
//! on, and its own `omp_set_num_threads(1)` could not be told from ours. The one place for a tool also
//! stays the program's: race detectors need it.
//!
//! **Regions that GCC compiled** and that libomp runs, since it answers to libgomp's names, too, begin by
//! other functions and are the affair of [`libgomp`](crate::libgomp): these here never see them.

mod entry;
mod waiting;

use crate::link;
use crate::listed::may_change;
use crate::loaded::Library;
use crate::objects::{Object, Objects, epoch};
use crate::timing::Timing;
use corewise_abi::reports::adapters;
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The functions that are interposed, each with its number: the index here; `entry` has the same.
const NAMES: [&CStr; 6] = [
    c"__kmpc_fork_call",
    c"__kmpc_serialized_parallel",
    c"__kmpc_push_num_threads",
    c"__kmpc_push_num_threads_strict",
    c"__kmpc_push_num_threads_list",
    c"__kmpc_push_num_threads_list_strict",
];
const FORK_CALL: usize = 0;
const PUSH_NUM_THREADS: usize = 2;
const PUSH_STRICT: usize = 3;

static CALLERS: Objects = Objects::new(&NAMES);

/// What we ask a runtime, and tell it.
const FUNCTIONS: [&CStr; 8] = [
    c"omp_get_max_threads",
    c"omp_get_num_threads",
    c"omp_get_active_level",
    c"omp_get_max_active_levels",
    c"__kmpc_global_thread_num",
    c"__kmpc_push_num_threads",
    c"kmp_get_blocktime",
    c"kmp_set_blocktime",
];
const MAX_THREADS: usize = 0;
const NUM_THREADS: usize = 1;
const ACTIVE_LEVEL: usize = 2;
const MAX_ACTIVE_LEVELS: usize = 3;
const GLOBAL_THREAD_NUM: usize = 4;
const PUSH: usize = 5;
const GET_BLOCKTIME: usize = 6;
const SET_BLOCKTIME: usize = 7;

/// Copies of the runtime in one process that can be followed.
const RUNTIMES: usize = 4;
/// Threads of a runtime, as it numbers them, whose regions can be followed.
const THREADS: usize = 4096;

/// One copy of the runtime.
#[derive(Debug)]
struct Runtime {
    /// Where its `__kmpc_fork_call` is; 0: this place is free.
    fork_call: AtomicUsize,
    /// The epoch in which the functions were found.
    epoch: AtomicU64,
    functions: [AtomicPtr<c_void>; FUNCTIONS.len()],
    threads: [Thread; THREADS],
}

/// What is kept for a thread. Only that thread reads and writes it.
#[derive(Debug)]
struct Thread {
    /// The clause of the region that it is about to begin; see [`Clause`].
    clause: AtomicU64,
    /// How long it and its teams waited before we changed that; see [`waiting`].
    waited: AtomicU32,
}

static COPIES: [Runtime; RUNTIMES] = [const {
    Runtime {
        fork_call: AtomicUsize::new(0),
        epoch: AtomicU64::new(0),
        functions: [const { AtomicPtr::new(null_mut()) }; FUNCTIONS.len()],
        threads: [const {
            Thread {
                clause: AtomicU64::new(0),
                waited: AtomicU32::new(0),
            }
        }; THREADS],
    }
}; RUNTIMES];

/// A number of threads that the program demanded, and the one that the runtime was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clause {
    asked: u32,
    given: u32,
}

impl Thread {
    fn put(&self, clause: Clause) {
        let word = u64::from(clause.asked) << 32 | u64::from(clause.given);
        self.clause.store(word, Ordering::Relaxed);
    }

    /// Takes the clause that was put, if there is one.
    #[inline]
    fn take(&self) -> Option<Clause> {
        let word = self.clause.load(Ordering::Relaxed);
        if word == 0 {
            return None;
        }
        self.clause.store(0, Ordering::Relaxed);
        Some(Clause {
            asked: (word >> 32) as u32,
            given: word as u32,
        })
    }
}

/// A region begins in the thread that calls: `location` is its place in the source, for the runtime,
/// and `body` the function that its threads will run. Gives the real function to go on to.
///
/// Costs some 20 ns, most of them the questions to the runtime; nothing is asked of it where no page leads.
///
/// Where regions are timed, `timing` says that this one is: [`region_ends`](crate::timing::region_ends) is to be
/// told of its end.
extern "C" fn region(location: usize, body: usize, timing: *mut Timing) -> *mut c_void {
    let mut now = Timing::NONE;
    let target = begin(location, body, &mut now);
    // SAFETY: room on the stack of `entry`, for as long as the region.
    unsafe { timing.write(now) };
    target
}

#[inline(always)]
fn begin(location: usize, body: usize, timing: &mut Timing) -> *mut c_void {
    let Some(caller) = CALLERS.of(body) else {
        return CALLERS.unkept(FORK_CALL, body);
    };
    let fork_call = caller.function(FORK_CALL);
    // A runtime has regions of its own, for its own threads.
    if link::claim().is_some()
        && !caller.holds(fork_call as usize)
        && let Some(runtime) = Runtime::of(caller)
    {
        runtime.begin(caller, location, body, timing);
    }
    fork_call
}

/// A thread demands a number for the region that it is about to begin.
#[repr(C)]
struct Push {
    /// The real function.
    target: *mut c_void,
    /// The number to go on with.
    number: usize,
}

/// The thread that its runtime calls `thread` demands `number` threads, from code at `caller`.
extern "C" fn demand(thread: c_int, number: c_int, caller: usize) -> Push {
    let push = |target, number: u32| Push {
        target,
        number: number as usize,
    };
    let asked = number.cast_unsigned();
    let Some(object) = CALLERS.of(caller) else {
        return push(CALLERS.unkept(PUSH_NUM_THREADS, caller), asked);
    };
    let target = object.function(PUSH_NUM_THREADS);
    // The runtime ignores what is no number of threads.
    if link::claim().is_none() || number <= 0 {
        return push(target, asked);
    }
    let Some((runtime, kept)) = Runtime::thread(object, thread) else {
        return push(target, asked);
    };
    let given = match link::limit() {
        Some(limit) if may_change(object, true) => asked.min(runtime.within(limit)),
        _ => asked,
    };
    kept.put(Clause { asked, given });
    push(target, given)
}

/// The same with a clause that says more than a number, which stays as it is: one that is strict, or one
/// with a list of numbers for the regions within.
extern "C" fn demand_more(
    function: usize,
    caller: usize,
    thread: c_int,
    number: c_int,
    list: *const c_int,
) -> *mut c_void {
    told(function, caller, thread, |kept| {
        let number = match function == PUSH_STRICT || list.is_null() || number <= 0 {
            true => number,
            // SAFETY: by the runtime's definition (`kmp.h`), a list of `number` numbers.
            false => unsafe { list.read() },
        };
        if let Ok(asked @ 1..) = u32::try_from(number) {
            kept.put(Clause {
                asked,
                given: asked,
            });
        }
    })
}

/// A thread runs a region alone, since its `if` clause says so: `num_threads` held for that one.
extern "C" fn serial(function: usize, caller: usize, thread: c_int) -> *mut c_void {
    told(function, caller, thread, |kept| {
        kept.take();
    })
}

#[inline]
fn told(function: usize, caller: usize, thread: c_int, then: impl Fn(&Thread)) -> *mut c_void {
    let Some(object) = CALLERS.of(caller) else {
        return CALLERS.unkept(function, caller);
    };
    if link::claim().is_some()
        && let Some((_, kept)) = Runtime::thread(object, thread)
    {
        then(kept);
    }
    object.function(function)
}

impl Runtime {
    /// The one that a caller uses. `None` where too many are.
    #[inline]
    fn of(caller: &Object) -> Option<&'static Runtime> {
        let fork_call = caller.function(FORK_CALL) as usize;
        let now = epoch();
        let known = COPIES
            .iter()
            .find(|copy| copy.fork_call.load(Ordering::Relaxed) == fork_call);
        match known {
            Some(copy) if copy.epoch.load(Ordering::Acquire) == now => Some(copy),
            _ => Runtime::find(fork_call, now),
        }
    }

    #[cold]
    fn find(fork_call: usize, epoch: u64) -> Option<&'static Runtime> {
        let library = Library::at(fork_call)?;
        let copy = COPIES.iter().find(|copy| {
            let taken =
                copy.fork_call
                    .compare_exchange(0, fork_call, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok() || taken == Err(fork_call)
        })?;
        let handle = library.open();
        for (function, name) in copy.functions.iter().zip(FUNCTIONS) {
            function.store(handle.own_function(name), Ordering::Relaxed);
        }
        copy.epoch.store(epoch, Ordering::Release);
        Some(copy)
    }

    /// What is kept for a thread of a caller's runtime.
    #[inline]
    fn thread(caller: &Object, number: c_int) -> Option<(&'static Runtime, &'static Thread)> {
        let runtime = Runtime::of(caller)?;
        Some((runtime, runtime.threads.get(usize::try_from(number).ok()?)?))
    }

    /// The calling thread begins a region.
    fn begin(
        &'static self,
        caller: &Object,
        location: usize,
        body: usize,
        timing: &mut Timing,
    ) -> Option<()> {
        let number = self.number(location)?;
        let thread = self.threads.get(usize::try_from(number).ok()?)?;
        let clause = thread.take();
        let asked = match clause {
            Some(clause) => clause.asked,
            None => self.ask(MAX_THREADS)?,
        };
        if asked <= 1 {
            return None;
        }
        let limit = link::limit();
        let level = self.ask(ACTIVE_LEVEL)?;
        // The runtime will run it alone.
        if level > 0 && level >= self.ask(MAX_ACTIVE_LEVELS)? {
            return None;
        }
        let bounded = match limit {
            Some(limit) => asked.min(self.within_level(limit, level)),
            None => asked,
        };
        let follows = may_change(caller, clause.is_some());
        let by_claim = match clause {
            Some(clause) => clause.given,
            None if follows => bounded,
            None => asked,
        };
        let mut given = by_claim;
        if follows
            && level == 0
            && let Some(now) = Timing::begin(caller, body, asked)
        {
            given = now.at_most(given);
            *timing = now;
        }
        // What the runtime was told already, or would take.
        if given < clause.map_or(asked, |clause| clause.given) {
            self.push(location, number, given);
        }
        if level == 0 {
            // Fewer threads than the claim allows leave CPUs idle: nobody else wants them.
            waiting::adjust(self, thread, asked, by_claim);
        }
        let report = link::report()?;
        let adapters = &report.adapters;
        if follows && adapters.load(Ordering::Relaxed) & adapters::LLVM_OPENMP == 0 {
            adapters.fetch_or(adapters::LLVM_OPENMP, Ordering::Relaxed);
        }
        if bounded < given {
            report.demanded.fetch_add(1, Ordering::Relaxed);
        }
        report.note(asked, given);
        Some(())
    }

    /// What a claim of `limit` threads allows a region that the calling thread begins.
    fn within(&self, limit: u32) -> u32 {
        self.within_level(limit, self.ask(ACTIVE_LEVEL).unwrap_or(0))
    }

    /// The same, where it is known how many regions around it have more than one thread: all of the claim,
    /// or, within another region, its share.
    fn within_level(&self, limit: u32, level: u32) -> u32 {
        match level {
            0 => limit,
            _ => limit / self.ask(NUM_THREADS).unwrap_or(1).max(1),
        }
        .max(1)
    }

    fn function(&self, number: usize) -> Option<*mut c_void> {
        let function = self.functions.get(number)?.load(Ordering::Relaxed);
        (!function.is_null()).then_some(function)
    }

    /// Asks one of `omp_get_...`.
    #[inline]
    fn ask(&self, question: usize) -> Option<u32> {
        // SAFETY: functions of these names take nothing and return an int, by OpenMP's own definition and
        // the runtime's.
        let function: extern "C" fn() -> c_int =
            unsafe { std::mem::transmute(self.function(question)?) };
        u32::try_from(function()).ok()
    }

    /// How the runtime numbers the calling thread.
    #[inline]
    fn number(&self, location: usize) -> Option<c_int> {
        // SAFETY: by the runtime's definition (`kmp.h`); the location is the program's, for the same
        // runtime.
        let function: extern "C" fn(usize) -> c_int =
            unsafe { std::mem::transmute(self.function(GLOBAL_THREAD_NUM)?) };
        Some(function(location))
    }

    /// Demands threads for the region that the calling thread is about to begin.
    fn push(&self, location: usize, thread: c_int, number: u32) {
        let (Some(function), Ok(number)) = (self.function(PUSH), c_int::try_from(number)) else {
            return;
        };
        // SAFETY: as above.
        let function: extern "C" fn(usize, c_int, c_int) = unsafe { std::mem::transmute(function) };
        function(location, thread, number);
    }
}
