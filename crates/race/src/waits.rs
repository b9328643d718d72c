//! What threads wait for, interposed: condition variables, barriers, semaphores, and what is done once.
//!
//! **Why it is sound.** As in [`crate::locks`]. A thread can be cancelled while it waits, and what is done
//! once can throw: the frames have nothing that would have to be cleaned up then, and let it pass.

use crate::locks::{gives, real};
use crate::thread::Thread;
use corewise_analyses::inside::Next;
use corewise_analyses::race::Order;
use libc::{c_int, c_void, timespec};

type One = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
type Two = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;
type Timed = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *const timespec) -> c_int;
type Clocked =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, c_int, *const timespec) -> c_int;

fn releases(address: *mut c_void) {
    if let Some(thread) = Thread::active() {
        thread.release(address as u64);
    }
}

fn acquires(address: *mut c_void) {
    if let Some(thread) = Thread::active() {
        thread.acquire(address as u64);
    }
}

/// The lock is given back while the thread waits.
fn begins(lock: *mut c_void) {
    gives(lock);
    if let Some(thread) = Thread::active() {
        thread.quietly(Thread::hand_over);
    }
}

fn ends(condition: *mut c_void, lock: *mut c_void) {
    let Some(thread) = Thread::active() else {
        return;
    };
    thread.locked(lock as u64, false);
    // Where locks order, whoever signals under the lock comes before; where they do not, this has to.
    if thread.process.search.order() == Order::Lockset {
        thread.acquire(condition as u64);
    }
}

fn signals(condition: *mut c_void) {
    if let Some(thread) = Thread::active()
        && thread.process.search.order() == Order::Lockset
    {
        thread.release(condition as u64);
    }
}

macro_rules! found {
    ($text:literal) => {{
        static NEXT: Next = Next::new($text);
        match real(&NEXT) {
            Some(real) => real,
            None => return libc::ENOSYS,
        }
    }};
}

/// Exports waits for a condition.
macro_rules! waiting {
    ($($name:ident $text:literal $type:ty, ($($argument:ident: $of:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            condition: *mut c_void, lock: *mut c_void $(, $argument: $of)*
        ) -> c_int {
            let real = found!($text);
            begins(lock);
            // SAFETY: a function of this type has this name; so below.
            let answer = unsafe {
                std::mem::transmute::<*mut c_void, $type>(real)(condition, lock $(, $argument)*)
            };
            ends(condition, lock);
            answer
        }
    )*};
}

waiting! {
    pthread_cond_wait c"pthread_cond_wait" Two, ();
    cnd_wait c"cnd_wait" Two, ();
    pthread_cond_timedwait c"pthread_cond_timedwait" Timed, (until: *const timespec);
    cnd_timedwait c"cnd_timedwait" Timed, (until: *const timespec);
    pthread_cond_clockwait c"pthread_cond_clockwait" Clocked, (clock: c_int, until: *const timespec);
}

/// Exports functions of one argument with something to do before and after the real one.
macro_rules! around {
    ($($name:ident $text:literal $before:ident $after:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(address: *mut c_void) -> c_int {
            let real = found!($text);
            $before(address);
            let answer = unsafe { std::mem::transmute::<*mut c_void, One>(real)(address) };
            $after(answer, address);
            answer
        }
    )*};
}

fn nothing(_: c_int, _: *mut c_void) {}

fn waits(_: *mut c_void) {
    if let Some(thread) = Thread::active() {
        thread.quietly(Thread::hand_over);
    }
}

fn looks(_: *mut c_void) {}

fn if_done(answer: c_int, address: *mut c_void) {
    if answer == 0 {
        acquires(address);
    }
}

/// Of a barrier, one thread gets another answer than the rest.
fn if_passed(answer: c_int, address: *mut c_void) {
    if answer == 0 || answer == libc::PTHREAD_BARRIER_SERIAL_THREAD {
        acquires(address);
    }
}

around! {
    pthread_cond_signal c"pthread_cond_signal" signals nothing;
    pthread_cond_broadcast c"pthread_cond_broadcast" signals nothing;
    cnd_signal c"cnd_signal" signals nothing;
    cnd_broadcast c"cnd_broadcast" signals nothing;
    pthread_barrier_wait c"pthread_barrier_wait" releases if_passed;
    sem_post c"sem_post" releases nothing;
    sem_wait c"sem_wait" waits if_done;
    sem_trywait c"sem_trywait" looks if_done;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sem_timedwait(semaphore: *mut c_void, until: *mut c_void) -> c_int {
    let real = found!(c"sem_timedwait");
    let answer = unsafe { std::mem::transmute::<*mut c_void, Two>(real)(semaphore, until) };
    if_done(answer, semaphore);
    answer
}

type Once = unsafe extern "C-unwind" fn(*mut c_void, extern "C-unwind" fn()) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_once(
    control: *mut c_void,
    run: extern "C-unwind" fn(),
) -> c_int {
    let real = found!(c"pthread_once");
    // SAFETY: as above.
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
    acquires(control);
    answer
}

/// What is really called once.
extern "C-unwind" fn runs_once() {
    let last = Thread::existing().and_then(|thread| thread.once.last().copied());
    if let Some((control, run)) = last {
        run();
        releases(control as *mut c_void);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn call_once(control: *mut c_void, run: extern "C-unwind" fn()) {
    // SAFETY: the C library's is the same function under another name.
    unsafe { pthread_once(control, run) };
}

/// C++: a local static variable is about to be made, or was made by another thread.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __cxa_guard_acquire(guard: *mut c_void) -> c_int {
    static NEXT: Next = Next::new(c"__cxa_guard_acquire");
    let Some(real) = real(&NEXT) else {
        return 1;
    };
    let answer = unsafe { std::mem::transmute::<*mut c_void, One>(real)(guard) };
    acquires(guard);
    answer
}

/// C++: it was made.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __cxa_guard_release(guard: *mut c_void) {
    static NEXT: Next = Next::new(c"__cxa_guard_release");
    releases(guard);
    if let Some(real) = real(&NEXT) {
        unsafe { std::mem::transmute::<*mut c_void, One>(real)(guard) };
    }
}
