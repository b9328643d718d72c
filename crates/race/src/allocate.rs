//! The C library's allocation functions and C++'s, interposed: memory that is allocated begins another life,
//! and what is freed counts as written.
//!
//! **Why it is sound.** Arguments and results are passed on as they are. Until the real functions are found
//! (looking for them may allocate), the C library's own are used by their other names.

use crate::entry::told_where;
use crate::lives;
use crate::thread::Thread;
use corewise_analyses::inside::Next;
use corewise_analyses::race::{Block, FREED};
use libc::{c_int, c_void, size_t};

/// Of what is freed, so many bytes count as written: who uses the rest afterwards uses these, too, as a rule.
const FREED_BYTES: u64 = 1024;

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
    fn __libc_free(memory: *mut c_void);
    fn malloc_usable_size(memory: *mut c_void) -> size_t;
}

fn began(memory: *mut c_void, bytes: size_t, code: u64) -> *mut c_void {
    if !memory.is_null()
        && let Some(thread) = Thread::active()
    {
        thread.quietly(|thread| {
            // What is freed later is all of it: what is allocated, too, whatever was asked for.
            // SAFETY: a block that was allocated now.
            let usable = unsafe { malloc_usable_size(memory) }.max(bytes);
            let (start, bytes, usable) = (memory as u64, bytes as u64, usable as u64);
            let life = match thread.alone {
                true => lives::of(start),
                false => {
                    thread.forget(start, usable);
                    lives::next(start, usable)
                }
            };
            let block = Block {
                start,
                bytes,
                life,
                site: thread.site(code),
                thread: thread.clock.thread(),
            };
            thread.process.search.allocated(&block);
        });
    }
    memory
}

fn ends(memory: *mut c_void, code: u64) {
    if !memory.is_null()
        && let Some(thread) = Thread::active()
        && !thread.alone
    {
        // SAFETY: a block that the program frees now.
        let bytes = unsafe { malloc_usable_size(memory) } as u64;
        thread.range(memory as u64, bytes.min(FREED_BYTES), FREED, code);
    }
}

type Malloc = unsafe extern "C" fn(size_t) -> *mut c_void;
type Two = unsafe extern "C" fn(size_t, size_t) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, size_t, size_t) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);

static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static REALLOC: Next = Next::new(c"realloc");
static MEMALIGN: Next = Next::new(c"memalign");
static ALIGNED: Next = Next::new(c"aligned_alloc");
static POSIX: Next = Next::new(c"posix_memalign");
static FREE: Next = Next::new(c"free");

told_where! {
    /// The C library's.
    malloc => allocate;
    /// The C library's.
    calloc => allocate_zeroed;
    /// The C library's.
    realloc => change;
    /// The C library's.
    memalign => allocate_aligned;
    /// The C library's.
    aligned_alloc => allocate_aligned_c11;
    /// The C library's.
    posix_memalign => allocate_posix;
    /// The C library's.
    free => release;
}

/// Allocates by the real function of two numbers, or by the C library's own under its other name.
///
/// # Safety
/// `next` is the name of a function of this type.
unsafe fn by_two(next: &Next, own: Two, numbers: (size_t, size_t)) -> *mut c_void {
    // SAFETY: as above.
    let real = next
        .get()
        .map(|real| unsafe { std::mem::transmute::<*mut c_void, Two>(real) });
    // SAFETY: the caller's arguments.
    unsafe { real.unwrap_or(own)(numbers.0, numbers.1) }
}

unsafe extern "C" fn allocate(
    size: size_t,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    // SAFETY: a function of this type was found by this name; so below.
    let memory = unsafe {
        match MALLOC.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Malloc>(real)(size),
            None => __libc_malloc(size),
        }
    };
    began(memory, size, code)
}

unsafe extern "C" fn allocate_zeroed(
    count: size_t,
    size: size_t,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe { by_two(&CALLOC, __libc_calloc, (count, size)) };
    began(memory, count.saturating_mul(size), code)
}

unsafe extern "C" fn allocate_aligned(
    align: size_t,
    size: size_t,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe { by_two(&MEMALIGN, __libc_memalign, (align, size)) };
    began(memory, size, code)
}

unsafe extern "C" fn allocate_aligned_c11(
    align: size_t,
    size: size_t,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    // SAFETY: as above.
    let memory = unsafe { by_two(&ALIGNED, __libc_memalign, (align, size)) };
    began(memory, size, code)
}

unsafe extern "C" fn change(
    memory: *mut c_void,
    size: size_t,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    ends(memory, code);
    // SAFETY: as above.
    let memory = unsafe {
        match REALLOC.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Realloc>(real)(memory, size),
            None => __libc_realloc(memory, size),
        }
    };
    began(memory, size, code)
}

unsafe extern "C" fn allocate_posix(
    place: *mut *mut c_void,
    align: size_t,
    size: size_t,
    _: u64,
    _: u64,
    code: u64,
) -> c_int {
    // SAFETY: as above; `place` is the caller's to be written, if the function succeeds.
    unsafe {
        let Some(real) = POSIX.get() else {
            return libc::ENOMEM;
        };
        let result = std::mem::transmute::<*mut c_void, PosixMemalign>(real)(place, align, size);
        if result == 0 {
            began(*place, size, code);
        }
        result
    }
}

unsafe extern "C" fn release(memory: *mut c_void, _: u64, _: u64, _: u64, _: u64, code: u64) {
    ends(memory, code);
    // SAFETY: as above.
    unsafe {
        match FREE.get() {
            Some(real) => std::mem::transmute::<*mut c_void, Free>(real)(memory),
            None => __libc_free(memory),
        }
    }
}
