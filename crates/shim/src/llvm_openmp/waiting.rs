//! How the threads of a team wait for the next region: by default they look for it without a pause for
//! 200 ms (the runtime calls that the block time). While a program has fewer threads than it would have,
//! others want CPUs, too: then its threads go to sleep at once. Being woken costs some 40 µs a region;
//! waiting for a thread whose CPU another program has costs milliseconds.

use super::{GET_BLOCKTIME, Runtime, SET_BLOCKTIME, Thread};
use libc::c_int;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether the user has said how threads wait; read when the process begins.
static SAID: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static READ: extern "C" fn() = read;

extern "C" fn read() {
    let names: [&CStr; 3] = [c"KMP_BLOCKTIME", c"OMP_WAIT_POLICY", c"KMP_LIBRARY"];
    let said = names.iter().any(|name| {
        // SAFETY: a string that ends with a zero; the program has not begun.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: the environment's strings end with a zero, which is the first byte of an empty one.
        !value.is_null() && unsafe { *value } != 0
    });
    SAID.store(u32::from(said), Ordering::Relaxed);
}

/// The calling thread begins a region with `given` instead of `asked` threads.
#[inline]
pub(super) fn adjust(runtime: &Runtime, thread: &Thread, asked: u32, given: u32) {
    let waited = thread.waited.load(Ordering::Relaxed);
    if given < asked {
        // One that is alone waits for nobody.
        if given > 1 && SAID.load(Ordering::Relaxed) == 0 {
            shorten(runtime, thread);
        }
    } else if waited != 0 {
        put_back(runtime, thread, waited);
    }
}

fn shorten(runtime: &Runtime, thread: &Thread) {
    let Some(now) = runtime.ask(GET_BLOCKTIME) else {
        return;
    };
    // Anything else than what we have set is the program's wish.
    if now != 0 {
        thread.waited.store(now, Ordering::Relaxed);
        set(runtime, 0);
    }
}

#[cold]
fn put_back(runtime: &Runtime, thread: &Thread, waited: u32) {
    thread.waited.store(0, Ordering::Relaxed);
    if runtime.ask(GET_BLOCKTIME) == Some(0) {
        set(runtime, waited);
    }
}

/// Sets the time, in the runtime's own unit, for the calling thread and the teams that it begins.
fn set(runtime: &Runtime, time: u32) {
    let (Some(function), Ok(time)) = (runtime.function(SET_BLOCKTIME), c_int::try_from(time))
    else {
        return;
    };
    // SAFETY: by the runtime's definition (`omp.h`).
    let function: extern "C" fn(c_int) = unsafe { std::mem::transmute(function) };
    function(time);
}
