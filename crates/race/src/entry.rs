//! What the compiler puts in at each access to memory, and at the begin and end of each function.
//!
//! **Why it is sound.** The functions are entered by a few instructions that hand on where they were called;
//! `r9` is free for that, since none has more than five arguments. What is pointed to is not touched, but for
//! [`__tsan_vptr_update`]'s, which the program is about to write.

use crate::signals;
use crate::thread::{Thread, stack};
use corewise_analyses::race::kind;
use std::arch::naked_asm;

/// Exports functions that jump to others with the return address as their sixth argument.
macro_rules! told_where {
    ($($(#[$doc:meta])* $name:ident => $body:path;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!("mov r9, [rsp]", "jmp {body}", body = sym $body)
        }
    )*};
}
pub(crate) use told_where;

#[inline(always)]
fn access(address: u64, size: u32, kind: u8, code: u64) {
    if let Some(thread) = Thread::existing() {
        thread.access(address, size, kind, code);
    }
}

/// Exports the accesses of one size: first what is called, then what it jumps to.
macro_rules! accesses {
    ($($name:ident $unaligned:ident $body:ident $size:literal $kind:expr;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!("mov rsi, [rsp]", "jmp {body}", body = sym $body)
        }
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $unaligned() {
            naked_asm!("mov rsi, [rsp]", "jmp {body}", body = sym $body)
        }
        extern "C-unwind" fn $body(address: u64, code: u64) {
            access(address, $size, $kind, code);
        }
    )*};
}

accesses! {
    __tsan_read1 __tsan_unaligned_read1 read1 1 0;
    __tsan_read2 __tsan_unaligned_read2 read2 2 0;
    __tsan_read4 __tsan_unaligned_read4 read4 4 0;
    __tsan_read8 __tsan_unaligned_read8 read8 8 0;
    __tsan_write1 __tsan_unaligned_write1 write1 1 kind::WRITE;
    __tsan_write2 __tsan_unaligned_write2 write2 2 kind::WRITE;
    __tsan_write4 __tsan_unaligned_write4 write4 4 kind::WRITE;
    __tsan_write8 __tsan_unaligned_write8 write8 8 kind::WRITE;
    __tsan_volatile_read1 __tsan_unaligned_volatile_read1 volatile_read1 1 0;
    __tsan_volatile_read2 __tsan_unaligned_volatile_read2 volatile_read2 2 0;
    __tsan_volatile_read4 __tsan_unaligned_volatile_read4 volatile_read4 4 0;
    __tsan_volatile_read8 __tsan_unaligned_volatile_read8 volatile_read8 8 0;
    __tsan_volatile_write1 __tsan_unaligned_volatile_write1 volatile_write1 1 kind::WRITE;
    __tsan_volatile_write2 __tsan_unaligned_volatile_write2 volatile_write2 2 kind::WRITE;
    __tsan_volatile_write4 __tsan_unaligned_volatile_write4 volatile_write4 4 kind::WRITE;
    __tsan_volatile_write8 __tsan_unaligned_volatile_write8 volatile_write8 8 kind::WRITE;
    __tsan_read_write1 __tsan_unaligned_read_write1 read_write1 1 kind::WRITE;
    __tsan_read_write2 __tsan_unaligned_read_write2 read_write2 2 kind::WRITE;
    __tsan_read_write4 __tsan_unaligned_read_write4 read_write4 4 kind::WRITE;
    __tsan_read_write8 __tsan_unaligned_read_write8 read_write8 8 kind::WRITE;
}

extern "C-unwind" fn wide(address: u64, kind: u8, code: u64) {
    access(address, 8, kind, code);
    access(address + 8, 8, kind, code);
}

/// Exports the accesses of sixteen bytes.
macro_rules! wide_accesses {
    ($($name:ident $kind:expr;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "mov rdx, [rsp]",
                "mov esi, {kind}",
                "jmp {wide}",
                kind = const $kind as u32,
                wide = sym wide,
            )
        }
    )*};
}

wide_accesses! {
    __tsan_read16 0;
    __tsan_write16 kind::WRITE;
    __tsan_unaligned_read16 0;
    __tsan_unaligned_write16 kind::WRITE;
    __tsan_volatile_read16 0;
    __tsan_volatile_write16 kind::WRITE;
    __tsan_unaligned_volatile_read16 0;
    __tsan_unaligned_volatile_write16 kind::WRITE;
    __tsan_read_write16 kind::WRITE;
    __tsan_unaligned_read_write16 kind::WRITE;
}

/// Exports the accesses that say themselves where they were made, as their second argument.
macro_rules! placed {
    ($($name:ident $size:literal $kind:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name(address: u64, code: u64) {
            match $size {
                16 => wide(address, $kind, code),
                size => access(address, size, $kind, code),
            }
        }
    )*};
}

placed! {
    __tsan_read1_pc 1 0;
    __tsan_read2_pc 2 0;
    __tsan_read4_pc 4 0;
    __tsan_read8_pc 8 0;
    __tsan_read16_pc 16 0;
    __tsan_write1_pc 1 kind::WRITE;
    __tsan_write2_pc 2 kind::WRITE;
    __tsan_write4_pc 4 kind::WRITE;
    __tsan_write8_pc 8 kind::WRITE;
    __tsan_write16_pc 16 kind::WRITE;
}

told_where! {
    /// A range is read.
    __tsan_read_range => read_range;
    /// A range is written.
    __tsan_write_range => write_range;
    /// The pointer to an object's virtual functions is written.
    __tsan_vptr_update => vptr_update;
    /// It is read.
    __tsan_vptr_read => vptr_read;
}

fn range(address: u64, bytes: u64, kind: u8, code: u64) {
    if let Some(thread) = Thread::existing() {
        thread.range(address, bytes, kind, code);
    }
}

extern "C-unwind" fn read_range(address: u64, bytes: u64, _: u64, _: u64, _: u64, code: u64) {
    range(address, bytes, 0, code);
}

extern "C-unwind" fn write_range(address: u64, bytes: u64, _: u64, _: u64, _: u64, code: u64) {
    range(address, bytes, kind::WRITE, code);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_read_range_pc(address: u64, bytes: u64, code: u64) {
    range(address, bytes, 0, code);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_write_range_pc(address: u64, bytes: u64, code: u64) {
    range(address, bytes, kind::WRITE, code);
}

unsafe extern "C-unwind" fn vptr_update(
    address: *const u64,
    value: u64,
    _: u64,
    _: u64,
    _: u64,
    code: u64,
) {
    // A constructor or destructor that writes what is there already changes nothing.
    // SAFETY: the program is about to write there.
    if unsafe { address.read_volatile() } != value {
        access(address as u64, 8, kind::WRITE, code);
    }
}

extern "C-unwind" fn vptr_read(address: u64, _: u64, _: u64, _: u64, _: u64, code: u64) {
    access(address, 8, 0, code);
}

told_where! {
    /// A load that the program leaves to the runtime, from where it likes.
    __sanitizer_unaligned_load16 => load_unaligned_16;
    /// The same.
    __sanitizer_unaligned_load32 => load_unaligned_32;
    /// The same.
    __sanitizer_unaligned_load64 => load_unaligned_64;
    /// A store to where it likes.
    __sanitizer_unaligned_store16 => store_unaligned_16;
    /// The same.
    __sanitizer_unaligned_store32 => store_unaligned_32;
    /// The same.
    __sanitizer_unaligned_store64 => store_unaligned_64;
}

/// Exports these of one size: first what is called, then what it jumps to.
macro_rules! unaligned {
    ($($load:ident $store:ident $type:ty;)*) => {$(
        unsafe extern "C-unwind" fn $load(
            address: *const $type, _: u64, _: u64, _: u64, _: u64, code: u64,
        ) -> $type {
            access(address as u64, size_of::<$type>() as u32, 0, code);
            // SAFETY: the program's own address; so below.
            unsafe { address.read_unaligned() }
        }
        unsafe extern "C-unwind" fn $store(
            address: *mut $type, value: $type, _: u64, _: u64, _: u64, code: u64,
        ) {
            access(address as u64, size_of::<$type>() as u32, kind::WRITE, code);
            unsafe { address.write_unaligned(value) };
        }
    )*};
}

unaligned! {
    load_unaligned_16 store_unaligned_16 u16;
    load_unaligned_32 store_unaligned_32 u32;
    load_unaligned_64 store_unaligned_64 u64;
}

/// An access to an object of a library, which says where its caller is.
#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_external_read(address: u64, code: u64, _tag: u64) {
    access(address, 1, 0, code);
}

/// The same.
#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_external_write(address: u64, code: u64, _tag: u64) {
    access(address, 1, kind::WRITE, code);
}

/// A function begins, which was called from there.
#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_func_entry(code: u64) {
    if let Some(thread) = Thread::existing() {
        thread.enter(code, stack());
        signals::enters(thread, code);
    }
}

/// A function ends.
#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_func_exit() {
    if let Some(thread) = Thread::existing() {
        thread.exit();
    }
}

/// Called at the start of each file's code.
#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_init() {}
