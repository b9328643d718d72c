//! The keeper of a page: a robust mutex in it, by which readers without a connection learn that the one
//! who keeps the page has died. The kernel marks the mutex when the thread that holds it ends, also by
//! SIGKILL.
//!
//! Safety: the mutex lies in a page that is never unmapped (`&'static`), and that nobody else can write
//! to (sealed), since the C library links the robust mutexes that a thread holds into a list through the
//! mutexes themselves. It is initialised before anybody can lock it, locked once, and never unlocked or
//! destroyed: what ends it is the end of its thread. Its size and alignment are checked at compile time.
#![allow(unsafe_code)]

use corewise_abi::claim::{ClaimPage, KEEPER_WORDS};
use rustix::io::Errno;
use std::mem::MaybeUninit;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 4 * KEEPER_WORDS);
const _: () = assert!(align_of::<libc::pthread_mutex_t>() <= 8);

/// Makes the calling thread the page's keeper: when it ends, [`ClaimPage::keeper_has_died`] is true for
/// all who have mapped the page. Call it once for a page, from a thread that lives as long as the page is
/// to be kept.
///
/// # Errors
/// Where the C library knows no robust mutexes.
pub(crate) fn keep(page: &'static ClaimPage) -> Result<(), Errno> {
    let mutex: *mut libc::pthread_mutex_t = page.keeper().as_ptr().cast_mut().cast();
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: see the module; the attributes are initialised by the first call, and used for as long as
    // they live. All of the mutex's bytes are in atomics, whose memory may be written through.
    unsafe {
        done(libc::pthread_mutexattr_init(attributes))?;
        done(libc::pthread_mutexattr_setpshared(
            attributes,
            libc::PTHREAD_PROCESS_SHARED,
        ))?;
        done(libc::pthread_mutexattr_setrobust(
            attributes,
            libc::PTHREAD_MUTEX_ROBUST,
        ))?;
        done(libc::pthread_mutex_init(mutex, attributes))?;
        done(libc::pthread_mutexattr_destroy(attributes))?;
        done(libc::pthread_mutex_lock(mutex))
    }
}

fn done(error: i32) -> Result<(), Errno> {
    match error {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(error)),
    }
}
