//! How the threads run that process buffers.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "asks how the calling thread is scheduled")]

use corewise_defer::{Adaptive, Environment, Pool, Settings, Strategy, deferred};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[deferred]
trait Looks {
    fn look(&self);
}

/// The policies of the threads that executed calls.
#[derive(Default)]
struct Policies(Mutex<BTreeSet<libc::c_int>>);

impl Looks for Policies {
    fn look(&self) {
        self.0.lock().unwrap().insert(policy());
    }
}

fn policy() -> libc::c_int {
    // SAFETY: a system call on the calling thread.
    unsafe { libc::sched_getscheduler(0) }
}

fn policies(strategy: impl Strategy) -> Option<BTreeSet<libc::c_int>> {
    let policies = Arc::new(Policies::default());
    let environment: Environment<LooksBuffer> = Settings::new(strategy)
        .capacity(1)
        .environment(Arc::clone(&policies));
    let began = Instant::now();
    while environment.report().by_consumers == 0 {
        environment.look();
        std::thread::sleep(Duration::from_micros(100));
        if began.elapsed() > Duration::from_secs(20) {
            eprintln!("skipped: no CPU was free for a consumer");
            return None;
        }
    }
    drop(environment);
    Some(std::mem::take(&mut *policies.0.lock().unwrap()))
}

#[test]
fn who_has_a_buffer_in_hand_never_runs_behind_all_others() {
    // At the lowest priority it would hold the buffer, and locks, for as long as others keep it from running.
    for found in [
        policies(Adaptive::with_queue(2)),
        policies(Pool::at_lowest_priority(1, 2)),
        policies(Pool::new(1, 2)),
    ] {
        let Some(found) = found else { continue };
        assert_eq!(found, BTreeSet::from([policy()]));
    }
}
