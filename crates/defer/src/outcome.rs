//! Futures and semaphores: arguments by which a body tells its caller something.
//!
//! Whoever waits here waits for calls, which may still be stored in its own buffer, or stand in a queue
//! behind busy CPUs. So waiting needs the environment: the waiter submits its buffer and helps.

use crate::columns::Columns;
use crate::environment::Environment;
use crate::sync::lock;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Nothing is left to help with: look again after so long, since buffers may have come meanwhile.
const LOOKS: Duration = Duration::from_millis(5);

/// The part of a future that goes with a call: its body [keeps](Promise::keep) it.
#[derive(Debug)]
pub struct Promise<T> {
    shared: Arc<Shared<State<T>>>,
}

/// The part of a future that stays with the caller.
#[derive(Debug)]
pub struct Outcome<T> {
    shared: Arc<Shared<State<T>>>,
}

#[derive(Debug)]
enum State<T> {
    Open,
    Kept(T),
    Broken,
}

#[derive(Debug)]
struct Shared<S> {
    state: Mutex<S>,
    changed: Condvar,
}

/// A future: what a deferred call is to find out.
///
/// ```
/// use corewise_defer::{deferred, promise, Environment, Promise};
///
/// #[deferred]
/// trait Sums {
///     fn sum(&self, numbers: Vec<u64>, result: Promise<u64>);
/// }
///
/// struct Adder;
/// impl Sums for Adder {
///     fn sum(&self, numbers: Vec<u64>, result: Promise<u64>) {
///         result.keep(numbers.iter().sum());
///     }
/// }
///
/// let sums = Environment::<SumsBuffer>::new(Adder);
/// let (result, sum) = promise();
/// sums.sum(vec![1, 2, 3], result);
/// assert_eq!(sum.wait(&sums), Some(6));
/// ```
pub fn promise<T>() -> (Promise<T>, Outcome<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State::Open),
        changed: Condvar::new(),
    });
    let outcome = Outcome {
        shared: Arc::clone(&shared),
    };
    (Promise { shared }, outcome)
}

impl<T> Promise<T> {
    /// Gives the result.
    pub fn keep(self, value: T) {
        *lock(&self.shared.state) = State::Kept(value);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        if matches!(*state, State::Open) {
            *state = State::Broken;
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl<T> Outcome<T> {
    /// The result, if it is there. Does not wait; the second time there is none.
    pub fn try_take(&self) -> Option<T> {
        let mut state = lock(&self.shared.state);
        match std::mem::replace(&mut *state, State::Broken) {
            State::Kept(value) => Some(value),
            open @ State::Open => {
                *state = open;
                None
            }
            State::Broken => None,
        }
    }

    /// Waits for the result. `None`: the promise was dropped without one, as when the call was thrown away
    /// or its body panicked.
    pub fn wait<C: Columns>(self, environment: &Environment<C>) -> Option<T> {
        wait_until(&self.shared, environment, |state| {
            match std::mem::replace(state, State::Broken) {
                State::Open => {
                    *state = State::Open;
                    None
                }
                State::Kept(value) => Some(Some(value)),
                State::Broken => Some(None),
            }
        })
    }
}

/// Permits that bodies release and callers acquire. Clones share their permits.
#[derive(Clone, Debug)]
pub struct Semaphore {
    shared: Arc<Shared<u64>>,
}

impl Semaphore {
    /// With so many permits.
    pub fn new(permits: u64) -> Semaphore {
        Semaphore {
            shared: Arc::new(Shared {
                state: Mutex::new(permits),
                changed: Condvar::new(),
            }),
        }
    }

    /// Adds a permit.
    pub fn release(&self) {
        *lock(&self.shared.state) += 1;
        self.shared.changed.notify_one();
    }

    /// Takes a permit, if there is one.
    pub fn try_acquire(&self) -> bool {
        let mut permits = lock(&self.shared.state);
        let has = *permits > 0;
        *permits -= u64::from(has);
        has
    }

    /// Takes a permit, and waits for the calls of an environment to release one.
    pub fn acquire<C: Columns>(&self, environment: &Environment<C>) {
        wait_until(&self.shared, environment, |permits| {
            *permits = permits.checked_sub(1)?;
            Some(())
        });
    }
}

fn wait_until<S, C: Columns, T>(
    shared: &Shared<S>,
    environment: &Environment<C>,
    mut ready: impl FnMut(&mut S) -> Option<T>,
) -> T {
    if let Some(found) = ready(&mut lock(&shared.state)) {
        return found;
    }
    environment.process_current();
    loop {
        if let Some(found) = ready(&mut lock(&shared.state)) {
            return found;
        }
        if environment.strategy().help() {
            continue;
        }
        let mut state = lock(&shared.state);
        if let Some(found) = ready(&mut state) {
            return found;
        }
        let waited = shared.changed.wait_timeout(state, LOOKS);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
