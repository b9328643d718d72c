//! The functions that are interposed. While nothing is counted, each jumps to the real one, with the
//! arguments and the return address that it was called with.
//!
//! Where a call is timed, the real function is called, and 96 bytes of our stack lie under it ([`timed`]). They
//! are described to whoever unwinds through them: cancelling a thread does so in `pthread_cond_wait`, and ends
//! the wait by way of [`personality`]. There is nothing else in the frame that would have to be cleaned up.
//!
//! Safety: the code follows the System V ABI of x86-64. On entry the stack is 8 bytes off its alignment. The
//! functions have up to four arguments, integers and pointers only; `rax`, `r10` and `r11` are free.

use super::threads::{begins as thread_begins, creation, named};
use super::{COUNT, COUNTING, FUNCTIONS, REAL, Wait, begins, ends, real_for, unwound};
use libc::{c_int, c_void};
use std::arch::naked_asm;

/// Calls the real function of the number in `eax`, between [`begins`] and [`ends`].
#[unsafe(naked)]
unsafe extern "C" fn timed() {
    naked_asm!(
        ".cfi_startproc",
        // A pointer to the function, relative to where it stands, in four bytes.
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 88",
        ".cfi_adjust_cfa_offset 88",
        "mov [rsp + 32], rdi",
        "mov [rsp + 40], rsi",
        "mov [rsp + 48], rdx",
        "mov [rsp + 56], rcx",
        "mov rcx, rdi",
        "mov rdx, [rsp + 88]",
        "mov rsi, rsp",
        "mov edi, eax",
        "call {begins}",
        "test rax, rax",
        "jz 2f",
        "mov rdi, [rsp + 32]",
        "mov rsi, [rsp + 40]",
        "mov rdx, [rsp + 48]",
        "mov rcx, [rsp + 56]",
        "call rax",
        "mov [rsp + 64], eax",
        "mov rdi, rsp",
        "mov esi, eax",
        "call {ends}",
        "mov eax, [rsp + 64]",
        "add rsp, 88",
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -88",
        "ret",
        ".cfi_restore_state",
        "2:",
        "mov eax, [rsp + {answer}]",
        "add rsp, 88",
        ".cfi_adjust_cfa_offset -88",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
        begins = sym begins,
        ends = sym ends,
        answer = const std::mem::offset_of!(Wait, answer),
    )
}

const _: () = assert!(size_of::<Wait>() <= 32);

unsafe extern "C" {
    /// Of the compiler's own library, which Rust's needs, too: where the stack ends in the frame that is told
    /// (its name is that of the end of the frame that it called).
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

/// Told by whoever unwinds through the frame of [`timed`], once while it looks for a handler and once while it
/// cleans up.
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut c_void,
    context: *mut c_void,
) -> c_int {
    const CLEANUP_PHASE: c_int = 2;
    const CONTINUE: c_int = 8;
    if actions & CLEANUP_PHASE != 0 {
        // SAFETY: the context that we were given.
        let stack = unsafe { _Unwind_GetCFA(context) };
        unwound(stack as *const Wait);
    }
    CONTINUE
}

/// Goes on to the real function of the number in `eax` that its caller means.
#[unsafe(naked)]
unsafe extern "C" fn meant() {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 40",
        "mov edi, eax",
        "mov rsi, [rsp + 40]",
        "call {real_for}",
        "add rsp, 8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -40",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov eax, {missing}",
        "ret",
        ".cfi_endproc",
        real_for = sym real_for,
        missing = const libc::ENOSYS,
    )
}

/// Interposes functions: jumps to the real one while nothing is counted or, by `$look`, nobody would wait.
macro_rules! entries {
    ($look:literal: $($number:literal $name:ident)*) => {$(
        const _: () = assert!(same($number, stringify!($name)));
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                "endbr64",
                "mov rax, [rip + {counting}]",
                "test rax, rax",
                "jz 2f",
                "cmp dword ptr [rax], 0",
                "jne 3f",
                "2:",
                concat!("mov rax, [rip + {real} + 8 * ", $number, "]"),
                "test rax, rax",
                "jz 4f",
                "jmp rax",
                "3:",
                $look,
                concat!("mov eax, ", $number),
                "jmp {timed}",
                "4:",
                concat!("mov eax, ", $number),
                "jmp {meant}",
                counting = sym COUNTING,
                real = sym REAL,
                timed = sym timed,
                meant = sym meant,
            )
        }
    )*};
}

// Mutexes that nobody holds.
entries! { "cmp dword ptr [rdi], 0; je 2b":
    0 pthread_mutex_lock
    1 pthread_mutex_timedlock
    2 pthread_mutex_clocklock
}

// Semaphores that can be taken.
entries! { "cmp dword ptr [rdi], 0; jne 2b":
    9 sem_wait
    10 sem_timedwait
    11 sem_clockwait
}

entries! { "":
    3 pthread_rwlock_rdlock
    4 pthread_rwlock_wrlock
    7 pthread_cond_clockwait
    8 pthread_barrier_wait
    12 pthread_rwlock_timedrdlock
    13 pthread_rwlock_timedwrlock
    14 pthread_rwlock_clockrdlock
    15 pthread_rwlock_clockwrlock
}

/// The same for functions of which there are two versions.
macro_rules! versioned {
    ($($number:literal $name:ident)*) => {$(
        const _: () = assert!(same($number, stringify!($name)));
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                "endbr64",
                "mov r10, [rip + {counting}]",
                concat!("mov eax, ", $number),
                "test r10, r10",
                "jz {meant}",
                "cmp dword ptr [r10], 0",
                "je {meant}",
                "jmp {timed}",
                counting = sym COUNTING,
                timed = sym timed,
                meant = sym meant,
            )
        }
    )*};
}

versioned! {
    5 pthread_cond_wait
    6 pthread_cond_timedwait
}

/// Whether a number and its name are those of [`FUNCTIONS`]; checked when this is compiled.
const fn same(number: usize, name: &str) -> bool {
    let known = FUNCTIONS[number].name.to_bytes();
    let name = name.as_bytes();
    let mut i = 0;
    while i < name.len() && i < known.len() && name[i] == known[i] {
        i += 1;
    }
    i == name.len() && i == known.len() && number < COUNT
}

/// Tells [`creation`] who creates a thread, and goes on to what it answers.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_create() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 40",
        "mov rdi, [rsp + 40]",
        "call {creation}",
        "add rsp, 8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -40",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        // No thread can be had.
        "mov eax, {again}",
        "ret",
        ".cfi_endproc",
        creation = sym creation,
        again = const libc::EAGAIN,
    )
}

/// Where a thread begins that is counted: goes on to the program's function, with its argument.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn begin_thread() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {thread_begins}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        thread_begins = sym thread_begins,
    )
}

/// Tells [`named`] the name (the second argument), and goes on to what it answers.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_setname_np() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 24",
        "mov rdi, rsi",
        "call {named}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -24",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov eax, {missing}",
        "ret",
        ".cfi_endproc",
        named = sym named,
        missing = const libc::ENOSYS,
    )
}
