//! What the hooks keep for each thread: the stack of calls, and where calls are recorded.
//!
//! **The stack of calls** says who the caller is. It is kept right where functions are left without their
//! hook (`longjmp`, exceptions through clang's code, cancelled threads): each entry knows how deep the
//! machine's stack was and where its frame returns to, and entries that are deeper than a new call are of
//! functions that are gone.
//!
//! **Why it is sound.** Only the thread itself uses its [`Thread`], through the pointer in its word; the
//! pointer is taken away before it is freed.

use crate::process::{self, Process};
use corewise_analyses::inside::{Quiet, word};
use corewise_analyses::profile::{Calls, CallsBuffer, Profile, Window};
use corewise_defer::Producer;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Calls deeper than this are not told apart: their caller is the last one that fits.
const DEEPEST: usize = 1 << 16;
/// Depths of the machine's stack that are further apart than this are of different stacks (coroutines,
/// signal stacks): no call is taken for gone by them.
const SAME_STACK: usize = 64 << 20;
/// The C library calls destructors of keys up to so many times.
const ROUNDS: u32 = 4;

/// Where calls are recorded.
pub(crate) enum Front {
    /// In a buffer.
    Deferred(Producer<CallsBuffer>),
    /// In the tables, at once.
    Sequential(Profile<'static>),
    /// Nowhere.
    Nothing,
}

#[derive(Clone, Copy)]
struct Frame {
    function: u64,
    /// How deep the machine's stack was in the hook.
    depth: usize,
    /// Where the machine's frame returns to: the same for a function and what is inlined into it.
    site: u64,
}

/// One thread.
pub(crate) struct Thread {
    /// Where the machine's stack was in the hook that runs now; 0: none runs.
    busy: usize,
    len: usize,
    /// Calls beyond [`DEEPEST`] that have not returned.
    beyond: usize,
    front: Front,
    pub(crate) process: &'static Process,
    /// The process's, at hand.
    window: Window,
    round: u32,
    frames: Box<[std::mem::MaybeUninit<Frame>]>,
}

impl Thread {
    /// The calling thread's; made where it has none. `None`: nothing is to be recorded, or not now.
    #[inline(always)]
    pub(crate) fn current() -> Option<&'static mut Thread> {
        let thread = word::get().cast::<Thread>();
        // SAFETY: null, or this thread's own; the hooks that could use it at once see `busy`.
        match unsafe { thread.as_mut() } {
            None => Thread::begin(),
            some => some,
        }
    }

    /// The calling thread's, if it has one.
    #[inline(always)]
    pub(crate) fn existing() -> Option<&'static mut Thread> {
        // SAFETY: as above.
        unsafe { word::get().cast::<Thread>().as_mut() }
    }

    #[cold]
    #[inline(never)]
    fn begin() -> Option<&'static mut Thread> {
        let process = process::current()?;
        let _quiet = Quiet::now();
        if let Some(inherited) = process::inherited() {
            // A forked child goes on with its parent's stack, and buffers of its own.
            inherited.front = process.front();
            inherited.process = process;
            inherited.busy = 0;
            word::set(std::ptr::from_mut(inherited).cast());
            return Some(inherited);
        }
        let thread = Box::leak(Box::new(Thread {
            busy: 0,
            len: 0,
            beyond: 0,
            front: process.front(),
            process,
            window: process.profile.window,
            round: 0,
            frames: Box::new_uninit_slice(DEEPEST),
        }));
        // SAFETY: the key's destructor gets it back, once.
        unsafe {
            libc::pthread_setspecific(key()?, std::ptr::from_mut(thread).cast());
        }
        word::set(std::ptr::from_mut(thread).cast());
        Some(thread)
    }

    /// Takes what the thread had out of its parent's hands, in a forked child: its buffer is the parent's.
    pub(crate) fn abandon_front(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.front, Front::Nothing));
    }

    /// Marks the begin of a hook. False: one runs already, and was interrupted by a signal whose handler is
    /// instrumented, or which allocates.
    #[inline(always)]
    fn begin_hook(&mut self, stack: usize) -> bool {
        // One that lies deeper was left by `longjmp`, and will never end.
        if self.busy > stack {
            return false;
        }
        self.busy = stack;
        true
    }

    #[inline(always)]
    pub(crate) fn enter(&mut self, function: u64, site: u64, stack: usize) {
        let interrupted = !self.begin_hook(stack);
        if interrupted {
            self.process.interrupted();
            return;
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.drop_dead(function, site, stack);
        let caller = self.innermost();
        if self.len < DEEPEST {
            self.frames[self.len].write(Frame {
                function,
                depth: stack,
                site,
            });
            self.len += 1;
        } else {
            self.beyond += 1;
        }
        match &self.front {
            Front::Deferred(producer) if !producer.is_nearly_full() => {
                match self.window.pair(caller, function) {
                    Some(pair) => producer.near(pair),
                    None => producer.call(caller, function),
                }
            }
            Front::Deferred(_) => return self.called_and_full(caller, function),
            Front::Sequential(profile) => profile.call(caller, function),
            Front::Nothing => {}
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.busy = 0;
    }

    /// The rest of [`Thread::enter`] where the buffer is handed over: apart, so that the usual way has no room on
    /// the machine's stack to make.
    #[cold]
    #[inline(never)]
    fn called_and_full(&mut self, caller: u64, callee: u64) {
        self.record(
            |calls| calls.call(caller, callee),
            |calls| calls.call(caller, callee),
        );
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.busy = 0;
    }

    #[inline(always)]
    pub(crate) fn exit(&mut self, function: u64, stack: usize) {
        if !self.begin_hook(stack) {
            return;
        }
        if self.beyond > 0 {
            self.beyond -= 1;
        } else if self.innermost() == function {
            self.len -= 1;
        } else {
            self.find(function);
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.busy = 0;
    }

    #[inline(always)]
    pub(crate) fn allocated(&mut self, bytes: u64, stack: usize) {
        if !self.begin_hook(stack) {
            return;
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        let function = self.innermost();
        self.record(
            |calls| calls.allocated(function, bytes),
            |calls| calls.allocated(function, bytes),
        );
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.busy = 0;
    }

    /// Marks everything that happens until the guard is gone as ours.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy != 0
    }

    #[inline(always)]
    fn record(
        &mut self,
        deferred: impl FnOnce(&Producer<CallsBuffer>),
        sequential: impl FnOnce(&Profile<'static>),
    ) {
        match &self.front {
            Front::Deferred(producer) => {
                if producer.is_nearly_full() {
                    let _quiet = Quiet::now();
                    self.process.recording.at_exchange();
                    deferred(producer);
                } else {
                    deferred(producer);
                }
            }
            Front::Sequential(profile) => sequential(profile),
            Front::Nothing => {}
        }
    }

    #[inline(always)]
    fn frame(&self, index: usize) -> Frame {
        // SAFETY: entries below `len` were written.
        unsafe { self.frames[index].assume_init() }
    }

    #[inline(always)]
    fn innermost(&self) -> u64 {
        match self.len {
            0 => 0,
            len => self.frame(len - 1).function,
        }
    }

    /// Forgets functions that were left without their hook. Those are deeper than the one that begins; or as
    /// deep, and not one that it is inlined into.
    #[inline(always)]
    fn drop_dead(&mut self, function: u64, site: u64, stack: usize) {
        while self.len > 0 {
            let top = self.frame(self.len - 1);
            let inlined = top.depth == stack && top.site == site && top.function != function;
            if top.depth > stack || inlined || stack - top.depth > SAME_STACK {
                break;
            }
            self.len -= 1;
            self.beyond = 0;
        }
    }

    /// A function ends that is not the innermost: those inside of it are gone. One that is not there at all
    /// began before the hooks were here.
    #[cold]
    fn find(&mut self, function: u64) {
        let above = (0..self.len).rev().take(1000);
        if let Some(index) = above
            .into_iter()
            .find(|&i| self.frame(i).function == function)
        {
            self.len = index;
        }
    }
}

fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a destructor for the values that are set above.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
        (made == 0).then_some(key)
    })
}

unsafe extern "C" fn thread_ends(thread: *mut c_void) {
    let _quiet = Quiet::now();
    let thread = thread.cast::<Thread>();
    // SAFETY: this thread's own, which nobody else uses.
    unsafe {
        (*thread).round += 1;
        if (*thread).round + 1 < ROUNDS
            && let Some(key) = key()
        {
            // Destructors of other keys may still call functions.
            libc::pthread_setspecific(key, thread.cast());
            return;
        }
        word::set(null_mut());
        drop(Box::from_raw(thread));
    }
}
