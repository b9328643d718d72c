//! The times of whole runs, beside the result that they used.

use super::{Memory, SPEED};
use crate::history::{Record, WholeRuns};

impl Memory {
    /// Changes what is kept of the whole runs of this very work, as `change` says of the result and of them.
    pub(crate) fn amend_whole_runs(&mut self, change: impl FnOnce(&Record, &str, &mut WholeRuns)) {
        let (Some(history), Some(key)) = (self.history.as_mut(), &self.key) else {
            return;
        };
        let work = &self.work;
        let amended = history.amend(key, |record| {
            let mut whole = record.whole_runs.take().unwrap_or_default();
            change(record, work, &mut whole);
            record.whole_runs = Some(whole);
        });
        if let Err(error) = amended {
            self.warn(format!("the run is not remembered: {error}"));
        }
    }

    /// What the run works on, as [`WholeRuns`] tells it apart.
    pub(crate) fn work(&self) -> &str {
        &self.work
    }

    /// Whether the key is that of a machine on which nobody else is at work, and of speed.
    pub(crate) fn is_of_idle_machine(&self) -> bool {
        self.key
            .as_ref()
            .is_some_and(|key| key.load_class == 0 && key.objective == SPEED)
    }
}
