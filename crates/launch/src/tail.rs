//! The end of what a program says: a thread that reads a pipe to its end and keeps the last part.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How much is kept, in bytes.
const KEPT: usize = 64 << 10;

#[derive(Default, Debug)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default, Debug)]
struct State {
    text: VecDeque<u8>,
    ended: bool,
}

/// The last part of what was written to a pipe.
#[derive(Debug)]
pub(crate) struct Tail(Arc<Shared>);

impl Tail {
    /// Reads `pipe` until its end, in a thread of its own.
    pub(crate) fn follow(pipe: File) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("probe-stderr".into())
            .spawn(move || theirs.read(pipe))?;
        Ok(Self(shared))
    }

    /// What has been kept so far. With `to_end`, waits for the pipe's end first, for a moment: all
    /// who could write are gone, so it is about to come.
    pub(crate) fn get(&self, to_end: bool) -> Vec<u8> {
        let mut state = self.0.lock();
        if to_end {
            let wait = Duration::from_secs(1);
            state = self
                .0
                .ended
                .wait_timeout_while(state, wait, |s| !s.ended)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.text.iter().copied().collect()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, mut pipe: File) {
        let mut buffer = vec![0; 8 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    let text = &mut self.lock().text;
                    text.extend(&buffer[..n]);
                    let surplus = text.len().saturating_sub(KEPT);
                    text.drain(..surplus);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.lock().ended = true;
        self.ended.notify_all();
    }
}
