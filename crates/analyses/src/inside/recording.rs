//! How a process that is watched defers what its threads record.

use super::{Lasting, modules};
use crate::region::{Entered, Region};
use corewise_defer::{Columns, Environment, Process, Producer};
use std::sync::OnceLock;

/// One process's recording: its image in the region, its environment of deferred calls, and the files that it was
/// seen to have mapped.
#[derive(Debug)]
pub struct Recording<C: Columns> {
    /// Where everything is.
    pub region: &'static Region,
    /// What this process executes.
    pub entered: Entered<'static>,
    /// Made by the first thread that needs it: a forked child often only executes something else.
    environment: OnceLock<Environment<C>>,
    modules: modules::Seen,
}

impl<C: Columns> Recording<C> {
    /// Nothing is recorded yet.
    pub fn new(region: &'static Region, entered: Entered<'static>) -> Recording<C> {
        Recording {
            region,
            entered,
            environment: OnceLock::new(),
            modules: modules::Seen::default(),
        }
    }

    /// The calling thread's end of the environment, whose buffers are processed so; it is made if there is none.
    pub fn producer(&self, process: impl Process<C>) -> Producer<C> {
        let environment = self.environment.get_or_init(|| {
            let settings = self.region.wanted().settings();
            let settings = settings.memory(Lasting::new(self.entered)).without_end();
            settings.environment_around(process)
        });
        environment.producer()
    }

    /// Looks whether libraries came or went.
    pub fn look_at_modules(&self) {
        self.modules.look(&self.entered);
    }

    /// What is done whenever a buffer is handed over: looks whether libraries came or went, and says how many
    /// buffers wait.
    pub fn at_exchange(&self) {
        self.look_at_modules();
        if let Some(environment) = self.environment.get() {
            self.entered.set_queued(environment.strategy().queued());
        }
    }

    /// Processes what is left, and says how buffers were processed.
    pub fn finish(&self) {
        self.look_at_modules();
        if let Some(environment) = self.environment.get() {
            environment.finish();
            self.entered.account(&environment.report());
        }
    }
}
