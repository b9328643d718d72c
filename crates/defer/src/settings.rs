//! How an environment is made.

use crate::columns::{Columns, Execute};
use crate::consumers::Adaptive;
use crate::environment::Environment;
use crate::memory::Memory;
use crate::strategy::Strategy;
use crate::work::Process;
use std::sync::Arc;

/// The variable that says the capacity of buffers, in calls, where the program does not.
pub const CAPACITY_VARIABLE: &str = "COREWISE_DEFER_CAPACITY";

/// Settings of an environment. By default: [`Adaptive`], buffers on the heap, and the capacity of
/// [`CAPACITY_VARIABLE`], or else one that is found while the program runs.
pub struct Settings {
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) capacity: Option<u32>,
    pub(crate) memory: Option<Arc<dyn Memory>>,
    pub(crate) ends: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings::new(Adaptive::new())
    }
}

impl Settings {
    /// With this strategy.
    pub fn new(strategy: impl Strategy) -> Settings {
        let capacity = std::env::var(CAPACITY_VARIABLE).ok();
        Settings {
            strategy: Arc::new(strategy),
            capacity: capacity
                .and_then(|calls| calls.trim().parse().ok())
                .filter(|calls| *calls > 0),
            memory: None,
            ends: true,
        }
    }

    /// With buffers of so many calls, at least 1.
    #[must_use]
    pub fn capacity(mut self, calls: u32) -> Settings {
        self.capacity = Some(calls.max(1));
        self
    }

    /// With buffers in this memory. Where it has nothing left, producers process their own buffers.
    #[must_use]
    pub fn memory(mut self, memory: impl Memory) -> Settings {
        self.memory = Some(Arc::new(memory));
        self
    }

    /// Not finished at the program's end, unless it is dropped before: whoever makes it sees to that.
    #[must_use]
    pub fn without_end(mut self) -> Settings {
        self.ends = false;
        self
    }

    /// An environment that executes its calls on `target`.
    pub fn environment<C: Columns + Execute<T>, T: Send + Sync + 'static>(
        self,
        target: T,
    ) -> Environment<C> {
        Environment::with(target, self)
    }

    /// An environment with something done around each buffer (see [`Process`]).
    pub fn environment_around<C: Columns>(self, process: impl Process<C>) -> Environment<C> {
        Environment::with_process(Box::new(process), self)
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
