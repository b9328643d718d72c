//! Signal handlers: what a thread did before it set one up comes before what the handler does, on whichever
//! thread it runs. What the program asked to be ignored there is not ignored in the handler, which can come at any
//! moment: what it releases would be missed.
//!
//! A handler is known by where it returns to: a few instructions of the C library that end it, the same for
//! all.
//!
//! **Signals wait for what is ours.** A handler need not return: where it leaves by `siglongjmp` while something of
//! ours holds a lock, nobody would ever get that lock again. So the system calls [`arrives`], which sends a signal that
//! comes then to the same thread again, where it is blocked until ours has ended. What a thread's own instruction
//! raises cannot wait. (ThreadSanitizer's runtime lets others wait until the program calls a function of the C
//! library that may block.)
//!
//! **Why it is sound.** As in [`crate::interposed`]. [`arrives`] is on the stack while [`comes`] runs, and gone before
//! the program's handler begins, which gets what the system handed over. What [`comes`] shares with the code that it
//! interrupts are two words of the thread's, which are read and written as a whole.

use crate::handlers;
use crate::thread::Thread;
use corewise_analyses::inside::word;
use libc::{c_int, siginfo_t, ucontext_t};
use std::ptr::null;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where handlers return to; 0: none was set up yet.
static END: AtomicU64 = AtomicU64::new(0);

/// The address that stands for all signals.
fn key() -> u64 {
    END.as_ptr() as u64
}

/// As the kernel has it, with the longest set of signals that there is.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: u64,
    flags: u64,
    end: u64,
    mask: [u64; 2],
}

/// What a program did comes before what its handler does that it is about to set up.
pub(crate) fn orders() {
    if let Some(thread) = Thread::active() {
        thread.release(key());
    }
}

/// Finds out where handlers return to, once there is one.
pub(crate) fn learn_end(signal: c_int) {
    if END.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut action = KernelAction::default();
    // SAFETY: room for what is asked for; a set of signals has eight bytes.
    let asked = unsafe {
        let nothing = null::<KernelAction>();
        libc::syscall(libc::SYS_rt_sigaction, signal, nothing, &raw mut action, 8)
    };
    if asked == 0 {
        END.store(action.end, Ordering::Relaxed);
    }
}

/// What the system calls for each signal that has a handler: asks for it, and jumps there.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn arrives() {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {comes}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        comes = sym comes,
    )
}

/// A signal came. The handler that is to be called; 0: none, now.
unsafe extern "C" fn comes(signal: c_int, told: *mut siginfo_t, at: *mut ucontext_t) -> u64 {
    // SAFETY: this thread's own; what the system handed over.
    unsafe {
        let errno = *libc::__errno_location();
        let waits = !is_its_own(signal, (*told).si_code) && is_late(signal, told, at);
        let handler = match waits {
            true => 0,
            false => handlers::of(signal),
        };
        *libc::__errno_location() = errno;
        handler
    }
}

/// Whether an instruction of the thread raised the signal: it would be raised again and again.
fn is_its_own(signal: c_int, code: c_int) -> bool {
    let raised = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    code > 0 && raised.contains(&signal)
}

/// Where something of ours was interrupted, the signal is sent again, and blocked until that has ended.
unsafe fn is_late(signal: c_int, told: *mut siginfo_t, at: *mut ucontext_t) -> bool {
    let thread = word::get().cast::<Thread>();
    let bit = 1_u64 << (signal - 1);
    // SAFETY: null, or this thread's own; the kernel's set of signals has eight bytes, and begins the C library's.
    unsafe {
        let stack = (*at).uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
        if thread.is_null() || !Thread::is_busy(thread, stack) {
            return false;
        }
        change_mask(libc::SIG_BLOCK, bit);
        let (process, this) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let sent = libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, this, signal, told) == 0
            || libc::syscall(libc::SYS_tgkill, process, this, signal) == 0;
        if sent {
            *(&raw mut (*at).uc_sigmask).cast::<u64>() |= bit;
            Thread::has_late(thread, bit);
        }
        // What is blocked now is put back as the handler ends.
        sent
    }
}

/// Signals that were blocked while something of ours ran come now. They do so at the very end: a handler need not
/// return.
#[cold]
pub(crate) fn come_late(signals: impl FnOnce() -> u64) {
    let before = change_mask(libc::SIG_SETMASK, u64::MAX);
    change_mask(libc::SIG_SETMASK, before & !signals());
}

/// Changes which signals are blocked, also those that the C library keeps to itself. Those that were before.
fn change_mask(how: c_int, signals: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel's sets of signals have eight bytes.
    unsafe {
        let (call, new, old) = (
            libc::SYS_rt_sigprocmask,
            &raw const signals,
            &raw mut before,
        );
        libc::syscall(call, how, new, old, 8);
    }
    before
}

/// A function begins that was called from there: is it a handler?
#[inline(always)]
pub(crate) fn enters(thread: &mut Thread, code: u64) {
    if code == END.load(Ordering::Relaxed) {
        learns(thread);
    }
}

#[cold]
fn learns(thread: &mut Thread) {
    // Not in the middle of something of ours.
    if Thread::active().is_some() {
        if thread.ignored > 0 || thread.orders_ignored > 0 {
            thread.set_ignoring_aside();
        }
        thread.acquire(key());
    }
}
