//! Word of this process's own stops, for a thread that holds the program still at times.
//!
//! Such a thread cannot let the program go while this whole process is stopped, as by Ctrl-Z. And the program has
//! to see that signal too, and may want to put its terminal back before it stops. So where somebody asked for
//! notice, the signals of job control do not stop this process at once: a handler says so, waits a moment until
//! the program was let go, and stops then. SIGSTOP cannot be handled: who sends it to this process alone leaves the
//! program as it is at that moment, perhaps standing still, until this process is continued or killed.
//!
//! # Safety
//! The handler makes only system calls that handlers may make, on descriptors that are never closed once they
//! are known to it, and touches only atomics.
#![allow(unsafe_code)]

use crate::run;
use crate::signals::{self, Inherited};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// What job control stops a process by, unless it is handled.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// A stop waits no longer than this for the program to be let go: mostly for microseconds, but where many wait for
/// CPUs, until each of its threads has had one.
const LONGEST_WAIT_MS: i32 = 2_000;

/// Both for the life of the process: a handler may be about to use them.
struct Descriptors {
    /// Readable when this process is about to stop, and when it goes on.
    told: OwnedFd,
    /// Readable when the program was let go.
    done: OwnedFd,
}

static DESCRIPTORS: OnceLock<Descriptors> = OnceLock::new();
static STOPPING: AtomicBool = AtomicBool::new(false);
/// The thread that waits for the program; 0: none.
static WAITER: AtomicI32 = AtomicI32::new(0);

/// While this exists, this process says when it stops.
#[derive(Debug)]
pub struct Notice {
    /// Only [`Notice::give`] makes one.
    _private: (),
}

impl Notice {
    /// Gives notice from now on. Meant for one who is there once in a process.
    ///
    /// # Errors
    /// When there are no descriptors to be had.
    pub fn give() -> io::Result<Notice> {
        if DESCRIPTORS.get().is_none() {
            let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let (told, done) = (event()?, event()?);
            // If somebody was faster theirs serve.
            let _ = DESCRIPTORS.set(Descriptors { told, done });
        }
        for signal in STOPS {
            // What was ignored stays ignored.
            if !Inherited::get().ignores(signal) {
                handle(signal, stop as Handler, libc::SA_RESTART);
            }
        }
        // Stops of children are not worth a signal: whoever waits is told. And one that is sent on purpose has
        // that one ask again.
        handle(libc::SIGCHLD, ask_again as Handler, libc::SA_NOCLDSTOP);
        Ok(Notice { _private: () })
    }

    /// Readable when there is something new; whoever reads it asks [`is_stopping`](Notice::is_stopping).
    pub fn told(&self) -> Option<BorrowedFd<'static>> {
        DESCRIPTORS.get().map(|d| d.told.as_fd())
    }

    /// Whether this process is about to stop: then the program must be let go, and [`let_go`](Notice::let_go)
    /// called.
    pub fn is_stopping(&self) -> bool {
        STOPPING.load(Ordering::SeqCst)
    }

    /// Says that the program was let go.
    pub fn let_go(&self) {
        if let Some(descriptors) = DESCRIPTORS.get() {
            write(descriptors.done.as_raw_fd());
        }
    }

    /// Has the thread that waits for the program look at it again: its stop by job control was hidden from it
    /// while the program was held.
    pub fn look_again(&self) {
        let waiter = WAITER.load(Ordering::SeqCst);
        if waiter > 0 {
            // SAFETY: a system call; should the thread have ended it fails.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), waiter, libc::SIGCHLD) };
        }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        for signal in STOPS.into_iter().chain([libc::SIGCHLD]) {
            signals::set_disposition(
                signal,
                signal != libc::SIGCHLD && Inherited::get().ignores(signal),
            );
        }
    }
}

/// This thread waits for the program from now on, and stops with it.
pub(crate) fn waiter_is_here() {
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() };
    WAITER.store(tid, Ordering::SeqCst);
}

type Handler = extern "C" fn(i32);

fn handle(signal: i32, handler: Handler, flags: i32) {
    // SAFETY: the handlers keep to what handlers may do; the struct is complete.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        action.sa_mask = signals::set_of(&STOPS);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn ask_again(_: i32) {}

extern "C" fn stop(signal: i32) {
    // SAFETY: system calls that handlers may make, on values of this function's own and descriptors that are
    // never closed; the thread's error number is put back.
    unsafe {
        let kept = *libc::__errno_location();
        let before = run::continuations();
        // All that has to do with stops happens in one thread, one after the other.
        let waiter = WAITER.load(Ordering::SeqCst);
        if waiter > 0 && waiter != libc::gettid() {
            let sent = libc::syscall(libc::SYS_tgkill, libc::getpid(), waiter, signal);
            *libc::__errno_location() = kept;
            if sent == 0 {
                return;
            }
        }
        if let Some(descriptors) = DESCRIPTORS.get() {
            // An answer that came too late for the last stop is none to this one.
            await_word(descriptors.done.as_raw_fd(), 0);
            STOPPING.store(true, Ordering::SeqCst);
            write(descriptors.told.as_raw_fd());
            await_word(descriptors.done.as_raw_fd(), LONGEST_WAIT_MS);
        }
        // As without a handler: the signal is blocked here, so that it waits until it has its default effect
        // again. Where this process was continued meanwhile it is taken back, as the kernel would have.
        let mut ours = MaybeUninit::<libc::sigaction>::zeroed();
        let mut default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const default, ours.as_mut_ptr());
        libc::raise(signal);
        let set = signals::set_of(&[signal]);
        if run::continuations() == before {
            signals::change_mask(libc::SIG_UNBLOCK, &set);
            // Here it has stopped, and been continued.
            signals::change_mask(libc::SIG_BLOCK, &set);
            run::await_continuation(before);
        } else {
            signals::discard(&set);
        }
        libc::sigaction(signal, ours.as_ptr(), std::ptr::null_mut());
        STOPPING.store(false, Ordering::SeqCst);
        if let Some(descriptors) = DESCRIPTORS.get() {
            write(descriptors.told.as_raw_fd());
        }
        *libc::__errno_location() = kept;
    }
}

/// Makes an event descriptor readable.
fn write(event: i32) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: as many bytes as there are. A counter that is full says the same as one that is not.
    unsafe { libc::write(event, one.as_ptr().cast(), one.len()) };
}

/// Waits until an event descriptor is readable, and empties it.
fn await_word(event: i32, longest_ms: i32) {
    let mut polled = libc::pollfd {
        fd: event,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut word = [0_u8; 8];
    // SAFETY: a struct and a buffer that live through the calls, with their true sizes.
    unsafe {
        libc::poll(&raw mut polled, 1, longest_ms);
        libc::read(event, word.as_mut_ptr().cast(), word.len());
    }
}
