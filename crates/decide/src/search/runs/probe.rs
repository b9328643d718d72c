//! The probe before a number's first whole run: whether the program runs with it at all, and how much it does.

use crate::search::{Choice, Extent, Outcome, Search, Step, StopReason, Trial};
use crate::setting::Setting;

/// A search that makes one probe and chooses what it was told.
#[derive(Clone, Copy, Debug)]
pub struct Once {
    setting: Setting,
    window_ns: u64,
}

impl Once {
    /// One probe with `setting`, for a window of so many nanoseconds.
    pub fn new(setting: Setting, window_ns: u64) -> Once {
        Once { setting, window_ns }
    }
}

impl Search for Once {
    fn name(&self) -> &'static str {
        "once"
    }

    fn start(&mut self) -> Step {
        Step::Try(Trial {
            setting: self.setting,
            extent: Extent::Window(self.window_ns),
        })
    }

    fn next(&mut self, _: Outcome) -> Step {
        Step::Done(Choice {
            setting: self.setting,
            stop: StopReason::Exhausted,
            confidence: 0.0,
        })
    }
}
