//! The ends of threads and of the program: what is stored is executed.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Lazy;
use corewise_defer::{Adaptive, Environment, Pool, Settings, deferred};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

#[deferred]
trait Adds {
    fn add(&self, number: u64);
}

#[derive(Default)]
struct Sum(AtomicU64);

impl Adds for Sum {
    fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }
}

#[test]
fn the_end_of_a_thread_submits_what_its_last_destructors_deferred() {
    /// Defers a call when its thread ends.
    struct Last(Arc<Environment<AddsBuffer>>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.add(100);
        }
    }
    thread_local! {
        static LAST: Mutex<Option<Last>> = const { Mutex::new(None) };
    }
    let sum = Arc::new(Sum::default());
    let environment = Arc::new(Environment::<AddsBuffer>::new(Arc::clone(&sum)));
    let in_thread = Arc::clone(&environment);
    let thread = std::thread::spawn(move || {
        LAST.with(|last| *last.lock().unwrap() = Some(Last(Arc::clone(&in_thread))));
        in_thread.add(1);
    });
    thread.join().unwrap();
    environment.finish();
    assert_eq!(sum.0.load(Ordering::Relaxed), 101);
}

#[test]
fn a_waiter_helps_where_nobody_else_would_ever_come_to_it() {
    let sum = Arc::new(Sum::default());
    let settings = Settings::new(Lazy::default()).capacity(4);
    let environment: Environment<AddsBuffer> = settings.environment(Arc::clone(&sum));
    for number in 0..10 {
        environment.add(number);
    }
    let checkpoint = environment.checkpoint();
    environment.add(1000);
    assert!(!checkpoint.is_processed());
    // Any thread may wait.
    std::thread::scope(|scope| {
        scope.spawn(|| checkpoint.wait());
    });
    assert!(checkpoint.is_processed());
    assert!(sum.0.load(Ordering::Relaxed) >= 45);
    assert_eq!(environment.report().by_producers, 0);
}

#[test]
fn consumers_follow_a_capacity_and_the_queue_never_holds_a_producer() {
    struct None;
    impl corewise_defer::Capacity for None {
        fn threads(&self) -> u32 {
            0
        }
    }
    let sum = Arc::new(Sum::default());
    let settings = Settings::new(Adaptive::following(None, 1)).capacity(2);
    let environment: Environment<AddsBuffer> = settings.environment(Arc::clone(&sum));
    for _ in 0..10_000 {
        environment.add(1);
    }
    environment.finish();
    assert_eq!(sum.0.load(Ordering::Relaxed), 10_000);
    let report = environment.report();
    assert_eq!(report.waiting.as_nanos(), 0);
    assert_eq!(
        report.by_producers + report.by_consumers + report.by_waiters,
        5000
    );
}

/// What the child below leaves to the program's end.
static ENVIRONMENT: LazyLock<Environment<AddsBuffer>> =
    LazyLock::new(|| Settings::new(Pool::new(1, 1)).environment(Prints));

struct Prints;

impl Adds for Prints {
    fn add(&self, number: u64) {
        use std::io::Write as _;
        // To the descriptor itself: Rust's and the C library's buffers may be closed by then.
        let mut out = std::io::stderr();
        let _ = writeln!(out, "executed {number}");
    }
}

#[test]
fn the_programs_end_executes_what_is_stored_also_on_exit() {
    if let Ok(how) = std::env::var("CHILD") {
        ENVIRONMENT.add(7);
        let other = std::thread::spawn(|| {
            ENVIRONMENT.add(8);
            std::thread::park();
        });
        while ENVIRONMENT.report().bytes < 2 * 1024 {
            std::thread::yield_now();
        }
        // The other thread has its buffer now; give it time to store its call.
        std::thread::sleep(std::time::Duration::from_millis(50));
        match how.as_str() {
            "exit" => std::process::exit(3),
            _ => drop(other),
        }
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "the_programs_end_executes_what_is_stored_also_on_exit",
            "--exact",
            "--nocapture",
        ])
        .env("CHILD", "exit")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("executed 7") && said.contains("executed 8"),
        "{said}"
    );
}
