//! Libraries that are unloaded: they are entered before, so that their functions have names.
//!
//! **Why it is sound.** The argument and the result are passed on as they are; the library's destructors, which may
//! be anything, run in the real function, and nothing of ours has to be cleaned up then.

use crate::process;
use corewise_analyses::inside::{Next, Quiet};
use libc::{c_int, c_void};

type Close = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlclose(library: *mut c_void) -> c_int {
    static NEXT: Next = Next::new(c"dlclose");
    if let Some(process) = process::current() {
        let _quiet = Quiet::now();
        process.recording.look_at_modules();
    }
    let Some(real) = NEXT.get() else {
        return -1;
    };
    // SAFETY: a function of this type has this name.
    unsafe { std::mem::transmute::<*mut c_void, Close>(real)(library) }
}
