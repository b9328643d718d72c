//! Waiting for threads to end, and their names, interposed.
//!
//! **Why it is sound.** As in [`crate::interposed`].

use crate::interposed::{Call, interposed, nothing_before};
use crate::thread::Thread;
use crate::waits::waits;
use libc::c_int;

fn joined(call: &Call, answer: i64) {
    if answer as c_int == 0
        && let Some(thread) = Thread::active()
    {
        thread.quietly(|thread| {
            let process = thread.process;
            let mut threads = process.threads();
            if let Some(clock) = threads.ended.remove(&call.arguments[0]) {
                let learned = thread.clock.acquire(&clock);
                thread.alone = threads.only(thread.clock.clock());
                drop(threads);
                thread.clock_changed(learned);
            }
        });
    }
}

fn named(call: &Call, answer: i64) {
    let [other, name, ..] = call.arguments;
    // SAFETY: asks who this is.
    let own = unsafe { libc::pthread_self() } as u64 == other;
    if answer as c_int == 0
        && own
        && let Some(thread) = Thread::active()
        && let Some(record) = thread.record
    {
        // SAFETY: a name that ends, as the C library has found.
        let name = unsafe { std::ffi::CStr::from_ptr(name as *const libc::c_char) };
        thread.process.search.name_thread(record, name.to_bytes());
    }
}

interposed! { libc::ENOSYS;
    pthread_join c"pthread_join" waits joined;
    pthread_tryjoin_np c"pthread_tryjoin_np" nothing_before joined;
    pthread_timedjoin_np c"pthread_timedjoin_np" waits joined;
    pthread_clockjoin_np c"pthread_clockjoin_np" waits joined;
    thrd_join c"thrd_join" waits joined;
    pthread_setname_np c"pthread_setname_np" nothing_before named;
}
