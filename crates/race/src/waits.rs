//! What threads wait for, interposed: condition variables, barriers, semaphores, and what is done once.
//!
//! **Why it is sound.** As in [`crate::interposed`]. What is done once can throw: our frame has nothing that
//! would have to be cleaned up then, and lets it pass.

use crate::interposed::{Call, interposed, nothing_after, nothing_before};
use crate::locks::{gives, makes, uses};
use crate::thread::Thread;
use corewise_analyses::inside::Next;
use corewise_analyses::race::Order;
use libc::{c_int, c_void};

fn releases(address: u64) {
    if let Some(thread) = Thread::active() {
        thread.release(address);
    }
}

fn acquires(address: u64) {
    if let Some(thread) = Thread::active() {
        thread.acquire(address);
    }
}

/// What is recorded is given away before the thread waits.
pub(crate) fn waits(_: &Call) {
    if let Some(thread) = Thread::active() {
        thread.quietly(Thread::hand_over);
    }
}

/// The lock is given back while the thread waits.
fn begins(call: &Call) {
    uses(call);
    gives(call.arguments[1]);
    waits(call);
}

fn ends(call: &Call, _: i64) {
    let Some(thread) = Thread::active() else {
        return;
    };
    thread.locked(call.arguments[1], false);
    // Where locks order, whoever signals under the lock comes before; where they do not, this has to.
    if thread.process.search.order() == Order::Lockset {
        thread.acquire(call.arguments[0]);
    }
}

fn signals(call: &Call) {
    uses(call);
    if let Some(thread) = Thread::active()
        && thread.process.search.order() == Order::Lockset
    {
        thread.release(call.arguments[0]);
    }
}

fn posts(call: &Call) {
    releases(call.arguments[0]);
}

fn if_done(call: &Call, answer: i64) {
    if answer as c_int == 0 {
        acquires(call.arguments[0]);
    }
}

fn arrives(call: &Call) {
    uses(call);
    posts(call);
}

/// Of a barrier, one thread gets another answer than the rest.
fn if_passed(call: &Call, answer: i64) {
    if matches!(answer as c_int, 0 | libc::PTHREAD_BARRIER_SERIAL_THREAD) {
        // Others may still be about to leave it.
        uses(call);
        acquires(call.arguments[0]);
    }
}

/// C++: a local static variable is about to be made, or was made by another thread.
fn guarded(call: &Call, _: i64) {
    acquires(call.arguments[0]);
}

interposed! { libc::ENOSYS;
    pthread_cond_init c"pthread_cond_init" makes nothing_after;
    pthread_cond_destroy c"pthread_cond_destroy" makes nothing_after;
    pthread_cond_wait c"pthread_cond_wait" begins ends;
    pthread_cond_timedwait c"pthread_cond_timedwait" begins ends;
    pthread_cond_clockwait c"pthread_cond_clockwait" begins ends;
    pthread_cond_signal c"pthread_cond_signal" signals nothing_after;
    pthread_cond_broadcast c"pthread_cond_broadcast" signals nothing_after;
    cnd_wait c"cnd_wait" begins ends;
    cnd_timedwait c"cnd_timedwait" begins ends;
    cnd_signal c"cnd_signal" signals nothing_after;
    cnd_broadcast c"cnd_broadcast" signals nothing_after;
    pthread_barrier_init c"pthread_barrier_init" makes nothing_after;
    pthread_barrier_wait c"pthread_barrier_wait" arrives if_passed;
    pthread_barrier_destroy c"pthread_barrier_destroy" makes nothing_after;
    sem_post c"sem_post" posts nothing_after;
    sem_wait c"sem_wait" waits if_done;
    sem_trywait c"sem_trywait" nothing_before if_done;
    sem_timedwait c"sem_timedwait" waits if_done;
    sem_clockwait c"sem_clockwait" waits if_done;
    __cxa_guard_acquire c"__cxa_guard_acquire" nothing_before guarded;
    __cxa_guard_release c"__cxa_guard_release" posts nothing_after;
}

type Once = unsafe extern "C-unwind" fn(*mut c_void, extern "C-unwind" fn()) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_once(
    control: *mut c_void,
    run: extern "C-unwind" fn(),
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_once");
    let Some(real) = NEXT.get() else {
        return libc::ENOSYS;
    };
    // SAFETY: a function of this type has this name.
    let once = unsafe { std::mem::transmute::<*mut c_void, Once>(real) };
    let Some(thread) = Thread::active() else {
        // SAFETY: as above.
        return unsafe { once(control, run) };
    };
    let depth = thread.once.len();
    thread.quietly(|thread| thread.once.push((control as u64, run)));
    // SAFETY: as above.
    let answer = unsafe { once(control, runs_once) };
    if let Some(thread) = Thread::active() {
        thread.once.truncate(depth);
    }
    acquires(control as u64);
    answer
}

/// What is really called once.
extern "C-unwind" fn runs_once() {
    let last = Thread::existing().and_then(|thread| thread.once.last().copied());
    if let Some((control, run)) = last {
        run();
        releases(control);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn call_once(control: *mut c_void, run: extern "C-unwind" fn()) {
    // SAFETY: the C library's is the same function under another name.
    unsafe { pthread_once(control, run) };
}

unsafe extern "C" {
    fn __cxa_atexit(
        run: unsafe extern "C-unwind" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

/// What is to be done at the end comes after its announcement. The C library's own is linked into each
/// program, but for those that take ThreadSanitizer's.
#[unsafe(no_mangle)]
unsafe extern "C" fn atexit(run: extern "C-unwind" fn()) -> c_int {
    let at = run as *mut c_void;
    releases(at as u64);
    // SAFETY: a function of this type, which gets what it is told below.
    unsafe { __cxa_atexit(runs_at_exit, at, std::ptr::null_mut()) }
}

unsafe extern "C-unwind" fn runs_at_exit(run: *mut c_void) {
    acquires(run as u64);
    // SAFETY: the function that was announced.
    unsafe { std::mem::transmute::<*mut c_void, extern "C-unwind" fn()>(run)() };
}
