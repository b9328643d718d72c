//! Processes that die by a signal: what is stored is executed, and they die as they would have.
//!
//! Each test runs this file's program again, as the process that dies.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    unsafe_code,
    reason = "faults, signals and fork: what is tested is how a process dies"
)]

use corewise_defer::{Environment, Pool, Settings, deferred, save_on_fatal_signals};
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[deferred]
trait Says {
    fn say(&self, number: u64);
}

const FAULTS: u64 = 1000;
const NEVER_ENDS: u64 = 1001;

struct Prints;

impl Says for Prints {
    fn say(&self, number: u64) {
        match number {
            FAULTS => fault(),
            NEVER_ENDS => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            number => {
                let _ = writeln!(std::io::stderr(), "executed {number}");
            }
        }
    }
}

static ENVIRONMENT: LazyLock<Environment<SaysBuffer>> = LazyLock::new(|| {
    Settings::new(Pool::new(1, 4))
        .capacity(4)
        .environment(Prints)
});

fn fault() {
    // SAFETY: none: nothing can be at this address.
    unsafe { std::ptr::without_provenance_mut::<u8>(16).write_volatile(1) }
}

/// Dies with this way of dying in the variable, in a process of its own.
fn dies(test: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("DIES", test)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Whether this process is the one that dies.
fn is_child(test: &str) -> bool {
    std::env::var("DIES").is_ok_and(|dies| dies == test)
}

fn end(mut child: Child) -> (ExitStatus, String) {
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    (child.wait().unwrap(), said)
}

/// One call of this thread and one of another are stored, none executed.
fn store(longest: Duration) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a plain structure. No dumps of tests.
    assert_eq!(
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) },
        0
    );
    save_on_fatal_signals(longest).unwrap();
    static STORED: AtomicBool = AtomicBool::new(false);
    ENVIRONMENT.say(7);
    std::thread::spawn(|| {
        ENVIRONMENT.say(8);
        STORED.store(true, Ordering::Release);
        loop {
            std::thread::park();
        }
    });
    while !STORED.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn assert_saved(child: Child, signal: i32) {
    let (status, said) = end(child);
    assert_eq!(status.signal(), Some(signal), "{status} {said}");
    for call in ["executed 7", "executed 8"] {
        assert_eq!(said.matches(call).count(), 1, "{said}");
    }
}

#[test]
fn what_is_stored_is_executed_before_a_fault_ends_the_process() {
    const NAME: &str = "what_is_stored_is_executed_before_a_fault_ends_the_process";
    if is_child(NAME) {
        store(MINUTE);
        fault();
    }
    assert_saved(dies(NAME), libc::SIGSEGV);
}

#[test]
fn what_is_stored_is_executed_before_abort() {
    const NAME: &str = "what_is_stored_is_executed_before_abort";
    if is_child(NAME) {
        store(MINUTE);
        std::process::abort();
    }
    assert_saved(dies(NAME), libc::SIGABRT);
}

#[test]
fn what_is_stored_is_executed_where_the_stack_has_overflowed() {
    const NAME: &str = "what_is_stored_is_executed_where_the_stack_has_overflowed";
    #[expect(unconditional_recursion, reason = "the stack is to overflow")]
    fn deeper(level: u64) -> u64 {
        std::hint::black_box(deeper(std::hint::black_box(level + 1)) + 1)
    }
    if is_child(NAME) {
        store(MINUTE);
        deeper(0);
    }
    // Rust's own handler comes afterwards, says so, and aborts.
    let child = dies(NAME);
    assert_saved(child, libc::SIGABRT);
}

#[test]
fn what_is_stored_is_executed_before_another_process_signal_ends_it() {
    const NAME: &str = "what_is_stored_is_executed_before_another_process_signal_ends_it";
    if is_child(NAME) {
        store(MINUTE);
        let _ = writeln!(std::io::stderr(), "ready");
        loop {
            std::thread::park();
        }
    }
    let mut child = dies(NAME);
    let mut said = String::new();
    while !said.contains("ready") {
        let mut byte = [0];
        child
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        said.push(char::from(byte[0]));
    }
    // SAFETY: a signal to our own child.
    assert_eq!(
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) },
        0
    );
    assert_saved(child, libc::SIGTERM);
}

#[test]
fn a_body_that_never_ends_does_not_keep_the_process_from_dying() {
    const NAME: &str = "a_body_that_never_ends_does_not_keep_the_process_from_dying";
    if is_child(NAME) {
        store(Duration::from_millis(300));
        ENVIRONMENT.say(NEVER_ENDS);
        ENVIRONMENT.process_current();
        fault();
    }
    let (status, said) = end(dies(NAME));
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status} {said}");
    assert!(said.contains("executed 8"), "{said}");
}

#[test]
fn a_body_that_faults_on_another_thread_loses_no_other_calls() {
    const NAME: &str = "a_body_that_faults_on_another_thread_loses_no_other_calls";
    if is_child(NAME) {
        store(Duration::from_millis(300));
        ENVIRONMENT.process_current();
        ENVIRONMENT.say(FAULTS);
        ENVIRONMENT.process_current();
        loop {
            std::thread::park();
        }
    }
    assert_saved(dies(NAME), libc::SIGSEGV);
}

#[test]
fn signals_that_the_program_ignores_or_handles_are_left_to_it() {
    const NAME: &str = "signals_that_the_program_ignores_or_handles_are_left_to_it";
    static HANDLED: AtomicBool = AtomicBool::new(false);
    extern "C" fn handler(_: libc::c_int) {
        HANDLED.store(true, Ordering::Relaxed);
    }
    if is_child(NAME) {
        let entry: extern "C" fn(libc::c_int) = handler;
        // SAFETY: handlers that do nothing but an atomic store.
        unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            libc::signal(libc::SIGTERM, entry as libc::sighandler_t);
        }
        store(MINUTE);
        // SAFETY: signals to this thread.
        unsafe {
            libc::raise(libc::SIGHUP);
            libc::raise(libc::SIGTERM);
        }
        assert!(HANDLED.load(Ordering::Relaxed));
        assert_eq!(ENVIRONMENT.report().calls, 0);
        std::process::exit(5);
    }
    let (status, said) = end(dies(NAME));
    assert_eq!(status.code(), Some(5), "{status} {said}");
}

#[test]
fn a_forked_child_dies_at_once_and_executes_nothing_of_its_parents() {
    const NAME: &str = "a_forked_child_dies_at_once_and_executes_nothing_of_its_parents";
    if is_child(NAME) {
        store(MINUTE);
        // SAFETY: the child makes two system calls.
        let status = unsafe {
            let forked = libc::fork();
            if forked == 0 {
                libc::raise(libc::SIGTERM);
                libc::_exit(9);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(forked, &raw mut status, 0), forked);
            status
        };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM);
        fault();
    }
    assert_saved(dies(NAME), libc::SIGSEGV);
}
