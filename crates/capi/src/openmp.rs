//! OpenMP regions that follow the claim by themselves: libcorewise says where its claim stands, to the
//! adapters (libcorewise_shim), if they are in the process, linked before the OpenMP runtime or preloaded.
//!
//! This library cannot do it alone. A region's number of threads is decided where the compiled program calls
//! the runtime (`GOMP_parallel`, `__kmpc_fork_call`), and the loader binds these calls to the first library
//! that has them. The runtime's own settings are no way: each thread has its own number
//! (`omp_set_num_threads`), and nobody sets another thread's.
//!
//! Safety: the adapters' function is found by its name, which is ours alone, and says in its first argument
//! of which version it is expected to be. What it is given stays for ever.
#![allow(unsafe_code)]

use crate::answer::number;
use crate::process::{self, Process};
use corewise_abi::VERSION;
use corewise_abi::claim::ClaimPage;
use corewise_abi::reports::{Report, ReportsPage};
use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};

type Follow =
    unsafe extern "C" fn(u32, *const AtomicPtr<AtomicPtr<ClaimPage>>, *const Report) -> c_int;

/// What the adapters tell, which nobody reads here: they do nothing without a place to tell it.
static REPORTS: AtomicPtr<ReportsPage> = AtomicPtr::new(std::ptr::null_mut());

#[unsafe(no_mangle)]
extern "C" fn corewise_follow_openmp() -> c_int {
    number(|| {
        // SAFETY: a string that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"corewise_shim_follow".as_ptr()) };
        if found.is_null() {
            return Ok(0);
        }
        // SAFETY: see the module.
        let follow = unsafe { std::mem::transmute::<*mut libc::c_void, Follow>(found) };
        Process::get();
        let Some(report) = reports().take(1) else {
            return Ok(0);
        };
        // SAFETY: both stay for ever.
        Ok(unsafe { follow(u32::from(VERSION), process::slot(), report) })
    })
}

/// A page in this process's own memory. No lock: a forked child must not wait for one.
fn reports() -> &'static ReportsPage {
    // SAFETY: null, or made below, and never freed.
    if let Some(made) = unsafe { REPORTS.load(Ordering::Acquire).as_ref() } {
        return made;
    }
    let new = Box::into_raw(Box::new(ReportsPage::new()));
    let null = std::ptr::null_mut();
    match REPORTS.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed.
        Ok(_) => unsafe { &*new },
        Err(first) => {
            // SAFETY: made above and given to nobody; `first` is another thread's, never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*first
            }
        }
    }
}
