//! The functions that are interposed. Each asks its adapter and then jumps to the real function, with the
//! arguments and the return address that it was called with: no frame of ours is left under the
//! program's code, which may throw, be cancelled, call `longjmp` or ask who called it. (Regions that are
//! timed are called, not jumped to: see [`begin_timed_region`].)
//!
//! Safety: the code follows the System V ABI of x86-64. On entry the stack is 8 bytes off its alignment;
//! six registers and 8 bytes more align it for the call. All registers that may carry arguments of these
//! functions (integers and pointers only) are saved around it; `rax`, `r10` and `r11` are free.

use crate::libgomp::{next_piece, nowhere, region, timed_region};
use crate::timing::region_ends;
use std::arch::naked_asm;

/// Asks [`region`] with the function's number (in `eax`), the region's body (the first argument) and the
/// number of threads (the third), which the answer replaces.
#[unsafe(naked)]
unsafe extern "C" fn begin_region() {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 56",
        "mov rsi, rdi",
        "mov edi, eax",
        "call {region}",
        "mov r11, rax",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rax",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -56",
        "test r11, r11",
        "jz {nowhere}",
        "jmp r11",
        ".cfi_endproc",
        region = sym region,
        nowhere = sym nowhere,
    )
}

/// As [`begin_region`], for functions that return when the region has ended and whose arguments are all in
/// registers. Where the region is timed, the function is called, and [`region_ends`] after it: 40 bytes of our
/// stack then lie under the region's code, described to whoever unwinds through them. An exception cannot: it may
/// not leave a region.
#[unsafe(naked)]
unsafe extern "C" fn begin_timed_region() {
    naked_asm!(
        ".cfi_startproc",
        // What is timed, and room for what the function returns.
        "sub rsp, 40",
        ".cfi_adjust_cfa_offset 40",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        ".cfi_adjust_cfa_offset 48",
        "mov rsi, rdi",
        "mov edi, eax",
        "lea rcx, [rsp + 48]",
        "call {timed_region}",
        "mov r11, rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rax",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -48",
        "test r11, r11",
        "jz {nowhere}",
        "cmp qword ptr [rsp], 0",
        "jne 2f",
        "add rsp, 40",
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -40",
        "jmp r11",
        ".cfi_restore_state",
        "2:",
        "call r11",
        "mov [rsp + 32], rax",
        "mov rdi, rsp",
        "call {region_ends}",
        "mov rax, [rsp + 32]",
        "add rsp, 40",
        ".cfi_adjust_cfa_offset -40",
        "ret",
        ".cfi_endproc",
        timed_region = sym timed_region,
        region_ends = sym region_ends,
        nowhere = sym nowhere,
    )
}

/// Asks [`next_piece`] with the function's number (in `eax`) and the return address; without an answer,
/// returns false.
#[unsafe(naked)]
unsafe extern "C" fn begin_piece() {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        ".cfi_adjust_cfa_offset 24",
        "mov edi, eax",
        "mov rsi, [rsp + 24]",
        "call {next_piece}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -24",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        ".cfi_endproc",
        next_piece = sym next_piece,
    )
}

/// Interposes functions: each puts its number in `libgomp::NAMES` into `eax` and goes on.
macro_rules! entries {
    ($next:ident: $($number:literal $name:ident)*) => {$(
        const _: () = assert!(same($number, stringify!($name)));
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's name")]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                "endbr64",
                concat!("mov eax, ", $number),
                "jmp {next}",
                next = sym $next,
            )
        }
    )*};
}

entries! { begin_region:
    6 GOMP_parallel_start
    8 GOMP_parallel_sections
    9 GOMP_parallel_sections_start
    10 GOMP_parallel_loop_static
    11 GOMP_parallel_loop_static_start
    12 GOMP_parallel_loop_dynamic
    13 GOMP_parallel_loop_dynamic_start
    14 GOMP_parallel_loop_guided
    15 GOMP_parallel_loop_guided_start
    16 GOMP_parallel_loop_runtime
    17 GOMP_parallel_loop_runtime_start
    18 GOMP_parallel_loop_nonmonotonic_dynamic
    19 GOMP_parallel_loop_nonmonotonic_guided
    20 GOMP_parallel_loop_nonmonotonic_runtime
    21 GOMP_parallel_loop_maybe_nonmonotonic_runtime
    22 GOMP_teams_reg
}

entries! { begin_timed_region:
    5 GOMP_parallel
    7 GOMP_parallel_reductions
}

entries! { begin_piece:
    23 GOMP_loop_dynamic_next
    24 GOMP_loop_guided_next
    25 GOMP_loop_nonmonotonic_dynamic_next
    26 GOMP_loop_nonmonotonic_guided_next
    27 GOMP_loop_ull_dynamic_next
    28 GOMP_loop_ull_guided_next
    29 GOMP_loop_ull_nonmonotonic_dynamic_next
    30 GOMP_loop_ull_nonmonotonic_guided_next
}

/// Whether a number and its name are those of `libgomp::NAMES`; checked when this is compiled.
const fn same(number: usize, name: &str) -> bool {
    let known = crate::libgomp::NAMES[number].to_bytes();
    let name = name.as_bytes();
    let mut i = 0;
    while i < name.len() && i < known.len() && name[i] == known[i] {
        i += 1;
    }
    i == name.len() && i == known.len()
}
