//! The adapter for threads and locks of the C library: while the local manager wants it, the time that
//! threads are blocked in mutexes, read-write locks, condition variables, barriers and semaphores is added up
//! by caller; threads that begin and end are counted, and the names that they are given.
//!
//! **While nothing is counted**, which is the rule, a call costs two loads and a jump ([`entry`]).
//!
//! **A lock that is free costs one load more.** Its word is looked at first: a mutex's is 0, a semaphore's is
//! not, and the call goes on as it came. Only where somebody seems to hold it, the real function is timed. So
//! every kind of mutex behaves as it does without us: nothing but the real function ever locks one, and no
//! answer is made up. (To try first and to lock then would be two atomic operations, and other answers for
//! mutexes that check for errors.) A mutex that is taken between the look and the lock is not counted; that
//! window is some nanoseconds. The exception are mutexes that are recursive: held by the caller itself they do
//! not block, and `pthread_mutex_trylock` answers as the lock would where it succeeds. It is the same for
//! read-write locks, whose words say too little.
//!
//! **What runs under our frame** when a call is timed is the C library only. It may be cancelled there, and
//! unwinds through the frame ([`entry`] describes it): [`unwound`] then ends the wait.
//!
//! Safety: the words that are looked at are those of the C library's own initialisers (`PTHREAD_MUTEX_INITIALIZER`),
//! and so part of its ABI: an int at the beginning of a mutex, its kind in another 16 bytes on; the value
//! of a semaphore at its beginning. No lock is taken and nothing is allocated here: allocators call us.

mod callers;
mod entry;
mod threads;
mod versions;

use crate::clock::now_ns;
use crate::link;
use crate::loaded::Library;
use corewise_abi::locks::{Kind, LocksPage};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// A function that is interposed.
struct Function {
    name: &'static CStr,
    waits_for: Kind,
    /// Read-write locks: what takes it where that does not need to wait.
    tries: Option<&'static CStr>,
}

const fn of(waits_for: Kind, name: &'static CStr) -> Function {
    Function {
        name,
        waits_for,
        tries: None,
    }
}

const fn trying(tries: &'static CStr, name: &'static CStr) -> Function {
    Function {
        name,
        waits_for: Kind::Rwlock,
        tries: Some(tries),
    }
}

/// The functions, each with its number: the index here. [`entry`] has the same numbers.
const FUNCTIONS: [Function; COUNT] = [
    of(Kind::Mutex, c"pthread_mutex_lock"),
    of(Kind::Mutex, c"pthread_mutex_timedlock"),
    of(Kind::Mutex, c"pthread_mutex_clocklock"),
    trying(c"pthread_rwlock_tryrdlock", c"pthread_rwlock_rdlock"),
    trying(c"pthread_rwlock_trywrlock", c"pthread_rwlock_wrlock"),
    of(Kind::Condition, c"pthread_cond_wait"),
    of(Kind::Condition, c"pthread_cond_timedwait"),
    of(Kind::Condition, c"pthread_cond_clockwait"),
    of(Kind::Barrier, c"pthread_barrier_wait"),
    of(Kind::Semaphore, c"sem_wait"),
    of(Kind::Semaphore, c"sem_timedwait"),
    of(Kind::Semaphore, c"sem_clockwait"),
    trying(c"pthread_rwlock_tryrdlock", c"pthread_rwlock_timedrdlock"),
    trying(c"pthread_rwlock_trywrlock", c"pthread_rwlock_timedwrlock"),
    trying(c"pthread_rwlock_tryrdlock", c"pthread_rwlock_clockrdlock"),
    trying(c"pthread_rwlock_trywrlock", c"pthread_rwlock_clockwrlock"),
];
const COUNT: usize = 16;

/// Those of which the C library has an old version with another layout.
const COND_WAIT: usize = 5;
const COND_TIMEDWAIT: usize = 6;

/// The real functions; null: not looked for yet.
static REAL: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];
/// What read-write locks are tried by, by the number of what locks them.
static TRIES: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];
static TRY_MUTEX: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The word that says whether to count: null without pages.
static COUNTING: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// A call that is timed, on the stack of [`entry`].
#[repr(C)]
struct Wait {
    began_ns: u64,
    caller: u32,
    kind: u32,
    /// Whether there is anything to end.
    open: AtomicI32,
    /// What the call has answered, where it needed no real function.
    answer: c_int,
}

/// Looks for the functions before there are threads: the loader's lock, which that takes, may be held later by
/// one who waits for the caller of a lock. Those that came with glibc 2.30 are looked for when they are called.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

extern "C" fn prepare() {
    for (number, function) in FUNCTIONS.iter().enumerate() {
        let in_all = !function.name.to_bytes().windows(5).any(|w| w == b"clock");
        if in_all {
            real(number);
        }
        if let Some(name) = function.tries {
            TRIES[number].store(next(name), Ordering::Release);
        }
    }
    TRY_MUTEX.store(next(c"pthread_mutex_trylock"), Ordering::Release);
    versions::prepare();
    // Finds what finds libraries.
    let _ = Library::at(prepare as *const () as usize);
}

/// Counts from now on, whenever the page says so.
pub(crate) fn follow(locks: Option<&'static LocksPage>) {
    let word = locks.map_or(null_mut(), |page| {
        page.note_loaded();
        std::ptr::from_ref(page.counting()).cast_mut()
    });
    COUNTING.store(word, Ordering::Release);
}

/// Where to count, if that is wanted now.
fn counted() -> Option<&'static LocksPage> {
    // SAFETY: null, or a word of a page that stays mapped.
    let word = unsafe { COUNTING.load(Ordering::Acquire).as_ref() }?;
    if word.load(Ordering::Relaxed) == 0 {
        return None;
    }
    if !link::keeper_lives() {
        // Nobody will read it any more.
        COUNTING.store(null_mut(), Ordering::Release);
        return None;
    }
    link::locks()
}

/// The function that the program would call without us.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a string that ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The real function of that number. Null: there is none.
extern "C" fn real(number: usize) -> *mut c_void {
    let (Some(kept), Some(function)) = (REAL.get(number), FUNCTIONS.get(number)) else {
        return null_mut();
    };
    let mut found = kept.load(Ordering::Relaxed);
    if found.is_null() {
        found = match number {
            COND_WAIT | COND_TIMEDWAIT => versions::current(function.name),
            _ => next(function.name),
        };
        kept.store(found, Ordering::Release);
    }
    found
}

/// The real function of that number for one who will be returned to at `caller`: it may mean an old one.
extern "C" fn real_for(number: usize, caller: usize) -> *mut c_void {
    match number {
        COND_WAIT | COND_TIMEDWAIT => {
            versions::meant(number, caller).unwrap_or_else(|| real(number))
        }
        _ => real(number),
    }
}

/// A call that may block begins, and will be returned to at `caller`; `subject` is what it is about. Gives the
/// real function; null: there is nothing left to be done, and the answer is in `wait`.
extern "C" fn begins(
    number: usize,
    wait: *mut Wait,
    caller: usize,
    subject: *mut c_void,
) -> *mut c_void {
    let real = real_for(number, caller);
    let mut now = Wait {
        began_ns: 0,
        caller: 0,
        kind: 0,
        open: AtomicI32::new(0),
        answer: libc::ENOSYS,
    };
    if !real.is_null()
        && let Some(function) = FUNCTIONS.get(number)
        && let Some(page) = counted()
    {
        if taken_at_once(number, function, subject) {
            now.answer = 0;
            // SAFETY: room on the stack of `entry`.
            unsafe { wait.write(now) };
            return null_mut();
        }
        let place = callers::place(page, function.waits_for, caller);
        if let Some(report) = link::report() {
            report.blocked.fetch_add(1, Ordering::Relaxed);
        }
        now = Wait {
            began_ns: now_ns(),
            caller: place as u32,
            kind: function.waits_for as u32,
            open: AtomicI32::new(1),
            answer: 0,
        };
    }
    // SAFETY: room on the stack of `entry`.
    unsafe { wait.write(now) };
    real
}

/// Takes what can be had at once without another answer than the real function's: recursive mutexes, which the
/// caller may hold itself, and read-write locks.
fn taken_at_once(number: usize, function: &Function, subject: *mut c_void) -> bool {
    const RECURSIVE: u32 = 1;
    /// Mutexes that several processes use.
    const SHARED: u32 = 128;
    const KIND_AT: usize = 16;
    let tries = match function.waits_for {
        Kind::Rwlock => TRIES.get(number),
        Kind::Mutex => {
            // SAFETY: a mutex of the program's, see the module; others may only read its kind.
            let kind = unsafe { subject.byte_add(KIND_AT).cast::<u32>().read_volatile() };
            (kind & !SHARED == RECURSIVE).then_some(&TRY_MUTEX)
        }
        _ => None,
    };
    let Some(tries) = tries.map(|tries| tries.load(Ordering::Acquire)) else {
        return false;
    };
    if tries.is_null() {
        return false;
    }
    // SAFETY: these are functions of one pointer that return an int; they neither block nor unwind.
    let tries: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { std::mem::transmute(tries) };
    // SAFETY: the caller's own lock.
    unsafe { tries(subject) == 0 }
}

/// The call has returned `answer`.
extern "C" fn ends(wait: *const Wait, answer: c_int) {
    // What the caller did wrong did not block it.
    let refused = matches!(answer, libc::EDEADLK | libc::EINVAL | libc::EPERM);
    end(wait, !refused);
}

/// The call was left by an exception, or by the end of its thread.
fn unwound(wait: *const Wait) {
    end(wait, true);
}

fn end(wait: *const Wait, waited: bool) {
    // SAFETY: what `begins` has written, still on the stack.
    let wait = unsafe { &*wait };
    if wait.open.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(report) = link::report() {
        report.blocked.fetch_sub(1, Ordering::Relaxed);
    }
    let kind = Kind::ALL.get(wait.kind as usize);
    if let (Some(page), Some(kind), true) = (link::locks(), kind, waited) {
        let ns = now_ns().saturating_sub(wait.began_ns);
        page.add(*kind, wait.caller as usize, ns);
    }
}
