//! Functions of which the C library has an old and a new version. A program that is linked with
//! ThreadSanitizer's runtime asks for them without a version, since that has none; the loader would give it
//! the oldest. These go on to the one that is meant. All of them are in the C library itself: looking for a name
//! that is nowhere, this early, ends in glibc freeing its own message twice.
//!
//! **Why it is sound.** Each jumps to the function of its name, with whatever it was called with, and leaves
//! nothing on the stack.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Exports functions that jump to the newest of their names.
macro_rules! newest {
    ($($name:ident $place:ident $text:literal;)*) => {
        $(
            static $place: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!("mov rax, [rip + {place}]", "jmp rax", place = sym $place)
            }
        )*

        const ALL: &[(&CStr, &AtomicPtr<c_void>)] = &[$(($text, &$place)),*];
    };
}

newest! {
    pthread_attr_getaffinity_np GETAFFINITY c"pthread_attr_getaffinity_np";
    sched_getaffinity SCHED_GETAFFINITY c"sched_getaffinity";
    fmemopen FMEMOPEN c"fmemopen";
    glob GLOB c"glob";
    glob64 GLOB64 c"glob64";
    posix_spawn SPAWN c"posix_spawn";
    posix_spawnp SPAWNP c"posix_spawnp";
    realpath REALPATH c"realpath";
    regexec REGEXEC c"regexec";
}

/// Finds them; `dlsym` gives the newest of each.
pub(crate) fn begin() {
    for (name, place) in ALL {
        // SAFETY: a name that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        place.store(found, Ordering::Release);
    }
}
