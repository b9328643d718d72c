//! The functions of corewise_defer.h.
//!
//! **Why it is sound.** Callers give what the header asks for: environments that were created and not yet
//! destroyed, and arrays of the length that they say.
#![allow(unsafe_code, reason = "functions that C calls; see the module's head")]

use crate::answer::{Errno, INVALID, guarded, number};
use corewise_defer::{
    Adaptive, Declared, DeclaredBuffer, Environment, Function, Functions, Pool, Settings,
    Synchronous, available, save_on_fatal_signals,
};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// An environment, and the calls that were declared in it.
pub(crate) struct Calls {
    environment: Environment<DeclaredBuffer>,
    declared: RwLock<Vec<&'static Declared>>,
}

/// The header's structure of this name.
#[repr(C)]
pub(crate) struct CSettings {
    size: usize,
    strategy: c_int,
    capacity: u32,
    queue: u32,
    threads: u32,
}

const QUEUE: u32 = 16;

/// See corewise_defer.h.
///
/// # Safety
/// `settings` is null, or as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_create(settings: *const CSettings) -> *mut Calls {
    guarded(std::ptr::null_mut(), || {
        let usual = CSettings {
            size: size_of::<CSettings>(),
            strategy: 0,
            capacity: 0,
            queue: 0,
            threads: 0,
        };
        // SAFETY: the caller's promise.
        let wanted = unsafe { settings.as_ref() }.unwrap_or(&usual);
        if wanted.size < size_of::<CSettings>() {
            return std::ptr::null_mut();
        }
        let or = |value: u32, usual: u32| if value == 0 { usual } else { value };
        let queue = or(wanted.queue, QUEUE) as usize;
        let settings = match wanted.strategy {
            0 => Settings::new(Adaptive::with_queue(queue)),
            1 => Settings::new(Synchronous),
            2 => Settings::new(Pool::new(or(wanted.threads, available()), queue)),
            _ => return std::ptr::null_mut(),
        };
        let settings = match wanted.capacity {
            0 => settings,
            calls => settings.capacity(calls),
        };
        Box::into_raw(Box::new(Calls {
            environment: settings.environment(Functions),
            declared: RwLock::new(Vec::new()),
        }))
    })
}

/// See corewise_defer.h.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_declare(
    calls: *mut Calls,
    body: Option<Function>,
    thrown_away: Option<Function>,
    words: u32,
    data: *mut c_void,
) -> c_int {
    number(|| {
        let calls = of(calls)?;
        let words = u8::try_from(words).map_err(|_| INVALID)?;
        // SAFETY: what the header asks of functions.
        let call = unsafe { Declared::new(body.ok_or(INVALID)?, thrown_away, words, data) };
        let mut declared = calls
            .declared
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        declared.push(call.ok_or(INVALID)?);
        c_int::try_from(declared.len() - 1).map_err(|_| INVALID)
    })
}

/// See corewise_defer.h.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_call(
    calls: *mut Calls,
    call: c_int,
    words: *const u64,
    count: u32,
) -> c_int {
    number(|| {
        let calls = of(calls)?;
        let declared = calls
            .declared
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(call).map_err(|_| INVALID)?;
        let call = *declared.get(index).ok_or(INVALID)?;
        drop(declared);
        let words = match (words.is_null(), count) {
            (_, 0) => &[],
            (true, _) => return Err(INVALID),
            // SAFETY: the caller's promise.
            (false, count) => unsafe { std::slice::from_raw_parts(words, count as usize) },
        };
        match calls.environment.call(call, words) {
            true => Ok(0),
            false => Err(INVALID),
        }
    })
}

/// See corewise_defer.h.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_process_current(calls: *mut Calls) -> c_int {
    number(|| {
        of(calls)?.environment.process_current();
        Ok(0)
    })
}

/// See corewise_defer.h.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_wait(calls: *mut Calls) -> c_int {
    number(|| {
        of(calls)?.environment.checkpoint().wait();
        Ok(0)
    })
}

/// See corewise_defer.h.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_finish(calls: *mut Calls) -> c_int {
    number(|| {
        of(calls)?.environment.finish();
        Ok(0)
    })
}

/// See corewise_defer.h.
#[unsafe(no_mangle)]
extern "C" fn corewise_defer_save_on_fatal_signals(milliseconds: c_uint) -> c_int {
    number(|| {
        save_on_fatal_signals(Duration::from_millis(u64::from(milliseconds)))?;
        Ok(0)
    })
}

/// See corewise_defer.h.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn corewise_defer_destroy(calls: *mut Calls) {
    guarded((), || {
        if !calls.is_null() {
            // SAFETY: it was created, and is given back once.
            drop(unsafe { Box::from_raw(calls) });
        }
    });
}

fn of<'a>(calls: *mut Calls) -> Result<&'a Calls, Errno> {
    // SAFETY: null, or an environment that was created and not yet destroyed.
    unsafe { calls.as_ref() }.ok_or(INVALID)
}
