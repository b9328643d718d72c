//! Creation and end of threads, interposed.
//!
//! **Why it is sound.** What a thread is to run is handed over in a box that the new thread takes once. No
//! frame of ours is below the program's start routine, which may be left by `pthread_exit` or cancellation:
//! the new thread enters by [`begins`], and jumps. A thread's end is told by a key's destructor.

use crate::entry::told_where;
use crate::lives;
use crate::process::{self, Process};
use crate::thread::Thread;
use corewise_analyses::inside::{Next, Quiet, word};
use corewise_analyses::race::{Clock, Counter, ThreadRecord};
use libc::{c_int, c_void};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The C library calls destructors of keys up to so many times.
const ROUNDS: u32 = 4;

/// What a new thread takes.
struct Start {
    routine: *const c_void,
    argument: *mut c_void,
    process: &'static Process,
    number: u16,
    first: u32,
    before: Clock,
    index: u32,
    parent: u32,
    site: u32,
}

/// What is left of threads that ended, and who runs.
#[derive(Default)]
pub(crate) struct Threads {
    /// By `pthread_t`.
    pub(crate) ended: HashMap<u64, Clock>,
    /// Numbers of threads that ended, with their last segments.
    free: Vec<(u16, u32)>,
    /// Numbers that were given.
    given: u16,
    /// Threads that were created so far.
    count: u32,
    /// Those that run.
    running: u32,
    /// The last segment of each thread that ended.
    last: HashMap<u16, u32>,
}

impl Threads {
    /// A number for a new thread, and its first segment: that of a thread whose end comes before the new
    /// one's begin, or another.
    fn number(&mut self, before: &Clock) -> Option<(u16, u32)> {
        let known = |(thread, last): &(u16, u32)| before.of(*thread) >= *last;
        if let Some(index) = self.free.iter().position(known) {
            let (thread, last) = self.free.swap_remove(index);
            return Some((thread, last + 1));
        }
        let most = corewise_analyses::race::clock::THREADS;
        (usize::from(self.given) < most).then(|| {
            self.given += 1;
            (self.given - 1, 1)
        })
    }

    /// Whether only one runs, and what all others did comes before.
    pub(crate) fn only(&self, clock: &Clock) -> bool {
        self.running == 1
            && self
                .last
                .iter()
                .all(|(thread, last)| clock.of(*thread) >= *last)
    }
}

/// Makes this thread known, which runs already.
pub(crate) fn adopt(process: &'static Process) -> Option<()> {
    let mut threads = process.threads();
    let (number, first) = threads.number(&Clock::default())?;
    threads.running += 1;
    drop(threads);
    let start = Start {
        routine: std::ptr::null(),
        argument: std::ptr::null_mut(),
        process,
        number,
        first,
        before: Clock::default(),
        index: 0,
        parent: 0,
        site: 0,
    };
    enter(&start)?.alone = true;
    Some(())
}

/// Makes a thread known that runs now on this thread of the system.
fn enter(start: &Start) -> Option<&'static mut Thread> {
    let thread = known(start);
    // SAFETY: the key's destructor gets it back, once.
    unsafe {
        libc::pthread_setspecific(key()?, std::ptr::from_mut(thread).cast());
    }
    word::set(std::ptr::from_mut(thread).cast());
    Some(thread)
}

/// A thread, or fiber, that the search knows from now on.
fn known(start: &Start) -> &'static mut Thread {
    let process = start.process;
    let clock =
        corewise_analyses::race::ThreadClock::begin(start.number, start.first, &start.before);
    let index = start.index;
    let thread = Box::leak(Thread::new(process, clock, process.front(), index));
    process
        .search
        .timelines()
        .note(&process.search.words, &thread.clock);
    // SAFETY: asks who this is.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    thread.record = process.search.thread(&ThreadRecord {
        thread: start.number,
        first: start.first,
        tid,
        index,
        parent: start.parent,
        site: start.site,
        name: String::new(),
    });
    thread
}

type Create = unsafe extern "C" fn(*mut u64, *const c_void, *const c_void, *mut c_void) -> c_int;
type CreateC11 = unsafe extern "C" fn(*mut u64, *const c_void, *mut c_void) -> c_int;

told_where! {
    /// The C library's.
    pthread_create => created;
    /// The C library's.
    thrd_create => created_c11;
}

unsafe extern "C" fn created(
    thread: *mut u64,
    attributes: *const c_void,
    routine: *const c_void,
    argument: *mut c_void,
    _: u64,
    code: u64,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_create");
    let Some(real) = NEXT.get() else {
        return libc::ENOSYS;
    };
    create(routine, argument, code, |routine, argument| {
        // SAFETY: a function of this type has this name; what came is handed on.
        unsafe {
            std::mem::transmute::<*mut c_void, Create>(real)(thread, attributes, routine, argument)
        }
    })
}

unsafe extern "C" fn created_c11(
    thread: *mut u64,
    routine: *const c_void,
    argument: *mut c_void,
    _: u64,
    _: u64,
    code: u64,
) -> c_int {
    static NEXT: Next = Next::new(c"thrd_create");
    let Some(real) = NEXT.get() else {
        return libc::ENOSYS;
    };
    create(routine, argument, code, |routine, argument| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, CreateC11>(real)(thread, routine, argument) }
    })
}

fn create(
    routine: *const c_void,
    argument: *mut c_void,
    code: u64,
    real: impl FnOnce(*const c_void, *mut c_void) -> c_int,
) -> c_int {
    // Threads of our own are created while something of ours runs, or by threads that are not known.
    let Some(thread) = Thread::active() else {
        return real(routine, argument);
    };
    thread.quietly(|thread| {
        let process = thread.process;
        let Some(start) = child(thread, routine, argument, code) else {
            return real(routine, argument);
        };
        let (number, first) = (start.number, start.first);
        let start = Box::into_raw(Box::new(start));
        let answer = real(begins as *const c_void, start.cast());
        if answer != 0 {
            // SAFETY: nobody took it.
            drop(unsafe { Box::from_raw(start) });
            let mut threads = process.threads();
            threads.running -= 1;
            threads.free.push((number, first));
        }
        answer
    })
}

/// What this thread is about to create, after everything that it did. `None`: there are too many.
fn child(
    thread: &mut Thread,
    routine: *const c_void,
    argument: *mut c_void,
    code: u64,
) -> Option<Start> {
    let process = thread.process;
    let site = thread.site(code);
    let before = thread.clock.clock().clone();
    let number = process.threads().number(&before);
    let Some((number, first)) = number else {
        process.search.words.add(Counter::ThreadsLost, 1);
        return None;
    };
    thread.clock.step();
    thread.clock_changed(false);
    thread.alone = false;
    let mut threads = process.threads();
    threads.running += 1;
    threads.count += 1;
    Some(Start {
        routine,
        argument,
        process,
        number,
        first,
        before,
        index: threads.count,
        parent: thread.index,
        site,
    })
}

/// A fiber that this thread creates.
pub(crate) fn fiber(thread: &mut Thread, code: u64) -> Option<&'static mut Thread> {
    child(thread, std::ptr::null(), std::ptr::null_mut(), code).map(|start| known(&start))
}

/// Where a thread begins.
#[unsafe(naked)]
unsafe extern "C" fn begins() {
    std::arch::naked_asm!(
        "push rbx",
        "call {takes}",
        "pop rbx",
        "mov rdi, rdx",
        "jmp rax",
        takes = sym takes,
    )
}

/// Two registers.
#[repr(C)]
struct Jump {
    routine: *const c_void,
    argument: *mut c_void,
}

unsafe extern "C" fn takes(start: *mut Start) -> Jump {
    // A handler that comes while our memory is being given back, and the thread is known already, would wait for
    // itself.
    let _quiet = Quiet::now();
    // SAFETY: the creator's box, which is ours now.
    let start = unsafe { Box::from_raw(start) };
    // Where the thread's memory was another's before, it is not any more.
    if let Some((stack, bytes)) = own_stack() {
        lives::next(stack, bytes);
    }
    enter(&start);
    Jump {
        routine: start.routine,
        argument: start.argument,
    }
}

fn own_stack() -> Option<(u64, u64)> {
    // SAFETY: plain structures, which the calls fill.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return None;
        }
        let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
        libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut bytes);
        libc::pthread_attr_destroy(&raw mut attributes);
        Some((start as u64, bytes as u64))
    }
}

fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a destructor for the values that are set above.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) };
        (made == 0).then_some(key)
    })
}

unsafe extern "C" fn ended(thread: *mut c_void) {
    let _quiet = Quiet::now();
    let thread = thread.cast::<Thread>();
    // SAFETY: this thread's own, which nobody else uses.
    unsafe {
        (*thread).round += 1;
        if (*thread).round < ROUNDS
            && let Some(key) = key()
        {
            // Destructors of other keys may still access memory.
            libc::pthread_setspecific(key, thread.cast());
            return;
        }
        word::set(std::ptr::null_mut());
        let thread = Box::from_raw(thread);
        let process = thread.process;
        let clock = ends(thread);
        process
            .threads()
            .ended
            .insert(libc::pthread_self() as u64, clock);
    }
}

/// A thread, or fiber, is gone. What it did, for those who come after.
pub(crate) fn ends(mut thread: Box<Thread>) -> Clock {
    thread.end();
    let (number, last) = (thread.clock.thread(), thread.clock.segment());
    let mut threads = thread.process.threads();
    threads.running -= 1;
    threads.last.insert(number, last);
    threads.free.push((number, last));
    drop(threads);
    thread.clock.clock().clone()
}

impl Process {
    pub(crate) fn threads(&self) -> std::sync::MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kept by each process.
pub(crate) type Kept = Mutex<Threads>;

/// Makes the only thread of a forked child known.
pub(crate) fn adopt_child() {
    if let Some(process) = process::current() {
        let _ = adopt(process);
    }
}
