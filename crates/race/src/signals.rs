//! Signal handlers: what a thread did before it set one up comes before what the handler does, on whichever
//! thread it runs. What the program asked to be ignored there is not ignored in the handler, which can come at any
//! moment: what it releases would be missed.
//!
//! A handler is known by where it returns to: a few instructions of the C library that end it, the same for
//! all.
//!
//! **Why it is sound.** As in [`crate::interposed`]; the kernel is only asked.

use crate::interposed::{Call, interposed};
use crate::thread::Thread;
use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where handlers return to; 0: none was set up yet.
static END: AtomicU64 = AtomicU64::new(0);

/// The address that stands for all signals.
fn key() -> u64 {
    END.as_ptr() as u64
}

/// As the kernel has it, with the longest set of signals that there is.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: u64,
    flags: u64,
    end: u64,
    mask: [u64; 2],
}

fn sets_up(_: &Call) {
    if let Some(thread) = Thread::active() {
        thread.release(key());
    }
}

fn is_set_up(call: &Call, _: i64) {
    if END.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut action = Action::default();
    let signal = call.arguments[0] as c_int;
    // SAFETY: room for what is asked for; a set of signals has eight bytes.
    let asked = unsafe {
        let nothing = std::ptr::null::<Action>();
        libc::syscall(libc::SYS_rt_sigaction, signal, nothing, &raw mut action, 8)
    };
    if asked == 0 {
        END.store(action.end, Ordering::Relaxed);
    }
}

interposed! { -1;
    sigaction c"sigaction" sets_up is_set_up;
    signal c"signal" sets_up is_set_up;
}

/// A function begins that was called from there: is it a handler?
#[inline(always)]
pub(crate) fn enters(thread: &mut Thread, code: u64) {
    if code == END.load(Ordering::Relaxed) {
        learns(thread);
    }
}

#[cold]
fn learns(thread: &mut Thread) {
    // Not in the middle of something of ours.
    if Thread::active().is_some() {
        if thread.ignored > 0 || thread.orders_ignored > 0 {
            thread.set_ignoring_aside();
        }
        thread.acquire(key());
    }
}
