//! Fibers, of programs that say where they switch from one to another (`sanitizer/tsan_interface.h`): each is
//! a thread of its own to the search, whichever thread of the system runs it.
//!
//! **Why it is sound.** What stands for a fiber is made here and handed out as its name; the program promises
//! to give back only names of fibers that live, each running on one thread at a time. A thread of the system
//! goes on using what the word leads to, which is changed by itself alone.

use crate::create;
use crate::entry::told_where;
use crate::thread::Thread;
use corewise_analyses::inside::word;
use libc::{c_char, c_uint, c_void};
use std::ptr::null_mut;

/// The switch orders nothing.
const NO_ORDER: c_uint = 1;

#[unsafe(no_mangle)]
extern "C" fn __tsan_get_current_fiber() -> *mut c_void {
    match Thread::existing() {
        Some(thread) => std::ptr::from_mut(thread).cast(),
        None => null_mut(),
    }
}

told_where! {
    /// A fiber begins.
    __tsan_create_fiber => creates;
}

extern "C" fn creates(_flags: u64, _: u64, _: u64, _: u64, _: u64, code: u64) -> *mut c_void {
    let fiber =
        Thread::active().and_then(|thread| thread.quietly(|thread| create::fiber(thread, code)));
    fiber.map_or(null_mut(), |fiber| std::ptr::from_mut(fiber).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_destroy_fiber(fiber: *mut c_void) {
    let fiber = fiber.cast::<Thread>();
    if let Some(thread) = Thread::active()
        && !fiber.is_null()
        && !std::ptr::eq(thread, fiber)
    {
        // SAFETY: made by the function above, and never used again.
        thread.quietly(|_| drop(create::ends(unsafe { Box::from_raw(fiber) })));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_switch_to_fiber(fiber: *mut c_void, flags: c_uint) {
    let fiber = fiber.cast::<Thread>();
    let Some(thread) = Thread::active() else {
        return;
    };
    if fiber.is_null() || std::ptr::eq(thread, fiber) {
        return;
    }
    if flags & NO_ORDER == 0 {
        thread.release(fiber as u64);
    }
    word::set(fiber.cast());
    if flags & NO_ORDER == 0
        && let Some(next) = Thread::active()
    {
        next.acquire(fiber as u64);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_set_fiber_name(fiber: *mut c_void, name: *const c_char) {
    // SAFETY: a fiber that lives, and a name that ends.
    unsafe {
        if let Some(fiber) = fiber.cast::<Thread>().as_ref()
            && let Some(record) = fiber.record
            && !name.is_null()
        {
            let name = std::ffi::CStr::from_ptr(name);
            fiber.process.search.name_thread(record, name.to_bytes());
        }
    }
}
