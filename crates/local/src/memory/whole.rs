//! The times of whole runs, beside the result that they used.

use super::{Memory, SPEED};
use crate::history::{Record, WholeRuns};
use std::os::fd::AsFd as _;

impl Memory {
    /// Changes what is kept of the whole runs of this very work, as `change` says of the result and of them. Only of
    /// the idle machine's result: meanwhile others may have come to work.
    pub(crate) fn amend_whole_runs(&mut self, change: impl FnOnce(&Record, &str, &mut WholeRuns)) {
        if !self.is_of_idle_machine() {
            return;
        }
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

    /// Whether the run's times can be compared with others': what comes through a pipe or a socket is not known to be
    /// the same.
    pub(crate) fn is_repeatable(&self) -> bool {
        let stat = rustix::fs::fstat(std::io::stdin().as_fd());
        let kind = stat.map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
        !kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
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
