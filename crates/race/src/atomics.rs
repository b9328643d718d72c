//! Atomic operations: the compiler leaves them to the runtime.
//!
//! Each is executed with the strongest order, which is never less than was asked for. What it orders is taken
//! from what was asked for: a release is written down under the lock of the address while the operation is
//! executed, so that who sees its value sees what it releases.
//!
//! **Why it is sound.** The program promises that its pointers are to values of that size that only atomic
//! operations touch at the same time; a violation is the race that is searched for.

use crate::entry::told_where;
use crate::thread::Thread;
use corewise_analyses::race::kind;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

fn acquires(order: i32) -> bool {
    matches!(order & 0xff, 1 | 2 | 4 | 5)
}

fn releases(order: i32) -> bool {
    matches!(order & 0xff, 3..=5)
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Loads,
    Stores,
    Both,
}

/// Runs an operation in its place among others. `run` says what it gave, and whether it wrote.
fn operation<T>(
    address: u64,
    size: u32,
    does: Does,
    order: i32,
    code: u64,
    run: impl FnOnce() -> (T, bool),
) -> T {
    let Some(thread) = Thread::active() else {
        return run().0;
    };
    let writes = does != Does::Loads;
    let kind = kind::ATOMIC | if writes { kind::WRITE } else { 0 };
    thread.access(address, size, kind, code);
    if thread.alone && !writes || thread.orders_ignored > 0 {
        return run().0;
    }
    thread.quietly(|thread| {
        let mut share = thread.process.releases.lock(address);
        let (result, wrote) = run();
        let mut learned = false;
        if does != Does::Stores
            && let Some(released) = share.get(&address)
        {
            match acquires(order) {
                true => learned = thread.clock.acquire(&released.clock),
                // For an acquire fence that may follow.
                false => {
                    thread.fences.acquirable.join(&released.clock);
                }
            }
        }
        if wrote && releases(order) {
            let released = &mut share.entry(address).or_default().clock;
            match does {
                Does::Stores => thread.clock.release_alone(released),
                _ => thread.clock.release(released),
            }
        } else if wrote && !thread.fences.released.is_empty() {
            let released = &mut share.entry(address).or_default().clock;
            released.join(&thread.fences.released);
        }
        drop(share);
        thread.clock_changed(learned);
        result
    })
}

/// A weaker order is enough for what only one thread sees.
fn fence(order: i32) {
    std::sync::atomic::fence(SeqCst);
    if let Some(thread) = Thread::active() {
        thread.quietly(|thread| {
            let mut learned = false;
            if acquires(order) {
                let acquirable = std::mem::take(&mut thread.fences.acquirable);
                learned = thread.clock.acquire(&acquirable);
            }
            if releases(order) {
                let mut released = std::mem::take(&mut thread.fences.released);
                thread.clock.release_alone(&mut released);
                thread.fences.released = released;
            }
            thread.clock_changed(learned);
        });
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_atomic_thread_fence(order: i32) {
    fence(order);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_atomic_signal_fence(_order: i32) {
    std::sync::atomic::compiler_fence(SeqCst);
}

/// Exports the operations on one size.
macro_rules! sized {
    ($type:ty, $atomic:ty, $size:literal, $module:ident,
     $load:ident $store:ident $exchange:ident $add:ident $sub:ident $and:ident $or:ident $xor:ident
     $nand:ident $strong:ident $weak:ident $value:ident) => {
        mod $module {
            use super::*;

            told_where! {
                $load => load;
                $store => store;
                $exchange => exchange;
                $add => add;
                $sub => sub;
                $and => and;
                $or => or;
                $xor => xor;
                $nand => nand;
                $strong => compare;
                $weak => compare;
                $value => compare_value;
            }

            unsafe fn at<'a>(pointer: *mut $type) -> &'a $atomic {
                // SAFETY: see the module's head.
                unsafe { <$atomic>::from_ptr(pointer) }
            }

            unsafe extern "C-unwind" fn load(
                pointer: *mut $type, order: i32, _: u64, _: u64, _: u64, code: u64,
            ) -> $type {
                operation(pointer as u64, $size, Does::Loads, order, code, || {
                    // SAFETY: as above; so below.
                    (unsafe { at(pointer) }.load(SeqCst), false)
                })
            }

            unsafe extern "C-unwind" fn store(
                pointer: *mut $type, value: $type, order: i32, _: u64, _: u64, code: u64,
            ) {
                operation(pointer as u64, $size, Does::Stores, order, code, || {
                    (unsafe { at(pointer) }.store(value, SeqCst), true)
                });
            }

            /// Exports what changes a value, and gives the one before.
            macro_rules! changes {
                ($name:ident $method:ident) => {
                    unsafe extern "C-unwind" fn $name(
                        pointer: *mut $type, value: $type, order: i32, _: u64, _: u64, code: u64,
                    ) -> $type {
                        operation(pointer as u64, $size, Does::Both, order, code, || {
                            (unsafe { at(pointer) }.$method(value, SeqCst), true)
                        })
                    }
                };
            }
            changes!(exchange swap);
            changes!(add fetch_add);
            changes!(sub fetch_sub);
            changes!(and fetch_and);
            changes!(or fetch_or);
            changes!(xor fetch_xor);
            changes!(nand fetch_nand);

            fn exchanged(
                pointer: *mut $type, expected: $type, value: $type, order: i32, code: u64,
            ) -> Result<$type, $type> {
                operation(pointer as u64, $size, Does::Both, order, code, || {
                    let result =
                        unsafe { at(pointer) }.compare_exchange(expected, value, SeqCst, SeqCst);
                    (result, result.is_ok())
                })
            }

            unsafe extern "C-unwind" fn compare(
                pointer: *mut $type, expected: *mut $type, value: $type, order: i32, _failed: i32,
                code: u64,
            ) -> i32 {
                // SAFETY: the caller's own variable.
                match exchanged(pointer, unsafe { *expected }, value, order, code) {
                    Ok(_) => 1,
                    Err(found) => {
                        // SAFETY: as above.
                        unsafe { *expected = found };
                        0
                    }
                }
            }

            unsafe extern "C-unwind" fn compare_value(
                pointer: *mut $type, expected: $type, value: $type, order: i32, _failed: i32,
                code: u64,
            ) -> $type {
                match exchanged(pointer, expected, value, order, code) {
                    Ok(found) | Err(found) => found,
                }
            }
        }
    };
}

sized!(u8, AtomicU8, 1, of_8,
    __tsan_atomic8_load __tsan_atomic8_store __tsan_atomic8_exchange __tsan_atomic8_fetch_add
    __tsan_atomic8_fetch_sub __tsan_atomic8_fetch_and __tsan_atomic8_fetch_or __tsan_atomic8_fetch_xor
    __tsan_atomic8_fetch_nand __tsan_atomic8_compare_exchange_strong
    __tsan_atomic8_compare_exchange_weak __tsan_atomic8_compare_exchange_val);
sized!(u16, AtomicU16, 2, of_16,
    __tsan_atomic16_load __tsan_atomic16_store __tsan_atomic16_exchange __tsan_atomic16_fetch_add
    __tsan_atomic16_fetch_sub __tsan_atomic16_fetch_and __tsan_atomic16_fetch_or
    __tsan_atomic16_fetch_xor __tsan_atomic16_fetch_nand __tsan_atomic16_compare_exchange_strong
    __tsan_atomic16_compare_exchange_weak __tsan_atomic16_compare_exchange_val);
sized!(u32, AtomicU32, 4, of_32,
    __tsan_atomic32_load __tsan_atomic32_store __tsan_atomic32_exchange __tsan_atomic32_fetch_add
    __tsan_atomic32_fetch_sub __tsan_atomic32_fetch_and __tsan_atomic32_fetch_or
    __tsan_atomic32_fetch_xor __tsan_atomic32_fetch_nand __tsan_atomic32_compare_exchange_strong
    __tsan_atomic32_compare_exchange_weak __tsan_atomic32_compare_exchange_val);
sized!(u64, AtomicU64, 8, of_64,
    __tsan_atomic64_load __tsan_atomic64_store __tsan_atomic64_exchange __tsan_atomic64_fetch_add
    __tsan_atomic64_fetch_sub __tsan_atomic64_fetch_and __tsan_atomic64_fetch_or
    __tsan_atomic64_fetch_xor __tsan_atomic64_fetch_nand __tsan_atomic64_compare_exchange_strong
    __tsan_atomic64_compare_exchange_weak __tsan_atomic64_compare_exchange_val);

/// Sixteen bytes: by the processor's one instruction for that. Where they were called is not known: their
/// arguments need every register.
mod of_128 {
    use super::*;

    /// The value that was there, and whether it was exchanged.
    unsafe fn exchange_if(pointer: *mut u128, expected: u128, value: u128) -> (u128, bool) {
        let (mut low, mut high) = (expected as u64, (expected >> 64) as u64);
        let (new_low, new_high) = (value as u64, (value >> 64) as u64);
        let done: u8;
        // SAFETY: sixteen bytes, aligned, by the program's promise; `rbx` is kept.
        unsafe {
            std::arch::asm!(
                "xchg rbx, {new_low}",
                "lock cmpxchg16b [{pointer}]",
                "sete {done}",
                "mov rbx, {new_low}",
                new_low = inout(reg) new_low => _,
                pointer = in(reg) pointer,
                done = lateout(reg_byte) done,
                in("rcx") new_high,
                inout("rax") low,
                inout("rdx") high,
            );
        }
        (u128::from(high) << 64 | u128::from(low), done != 0)
    }

    unsafe fn change(
        pointer: *mut u128,
        does: Does,
        order: i32,
        to: impl Fn(u128) -> Option<u128>,
    ) -> u128 {
        operation(pointer as u64, 8, does, order, 0, || {
            let mut expected = 0;
            loop {
                let value = to(expected);
                // SAFETY: as above.
                let (found, done) =
                    unsafe { exchange_if(pointer, expected, value.unwrap_or(expected)) };
                if done || (value.is_none() && found == expected) {
                    return (found, value.is_some());
                }
                expected = found;
            }
        })
    }

    /// Exports what changes a value, and gives the one before.
    macro_rules! changes {
        ($($name:ident $to:expr;)*) => {$(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(pointer: *mut u128, value: u128, order: i32) -> u128 {
                let to: fn(u128, u128) -> u128 = $to;
                // SAFETY: as above; so below.
                unsafe { change(pointer, Does::Both, order, |before| Some(to(before, value))) }
            }
        )*};
    }

    changes! {
        __tsan_atomic128_exchange |_, value| value;
        __tsan_atomic128_fetch_add u128::wrapping_add;
        __tsan_atomic128_fetch_sub u128::wrapping_sub;
        __tsan_atomic128_fetch_and |before, value| before & value;
        __tsan_atomic128_fetch_or |before, value| before | value;
        __tsan_atomic128_fetch_xor |before, value| before ^ value;
        __tsan_atomic128_fetch_nand |before, value| !(before & value);
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __tsan_atomic128_load(pointer: *mut u128, order: i32) -> u128 {
        unsafe { change(pointer, Does::Loads, order, |_| None) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __tsan_atomic128_store(
        pointer: *mut u128,
        value: u128,
        order: i32,
    ) {
        unsafe { change(pointer, Does::Stores, order, |_| Some(value)) };
    }

    unsafe fn compare(pointer: *mut u128, expected: u128, value: u128, order: i32) -> (u128, bool) {
        operation(pointer as u64, 8, Does::Both, order, 0, || {
            let (found, done) = unsafe { exchange_if(pointer, expected, value) };
            ((found, done), done)
        })
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __tsan_atomic128_compare_exchange_strong(
        pointer: *mut u128,
        expected: *mut u128,
        value: u128,
        order: i32,
        _failed: i32,
    ) -> i32 {
        unsafe {
            let (found, done) = compare(pointer, *expected, value, order);
            *expected = found;
            i32::from(done)
        }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __tsan_atomic128_compare_exchange_weak(
        pointer: *mut u128,
        expected: *mut u128,
        value: u128,
        order: i32,
        failed: i32,
    ) -> i32 {
        unsafe { __tsan_atomic128_compare_exchange_strong(pointer, expected, value, order, failed) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __tsan_atomic128_compare_exchange_val(
        pointer: *mut u128,
        expected: u128,
        value: u128,
        order: i32,
        _failed: i32,
    ) -> u128 {
        unsafe { compare(pointer, expected, value, order).0 }
    }
}
