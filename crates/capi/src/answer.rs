//! What functions give back to C.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// An errno value: why a function failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errno(pub(crate) i32);

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// Not in a forked child.
pub(crate) const IN_CHILD: Errno = Errno(libc::ECHILD);

/// Runs a function's body; a panic in it, which the panic hook has said on standard error, becomes
/// `otherwise`. Errno is as it was before.
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    let before = errno::get();
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise);
    errno::set(before);
    result
}

/// As [`guarded`], for functions that give a number or a negative errno value.
pub(crate) fn number(body: impl FnOnce() -> Result<i32, Errno>) -> i32 {
    guarded(-libc::ENOTRECOVERABLE, || match body() {
        Ok(number) => number,
        Err(Errno(why)) => -why,
    })
}

/// A count as C's int.
pub(crate) fn count(of: u32) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}

/// The calling thread's errno.
///
/// Safety: the C library's pointer to it is valid for as long as the thread runs.
mod errno {
    #![allow(unsafe_code)]

    pub(super) fn get() -> i32 {
        // SAFETY: see the module.
        unsafe { *libc::__errno_location() }
    }

    pub(super) fn set(value: i32) {
        // SAFETY: see the module.
        unsafe { *libc::__errno_location() = value }
    }
}
