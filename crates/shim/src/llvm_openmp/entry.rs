//! The functions that are interposed: each asks the adapter and then jumps to the real function, with the
//! arguments and the return address that it was called with; [`crate::entry`] says why.
//!
//! Safety: as there. `__kmpc_fork_call` takes as many arguments as the region's body has: the registers
//! for integers, `al` (how many there are in vector registers: none) and the stack stay as they are. It returns
//! nothing.

use super::{demand, demand_more, region, serial};
use crate::libgomp::nowhere;
use crate::timing::{ROOM, region_ends};
use std::arch::naked_asm;

/// Asks [`region`] with the location (the first argument) and the region's body (the third). Where the region is
/// timed, the function is called, and [`region_ends`] after it; the arguments on the stack, of which the second
/// argument says how many there are, are passed once more. Our frame then lies under the region's code, described to
/// whoever unwinds through it. An exception cannot: it may not leave a region.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __kmpc_fork_call() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, {room}",
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "mov rsi, rdx",
        "lea rdx, [rbp - {room}]",
        "call {region}",
        "mov r11, rax",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "cmp qword ptr [rbp - {room}], 0",
        "jne 2f",
        "leave",
        ".cfi_remember_state",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "test r11, r11",
        "jz {nowhere}",
        "jmp r11",
        ".cfi_restore_state",
        "2:",
        // Three of the region's arguments are in registers.
        "movsxd r10, esi",
        "sub r10, 3",
        "jle 4f",
        // The stack stays aligned.
        "test r10, 1",
        "jz 3f",
        "sub rsp, 8",
        "3:",
        "push qword ptr [rbp + 8 + 8 * r10]",
        "dec r10",
        "jnz 3b",
        "4:",
        "call r11",
        "lea rdi, [rbp - {room}]",
        "call {region_ends}",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        room = const ROOM,
        region = sym region,
        region_ends = sym region_ends,
        nowhere = sym nowhere,
    )
}

/// Asks [`demand`] with the thread (the second argument), the number (the third), which the answer
/// replaces, and the return address.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __kmpc_push_num_threads() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 24",
        "mov edi, esi",
        "mov esi, edx",
        "mov rdx, [rsp + 24]",
        "call {demand}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -24",
        "test rax, rax",
        "jz {nowhere}",
        "jmp rax",
        ".cfi_endproc",
        demand = sym demand,
        nowhere = sym nowhere,
    )
}

/// Interposes functions of which nothing changes: tells `$told` the function's number, the return address
/// and the second to fourth arguments (the thread, and numbers).
macro_rules! entries {
    ($($number:literal $name:ident => $told:ident)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "sub rsp, 16",
                ".cfi_adjust_cfa_offset 56",
                "mov r8, rcx",
                "mov ecx, edx",
                "mov edx, esi",
                "mov rsi, [rsp + 56]",
                concat!("mov edi, ", $number),
                "call {told}",
                "add rsp, 16",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -56",
                "test rax, rax",
                "jz {nowhere}",
                "jmp rax",
                ".cfi_endproc",
                told = sym $told,
                nowhere = sym nowhere,
            )
        }
    )*};
}

// The numbers are those of `NAMES`.
entries! {
    1 __kmpc_serialized_parallel => serial
    3 __kmpc_push_num_threads_strict => demand_more
    4 __kmpc_push_num_threads_list => demand_more
    5 __kmpc_push_num_threads_list_strict => demand_more
}
