//! Cancellation of threads that allow it anywhere, interposed: where something of ours runs, it waits for its end.
//!
//! That is done by the kind of cancellation, not by switching it off as `Quiet` does: a thread
//! that is cancelled as it is switched on again would have the wrong result in some versions of glibc (2.36 is one).
//!
//! **Why it is sound.** As in [`crate::interposed`]. Where the thread is cancelled as it is allowed again, what
//! is on its stack of ours has nothing that would have to be cleaned up.

use crate::interposed::{Call, interposed};
use crate::thread::Thread;
use corewise_analyses::inside::Next;
use libc::{c_int, c_void};
use std::ptr::null_mut;

/// As `pthread.h` has them.
const AT_CERTAIN_CALLS: c_int = 0;
const ANYWHERE: c_int = 1;

fn set(kind: c_int) {
    type Set = unsafe extern "C-unwind" fn(c_int, *mut c_int) -> c_int;
    static NEXT: Next = Next::new(c"pthread_setcanceltype");
    if let Some(real) = NEXT.get() {
        // SAFETY: a function of this type has this name.
        unsafe { std::mem::transmute::<*mut c_void, Set>(real)(kind, null_mut()) };
    }
}

/// The thread, which allows it anywhere, is not cancelled from now on: something of ours begins.
#[cold]
pub(crate) fn wait() {
    set(AT_CERTAIN_CALLS);
}

/// It has ended. Where the thread was to be cancelled meanwhile, this does not return.
#[cold]
pub(crate) fn come_late() {
    set(ANYWHERE);
}

/// It is known before it is so.
fn allows(call: &Call) {
    if let Some(thread) = Thread::active()
        && call.arguments[0] as c_int == ANYWHERE
    {
        thread.cancelled_anywhere = true;
    }
}

fn allowed(call: &Call, answer: i64) {
    if let Some(thread) = Thread::active()
        && answer as c_int == 0
    {
        thread.cancelled_anywhere = call.arguments[0] as c_int == ANYWHERE;
    }
}

interposed! { libc::ENOSYS;
    pthread_setcanceltype c"pthread_setcanceltype" allows allowed;
}
