//! Joining, reading, asking.
//!
//! Safety: what C passes as pointers is what corewise.h asks for: a string that ends with a zero byte,
//! room of the size that is said. Both are only used during the call.
#![allow(unsafe_code)]

use crate::answer::{INVALID, count, guarded, number};
use crate::process::{self, Process};
use corewise_abi::MAX_CPUS;
use corewise_abi::claim::ClaimPage;
use corewise_program::{Cpus, Gang, Numa};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::AtomicPtr;

#[unsafe(no_mangle)]
extern "C" fn corewise_join(name: *const c_char) -> c_int {
    number(|| {
        let name = if name.is_null() {
            None
        } else {
            // SAFETY: see the module.
            let name = unsafe { CStr::from_ptr(name) };
            let name = name.to_str().map_err(|_| INVALID)?;
            Some(name).filter(|name| !name.is_empty())
        };
        Ok(c_int::from(Process::join(name).claim.is_managed()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_is_managed() -> c_int {
    number(|| Ok(c_int::from(Process::get().claim.is_managed())))
}

#[unsafe(no_mangle)]
extern "C" fn corewise_threads() -> c_uint {
    guarded(1, || Process::get().claim.threads())
}

#[unsafe(no_mangle)]
extern "C" fn corewise_generation() -> u64 {
    guarded(0, || Process::get().claim.generation())
}

#[unsafe(no_mangle)]
extern "C" fn corewise_cpus(set: *mut c_void, size: usize) -> c_int {
    number(|| {
        if set.is_null() || !size.is_multiple_of(size_of::<c_ulong>()) {
            return Err(INVALID);
        }
        let claim = &Process::get().claim;
        let mut words = [0_u64; MAX_CPUS as usize / 64];
        // No more of them than are asked for: it costs a nanosecond for each.
        let used = size.div_ceil(8).min(words.len());
        let words = &mut words[..used];
        if !claim.cpus_into(words) || words.iter().all(|&word| word == 0) {
            let cpus = claim.cpus();
            let cpus = cpus.words().iter().chain(std::iter::repeat(&0));
            words
                .iter_mut()
                .zip(cpus)
                .for_each(|(to, from)| *to = *from);
        }
        // A cpu_set_t is an array of unsigned long: with 64 bits each the same as our words, in whatever
        // byte order; with 32 bits so on little-endian machines.
        let copied = size.min(size_of_val(words));
        // SAFETY: `set` has room for `size` bytes, and does not lie in `words`, which is our own.
        unsafe {
            set.cast::<u8>()
                .copy_from_nonoverlapping(words.as_ptr().cast(), copied);
            set.cast::<u8>().add(copied).write_bytes(0, size - copied);
        }
        Ok(count(words.iter().map(|word| word.count_ones()).sum()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_invade(min: c_uint, max: c_uint, placement: c_int) -> c_int {
    number(|| {
        // An enumeration arrives as whatever number C had in it.
        let numa = match placement {
            0 => Numa::Any,
            1 => Numa::Compact,
            2 => Numa::Scatter,
            _ => return Err(INVALID),
        };
        if min == 0 || min > max {
            return Err(INVALID);
        }
        let granted = Process::get().claim.invade(Cpus(min..=max), numa);
        Ok(count(granted.threads))
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_retreat(threads: c_uint) -> c_int {
    number(|| {
        if threads == 0 {
            return Err(INVALID);
        }
        Ok(count(Process::get().claim.retreat(threads).threads))
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_pin(pin: c_int) -> c_int {
    number(|| {
        Process::get().claim.pin_threads(pin != 0);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_coschedule(name: *const c_char, weight: c_uint) -> c_int {
    number(|| {
        let gang = if name.is_null() {
            None
        } else {
            // SAFETY: see the module.
            let name = unsafe { CStr::from_ptr(name) };
            let name = name.to_str().map_err(|_| INVALID)?;
            if weight == 0 {
                return Err(INVALID);
            }
            Some(Gang::named(name).weighing(weight))
        };
        Process::get().claim.coschedule(gang);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn corewise_add_progress(pieces: u64) {
    guarded((), || Process::get().claim.add_progress(pieces));
}

#[unsafe(no_mangle)]
extern "C" fn corewise_page() -> *const AtomicPtr<AtomicPtr<ClaimPage>> {
    // Nothing in it can panic: `otherwise` is only there to be a value.
    guarded(std::ptr::null(), || std::ptr::from_ref(process::slot()))
}
