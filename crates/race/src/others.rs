//! What ThreadSanitizer's runtime exports besides, so that programs which ask for it run here, too: the
//! barrier of its own tests, and functions that do nothing here.
//!
//! **Why it is sound.** The barrier's word is the program's, for this alone, and aligned.

use libc::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Of a barrier's word, the lower half counts who came, the upper half says how many have to.
const HALF: u32 = 16;

/// A barrier that orders nothing: tests of detectors use it to have accesses come in a certain order.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_testonly_barrier_init(barrier: *mut u32, count: u32) {
    // SAFETY: see the module's head; so below.
    let word = unsafe { AtomicU32::from_ptr(barrier) };
    word.store(count << HALF, Ordering::SeqCst);
}

/// Waits until so many threads came as the barrier is for.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_testonly_barrier_wait(barrier: *mut u32) {
    let word = unsafe { AtomicU32::from_ptr(barrier) };
    let round = |state: u32| (state & ((1 << HALF) - 1)) / (state >> HALF).max(1);
    let before = word.fetch_add(1, Ordering::SeqCst);
    if round(before) != round(before + 1) {
        // SAFETY: wakes those below.
        unsafe { libc::syscall(libc::SYS_futex, barrier, libc::FUTEX_WAKE, c_int::MAX) };
        return;
    }
    loop {
        let state = word.load(Ordering::SeqCst);
        if round(state) != round(before) {
            return;
        }
        let forever = null::<libc::timespec>();
        // SAFETY: waits while the word is this.
        unsafe { libc::syscall(libc::SYS_futex, barrier, libc::FUTEX_WAIT, state, forever) };
    }
}

/// Exports what does nothing, and what it answers.
macro_rules! nothing {
    ($($name:ident($($argument:ty),*) $(-> $answer:ty = $value:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $argument),*) $(-> $answer)? { $($value)? }
    )*};
}

nothing! {
    __tsan_testonly_shadow_stack_current_size() -> usize = 0;
    __tsan_external_register_tag(*const c_char) -> *mut c_void = null_mut();
    __tsan_external_register_header(*mut c_void, *const c_char);
    __tsan_external_assign_tag(*mut c_void, *mut c_void);
    __tsan_locate_address(u64, *mut c_char, usize, *mut u64, *mut usize) -> *const c_char = null();
    __tsan_get_alloc_stack(u64, *mut u64, usize, *mut c_int, *mut c_void) -> c_int = 0;
    __sanitizer_print_stack_trace();
    __sanitizer_set_death_callback(extern "C" fn());
    __sanitizer_set_report_path(*const c_char);
    __sanitizer_set_report_fd(*mut c_void);
    __sanitizer_get_ownership(*const c_void) -> c_int = 1;
    __sanitizer_get_current_allocated_bytes() -> usize = 0;
    __sanitizer_get_heap_size() -> usize = 0;
    __sanitizer_get_free_bytes() -> usize = 0;
    __sanitizer_get_unmapped_bytes() -> usize = 0;
    __sanitizer_install_malloc_and_free_hooks(*mut c_void, *mut c_void) -> c_int = 0;
    __sanitizer_sandbox_on_notify(*mut c_void);
    __tsan_java_init(u64, u64);
    __tsan_java_fini() -> c_int = 0;
    __tsan_java_alloc(u64, u64);
    __tsan_java_free(u64, u64);
    __tsan_java_find(*mut u64, u64) -> u64 = 0;
    __tsan_java_move(u64, u64, u64);
    __tsan_java_finalize();
    __tsan_java_mutex_lock(u64);
    __tsan_java_mutex_unlock(u64);
    __tsan_java_mutex_read_lock(u64);
    __tsan_java_mutex_read_unlock(u64);
    __tsan_java_mutex_lock_rec(u64, c_int);
    __tsan_java_mutex_unlock_rec(u64) -> c_int = 1;
    RunningOnValgrind() -> c_int = 0;
    AnnotateNoOp(*const c_char, c_int, *const c_void);
    AnnotateThreadName(*const c_char, c_int, *const c_char);
    AnnotateTraceMemory(*const c_char, c_int, u64);
    AnnotateNewMemory(*const c_char, c_int, u64, usize);
    AnnotateMemoryIsInitialized(*const c_char, c_int, u64, usize);
    AnnotateMemoryIsUninitialized(*const c_char, c_int, u64, usize);
    AnnotatePublishMemoryRange(*const c_char, c_int, u64, usize);
    AnnotateUnpublishMemoryRange(*const c_char, c_int, u64, usize);
    AnnotateMutexIsNotPHB(*const c_char, c_int, u64);
    AnnotateMutexIsUsedAsCondVar(*const c_char, c_int, u64);
    AnnotatePCQCreate(*const c_char, c_int, u64);
    AnnotatePCQDestroy(*const c_char, c_int, u64);
    AnnotatePCQGet(*const c_char, c_int, u64);
    AnnotatePCQPut(*const c_char, c_int, u64);
    AnnotateExpectRace(*const c_char, c_int, u64, *const c_char);
    AnnotateFlushExpectedRaces(*const c_char, c_int);
    AnnotateCondVarSignal(*const c_char, c_int, u64);
    AnnotateCondVarSignalAll(*const c_char, c_int, u64);
    AnnotateCondVarWait(*const c_char, c_int, u64, u64);
}
