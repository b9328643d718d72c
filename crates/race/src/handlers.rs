//! Functions that set signal handlers up, interposed: the system is told of [`arrives`] in the place of the
//! program's handlers, which are kept here, and the program sees its own.
//!
//! A process that is not searched, such as a child that got no room, has what its parent set up.
//!
//! **Why it is sound.** As in [`crate::interposed`]; the structures are the program's own, as the real functions take
//! them.

use crate::process;
use crate::signals::{arrives, learn_end, orders};
use corewise_analyses::inside::{Next, Quiet};
use libc::{c_int, c_void, sigaction as Action};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The program's handlers by signal, each with two of the flags that it wanted. The system has [`arrives`] in their
/// place.
static HANDLERS: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];
/// It is to be called once.
const ONCE: u64 = 1 << 63;
/// The flags that are kept, and how: to be told about the signal, and that one.
const FLAGS: [(c_int, u64); 2] = [(libc::SA_SIGINFO, 1 << 62), (libc::SA_RESETHAND, ONCE)];

/// Somebody sets a handler up.
static SETTING: AtomicBool = AtomicBool::new(false);

/// One thread at a time sets handlers up, and is not interrupted.
struct Setting {
    _quiet: Quiet,
}

impl Setting {
    fn begin() -> Setting {
        let setting = Setting {
            _quiet: Quiet::now(),
        };
        while SETTING.swap(true, Ordering::Acquire) {
            // SAFETY: gives the CPU away.
            unsafe { libc::sched_yield() };
        }
        setting
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        SETTING.store(false, Ordering::Release);
    }
}

/// Nobody does in a forked child, whatever its parent's other threads were doing.
pub(crate) fn forked() {
    SETTING.store(false, Ordering::Release);
}

/// The address of a handler that is kept.
fn address(kept: u64) -> usize {
    let flags = FLAGS.iter().fold(0, |all, (_, bit)| all | bit);
    (kept & !flags) as usize
}

fn slot(signal: c_int) -> Option<&'static AtomicU64> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

fn ours() -> usize {
    arrives as *const () as usize
}

/// Puts ours in the place of the program's handler, if there is one, which is kept.
fn replace(action: &mut Action, slot: &AtomicU64) {
    let handler = action.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    if handler != ours() {
        let wanted = FLAGS.iter().filter(|(flag, _)| action.sa_flags & flag != 0);
        let kept = wanted.fold(handler as u64, |kept, (_, bit)| kept | bit);
        slot.store(kept, Ordering::Relaxed);
    }
    action.sa_sigaction = ours();
    action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
}

/// Puts the program's handler, which is kept so, in the place of ours.
fn put_back(action: &mut Action, kept: u64) {
    if action.sa_sigaction == ours() {
        action.sa_sigaction = address(kept);
        for (flag, bit) in FLAGS {
            match kept & bit {
                0 => action.sa_flags &= !flag,
                _ => action.sa_flags |= flag,
            }
        }
    }
}

type SetAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

fn set_action() -> Option<SetAction> {
    static NEXT: Next = Next::new(c"sigaction");
    // SAFETY: a function of this type has this name.
    NEXT.get()
        .map(|real| unsafe { std::mem::transmute::<*mut c_void, SetAction>(real) })
}

/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let Some(real) = set_action() else {
        return -1;
    };
    let Some(slot) = slot(signal) else {
        // SAFETY: what came is handed on.
        return unsafe { real(signal, new, old) };
    };
    orders();
    let setting = Setting::begin();
    let kept = slot.load(Ordering::Relaxed);
    // SAFETY: the program's own structures, as the real function takes them.
    let (answer, why) = unsafe {
        let mut action = new.as_ref().copied();
        if let Some(action) = &mut action
            && process::current().is_some()
        {
            replace(action, slot);
        }
        let answer = real(
            signal,
            action.as_ref().map_or(null(), std::ptr::from_ref),
            old,
        );
        let why = *libc::__errno_location();
        if answer != 0 {
            slot.store(kept, Ordering::Relaxed);
        } else if let Some(old) = old.as_mut() {
            put_back(old, kept);
        }
        (answer, why)
    };
    learn_end(signal);
    drop(setting);
    if answer != 0 {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = why };
    }
    answer
}

/// The program set a handler up by an older function: it is replaced now.
fn adopt(signal: c_int, slot: &AtomicU64) {
    let Some(real) = set_action() else {
        return;
    };
    let _setting = Setting::begin();
    // SAFETY: plain structures.
    unsafe {
        let mut action: Action = std::mem::zeroed();
        if real(signal, null(), &raw mut action) == 0 {
            let found = action.sa_sigaction;
            replace(&mut action, slot);
            if action.sa_sigaction != found {
                real(signal, &raw const action, null_mut());
            }
        }
    }
    learn_end(signal);
}

/// Exports the older functions that set handlers up.
macro_rules! older {
    ($($name:ident $text:literal;)*) => {$(
        /// The C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(signal: c_int, handler: usize) -> usize {
            static NEXT: Next = Next::new($text);
            let Some(real) = NEXT.get() else {
                return libc::SIG_ERR;
            };
            let real = || {
                // SAFETY: a function of this type has this name; what came is handed on.
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, usize) -> usize>(
                        real,
                    )(signal, handler)
                }
            };
            set(signal, real)
        }
    )*};
}

older! {
    signal c"signal";
    bsd_signal c"bsd_signal";
    ssignal c"ssignal";
    sysv_signal c"sysv_signal";
    __sysv_signal c"__sysv_signal";
    sigset c"sigset";
}

fn set(signal: c_int, real: impl FnOnce() -> usize) -> usize {
    let Some(slot) = slot(signal) else {
        return real();
    };
    orders();
    let kept = slot.load(Ordering::Relaxed);
    let answer = real();
    if answer == libc::SIG_ERR {
        return answer;
    }
    if process::current().is_some() {
        adopt(signal, slot);
    }
    match answer == ours() {
        true => address(kept),
        false => answer,
    }
}

/// The program's handler of a signal that came: its address.
pub(crate) fn of(signal: c_int) -> u64 {
    let kept = slot(signal).map_or(0, |slot| slot.load(Ordering::Relaxed));
    if kept & ONCE != 0
        && let Some(real) = set_action()
    {
        // SAFETY: plain structures.
        unsafe {
            let default: Action = std::mem::zeroed();
            real(signal, &raw const default, null_mut());
        }
    }
    address(kept) as u64
}
