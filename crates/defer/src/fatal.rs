//! A process that is about to die by a signal: what is stored is executed first, as far as that goes.
//!
//! A signal handler may do next to nothing. So ours wakes a thread that was started before for this, the
//! *saver*, which finishes all environments, and waits for it for a limited time; then the process dies as it
//! would have.
//!
//! The thread that dies may hold any lock: that of a buffer, an allocator's, or one of the program's that a
//! body needs. The saver then gets as far as it gets. It takes the buffers first that nobody holds.
//!
//! **Why it is sound.** The handler only makes calls that are allowed in handlers (signal-safety(7)), on
//! atomics and descriptors that exist before it is installed and are never closed.
#![allow(unsafe_code, reason = "see the module's head")]

use crate::ending;
use crate::signals::{FAULTS, SignalsBlocked};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// What ends a process whose program does not say otherwise.
const ENDS: [libc::c_int; 7] = [
    libc::SIGABRT,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

/// Signals have numbers below this.
const SIGNALS: usize = 65;

/// What the handler needs. Made before it is installed.
struct Saver {
    /// An event for the saver, and one from it.
    asked: libc::c_int,
    saved: libc::c_int,
    /// The process that has a saver; a forked child has none.
    process: libc::pid_t,
    longest_ms: AtomicI32,
    thread: libc::pid_t,
    begun: AtomicBool,
    /// What was in the place of our handler.
    before: [OnceLock<libc::sigaction>; SIGNALS],
}

static SAVER: OnceLock<Saver> = OnceLock::new();

/// From now on, calls that are stored are executed before this process dies by a signal, in every environment
/// that is finished at the program's end.
///
/// The thread that dies waits until that is done, but no longer than `longest`; other threads go on meanwhile,
/// and what they call may be lost. Bodies run in a process that is about to die: what they need may be broken
/// or locked. Then the process dies by the same signal, with its memory as it was for a dump.
///
/// Signals that the program handles or ignores are left to it, but for those of faults (such as `SIGSEGV`):
/// their handlers are called afterwards. A handler that goes on after a fault is installed after this call.
/// `SIGKILL` cannot be held up: [`Memory`](crate::Memory) that outlives the process survives that, too.
///
/// May be called again, with another `longest`. It costs one sleeping thread.
///
/// # Errors
/// The system has no room for the thread, two descriptors, or refuses a handler.
pub fn save_on_fatal_signals(longest: Duration) -> io::Result<()> {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = crate::sync::lock(&ONE_AT_A_TIME);
    let longest_ms = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
    if let Some(saver) = SAVER.get() {
        saver.longest_ms.store(longest_ms, Ordering::Relaxed);
        return Ok(());
    }
    let (asked, saved) = (event()?, event()?);
    let wait = asked.as_raw_fd();
    let tell = saved.as_raw_fd();
    let (said, tid) = std::sync::mpsc::channel();
    {
        let _masked = SignalsBlocked::now();
        std::thread::Builder::new()
            .name("corewise-saver".to_owned())
            .stack_size(1 << 20)
            .spawn(move || {
                // SAFETY: asks for a number.
                let _ = said.send(unsafe { libc::gettid() });
                take(wait);
                ending::save_all();
                give(tell);
            })?;
    }
    let thread = tid.recv().map_err(io::Error::other)?;
    let saver = SAVER.get_or_init(|| Saver {
        asked: asked.into_raw_fd(),
        saved: saved.into_raw_fd(),
        process: std::process::id().cast_signed(),
        longest_ms: AtomicI32::new(longest_ms),
        thread,
        begun: AtomicBool::new(false),
        before: [const { OnceLock::new() }; SIGNALS],
    });
    FAULTS
        .into_iter()
        .try_for_each(|signal| install(saver, signal, true))?;
    ENDS.into_iter()
        .try_for_each(|signal| install(saver, signal, false))
}

/// Installs the handler; `always`: also where the program has one of its own.
fn install(saver: &Saver, signal: libc::c_int, always: bool) -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call fills the structure when it succeeds.
    let before = unsafe {
        if libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        before.assume_init()
    };
    let there = before.sa_sigaction;
    if there == libc::SIG_IGN || there != libc::SIG_DFL && !always {
        return Ok(());
    }
    let _ = saver.before[signal as usize].set(before);
    let entry: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = dying;
    // SAFETY: a plain structure, of which everything that counts is set; a function of that type.
    unsafe {
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = entry as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // Nothing interrupts the wait.
        libc::sigfillset(&raw mut ours.sa_mask);
        match libc::sigaction(signal, &raw const ours, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The handler.
extern "C" fn dying(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(saver) = SAVER.get() else { return };
    // SAFETY: plain system calls; `info` is the kernel's.
    unsafe {
        let errno = libc::__errno_location();
        let error = *errno;
        if libc::getpid() == saver.process && libc::gettid() != saver.thread {
            if !saver.begun.swap(true, Ordering::AcqRel) {
                give(saver.asked);
            }
            // Readable from then on: several threads may die at once.
            let mut events = libc::pollfd {
                fd: saver.saved,
                events: libc::POLLIN,
                revents: 0,
            };
            libc::poll(&raw mut events, 1, saver.longest_ms.load(Ordering::Relaxed));
        }
        if let Some(before) = saver.before.get(signal as usize).and_then(OnceLock::get) {
            libc::sigaction(signal, before, std::ptr::null_mut());
        }
        // What the kernel says of a fault comes again by itself. What was sent does not.
        if !(FAULTS.contains(&signal) && (*info).si_code > 0) {
            libc::raise(signal);
        }
        *errno = error;
    }
}

fn event() -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: a new descriptor, which is ours.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

fn give(event: libc::c_int) {
    // SAFETY: eight bytes of ours.
    unsafe {
        libc::write(event, (&raw const ONE).cast(), 8);
    }
}

static ONE: u64 = 1;

fn take(event: libc::c_int) {
    let mut count = 0_u64;
    // SAFETY: eight bytes of ours. Signals are blocked: only an event ends it.
    unsafe {
        libc::read(event, (&raw mut count).cast(), 8);
    }
}
