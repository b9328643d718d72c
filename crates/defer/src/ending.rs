//! The program's end: what is stored is executed before the process goes, on a return from `main` and on
//! `exit` alike.
#![allow(unsafe_code, reason = "registers a plain function with the C library")]

use crate::sync::lock;
use std::sync::{Mutex, Once, Weak};

/// What is to be finished at the program's end.
pub(crate) trait Finish: Send + Sync {
    fn finish(&self);

    /// Processes what nobody else holds. Waits for nobody.
    fn process_free(&self);
}

static ALIVE: Mutex<Vec<Weak<dyn Finish>>> = Mutex::new(Vec::new());
static REGISTERED: Once = Once::new();

/// Finishes this at the program's end, if it is still there.
pub(crate) fn remember(environment: Weak<impl Finish + 'static>) {
    REGISTERED.call_once(|| {
        extern "C" fn at_exit() {
            let alive = std::mem::take(&mut *lock(&ALIVE));
            for environment in alive.iter().filter_map(Weak::upgrade) {
                environment.finish();
            }
        }
        // SAFETY: a function that lives as long as this library. Where there is no room for it, nothing
        // is finished at the end; environments that are dropped before still are.
        unsafe {
            libc::atexit(at_exit);
        }
    });
    let mut alive = lock(&ALIVE);
    alive.retain(|environment| environment.strong_count() > 0);
    alive.push(environment);
}

/// Executes what is stored in the environments that are finished at the program's end. Where others hold some of
/// it, and do not let go, this never returns: so what nobody holds comes first.
pub(crate) fn save_all() {
    let alive: Vec<_> = lock(&ALIVE).iter().filter_map(Weak::upgrade).collect();
    for environment in &alive {
        environment.process_free();
    }
    for environment in &alive {
        environment.finish();
    }
}
