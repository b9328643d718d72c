//! Whether a CPU is free, asked without holding anything that others may wait for.
//!
//! **Why.** A thread at Linux's lowest priority runs where nothing else wants a CPU. One that processed buffers so
//! would hold them, and the locks that their calls take, while it is not let run: beside a busy process that is a
//! second for a millisecond's work, and whoever waits for the buffer waits as long. Nobody can help: an ordinary user
//! may not raise such a thread again, and Linux lends it no priority of who waits. So the thread at the lowest
//! priority, the *scout*, does nothing but to say that it runs; the consumer that it belongs to runs as the program
//! does, and takes no more than a little at a time before it asks again.
//!
//! **The protocol.** The consumer stores `ASKED`, wakes the scout, and sleeps until it finds something else there.
//! The scout, when it runs, replaces `ASKED` by `FREE`, and wakes the consumer. [`Gate::open`] stores `OPEN`, which
//! nothing replaces: nobody is asked any more, and the scout ends when it runs next. Every change is an exchange, so
//! that none is made on what another has replaced. (`tests/loom.rs` checks this.)

use crate::sync::{AtomicU32, Ordering, Sleeper};

const FREE: u32 = 0;
const ASKED: u32 = 1;
const OPEN: u32 = 2;

/// What a consumer and its scout share.
pub(crate) struct Gate {
    state: AtomicU32,
    consumer: Sleeper,
}

impl Gate {
    pub(crate) fn new(consumer: Sleeper) -> Gate {
        Gate {
            state: AtomicU32::new(FREE),
            consumer,
        }
    }

    /// Waits until the scout has run once, or the gate is open. Only the consumer calls this.
    pub(crate) fn pass(&self, scout: &Sleeper) {
        let asked = self
            .state
            .compare_exchange(FREE, ASKED, Ordering::AcqRel, Ordering::Acquire);
        if asked.is_err() {
            return;
        }
        scout.wake();
        while self.state.load(Ordering::Acquire) == ASKED {
            self.consumer.sleep();
        }
    }

    /// What the scout does all its life.
    pub(crate) fn scout(&self, this: &Sleeper) {
        loop {
            match self.state.load(Ordering::Acquire) {
                OPEN => return,
                ASKED => {
                    let answered = self.state.compare_exchange(
                        ASKED,
                        FREE,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if answered.is_ok() {
                        self.consumer.wake();
                    }
                }
                _ => this.sleep(),
            }
        }
    }

    /// Lets the consumer pass from now on, and ends its scout.
    pub(crate) fn open(&self, scout: &Sleeper) {
        self.state.swap(OPEN, Ordering::AcqRel);
        self.consumer.wake();
        scout.wake();
    }
}
