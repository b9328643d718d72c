//! The C library's allocation functions and C++'s, interposed: memory that is allocated begins another life,
//! and what is freed counts as written.
//!
//! **Why it is sound.** Arguments and results are passed on as they are ([`allocator`]).

use crate::entry::told_where;
use crate::lives;
use crate::process;
use crate::thread::Thread;
use corewise_analyses::inside::allocator;
use corewise_analyses::race::{Block, FREED};
use libc::{c_int, c_void, size_t};

/// Of what is freed, so many bytes count as written. Of the rest, chunks of which an access was recorded do: how they were
/// used has not to be remembered any longer.
const FREED_BYTES: u64 = 1024;

unsafe extern "C" {
    fn malloc_usable_size(memory: *mut c_void) -> size_t;
}

fn began(memory: *mut c_void, bytes: size_t, code: u64) -> *mut c_void {
    if memory.is_null() {
        return memory;
    }
    // What is freed later is all of it: what is allocated, too, whatever was asked for.
    // SAFETY: a block that was allocated now.
    let usable = || unsafe { malloc_usable_size(memory) }.max(bytes) as u64;
    if let Some(thread) = Thread::active() {
        thread.quietly(|thread| {
            let (start, bytes, usable) = (memory as u64, bytes as u64, usable());
            let life = match thread.alone {
                true => lives::of(start),
                false => thread.next_life(start, usable),
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
    } else if process::current().is_some() {
        // By the C library while it creates a thread, or by a thread that is not known: whoever frees it may be.
        lives::next(memory as u64, usable());
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
        let (start, end) = (memory as u64, memory as u64 + bytes);
        let rest = end.min(start + FREED_BYTES);
        thread.range(start, rest - start, FREED, code);
        for (start, end) in lives::accessed(rest, end) {
            thread.range(start, end - start, FREED, code);
        }
    }
}

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

unsafe extern "C" fn allocate(
    size: size_t,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::malloc(size) };
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
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::calloc(count, size) };
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
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::memalign(align, size) };
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
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::aligned_alloc(align, size) };
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
    // SAFETY: the caller's arguments.
    let memory = unsafe { allocator::realloc(memory, size) };
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
    // SAFETY: the caller's arguments; `place` is written if the function succeeds.
    unsafe {
        let result = allocator::posix_memalign(place, align, size);
        if result == 0 {
            began(*place, size, code);
        }
        result
    }
}

unsafe extern "C" fn release(memory: *mut c_void, _: u64, _: u64, _: u64, _: u64, code: u64) {
    ends(memory, code);
    // SAFETY: the caller's argument.
    unsafe { allocator::free(memory) }
}
