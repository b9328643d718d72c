//! The bounded queue between those who fill buffers and those who process them: first in, first out.

use crate::sync::{Condvar, Mutex, lock, wait};
use std::collections::VecDeque;

/// A bounded queue for any number of producers and consumers.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Something was put in, or the queue was closed.
    filled: Condvar,
    /// Something was taken out, or the queue was closed.
    emptied: Condvar,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<T>,
    /// Threads that wait for an item; without any, nobody is woken (a system call).
    takers: usize,
    /// Threads that wait for room.
    givers: usize,
    closed: bool,
}

impl<T> Queue<T> {
    /// A queue of at most `capacity` items, at least one.
    pub(crate) fn new(capacity: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(State {
                items: VecDeque::new(),
                takers: 0,
                givers: 0,
                closed: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            capacity: capacity.max(1),
        }
    }

    /// Puts an item in, if there is room.
    ///
    /// # Errors
    /// The item, if the queue is full or closed.
    pub(crate) fn try_push(&self, item: T) -> Result<(), T> {
        let state = lock(&self.state);
        if state.closed || state.items.len() >= self.capacity {
            return Err(item);
        }
        self.put(state, item);
        Ok(())
    }

    /// Puts an item in, and waits for room where there is none.
    ///
    /// # Errors
    /// The item, if the queue is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        while !state.closed && state.items.len() >= self.capacity {
            state.givers += 1;
            state = wait(&self.emptied, state);
            state.givers -= 1;
        }
        if state.closed {
            return Err(item);
        }
        self.put(state, item);
        Ok(())
    }

    fn put(&self, mut state: crate::sync::MutexGuard<'_, State<T>>, item: T) {
        state.items.push_back(item);
        if state.takers > 0 {
            drop(state);
            self.filled.notify_one();
        }
    }

    /// Takes the oldest item, and waits where there is none. `None`: the queue is closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        self.taken(self.filled()?)
    }

    /// Waits until there is an item, which another may take nevertheless. False: the queue is closed and empty.
    pub(crate) fn wait(&self) -> bool {
        self.filled().is_some()
    }

    fn filled(&self) -> Option<crate::sync::MutexGuard<'_, State<T>>> {
        let mut state = lock(&self.state);
        while state.items.is_empty() {
            if state.closed {
                return None;
            }
            state.takers += 1;
            state = wait(&self.filled, state);
            state.takers -= 1;
        }
        Some(state)
    }

    /// Takes the oldest item, if there is one.
    pub(crate) fn try_pop(&self) -> Option<T> {
        self.taken(lock(&self.state))
    }

    fn taken(&self, mut state: crate::sync::MutexGuard<'_, State<T>>) -> Option<T> {
        let item = state.items.pop_front();
        if state.givers > 0 {
            drop(state);
            self.emptied.notify_one();
        }
        item
    }

    /// Lets nothing more in. Those who wait for room get their items back; what is in can still be taken.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// How many items are in it.
    pub(crate) fn len(&self) -> usize {
        lock(&self.state).items.len()
    }
}
