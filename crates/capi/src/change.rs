//! Hearing of changes, sleeping until one, answering the manager.
//!
//! Safety: a callback and its `data` may be used on any thread until they are taken back, as corewise.h
//! says; the functions given are C functions that do not unwind.
#![allow(unsafe_code)]

use crate::answer::{Errno, IN_CHILD, INVALID, number};
use crate::process::{Process, in_child};
use corewise_program::{CallbackId, Request};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Changed = extern "C" fn(*mut c_void);
type Answer = extern "C" fn(c_int, *mut c_void) -> c_int;

/// A pointer of C's, which it allows to be used on every thread.
#[derive(Clone, Copy)]
struct Data(*mut c_void);

// SAFETY: see the module.
unsafe impl Send for Data {}
// SAFETY: see the module.
unsafe impl Sync for Data {}

impl Data {
    /// Borrows the whole, so that closures take it along as `Data` and not as a bare pointer.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Whether something may still be called; locked while it is.
type Gate = Arc<Mutex<bool>>;

/// Closes a gate: waits for a call that is running, and lets none begin.
fn close(gate: &Gate) {
    *gate.lock().unwrap_or_else(PoisonError::into_inner) = false;
}

/// What is called on changes and requests.
#[derive(Default)]
pub(crate) struct Callbacks {
    last: c_int,
    changed: BTreeMap<c_int, (CallbackId, Gate)>,
    answer: Option<Gate>,
}

#[unsafe(no_mangle)]
extern "C" fn corewise_on_change(changed: Option<Changed>, data: *mut c_void) -> c_int {
    number(|| {
        let changed = changed.ok_or(INVALID)?;
        if in_child() {
            return Err(IN_CHILD);
        }
        let process = Process::get();
        let (gate, data) = (Gate::new(Mutex::new(true)), Data(data));
        let checked = Arc::clone(&gate);
        let mut callbacks = process.callbacks();
        let number = callbacks.last.checked_add(1).ok_or(Errno(libc::ENOSPC))?;
        let id = process.claim.on_change(move |_| {
            let open = checked.lock().unwrap_or_else(PoisonError::into_inner);
            if *open {
                changed(data.get());
            }
        });
        callbacks.last = number;
        callbacks.changed.insert(number, (id, gate));
        Ok(number)
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_forget_change(number_of_it: c_int) -> c_int {
    number(|| {
        if in_child() {
            return Err(IN_CHILD);
        }
        let process = Process::get();
        let known = process.callbacks().changed.remove(&number_of_it);
        let (id, gate) = known.ok_or(Errno(libc::ENOENT))?;
        process.claim.remove_callback(id);
        close(&gate);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_wait_change(seen: u64, timeout_ns: i64) -> c_int {
    number(|| {
        // Negative: for ever.
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        let changed = Process::get().claim.wait_change(seen, timeout);
        Ok(c_int::from(changed))
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_event_fd() -> c_int {
    number(|| {
        if in_child() {
            return Err(IN_CHILD);
        }
        Ok(Process::get().event()?.as_fd().as_raw_fd())
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_set_answer(answer: Option<Answer>, data: *mut c_void) -> c_int {
    number(|| {
        if in_child() {
            return Err(IN_CHILD);
        }
        let process = Process::get();
        let (gate, data) = (Gate::new(Mutex::new(true)), Data(data));
        let before = {
            let mut callbacks = process.callbacks();
            match answer {
                None => {
                    process.claim.remove_on_request();
                    callbacks.answer.take()
                }
                Some(answer) => {
                    let checked = Arc::clone(&gate);
                    process.claim.on_request(move |what, _| {
                        let open = checked.lock().unwrap_or_else(PoisonError::into_inner);
                        let what = match what {
                            Request::Expand => 0,
                            Request::Shrink => 1,
                        };
                        *open && answer(what, data.get()) != 0
                    });
                    callbacks.answer.replace(gate)
                }
            }
        };
        // Not with the lock on all of them: this waits for a call that is running.
        if let Some(gate) = before {
            close(&gate);
        }
        Ok(0)
    })
}
