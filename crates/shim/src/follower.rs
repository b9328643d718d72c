//! The one thread of ours in a foreign process: it sleeps on the claim page and tells the adapters whose
//! runtimes have to be told ([`crate::openblas`], [`crate::onetbb`]) as soon as the claim changes. It is
//! started by the first of them that finds its runtime at work. A forked child has none until one of them
//! does so again.
//!
//! Safety: the thread blocks all signals, since the program's are not for it; the code of a runtime that
//! it calls runs as the program's own threads would ([`as_program`]), because threads that are created
//! there inherit what their creator has.

use crate::link;
use crate::{onetbb, openblas};
use libc::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// How long the sleeper waits before it looks whether the claim's keeper still lives.
static LOOK: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The process whose thread follows; others, forked from it, have none.
static FOLLOWING: AtomicI32 = AtomicI32::new(0);

/// Changes with every runtime that is found: before it sleeps, the follower looks at it.
static FOUND: AtomicU32 = AtomicU32::new(0);

/// The first 64 signals that the program blocks, and the name of its threads, as whoever started the
/// follower had them.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static NAME: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

const OWN_NAME: [u64; 2] = [u64::from_ne_bytes(*b"corewise"), 0];

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

/// The C library's `pthread_create`, which we interpose. Null: there is none. Takes no lock but, the first
/// time, none of the loader's either.
pub(crate) fn pthread_create() -> *mut c_void {
    static CREATE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut create = CREATE.load(Ordering::Relaxed);
    if create.is_null() {
        // SAFETY: a string that ends with a zero.
        create = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
        CREATE.store(create, Ordering::Relaxed);
    }
    create
}

/// Has a runtime followed from now on: starts the thread where this process has none yet. False: there can
/// be none, and nothing is followed.
pub(crate) fn follow() -> bool {
    FOUND.fetch_add(1, Ordering::AcqRel);
    // SAFETY: no arguments, no way to fail.
    let own = unsafe { libc::getpid() };
    if FOLLOWING.swap(own, Ordering::AcqRel) == own {
        return true;
    }
    let started = start();
    if !started {
        FOLLOWING.store(0, Ordering::Release);
    }
    started
}

fn start() -> bool {
    let create = pthread_create();
    if create.is_null() {
        return false;
    }
    // SAFETY: this is what the C library has under that name.
    let create: Create = unsafe { std::mem::transmute::<*mut c_void, Create>(create) };
    let name = name();
    NAME[0].store(name[0], Ordering::Relaxed);
    NAME[1].store(name[1], Ordering::Relaxed);
    let Some(before) = block(u64::MAX) else {
        return false;
    };
    BLOCKED.store(before, Ordering::Release);
    let mut thread = 0;
    // SAFETY: no attributes, a function that lives as long as the process, no argument. The new thread
    // inherits a mask that blocks all signals; that of this thread is put back.
    let started = unsafe { create(&raw mut thread, null(), run, null_mut()) } == 0;
    if started {
        // SAFETY: just created, and nobody else knows it.
        unsafe { libc::pthread_detach(thread) };
    }
    block(before);
    started
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    set_name(OWN_NAME);
    let mut found = 0;
    // Another page at times, where the program holds the claim itself.
    while let Some(claim) = link::claim() {
        let seen = claim.granted().generation;
        let limit = link::limit();
        openblas::bound(limit);
        onetbb::bound();
        let now = FOUND.load(Ordering::Acquire);
        if std::mem::replace(&mut found, now) != now {
            continue;
        }
        // SAFETY: a word of the page, which stays mapped. Not private: the one who wakes is another
        // process. It also ends by the time, a signal, or because the word has changed already.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                claim.futex().as_ptr(),
                libc::FUTEX_WAIT,
                seen,
                &raw const LOOK,
                null::<c_void>(),
                0,
            )
        };
    }
    null_mut()
}

/// Runs code of a runtime on the follower as if a thread of the program ran it: with the program's signal
/// mask and name, which the threads inherit that it may create. (A blocked SIGSEGV would end the program
/// where its own handler is waiting for it.)
pub(crate) fn as_program(work: impl FnOnce()) {
    set_name([
        NAME[0].load(Ordering::Relaxed),
        NAME[1].load(Ordering::Relaxed),
    ]);
    let own = block(BLOCKED.load(Ordering::Acquire));
    work();
    if let Some(own) = own {
        block(own);
    }
    set_name(OWN_NAME);
}

/// Blocks exactly these signals in the calling thread, and gives those that were blocked before.
fn block(signals: u64) -> Option<u64> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both are zeroed, which is an empty set; the first 64 signals, all that Linux has here, are
    // the first 64 bits of the set; both live as long as the call. The C library leaves its own two out.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write(signals);
        let failed = libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), before.as_mut_ptr());
        (failed == 0).then(|| before.as_ptr().cast::<u64>().read())
    }
}

/// The calling thread's name.
fn name() -> [u64; 2] {
    let mut name = [0u64; 2];
    // SAFETY: it writes 16 bytes, which live as long as the call.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

fn set_name(name: [u64; 2]) {
    // SAFETY: 16 bytes, of which a name has at most 15 and a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}
