//! Libraries that are unloaded: they are entered before, so that what their code did has names and lines.
//!
//! **Why it is sound.** As in [`crate::interposed`]: the library's destructors run in the real function.

use crate::interposed::{Call, interposed, nothing_after};
use crate::process;
use crate::thread::Thread;
use corewise_analyses::inside::Quiet;

fn looks(_: &Call) {
    let Some(process) = process::current() else {
        return;
    };
    let look = || {
        let _quiet = Quiet::now();
        process.recording.look_at_modules();
    };
    match (Thread::existing(), Thread::active()) {
        (_, Some(thread)) => thread.quietly(|_| look()),
        (None, _) => look(),
        // It comes from something of ours.
        (Some(_), None) => {}
    }
}

interposed! { -1;
    dlclose c"dlclose" looks nothing_after;
}
